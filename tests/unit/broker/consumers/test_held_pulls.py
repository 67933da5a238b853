"""Held pulls: woken once, by a message for them or at their time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.broker.consumers.held_pulls import BUCKET_MS, HeldPulls
from headrace.settings import BrokerSettings
from headrace.store.queue_base import QueueBase
from tests.support.brokers import BrokerRig

SETTINGS = BrokerSettings()


class FakeQueue:
    """What a held pull needs of a queue."""

    def __init__(self, topic: str = "T") -> None:
        self.topic = topic
        self.min_offset = 0
        self.visible_offset = 0
        self.codes: list[int] = []
        self.looks = 0

    def grow(self, *codes: int) -> None:
        self.codes += codes
        self.visible_offset += len(codes)

    def entries(self, from_offset: int, most: int) -> list[tuple[int, int, int]]:
        self.looks += 1
        return [(0, 100, code) for code in self.codes[from_offset : from_offset + most]]


class Rig:
    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        self.holds = HeldPulls(settings)
        self.woken: list[str] = []

    def queue(self, topic: str = "T") -> QueueBase:
        return FakeQueue(topic)  # type: ignore[return-value]

    def hold(self, queue: QueueBase, name: str, *, at: int = 0, deadline: int = 15_000, **more):
        return self.holds.hold(queue, at, deadline, lambda: self.woken.append(name), **more)

    def grow(self, queue: QueueBase, *codes: int) -> None:
        queue.grow(*codes)  # type: ignore[attr-defined]
        self.holds.grown(queue)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_message_wakes_the_pulls_of_its_queue_once(rig: Rig) -> None:
    """A-BROKER-47: the arrival of a new message for that queue wakes it."""
    queue, other = rig.queue(), rig.queue("U")
    rig.hold(queue, "first")
    rig.hold(queue, "second")
    rig.hold(other, "other")
    rig.grow(queue, 0)
    assert rig.woken == ["first", "second"]
    rig.grow(queue, 0)
    rig.holds.tick(1 << 40)
    assert rig.woken == ["first", "second", "other"]
    assert len(rig.holds) == 0


def test_a_pull_ahead_of_the_queue_waits_for_its_offset(rig: Rig) -> None:
    queue = rig.queue()
    rig.hold(queue, "ahead", at=2)
    rig.grow(queue, 0, 0)
    assert rig.woken == []
    rig.grow(queue, 0)
    assert rig.woken == ["ahead"]


def test_a_pull_ends_at_its_time(rig: Rig) -> None:
    """X-BROKER-09, E-PULL-02: the hold ends at 15 s and is answered then."""
    queue = rig.queue()
    rig.hold(queue, "late", deadline=15_010)
    rig.hold(queue, "soon", deadline=15_000)
    rig.holds.tick(14_999)
    assert rig.woken == []
    rig.holds.tick(15_000)
    assert rig.woken == ["soon"]
    rig.holds.tick(15_010 + BUCKET_MS)
    assert rig.woken == ["soon", "late"]
    rig.grow(queue, 0)
    assert len(rig.woken) == 2


def test_a_time_that_is_over_already_ends_with_the_next_tick(rig: Rig) -> None:
    rig.hold(rig.queue(), "past", deadline=-5)
    rig.holds.tick(1_000_000)
    assert rig.woken == ["past"]


def test_a_closed_connection_is_dropped_from_the_queue(rig: Rig) -> None:
    """A-BROKER-48."""
    queue, gone, stays = rig.queue(), object(), object()
    rig.hold(queue, "gone", owner=gone)
    rig.hold(queue, "gone too", owner=gone)
    rig.hold(queue, "stays", owner=stays)
    rig.holds.drop(gone)
    rig.holds.drop(gone)
    assert len(rig.holds) == 1
    rig.grow(queue, 0)
    assert rig.woken == ["stays"]


def test_a_cancelled_pull_is_not_woken(rig: Rig) -> None:
    queue = rig.queue()
    held = rig.hold(queue, "x")
    rig.holds.cancel(held)
    rig.holds.cancel(held)
    rig.grow(queue, 0)
    rig.holds.tick(1 << 40)
    assert rig.woken == []


def test_messages_of_other_tags_do_not_wake(rig: Rig) -> None:
    """remoting.md 4.4: a dispatcher event whose tag code matches the request's filter."""
    queue = rig.queue()
    rig.hold(queue, "A", codes={65, -2147483648})
    rig.grow(queue, 66, 0)
    rig.grow(queue, 67)
    assert rig.woken == []
    rig.grow(queue, 66, 65)
    assert rig.woken == ["A"]
    rig.hold(queue, "negative", at=5, codes={-2147483648})
    rig.grow(queue, -2147483648)
    assert rig.woken == ["A", "negative"]


def test_each_entry_is_examined_once_for_a_pull(rig: Rig) -> None:
    queue = rig.queue()
    held = rig.hold(queue, "A", codes={65})
    rig.grow(queue, *[66] * 500)
    rig.grow(queue, *[66] * 500)
    assert rig.woken == []
    assert held.examined_offset == 1000
    rig.grow(queue, *[66] * 801)  # more than one look takes: the pull reads itself
    assert rig.woken == ["A"]


