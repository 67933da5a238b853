"""What one protocol's clients publish is owed to the other's: a planted violation of each kind is found.

The rules within a protocol are tested by ``test_checker.py`` and ``test_rocketmq_checker.py``.
Ref: docs/protocols/mapping.md.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash import checker, rocketmq_rules
from tests.crash.both_checker import BothChecker
from tests.crash.history import (
    Answered,
    Asked,
    Crashed,
    Delivered,
    Drained,
    Finished,
    Granted,
    Observed,
    Outcome,
    Payload,
    Published,
    Thing,
    make_body,
)
from tests.crash.rocketmq_history import (
    Decision,
    Ended,
    Kind,
    Place,
    Read,
    Scanned,
    SendAnswered,
    Sent,
    TopicAsked,
    TopicDeleteAsked,
    TopicDeleted,
    TopicGranted,
    TopicsFound,
    key_of,
)

MAIN = Thing("t", "main")
HERE = Place("t", 0)
NSQ, ROCKETMQ = checker.Rule, rocketmq_rules.Rule


class Script:
    """A history that writes itself: producer 1 is a client of NSQ, producer 2 one of RocketMQ."""

    def __init__(self) -> None:
        self.checker = BothChecker(frozenset({"t"}))
        self.now = 1000.0
        self.commands = 0
        self.attempts: Counter[str] = Counter()
        self.step(Asked(self.now, MAIN, True, True))
        self.step(Granted(self.now, MAIN))

    def step(self, event: tuple[object, ...]) -> None:
        self.now += 0.001
        self.checker.observe(event)

    def publish(self, sequence: int = 0, count: int = 1, delay_s: float = 0.0) -> None:
        self.commands += 1
        self.step(Published(self.now, self.commands, "t", 1, sequence, count, delay_s))
        self.step(Answered(self.now, self.commands, Outcome.OK))

    def send(
        self,
        sequence: int = 0,
        at: int = 0,
        *,
        kind: Kind = Kind.PLAIN,
        count: int = 1,
        delay_s: float = 0.0,
        outcome: Outcome = Outcome.OK,
    ) -> int:
        self.commands += 1
        due = self.now + delay_s if delay_s else 0.0
        self.step(Sent(self.now, self.commands, kind, HERE, 2, sequence, count, due))
        ids = tuple(f"id{at + index}" for index in range(count))
        self.step(SendAnswered(self.now, self.commands, outcome, at, ids))
        return self.commands

    def deliver(self, producer: int, sequence: int = 0, *, copy: int = 0) -> None:
        message_id = f"{producer:04x}{copy:04x}{sequence:08x}"
        body = make_body(Payload("t", producer, sequence), 64)
        self.attempts[message_id] += 1
        self.step(Delivered(self.now, MAIN, message_id, self.attempts[message_id], body, 60.0))
        self.step(Finished(self.now, MAIN, message_id))

    def read(self, producer: int, sequence: int = 0, at: int = 0) -> None:
        keys = "" if producer == 1 else key_of(producer, sequence)
        body = make_body(Payload("t", producer, sequence), 64)
        self.step(Read(self.now, HERE, at, f"id{at}", body, keys, 0, self.now))

    def drain(self) -> None:
        self.step(Drained(self.now))

    @property
    def rules(self) -> set[object]:
        return {violation.rule for violation in self.checker.violations}


@pytest.fixture
def script() -> Script:
    return Script()


def test_accepted(script: Script) -> None:
    """Both publish, both get everything; a delayed message joins its topic again behind a crash."""
    script.publish()
    script.send(at=1)
    script.publish(1, count=2)
    half = script.send(1, at=0, kind=Kind.HALF)
    script.step(Ended(script.now, half, Decision.COMMIT, 1))
    script.send(2, kind=Kind.LEVEL, delay_s=1.0)
    script.now += 1
    script.read(1)
    script.read(2, at=1)
    script.read(1, 1, at=2)
    script.read(1, 2, at=3)
    script.read(2, 1, at=4)
    script.read(2, 2, at=5)
    script.deliver(1)
    script.deliver(2)
    script.deliver(1, 1)
    script.deliver(1, 2)
    script.deliver(2, 1)
    script.deliver(2, 2)
    script.step(Crashed(script.now))
    script.now += 1
    script.read(2, 2, at=6)
    script.deliver(2, 2, copy=1)
    script.drain()
    assert script.rules == set()


def test_lost_on_a_channel(script: Script) -> None:
    script.send()
    script.read(2)
    script.drain()
    assert script.rules == {NSQ.LOST}


def test_lost_on_a_channel_behind_a_commit(script: Script) -> None:
    half = script.send(kind=Kind.HALF)
    script.step(Ended(script.now, half, Decision.COMMIT, 1))
    script.read(2)
    script.drain()
    assert script.rules == {NSQ.LOST}


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_lost_for_groups(script: Script, delay_s: float) -> None:
    """The delay of a DPUB is the channels' own: a group is owed the message at once."""
    script.publish(delay_s=delay_s)
    if not delay_s:
        script.deliver(1)
    script.drain()
    assert script.rules == {ROCKETMQ.LOST}


