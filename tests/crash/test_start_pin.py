"""The start pin of a stream when the broker is killed at any step of its life. Direct: no Spark runs.

Ref: docs/spark/source.md, "Start pin".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from headrace.spark.options import ReadOptions
from headrace.spark.remote import ServersView
from headrace.spark.streams.stream import StreamReader
from tests.crash.broker_process import BrokerProcess
from tests.spark.conftest import make_topic, send, wait_registered

QUEUES = 3
STEPS = 3
"""The pin is marked as unfinished, its offsets are kept or forgotten, the mark is taken away."""
CUTS = [*((steps, False) for steps in range(STEPS + 1)), (STEPS, True)]
"""How many steps are done when driver and broker end, and whether the stream reads whole logs."""


class KilledBroker:
    """A broker process that tests of the source can address."""

    def __init__(self, folder: Path) -> None:
        self._process = BrokerProcess(folder, ("--broker.name", "broker-a"))
        self._process.start()
        wait_registered(self)  # type: ignore[arg-type]  # has what is asked of it
        make_topic(self, "orders", QUEUES)  # type: ignore[arg-type]
        wait_registered(self, "orders")  # type: ignore[arg-type]

    @property
    def registry(self) -> str:
        return self._process.listeners["registry"]

    def kill(self) -> None:
        """SIGKILL, and start again."""
        self._process.kill()
        self._process.start()
        wait_registered(self, "orders")  # type: ignore[arg-type]

    def end(self) -> None:
        self._process.kill()

    def put(self) -> None:
        """Send a message to every queue."""
        for queue_id in range(QUEUES):
            send(self, "orders", ["one"], queue_id)  # type: ignore[arg-type]

    def reader(self, is_log: bool) -> StreamReader:
        options = {"servers": self.registry, "group": "g", "startingOffsets": "latest"}
        options |= {"scan": "log"} if is_log else {"topics": "orders"}
        return StreamReader(ReadOptions.parse(options), ("body",))

    def start(self, is_log: bool) -> Any:
        """Return where a stream begins that a new process starts."""
        stream = self.reader(is_log)
        found = stream.initialOffset()
        stream.stop()
        return found["log"] if is_log else found["q"]["orders"]["broker-a"]


class PowerCutError(Exception):
    """The driver ended with the broker."""


@pytest.fixture
def broker(folder: Path) -> Iterator[KilledBroker]:
    made = KilledBroker(folder)
    yield made
    made.end()


def cut_power_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Have a driver end at the commit behind the first ``steps``."""
    left = [steps]
    commit = ServersView.commit

    def count(view: ServersView, *given: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCutError
        commit(view, *given, **more)

    monkeypatch.setattr(ServersView, "commit", count)


@pytest.mark.parametrize(("steps", "is_log"), CUTS)
def test_a_start_that_was_answered_survives_a_kill_at_any_step(
    broker: KilledBroker, monkeypatch: pytest.MonkeyPatch, steps: int, is_log: bool
) -> None:
    """A finished pin was taken for an unfinished one, and what came before the kill was not read by batch 0."""
    broker.put()
    with monkeypatch.context() as patch:
        cut_power_after(patch, steps)
        try:
            answered = broker.start(is_log)
        except PowerCutError:
            answered = None
    assert (answered is not None) == (steps == STEPS)
    broker.kill()
    broker.put()
    again = broker.start(is_log)
    assert again == (answered or again)
    if not is_log:
        assert len(set(again.values())) == 1  # of one moment
    broker.kill()
    broker.put()
    assert broker.start(is_log) == again


@pytest.mark.parametrize(("steps", "is_log"), CUTS)
def test_a_pin_is_dropped_whole_or_not_at_all(
    broker: KilledBroker, monkeypatch: pytest.MonkeyPatch, steps: int, is_log: bool
) -> None:
    """A new query began in some queues where the last one had, and in others as in new ones."""
    before = broker.start(is_log)
    broker.put()
    stream = broker.reader(is_log)
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    with monkeypatch.context() as patch:
        cut_power_after(patch, steps)
        try:
            stream.commit(end)
        except PowerCutError:
            assert steps < STEPS + (not is_log)  # behind the drop comes the report of progress
    stream.stop()
    broker.kill()
    broker.put()
    again = broker.start(is_log)
    assert (again == before) == (steps == 0)
    if not is_log:
        assert set(again.values()) == {2 if steps else 0}
