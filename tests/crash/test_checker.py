"""The history checker finds a planted violation of every rule, and accepts what a broker may do around a crash."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from headrace.errors import FlushError, StoreFullError
from tests.crash.checker import Checker, Rule
from tests.crash.history import (
    Answered,
    Asked,
    BrokerComplained,
    ChangeAsked,
    ChangeGranted,
    Crashed,
    Delivered,
    Drained,
    Event,
    Finished,
    Granted,
    Observed,
    Outcome,
    Payload,
    Published,
    Requeued,
    SettleFailed,
    Thing,
    Touched,
    What,
    leaves_open,
    make_body,
    read_body,
)

TOPIC = Thing("t")
MAIN = Thing("t", "main")
TIMEOUT_S = 60.0


class Script:
    """A history that writes itself: each step takes the time it is given, or a millisecond."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.now = 1000.0
        self.commands = 0
        self.attempts: Counter[tuple[Thing, str]] = Counter()

    def step(self, event: Event, after: float = 0.001) -> None:
        self.now = event.at + after
        self.checker.observe(event)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def create(self, thing: Thing = MAIN, *, one_consumer: bool = False) -> None:
        self.step(Asked(self.now, thing, True, one_consumer))
        self.step(Granted(self.now, thing))

    def delete(self, thing: Thing = MAIN) -> None:
        self.step(Asked(self.now, thing, False))
        self.step(Granted(self.now, thing))

    def change(self, what: What, *, answered: bool = True) -> None:
        self.step(ChangeAsked(self.now, MAIN, what))
        if answered:
            self.step(ChangeGranted(self.now, MAIN, what))

    def publish(
        self, sequence: int = 0, count: int = 1, delay_s: float = 0.0, outcome: Outcome = Outcome.OK, topic: str = "t"
    ) -> None:
        self.commands += 1
        self.step(Published(self.now, self.commands, topic, 1, sequence, count, delay_s))
        self.step(Answered(self.now, self.commands, outcome))

    def deliver(
        self,
        sequence: int = 0,
        *,
        thing: Thing = MAIN,
        message_id: str = "",
        body: bytes | None = None,
        attempts: int | None = None,
        slack_s: float = 0.0,
    ) -> None:
        """Deliver a message, and count that unless ``attempts`` are given."""
        body = body if body is not None else make_body(Payload(thing.topic, 1, sequence), 100)
        message_id = message_id or f"{sequence:016x}"
        if attempts is None:
            self.attempts[thing, message_id] += 1
            attempts = self.attempts[thing, message_id]
        self.step(Delivered(self.now, thing, message_id, attempts, body, TIMEOUT_S, slack_s))

    def finish(self, sequence: int = 0, thing: Thing = MAIN) -> None:
        self.step(Finished(self.now, thing, f"{sequence:016x}"))

    def requeue(self, sequence: int, delay_s: float) -> None:
        self.step(Requeued(self.now, MAIN, f"{sequence:016x}", delay_s))

    def crash(self) -> None:
        self.step(Crashed(self.now), after=0.5)

    def observe(self, *things: Thing) -> None:
        self.step(Observed(self.now, frozenset(things)))

    def drain(self) -> None:
        self.step(Drained(self.now))

    @property
    def rules(self) -> set[object]:
        return {violation.rule for violation in self.checker.violations}


@pytest.fixture
def script() -> Script:
    made = Script()
    made.create()
    return made


# -- planted violations ----------------------------------------------------------------------------------------------


def test_lost_never_delivered(script: Script) -> None:
    script.publish()
    script.crash()
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_in_flight_at_the_crash(script: Script) -> None:
    """Delivered is not finished: it must come again."""
    script.publish()
    script.deliver()
    script.crash()
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_requeued(script: Script) -> None:
    script.publish()
    script.deliver()
    script.requeue(0, 0.5)
    script.crash()
    script.wait(1)
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_delayed(script: Script) -> None:
    script.publish(delay_s=2.0)
    script.crash()
    script.wait(3)
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_on_one_of_two_channels(script: Script) -> None:
    script.create(Thing("t", "second"))
    script.publish()
    script.deliver()
    script.finish()
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_with_a_deletion_that_did_not_happen(script: Script) -> None:
    script.publish()
    script.step(Asked(script.now, MAIN, False))
    script.crash()
    script.observe(TOPIC, MAIN)
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_after_a_failed_fin(script: Script) -> None:
    script.publish()
    script.deliver()
    script.finish()
    script.step(SettleFailed(script.now, MAIN, f"{0:016x}"))
    script.drain()
    assert script.rules == {Rule.LOST}


