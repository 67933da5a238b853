"""The checker of the RocketMQ protocol finds a planted violation of every rule, and accepts what a broker may do.

Ref: docs/limits.md, "What is promised, and what is not".
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash import rocketmq_load
from tests.crash.history import BrokerComplained, Crashed, Drained, History, Outcome, Payload, make_body
from tests.crash.rocketmq_checker import RocketmqChecker
from tests.crash.rocketmq_history import (
    ChannelMade,
    ChannelRead,
    CheckAsked,
    CommitAnswered,
    CommitSent,
    CommittedFound,
    Decision,
    EndAnswered,
    Ended,
    KeyFound,
    Kind,
    Place,
    Pulled,
    Read,
    Scanned,
    SendAnswered,
    Sent,
    SentBack,
    SentBackAnswered,
    TopicAsked,
    TopicDeleteAsked,
    TopicDeleted,
    TopicGranted,
    TopicsFound,
    key_of,
)
from tests.crash.rocketmq_load import RocketmqLoad
from tests.crash.rocketmq_rules import CURSORS_S, OFFSETS_S, Rule

HERE = Place("t", 0)
RETRY = Place("%RETRY%g", 0)
DEAD = Place("%DLQ%g", 0)


def body_of(sequence: int, topic: str = "t") -> bytes:
    return make_body(Payload(topic, 1, sequence), 64)


class Script:
    """A history that writes itself: each step takes a millisecond."""

    def __init__(self) -> None:
        self.checker = RocketmqChecker()
        self.now = 1000.0
        self.commands = 0
        self.ends = 0

    def step(self, event: tuple[object, ...]) -> None:
        self.now += 0.001
        self.checker.observe(event)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def send(
        self,
        sequence: int = 0,
        at: int = 0,
        *,
        kind: Kind = Kind.PLAIN,
        count: int = 1,
        delay_s: float = 0.0,
        outcome: Outcome = Outcome.OK,
        ids: tuple[str, ...] = (),
    ) -> int:
        """Send and get the answer; ``at``: the queue offset that is told."""
        self.commands += 1
        due = self.now + delay_s if delay_s else 0.0
        self.step(Sent(self.now, self.commands, kind, HERE, 1, sequence, count, due))
        ids = ids or tuple(f"id{at + index}" for index in range(count))
        self.step(SendAnswered(self.now, self.commands, outcome, at if outcome is Outcome.OK else -1, ids))
        return self.commands

    def read(
        self,
        sequence: int = 0,
        at: int = 0,
        *,
        place: Place = HERE,
        message_id: str = "",
        body: bytes | None = None,
        keys: str | None = None,
        times: int = 0,
    ) -> None:
        body = body_of(sequence) if body is None else body
        keys = key_of(1, sequence) if keys is None else keys
        self.step(Read(self.now, place, at, message_id or f"id{at}", body, keys, times, self.now))

    def scan(self, end: int, *, first: int = 0, place: Place = HERE) -> None:
        self.step(Scanned(self.now, place, first, end))

    def crash(self, dead_after_s: float = 0.0) -> None:
        self.step(Crashed(self.now, dead_after_s))

    def drain(self) -> None:
        self.step(Drained(self.now))

    def end(self, command: int, decision: Decision, *, answered: bool = True) -> int:
        """Say what becomes of a half message; return the number of that."""
        self.ends += 1
        self.step(Ended(self.now, command, decision, self.ends))
        if answered:
            self.step(EndAnswered(self.now, command, self.ends))
        return self.ends

    def ask(self, sequence: int = 0, place: Place = HERE) -> None:
        self.step(CheckAsked(self.now, place, body_of(sequence)))

    def commit(self, offset: int, *, answered: bool = True) -> None:
        self.commands += 1
        self.step(CommitSent(self.now, self.commands, "g", HERE, offset))
        if answered:
            self.step(CommitAnswered(self.now, self.commands))

    def found(self, offset: int) -> None:
        self.step(CommittedFound(self.now, "g", HERE, offset))

    def send_back(
        self,
        sequence: int = 0,
        *,
        times: int = 1,
        dead: bool = False,
        delay_s: float = 1.0,
        outcome: Outcome = Outcome.OK,
    ) -> None:
        self.commands += 1
        due = 0.0 if dead else self.now + delay_s
        self.step(SentBack(self.now, self.commands, "g", body_of(sequence), times, dead, due))
        self.step(SentBackAnswered(self.now, self.commands, outcome))

    def rules(self) -> set[object]:
        return {violation.rule for violation in self.checker.violations}


@pytest.fixture
def script() -> Script:
    return Script()


def test_nothing_wrong(script: Script) -> None:
    script.send(0, 0)
    script.send(1, 1, kind=Kind.BATCH, count=3)
    script.send(4, outcome=Outcome.UNKNOWN)
    for at in range(5):
        script.read(at, at)
    script.crash()
    for at in range(5):
        script.read(at, at)
    script.scan(5)
    script.drain()
    assert script.rules() == set()


# -- messages ----------------------------------------------------------------------------------------------------------


def test_acknowledged_message_that_no_scan_reads_is_lost(script: Script) -> None:
    script.send(0, 0)
    script.crash()
    script.scan(0)
    assert script.rules() == {Rule.LOST}


def test_message_read_before_a_crash_must_be_there_behind_it(script: Script) -> None:
    script.send(0, outcome=Outcome.UNKNOWN)
    script.read(0, 0)
    script.crash()
    script.scan(0)
    assert script.rules() == {Rule.LOST}


def test_acknowledged_message_that_nobody_got_is_lost_at_the_end(script: Script) -> None:
    script.send(0, 0)
    script.drain()
    assert script.rules() == {Rule.LOST}


@pytest.mark.parametrize("is_known", [True, False])
def test_message_that_a_group_is_led_past(script: Script, is_known: bool) -> None:
    """Whether its place was told before, or is found by a scan behind it."""
    script.send(0, 0)
    script.send(1, 1, outcome=Outcome.OK if is_known else Outcome.UNKNOWN)
    script.send(2, 2)
    script.step(Pulled(script.now, "g", HERE, 0, 3, (0, 2)))
    for at in range(3):
        script.read(at, at)
    script.scan(3)
    assert script.rules() == {Rule.PASSED_OVER}


def test_group_is_led_past_what_a_kill_cut_off(script: Script) -> None:
    script.send(0, 0)
    script.send(1, kind=Kind.BATCH, count=3, outcome=Outcome.UNKNOWN)
    script.send(4, 3)
    script.step(Pulled(script.now, "g", HERE, 0, 4, (0, 3)))
    script.read(0, 0)
    script.read(4, 3)
    script.scan(4)
    assert script.rules() == set()


def test_place_without_a_message_is_a_hole(script: Script) -> None:
    script.send(1, 1)
    script.read(1, 1)
    script.scan(2)
    assert script.rules() == {Rule.HOLE}


@pytest.mark.parametrize(
    ("outcome", "count", "rules"),
    [(Outcome.UNKNOWN, 4, set()), (Outcome.UNKNOWN, 3, {Rule.HOLE}), (Outcome.ERROR, 4, {Rule.HOLE})],
)
def test_offsets_of_one_batch_that_was_cut_off_stay_empty(
    script: Script, outcome: Outcome, count: int, rules: set[Rule]
) -> None:
    """Fewer than the batch has: a whole one is kept."""
    script.send(0, kind=Kind.BATCH, count=count, outcome=outcome)
    script.crash()
    script.send(count, 3)
    for _ in range(2):
        script.read(count, 3)
        script.scan(4)
        script.crash()
    assert script.rules() == rules


def test_phantom(script: Script) -> None:
    script.read(7, 0)
    assert script.rules() == {Rule.PHANTOM}


def test_message_in_another_topic_is_a_phantom(script: Script) -> None:
    script.send(0, 0)
    script.read(0, 0, place=Place("other", 0))
    assert script.rules() == {Rule.PHANTOM}


@pytest.mark.parametrize("changed", ["body", "keys"])
def test_changed_bytes(script: Script, changed: str) -> None:
    script.send(0, 0)
    if changed == "body":
        script.read(0, 0, body=body_of(0)[:-1] + b"?")
    else:
        script.read(0, 0, keys="k1-1")
    assert script.rules() == {Rule.CORRUPT}


@pytest.mark.parametrize("is_read_first", [True, False])
def test_refused_message_must_not_come(script: Script, is_read_first: bool) -> None:
    script.commands = 1
    script.step(Sent(script.now, 1, Kind.PLAIN, HERE, 1, 0))
    if is_read_first:
        script.read(0, 0)
    script.step(SendAnswered(script.now, 1, Outcome.ERROR))
    if not is_read_first:
        script.read(0, 0)
    assert script.rules() == {Rule.REFUSED}


def test_plain_message_comes_once(script: Script) -> None:
    script.send(0, outcome=Outcome.UNKNOWN)
    script.read(0, 0)
    script.crash()
    script.read(0, 1)
    assert script.rules() == {Rule.DUPLICATE}


def test_two_messages_at_one_place(script: Script) -> None:
    script.send(0, 0)
    script.read(0, 0)
    script.crash()
    script.send(1, 0)
    assert script.rules() == {Rule.TWO_PAYLOADS}


def test_message_keeps_its_id(script: Script) -> None:
    script.send(0, 0, ids=("idA",))
    script.read(0, 0, message_id="idB")
    assert script.rules() == {Rule.TWO_PAYLOADS}


@pytest.mark.parametrize("queue_id", [0, 1])
def test_message_is_where_its_producer_was_told(script: Script, queue_id: int) -> None:
    script.send(0, 0)
    script.read(0, 5 if queue_id == 0 else 0, place=Place("t", queue_id))
    assert script.rules() == {Rule.MISPLACED}


def test_order_of_one_producer(script: Script) -> None:
    script.send(0, outcome=Outcome.UNKNOWN)
    script.send(1, 0)
    script.read(1, 0)
    script.read(0, 1)
    script.scan(2)
    assert script.rules() == {Rule.ORDER}


@pytest.mark.parametrize("missing", [0, 2])
def test_part_of_a_batch(script: Script, missing: int) -> None:
    script.send(0, outcome=Outcome.UNKNOWN, kind=Kind.BATCH, count=3)
    there = [sequence for sequence in range(3) if sequence != missing]
    for at, sequence in enumerate(there):
        script.read(sequence, at)
    script.scan(2)
    assert Rule.TORN_BATCH in script.rules()


def test_whole_batch_that_was_never_acknowledged(script: Script) -> None:
    script.send(0, outcome=Outcome.UNKNOWN, kind=Kind.BATCH, count=3)
    for at in range(3):
        script.read(at, at)
    script.scan(3)
    assert script.rules() == set()


# -- delays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.LEVEL, Kind.TIMED])
def test_delayed_message_before_its_time(script: Script, kind: Kind) -> None:
    script.send(0, kind=kind, delay_s=2.0)
    script.wait(1.5)
    script.read(0, 0)
    assert script.rules() == {Rule.EARLY}


def test_delayed_message_that_never_comes(script: Script) -> None:
    script.send(0, kind=Kind.LEVEL, delay_s=2.0)
    script.drain()
    assert Rule.LOST not in script.rules()
    script.send(1, kind=Kind.LEVEL, delay_s=2.0)
    script.wait(3)
    script.drain()
    assert script.rules() == {Rule.LOST}


@pytest.mark.parametrize(
    ("kind", "before_s", "crashes", "rules"),
    [
        (Kind.LEVEL, 1.0, True, set()),
        (Kind.LEVEL, CURSORS_S + 1, True, {Rule.DUPLICATE}),
        (Kind.LEVEL, 1.0, False, {Rule.DUPLICATE}),
        (Kind.TIMED, 1.0, True, set()),
        (Kind.TIMED, CURSORS_S + 1, True, {Rule.DUPLICATE}),
    ],
)
def test_delayed_message_comes_again_only_around_a_crash(
    script: Script, kind: Kind, before_s: float, crashes: bool, rules: set[Rule]
) -> None:
    script.send(0, kind=kind, delay_s=1.0)
    script.wait(2)
    script.read(0, 0)
    script.send(1, 1)
    script.wait(before_s)
    if crashes:
        script.crash()
    script.wait(1)
    script.read(0, 2)
    assert script.rules() == rules


@pytest.mark.parametrize(("dead_after_s", "rules"), [(0.05, set()), (0.0, {Rule.DUPLICATE})])
def test_a_copy_may_be_stored_while_the_kill_is_on_its_way(
    script: Script, dead_after_s: float, rules: set[Rule]
) -> None:
    """The time of a crash is noted before the kill: on a busy machine a tick of the broker came in between."""
    script.send(0, kind=Kind.TIMED, delay_s=1.0)
    script.wait(2)
    script.crash(dead_after_s)
    script.wait(0.02)
    script.read(0, 0)
    script.wait(1)
    script.read(0, 2)
    assert script.rules() == rules


@pytest.mark.parametrize(("outcome", "acknowledged"), [(Outcome.OK, 1), (Outcome.UNKNOWN, 0)])
def test_blame_says_whether_the_disk_may_be_why(script: Script, outcome: Outcome, acknowledged: int) -> None:
    """What waited is done with once its copy is durable, and an acknowledgement of a later send shows that it was."""
    script.send(0, kind=Kind.TIMED, delay_s=1.0)
    script.wait(2)
    script.read(0, 0)
    script.send(1, 1, outcome=outcome)
    script.wait(CURSORS_S + 1)
    script.crash()
    script.read(0, 2)
    (violation,) = script.checker.violations
    assert violation.rule is Rule.DUPLICATE
    assert violation.text.endswith(f"crash_after_s=4.5 acknowledged_meanwhile={acknowledged}")


# -- transactions ------------------------------------------------------------------------------------------------------


def test_committed_message_comes(script: Script) -> None:
    command = script.send(kind=Kind.HALF)
    script.end(command, Decision.COMMIT)
    script.read(0, 0)
    script.drain()
    assert script.rules() == set()


def test_committed_message_that_never_comes(script: Script) -> None:
    command = script.send(kind=Kind.HALF)
    script.end(command, Decision.COMMIT)
    script.drain()
    assert script.rules() == {Rule.LOST}


@pytest.mark.parametrize("decision", [None, Decision.ROLLBACK, Decision.UNKNOWN])
def test_message_that_nobody_committed(script: Script, decision: Decision | None) -> None:
    command = script.send(kind=Kind.HALF)
    if decision is not None:
        script.end(command, decision)
    script.read(0, 0)
    assert script.rules() == {Rule.UNCOMMITTED}


def test_committed_message_comes_once(script: Script) -> None:
    command = script.send(kind=Kind.HALF)
    script.end(command, Decision.COMMIT)
    script.read(0, 0)
    script.crash()
    script.read(0, 1)
    assert script.rules() == {Rule.DUPLICATE}


def test_undecided_transaction_is_asked_about(script: Script) -> None:
    script.send(kind=Kind.HALF)
    script.drain()
    assert script.rules() == {Rule.NOT_ASKED}


def test_answer_unknown_confirms_no_decision(script: Script) -> None:
    """The commit was lost with its connection; that the broker took "unknown" later does not mean that it has it."""
    command = script.send(kind=Kind.HALF)
    script.end(command, Decision.COMMIT, answered=False)
    script.crash()
    script.ask()
    script.end(command, Decision.UNKNOWN)
    script.wait(10)
    script.ask()
    assert script.rules() == set()


def test_answer_to_a_question_decides(script: Script) -> None:
    command = script.send(kind=Kind.HALF, outcome=Outcome.UNKNOWN)
    script.crash()
    script.ask()
    script.end(command, Decision.COMMIT)
    script.drain()
    assert script.rules() == {Rule.LOST}


@pytest.mark.parametrize(
    ("crash_after_s", "rules"), [(None, {Rule.ASKED_AGAIN}), (1.0, set()), (6.0, {Rule.ASKED_AGAIN})]
)
def test_decided_transaction_is_not_asked_about(script: Script, crash_after_s: float | None, rules: set[Rule]) -> None:
    command = script.send(kind=Kind.HALF)
    script.end(command, Decision.ROLLBACK)
    if crash_after_s is not None:
        script.wait(crash_after_s)
        script.crash()
    script.ask()
    assert script.rules() == rules


@pytest.mark.parametrize(("confirms", "rules"), [("unknown", set()), ("commit", {Rule.ASKED_AGAIN})])
def test_question_that_crossed_a_decision_is_none_about_a_decided_one(
    script: Script, confirms: str, rules: set[Rule]
) -> None:
    """The third question left before the commit came; what is answered by then is the first answer, ``unknown``."""
    command = script.send(kind=Kind.HALF)
    script.ask()
    ends = {"unknown": script.end(command, Decision.UNKNOWN, answered=False)}
    script.ask()
    ends["commit"] = script.end(command, Decision.COMMIT, answered=False)
    script.step(EndAnswered(script.now, command, ends[confirms]))
    script.ask()
    script.read(0, 0)
    assert script.rules() == rules


def test_question_about_what_nobody_prepared(script: Script) -> None:
    script.send(0, 0)
    script.ask(0)
    script.ask(9)
    assert [violation.rule for violation in script.checker.violations] == [Rule.PHANTOM, Rule.PHANTOM]


# -- committed offsets -------------------------------------------------------------------------------------------------


def test_offset_ahead_of_what_was_consumed(script: Script) -> None:
    script.commit(5, answered=False)
    script.crash()
    script.found(6)
    assert script.rules() == {Rule.AHEAD}


@pytest.mark.parametrize(
    ("age_s", "found", "rules"),
    [(OFFSETS_S + 0.5, 4, {Rule.BEHIND}), (OFFSETS_S + 0.5, -1, {Rule.BEHIND}), (1.0, -1, set()), (9.0, 5, set())],
)
def test_old_offset_survives_a_crash(script: Script, age_s: float, found: int, rules: set[Rule]) -> None:
    script.commit(5)
    script.wait(age_s)
    script.crash()
    script.found(found)
    assert script.rules() == rules


def test_every_offset_survives_a_stop_in_good_order(script: Script) -> None:
    script.commit(5)
    script.found(3)
    assert script.rules() == {Rule.BEHIND}


def test_offset_that_was_found_once_stays(script: Script) -> None:
    script.commit(5)
    script.crash()
    script.found(4)
    script.crash()
    script.found(3)
    assert script.rules() == {Rule.BEHIND}


# -- messages sent back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [False, True])
def test_message_sent_back_comes_again(script: Script, dead: bool) -> None:
    script.send(0, 0)
    script.read(0, 0)
    script.send_back(dead=dead)
    script.wait(2)
    script.read(0, 0, place=DEAD if dead else RETRY, times=1)
    script.drain()
    assert script.rules() == set()


@pytest.mark.parametrize("dead", [False, True])
def test_message_sent_back_that_is_lost(script: Script, dead: bool) -> None:
    script.send_back(dead=dead)
    script.wait(2)
    script.drain()
    assert script.rules() == {Rule.LOST}


def test_dead_letter_that_was_there_and_is_gone(script: Script) -> None:
    script.send_back(dead=True)
    script.read(0, 0, place=DEAD, times=1)
    script.crash()
    script.scan(0, place=DEAD)
    assert script.rules() == {Rule.LOST}


@pytest.mark.parametrize(("dead", "times"), [(True, 1), (False, 2)])
def test_copy_that_nobody_sent_back(script: Script, dead: bool, times: int) -> None:
    script.send_back()
    script.wait(2)
    script.read(0, 0, place=DEAD if dead else RETRY, times=times)
    assert script.rules() == {Rule.PHANTOM}


def test_copy_before_its_time(script: Script) -> None:
    script.send_back(delay_s=3.0)
    script.read(0, 0, place=RETRY, times=1)
    assert script.rules() == {Rule.EARLY}


def test_copy_comes_once(script: Script) -> None:
    script.send_back(dead=True)
    script.read(0, 0, place=DEAD, times=1)
    script.crash()
    script.read(0, 1, place=DEAD, times=1)
    assert script.rules() == {Rule.DUPLICATE}


@pytest.mark.parametrize(("copies", "rules"), [(4, set()), (5, {Rule.DUPLICATE})])
def test_copies_sent_back_alike_come_again_once_for_each_crash(script: Script, copies: int, rules: set[Rule]) -> None:
    script.send_back(delay_s=3.0)
    script.send_back(delay_s=1.0)
    script.wait(1.5)
    for at in range(copies):
        if at == 1:
            script.crash()
        script.read(0, at, place=RETRY, times=1)
    assert script.rules() == rules


def test_refused_send_back(script: Script) -> None:
    script.send_back(dead=True, outcome=Outcome.ERROR)
    script.read(0, 0, place=DEAD, times=1)
    assert script.rules() == {Rule.DUPLICATE}


# -- channels of NSQ ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes", [True, False])
def test_channel_gets_what_joins_its_topic(script: Script, comes: bool) -> None:
    script.step(ChannelMade(script.now, "t", "c"))
    script.send(0, 0)
    script.read(0, 0)
    if comes:
        script.step(ChannelRead(script.now, "t", "c", body_of(0)))
    script.drain()
    assert script.rules() == (set() if comes else {Rule.LOST})


def test_channel_gets_nothing_else(script: Script) -> None:
    script.step(ChannelMade(script.now, "t", "c"))
    script.send(0, kind=Kind.HALF)
    script.send(1, kind=Kind.TIMED, delay_s=9.0)
    script.send(2, outcome=Outcome.ERROR)
    for sequence in range(4):
        script.step(ChannelRead(script.now, "t", "c", body_of(sequence)))
    script.step(ChannelRead(script.now, "t", "c", b"?"))
    expected = [Rule.UNCOMMITTED, Rule.EARLY, Rule.REFUSED, Rule.PHANTOM, Rule.CORRUPT]
    assert [violation.rule for violation in script.checker.violations] == expected


@pytest.mark.parametrize(("keys", "rules"), [("", set()), ("k1-0", {Rule.CORRUPT})])
def test_message_of_nsq_has_no_key_and_any_queue(script: Script, keys: str, rules: set[Rule]) -> None:
    script.step(Sent(script.now, 1, Kind.PLAIN, Place("t", -1), 1, 0))
    script.step(SendAnswered(script.now, 1, Outcome.OK))
    script.read(0, 3, place=Place("t", 2), keys=keys)
    assert script.rules() == rules


# -- keys, topics, complaints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bodies", "rules"), [((), {Rule.NOT_INDEXED}), ((0,), set()), ((0, 0), set()), ((0, 1), {Rule.PHANTOM})]
)
def test_key_finds_its_message(script: Script, bodies: tuple[int, ...], rules: set[Rule]) -> None:
    script.send(0, 0)
    script.read(0, 0)
    script.step(KeyFound(script.now, "t", 1, 0, tuple(body_of(sequence) for sequence in bodies)))
    assert script.rules() == rules


@pytest.mark.parametrize(
    ("found", "rules"), [((), {Rule.VANISHED}), ((("n", 1),), {Rule.VANISHED}), ((("n", 2),), set())]
)
def test_created_topic_stays(script: Script, found: tuple[tuple[str, int], ...], rules: set[Rule]) -> None:
    script.step(TopicAsked(script.now, "n", 2))
    script.step(TopicGranted(script.now, "n"))
    script.crash()
    script.step(TopicsFound(script.now, found))
    assert script.rules() == rules


def delete(script: Script, *, answered: bool = True) -> None:
    script.step(TopicDeleteAsked(script.now, "t"))
    if answered:
        script.step(TopicDeleted(script.now, "t"))


@pytest.mark.parametrize(("answered", "rules"), [(True, {Rule.CAME_BACK}), (False, set())])
def test_deleted_topic_stays_away(script: Script, answered: bool, rules: set[Rule]) -> None:
    script.send(0, 0)
    delete(script, answered=answered)
    script.crash()
    script.step(TopicsFound(script.now, (("t", 1),)))
    script.read(0, 0)
    script.scan(1)
    assert script.rules() == rules


def test_nothing_of_a_deleted_topic_is_owed_and_its_offsets_go_on(script: Script) -> None:
    script.send(0, 0)
    script.send(1, kind=Kind.LEVEL, delay_s=1.0)
    delete(script)
    script.step(TopicAsked(script.now, "t", 1))
    script.step(TopicGranted(script.now, "t"))
    script.send(2, 1)
    script.crash()
    script.step(TopicsFound(script.now, (("t", 1),)))
    script.read(2, 1)
    script.scan(2)
    script.wait(5)
    script.drain()
    assert script.rules() == set()


def test_offset_of_a_deleted_topic_is_used_again(script: Script) -> None:
    script.send(0, 0)
    delete(script)
    script.send(1, 0)
    assert script.rules() == {Rule.TWO_PAYLOADS}


def test_complaint(script: Script) -> None:
    script.step(BrokerComplained(script.now, "Traceback"))
    assert script.rules() == {Rule.COMPLAINT}


def test_every_rule_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [rule.name for rule in Rule if f"Rule.{rule.name}" not in text] == []


def test_a_topic_that_waits_for_its_deletion_gets_no_more_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the next producers either: one behind the deletion makes it anew, for which nobody blames the broker."""
    monkeypatch.setattr(rocketmq_load, "Producer", lambda load, address: None)
    load = RocketmqLoad(History(), RocketmqChecker(), random.Random(1), {})
    load._passing = {"passing3": 2, "passing4": 1}
    load._to_delete = "passing3"
    load.begin_publishing()
    assert {place.topic for place in load.places if place.topic.startswith("passing")} == {"passing4"}