def test_lost_in_a_queue_that_once_had_it(script: Script) -> None:
    script.publish()
    script.deliver(1)
    script.read(1)
    script.step(Crashed(script.now))
    script.step(Scanned(script.now, HERE, 0, 1))
    assert script.rules == {ROCKETMQ.LOST}


def test_uncommitted_on_a_channel(script: Script) -> None:
    script.send(kind=Kind.HALF)
    script.deliver(2)
    assert script.rules == {NSQ.PHANTOM}


def test_refused_on_a_channel(script: Script) -> None:
    script.send(outcome=Outcome.ERROR)
    script.deliver(2)
    assert script.rules == {NSQ.REFUSED}


def test_delayed_comes_early_to_a_channel(script: Script) -> None:
    script.send(kind=Kind.TIMED, delay_s=2.0)
    script.deliver(2)
    assert script.rules == {NSQ.EARLY}


def test_duplicate_on_a_channel(script: Script) -> None:
    script.send()
    script.deliver(2)
    script.deliver(2)
    assert script.rules == {NSQ.DUPLICATE}


def test_two_ids_on_a_channel(script: Script) -> None:
    script.send()
    script.deliver(2)
    script.deliver(2, copy=1)
    assert NSQ.TWO_IDS in script.rules


def test_torn_batch_on_a_channel(script: Script) -> None:
    script.commands += 1
    script.step(Sent(script.now, script.commands, Kind.BATCH, HERE, 2, 0, 3))
    script.deliver(2)
    script.drain()
    assert script.rules == {NSQ.TORN_BATCH}


def test_torn_mpub_in_a_queue(script: Script) -> None:
    script.commands += 1
    script.step(Published(script.now, script.commands, "t", 1, 0, 3))
    script.read(1)
    script.step(Scanned(script.now, HERE, 0, 1))
    assert script.rules == {ROCKETMQ.TORN_BATCH}


def test_order_on_a_channel(script: Script) -> None:
    script.send(0)
    script.send(1, at=1)
    script.deliver(2, 1)
    script.deliver(2, 0)
    assert script.rules == {NSQ.ORDER}


def test_order_in_a_queue(script: Script) -> None:
    script.publish(0)
    script.publish(1)
    script.read(1, 1)
    script.read(1, 0, at=1)
    script.step(Scanned(script.now, HERE, 0, 2))
    assert script.rules == {ROCKETMQ.ORDER}


def test_twice_in_a_queue(script: Script) -> None:
    script.publish()
    script.read(1)
    script.read(1, at=1)
    assert script.rules == {ROCKETMQ.DUPLICATE}


def test_topic_that_rocketmq_deleted_comes_back(script: Script) -> None:
    script.step(TopicDeleteAsked(script.now, "t"))
    script.step(TopicDeleted(script.now, "t"))
    script.step(Observed(script.now, frozenset({Thing("t"), MAIN})))
    assert script.rules == {NSQ.CAME_BACK}


def test_topic_that_nsq_deleted_comes_back(script: Script) -> None:
    script.step(Asked(script.now, Thing("t"), False))
    script.step(Granted(script.now, Thing("t")))
    script.step(TopicsFound(script.now, (("t", 1),)))
    assert script.rules == {ROCKETMQ.CAME_BACK}


def test_topic_that_rocketmq_made_is_gone_for_nsq(script: Script) -> None:
    script.step(TopicAsked(script.now, "u", 2))
    script.step(TopicGranted(script.now, "u"))
    script.step(Observed(script.now, frozenset({Thing("t"), MAIN})))
    assert script.rules == {NSQ.VANISHED}


def test_topic_that_nsq_made_is_gone_for_rocketmq(script: Script) -> None:
    script.step(Asked(script.now, Thing("u"), True))
    script.step(Granted(script.now, Thing("u")))
    script.step(TopicsFound(script.now, (("t", 1),)))
    assert script.rules == {ROCKETMQ.VANISHED}