def test_lost_behind_an_emptying(script: Script) -> None:
    script.change(What.EMPTY)
    script.publish()
    script.drain()
    assert script.rules == {Rule.LOST}


def test_an_answer_behind_a_finished_time_out_owes_nothing(script: Script) -> None:
    """The client was held up: it reads both deliveries at once, and its FIN settles the second."""
    script.step(Published(script.now, 1, "t", 1, 0))
    script.wait(TIMEOUT_S)
    script.deliver(slack_s=TIMEOUT_S)
    script.finish()
    script.deliver()
    script.step(Answered(script.now, 1, Outcome.OK))
    script.drain()
    assert script.rules == set()


def test_what_was_emptied_is_not_owed(script: Script) -> None:
    script.publish()
    script.publish(1, count=3)
    script.deliver()
    script.deliver(1)
    script.change(What.EMPTY)
    script.finish()
    script.step(SettleFailed(script.now, MAIN, f"{0:016x}"))
    script.drain()
    assert script.rules == set()


@pytest.mark.parametrize("crashes", [False, True])
def test_emptied(script: Script, *, crashes: bool) -> None:
    script.publish()
    script.change(What.EMPTY)
    if crashes:
        script.crash()
    script.wait(1)
    script.deliver()
    assert script.rules == {Rule.EMPTIED}


def test_an_emptying_without_an_answer_may_have_happened(script: Script) -> None:
    script.publish()
    script.publish(1)
    script.change(What.EMPTY, answered=False)
    script.crash()
    script.wait(1)
    script.deliver()
    script.finish()
    script.publish(2)
    script.deliver(2)
    script.finish(2)
    script.drain()
    assert script.rules == set()


@pytest.mark.parametrize("crashes", [False, True])
def test_paused(script: Script, *, crashes: bool) -> None:
    script.change(What.PAUSE)
    script.publish()
    if crashes:
        script.crash()
    script.wait(1)
    script.deliver()
    assert script.rules == {Rule.PAUSED}


def test_a_channel_that_goes_on_delivers(script: Script) -> None:
    script.change(What.PAUSE)
    script.publish()
    script.wait(1)
    script.change(What.UNPAUSE, answered=False)
    script.deliver()
    script.finish()
    script.drain()
    assert script.rules == set()


def test_phantom(script: Script) -> None:
    script.deliver(5)
    assert script.rules == {Rule.PHANTOM}


def test_phantom_of_another_topic(script: Script) -> None:
    script.publish(topic="u")
    script.deliver(body=make_body(Payload("u", 1, 0), 100))
    assert script.rules == {Rule.PHANTOM}


@pytest.mark.parametrize("position", [0, 3, 9, 50, 99])
def test_corrupt(script: Script, position: int) -> None:
    script.publish()
    body = bytearray(make_body(Payload("t", 1, 0), 100))
    body[position] ^= 1
    script.deliver(body=bytes(body))
    assert script.rules & {Rule.CORRUPT, Rule.PHANTOM}


def test_corrupt_when_cut_short(script: Script) -> None:
    script.publish()
    script.deliver(body=make_body(Payload("t", 1, 0), 100)[:-1])
    assert script.rules == {Rule.CORRUPT}


def test_refused(script: Script) -> None:
    script.publish(outcome=Outcome.ERROR)
    script.deliver()
    assert script.rules == {Rule.REFUSED}


def test_duplicate_of_a_finished_message(script: Script) -> None:
    script.publish()
    script.deliver()
    script.finish()
    script.deliver()
    assert script.rules == {Rule.DUPLICATE}


def test_duplicate_of_a_message_in_flight(script: Script) -> None:
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S - 1)
    script.deliver()
    assert script.rules == {Rule.DUPLICATE}


def test_duplicate_of_a_touched_message(script: Script) -> None:
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S / 2)
    script.step(Touched(script.now, MAIN, f"{0:016x}"))
    script.wait(TIMEOUT_S - 1)
    script.deliver()
    assert script.rules == {Rule.DUPLICATE}


def test_a_touch_shortly_before_the_time_out_may_come_too_late(script: Script) -> None:
    """The message timed out before the broker read it; E_TOUCH_FAILED comes behind the second copy."""
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S - 0.9)
    script.step(Touched(script.now, MAIN, f"{0:016x}"))
    script.wait(0.9)
    script.deliver()
    assert not script.rules


@pytest.mark.parametrize("attempts", [0, 1])
def test_attempts(script: Script, attempts: int) -> None:
    """The second delivery counts as the first did, or as none."""
    script.publish()
    script.deliver()
    script.requeue(0, 0.0)
    script.deliver(attempts=attempts)
    assert script.rules == {Rule.ATTEMPTS}