def test_new_messages_are_looked_at_once_for_all_pulls(rig: Rig) -> None:
    """Of a thousand with a tag each, those are woken that want what came."""
    queue = rig.queue()
    for tag in range(1_000):
        rig.hold(queue, f"{tag}", codes={tag})
    rig.grow(queue, *[2_000] * 500)
    rig.grow(queue, 7, 2_000, 900, 7)
    assert rig.woken == ["7", "900"]
    assert queue.looks == 2  # type: ignore[attr-defined]


def test_a_queue_whose_beginning_went_away_wakes(rig: Rig) -> None:
    """The pull is told the new beginning (code 21)."""
    queue = rig.queue()
    rig.hold(queue, "A", codes={65})
    queue.min_offset = 5
    rig.grow(queue, *[66] * 6)
    assert rig.woken == ["A"]


def test_entries_that_are_not_all_there_wake(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of the queue's files may end before the message: the pull itself looks on."""
    queue = rig.queue()
    rig.hold(queue, "A", codes={65})
    monkeypatch.setattr(queue, "entries", lambda _from, _most: [(0, 100, 66)])
    rig.grow(queue, 66, 65)
    assert rig.woken == ["A"]


def test_a_queue_without_waiters_is_not_looked_at(rig: Rig) -> None:
    queue = rig.queue()
    held = rig.hold(queue, "A", codes={65})
    rig.holds.cancel(held)
    rig.grow(queue, 65)
    assert queue.looks == 0  # type: ignore[attr-defined]


def test_waking_may_hold_again(rig: Rig) -> None:
    """Clients pull again at once; the new pull must not be woken by the same message."""
    queue = rig.queue()

    def again() -> None:
        rig.woken.append("again")
        rig.holds.hold(queue, queue.visible_offset, 15_000, again)

    rig.holds.hold(queue, 0, 15_000, again)
    rig.grow(queue, 0)
    assert rig.woken == ["again"]
    assert len(rig.holds) == 1


def test_waking_one_may_drop_another(rig: Rig) -> None:
    queue, owner = rig.queue(), object()
    rig.holds.hold(queue, 0, 15_000, lambda: rig.holds.drop(owner))
    rig.hold(queue, "dropped", owner=owner)
    rig.grow(queue, 0)
    assert rig.woken == []


@pytest.mark.provokes_bugs
def test_a_bug_in_one_pull_leaves_the_others(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    queue = rig.queue()
    rig.holds.hold(queue, 0, 15_000, lambda: [].pop())
    rig.hold(queue, "fine")
    rig.grow(queue, 0)
    assert rig.woken == ["fine"]
    assert rig.holds.counters.errors == 1
    assert "held pull failed by a bug topic=T" in caplog.text
    rig.holds.wake_all()
    assert (len(rig.holds), rig.holds.counters.errors) == (0, 1)  # it is woken once all the same


def test_all_pulls_of_a_queue_that_goes_away_are_woken(rig: Rig) -> None:
    queue, other = rig.queue(), rig.queue("U")
    rig.hold(queue, "gone", at=100)
    rig.hold(other, "other")
    rig.holds.wake_all(queue)
    assert rig.woken == ["gone"]
    rig.holds.wake_all()
    assert rig.woken == ["gone", "other"]


def test_the_bound_answers_at_once(rig: Rig) -> None:
    """Everything that buffers has a bound."""
    rig = Rig(replace(SETTINGS, max_held_pulls=2))
    queue = rig.queue()
    assert rig.hold(queue, "1") is not None
    assert rig.hold(queue, "2") is not None
    assert rig.hold(queue, "3") is None
    assert rig.holds.counters.refused == 1
    rig.grow(queue, 0)
    assert rig.hold(queue, "4", at=1) is not None


def test_nothing_is_left_of_pulls_that_were_woken(rig: Rig) -> None:
    queue = rig.queue()
    for number in range(1000):
        rig.hold(queue, "x", at=number)
        rig.grow(queue, 0)
    assert len(rig.woken) == 1000
    assert not rig.holds._by_bucket
    assert not rig.holds._by_owner
    assert not rig.holds._by_queue


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_published_message_wakes_when_readers_may_see_it(tmp_path: Path, durability: str) -> None:
    """A-BROKER-47 with a real queue: not before it is durable."""
    broker = BrokerRig(tmp_path / "store")
    try:
        broker.store_settings = replace(broker.store_settings, durability=durability)  # type: ignore[arg-type]
        broker.restart()
        holds = HeldPulls(SETTINGS)
        broker.broker.queue_listeners.append(holds.grown)
        queue = broker.broker.ensure_topic("T").queues[0]
        woken: list[int] = []
        holds.hold(queue, 0, 15_000, lambda: woken.append(queue.visible_offset))
        batch = PublishBatch()
        batch.destinations = ["T"]
        batch.append(b"body")
        broker.broker.publish(batch)
        assert woken == ([] if durability == "fsync" else [1])
        broker.store.flush()
        assert woken == [1]
    finally:
        broker.close()
