"""The event loop stays awake behind reads that somebody waits for the answer of, and behind no others (ADR 0011)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.nsq.fake_client import Client, pub
from tests.unit.nsq.real_bench import RealBench, real_bench


class NotingBusyPoll:
    """Counts the reads that the loop is told of."""

    def __init__(self) -> None:
        self.reads = 0

    def served(self) -> None:
        self.reads += 1

    def waits(self) -> None:
        raise AssertionError("nothing waits for the disk")

    def answered(self) -> None:
        """As the loop is told when answers have left."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RealBench]:
    with real_bench(tmp_path) as made:
        yield made


def consumer_of(bench: RealBench, ready: int) -> Client:
    consumer = bench.client(peer=("10.0.0.2", 1))
    consumer.post(b"SUB orders all\n")
    bench.server.broker.store.flush()
    consumer.post(b"RDY %d\n" % ready)
    bench.end_turn()
    assert consumer.frames() == [(0, b"OK")]
    return consumer


def noted(bench: RealBench) -> NotingBusyPoll:
    """Have reads counted from now on."""
    busy_poll = NotingBusyPoll()
    bench.server.busy_poll = busy_poll  # type: ignore[assignment]
    return busy_poll


def finish(consumer: Client, count: int) -> None:
    """Finish the first messages that came, in one read."""
    frames = [data for kind, data in consumer.frames() if kind == 2][:count]
    consumer.post(b"".join(b"FIN " + data[10:26] + b"\n" for data in frames))


def test_who_publishes_waits(bench: RealBench) -> None:
    """Each turn with publishes is looked behind, joined or not."""
    publisher = bench.client()
    busy_poll = noted(bench)
    for number in range(1, 4):
        publisher.post(pub("orders", b"x"))
        bench.end_turn()
        assert busy_poll.reads == number


def test_nobody_waits_for_what_the_last_fins_lead_to(bench: RealBench) -> None:
    """A consumer that has finished all there is gets nothing for it; its heartbeat's answer is waited for by nobody."""
    publisher, consumer = bench.client(), consumer_of(bench, 100)
    for _ in range(3):
        publisher.post(pub("orders", b"x"))
    bench.end_turn()
    busy_poll = noted(bench)
    finish(consumer, 3)
    consumer.post(b"NOP\n")
    assert busy_poll.reads == 0


def test_a_consumer_with_a_small_window_waits_for_its_next_message(bench: RealBench) -> None:
    """Where there is more than it may have at once, each of its FINs brings it the next."""
    publisher, consumer = bench.client(), consumer_of(bench, 1)
    for _ in range(3):
        publisher.post(pub("orders", b"x"))
    bench.end_turn()
    busy_poll = noted(bench)
    for left in (2, 1, 0):
        finish(consumer, 1)
        bench.end_turn()
        assert busy_poll.reads == 3 - max(left, 1)