def test_attempts_may_be_missing_and_be_forgotten_in_a_crash(script: Script) -> None:
    """What lay in a connection that ended counts, and nobody saw it; of what a crash forgot the number comes again."""
    script.publish()
    script.deliver(attempts=3)
    script.requeue(0, 0.0)
    script.deliver(attempts=5)
    script.crash()
    script.deliver(attempts=5)
    script.finish()
    script.drain()
    assert script.rules == set()


def test_duplicate_after_a_crash_and_a_finish(script: Script) -> None:
    """A crash excuses one redelivery, not another after the message was finished again."""
    script.publish()
    script.deliver()
    script.crash()
    script.deliver()
    script.finish()
    script.deliver()
    assert script.rules == {Rule.DUPLICATE}


def test_finished_long_before_the_crash(script: Script) -> None:
    script.publish()
    script.deliver()
    script.finish()
    script.wait(5.1)
    script.crash()
    script.deliver()
    assert script.rules == {Rule.FINISHED}


def test_order(script: Script) -> None:
    other = Thing("o", "main")
    script.create(other, one_consumer=True)
    for sequence in range(2):
        script.publish(sequence, topic="o")
    script.deliver(1, thing=other)
    script.deliver(0, thing=other)
    assert script.rules == {Rule.ORDER}


def test_two_payloads(script: Script) -> None:
    script.publish(0)
    script.publish(1)
    script.deliver(0, message_id="a" * 16)
    script.crash()
    script.deliver(1, message_id="a" * 16)
    assert script.rules == {Rule.TWO_PAYLOADS}


def test_two_ids(script: Script) -> None:
    script.publish(0)
    script.deliver(0, message_id="a" * 16)
    script.crash()
    script.deliver(0, message_id="b" * 16)
    assert script.rules == {Rule.TWO_IDS}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.OK])
def test_torn_batch(script: Script, outcome: Outcome) -> None:
    script.publish(0, count=3, outcome=outcome)
    script.crash()
    for sequence in range(2):
        script.deliver(sequence)
        script.finish(sequence)
    script.drain()
    assert Rule.TORN_BATCH in script.rules


def test_early_dpub(script: Script) -> None:
    script.publish(delay_s=1.0)
    script.crash()
    script.wait(0.2)
    script.deliver()
    assert script.rules == {Rule.EARLY}


def test_early_requeue(script: Script) -> None:
    script.publish()
    script.deliver()
    script.requeue(0, 10.0)
    script.wait(6.0)
    script.crash()
    script.deliver()
    assert script.rules == {Rule.EARLY}


def test_came_back_channel(script: Script) -> None:
    script.delete()
    script.crash()
    script.observe(TOPIC, MAIN)
    assert script.rules == {Rule.CAME_BACK}


def test_came_back_topic(script: Script) -> None:
    script.delete(TOPIC)
    script.crash()
    script.observe(TOPIC)
    assert script.rules == {Rule.CAME_BACK}


def test_came_back_message_of_a_deleted_topic(script: Script) -> None:
    script.publish()
    script.delete(TOPIC)
    script.create()
    script.wait(0.1)
    script.deliver()
    assert Rule.CAME_BACK in script.rules


@pytest.mark.parametrize("there", [(), (TOPIC,)])
def test_vanished(script: Script, there: tuple[Thing, ...]) -> None:
    script.crash()
    script.observe(*there)
    assert script.rules == {Rule.VANISHED}


def test_before_birth(script: Script) -> None:
    script.publish()
    late = Thing("t", "late")
    script.create(late)
    script.deliver(0, thing=late)
    assert script.rules == {Rule.BEFORE_BIRTH}


def test_complaint(script: Script) -> None:
    script.step(BrokerComplained(script.now, "hole in the log"))
    assert script.rules == {Rule.COMPLAINT}


def test_every_rule_has_a_planted_violation() -> None:
    planted = "\n".join(name for name in globals() if name.startswith("test_"))
    assert [rule.name for rule in Rule if f"test_{rule.name.lower()}" not in planted] == []


# -- what is allowed -------------------------------------------------------------------------------------------------


def test_a_crash_excuses_what_was_in_flight(script: Script) -> None:
    script.publish()
    script.deliver()
    script.crash()
    script.deliver()
    script.finish()
    script.drain()
    assert script.rules == set()


def test_a_crash_excuses_a_fresh_fin_and_requeue(script: Script) -> None:
    script.publish(0)
    script.publish(1)
    script.deliver(0)
    script.deliver(1)
    script.finish(0)
    script.requeue(1, 100.0)
    script.wait(4)
    script.crash()
    for sequence in range(2):
        script.deliver(sequence)
        script.finish(sequence)
    script.drain()
    assert script.rules == set()


def test_time_out_and_requeue_excuse_a_duplicate(script: Script) -> None:
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S)
    script.deliver()
    script.requeue(0, 0.0)
    script.deliver()
    script.finish()
    script.drain()
    assert script.rules == set()


def test_a_late_fin_of_another_consumer_may_fail(script: Script) -> None:
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S)
    script.deliver()
    script.finish()
    script.finish()
    script.step(SettleFailed(script.now, MAIN, f"{0:016x}"))
    script.drain()
    assert script.rules == set()


def test_a_client_that_read_late_may_see_a_time_out_behind_its_fin(script: Script) -> None:
    """Both deliveries lay in the socket: the FIN of the first settled the second, a REQ of it did too."""
    for sequence in range(2):
        script.publish(sequence)
    script.wait(TIMEOUT_S + 1)
    for sequence in range(2):
        script.deliver(sequence, slack_s=TIMEOUT_S + 0.5)
    script.finish(0)
    script.requeue(1, 5.0)
    script.deliver(0)
    script.deliver(1)
    script.finish(1)
    script.drain()
    assert script.rules == set()


def test_a_client_that_read_late_may_see_two_time_outs_behind_its_fin(script: Script) -> None:
    """All three lay in the sockets of two consumers, the last one read before the second: the FIN settled the last."""
    script.publish()
    script.wait(2 * TIMEOUT_S + 1)
    script.deliver(slack_s=2 * TIMEOUT_S + 0.5)
    script.finish()
    script.deliver(attempts=3, slack_s=2 * TIMEOUT_S + 0.5)
    script.deliver(attempts=2, slack_s=2 * TIMEOUT_S + 0.5)
    script.drain()
    assert script.rules == set()


def test_what_timed_out_unread_at_a_crash_comes_behind_what_did_not(script: Script) -> None:
    """The client was held up when the broker died: it never read the first deliveries, and sees the second alone."""
    other = Thing("o", "main")
    script.create(other, one_consumer=True)
    for sequence in range(2):
        script.publish(sequence, topic="o")
    script.crash()
    script.deliver(1, thing=other)
    script.deliver(0, thing=other, attempts=2)
    assert script.rules == set()


def test_a_requeue_behind_a_good_fin_fails_and_owes_nothing(script: Script) -> None:
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S)
    script.finish()
    script.deliver()
    script.requeue(0, 0.0)
    script.step(SettleFailed(script.now, MAIN, f"{0:016x}", was_fin=False))
    script.drain()
    assert script.rules == set()


def test_unknown_may_be_there_or_not(script: Script) -> None:
    script.publish(0, outcome=Outcome.UNKNOWN)
    script.publish(1, outcome=Outcome.UNKNOWN)
    script.step(Asked(script.now, Thing("t", "new"), True))
    script.step(Asked(script.now, Thing("t", "other"), True))
    script.crash()
    script.observe(TOPIC, MAIN, Thing("t", "new"))
    script.deliver(1)
    script.finish(1)
    script.drain()
    assert script.rules == set()


def test_a_delayed_message_is_not_owed_before_its_time(script: Script) -> None:
    script.publish(delay_s=5.0)
    script.drain()
    assert script.rules == set()
    script.wait(6)
    script.deliver()
    script.finish()
    script.drain()
    assert script.rules == set()


def test_a_deleted_channel_is_owed_nothing(script: Script) -> None:
    script.publish()
    script.delete()
    script.crash()
    script.observe(TOPIC)
    script.create()
    script.drain()
    assert script.rules == set()


def test_bodies_say_whose_they_are() -> None:
    payload = Payload("topic", 7, 123)
    for size in (1, 30, 64, 65, 200_000):
        body = make_body(payload, size)
        assert read_body(body) == payload
        assert read_body(body + b"x") is None


def test_fin_of_a_delivery_that_timed_out_settles_the_next_before_its_req(script: Script) -> None:
    """The broker read the FIN of the first delivery, not the REQ of the second, when it was killed: it is finished."""
    script.publish()
    script.deliver()
    script.wait(TIMEOUT_S)
    script.finish()
    script.deliver()
    script.requeue(0, 1.0)
    script.crash()
    script.wait(25)
    script.drain()
    assert script.rules == set()


@pytest.mark.parametrize("what", ["fdatasync of", "taking back a refused batch from"])
def test_a_store_that_failed_leaves_open_what_is_in_the_log(what: str) -> None:
    """Loads take it for unknown: what waited for the disk may be there after a start."""
    assert leaves_open(str(FlushError("commitlog/0", errno.EIO, what)).encode())
    assert not leaves_open(str(StoreFullError("no room for another segment")))
