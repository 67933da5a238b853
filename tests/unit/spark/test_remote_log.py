"""Whole logs read from brokers, with a broker that is a log in memory. Ref: docs/protocols/extensions.md, READ_LOG."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import ConfigError
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark import connections, remote_log
from headrace.spark.errors import DataLossError
from headrace.spark.scan import ServersSource

SEGMENT = 1000


class LogBroker:
    """Has the bytes ``low`` to ``high`` of a log but for the file that begins at ``gap``; gives ``most`` at a time."""

    address = "b:1"

    def __init__(self, low: int = 0, high: int = 3500, gap: int = -SEGMENT) -> None:
        self.low = low
        self.high = high
        self.gap = gap
        self.most = 10 * SEGMENT
        self.is_headrace = True
        self.missing: list[tuple[int, int]] = []
        self.log = bytes(number // 7 % 251 for number in range(10 * SEGMENT))

    def client(self, address: str) -> LogBroker:
        assert address == self.address
        return self

    def broker_address(self, name: str) -> str:
        return self.address

    def brokers(self) -> dict[str, str]:
        return {"b": self.address}

    def reader_state(self, address: str, body: bytes, *, group: str, wait_ms: int) -> dict[str, Any] | None:
        assert json.loads(body) == {"topics": [], "log": True}
        if not self.is_headrace:
            return None
        log = {"min": self.low, "max": self.high, "missing": self.missing}
        return {"broker": "b", "store_id": "s", "epoch": 2, "segment_bytes": SEGMENT, "log": log}

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]], window: int) -> Iterator[Command]:
        for _, ext, _ in requests:
            yield self.answer(int(ext["offset"]), int(ext["maxBytes"]))

    def answer(self, offset: int, most: int) -> Command:
        if not self.is_headrace:
            return Command(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        ext = {"minOffset": str(self.low), "maxOffset": str(self.high), "segmentBytes": str(SEGMENT)}
        if not self.low <= offset <= self.high:
            return Command(int(ResponseCode.PULL_OFFSET_MOVED), ext)
        if self.gap <= offset < self.gap + SEGMENT:
            return Command(int(ResponseCode.SUCCESS), ext | {"nextOffset": str(self.gap + SEGMENT)})
        end = min(offset + min(most, self.most), self.high, (offset // SEGMENT + 1) * SEGMENT)
        return Command(int(ResponseCode.SUCCESS), ext | {"nextOffset": str(end)}, self.log[offset:end])


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> LogBroker:
    broker = LogBroker()
    monkeypatch.setattr(connections, "cluster_of", lambda source: broker)
    return broker


def chunks(start: int, stop: int, chunk_bytes: int) -> list[tuple[int, bytes]]:
    source = ServersSource("r:1", retries=0)
    return [(at, bytes(data)) for at, data in source.chunks("b", start, stop, chunk_bytes)]


@pytest.mark.parametrize("chunk", [1, 300, 1000, 5000])
@pytest.mark.parametrize(("start", "stop"), [(0, 3500), (250, 900), (999, 1001), (1000, 2000), (3400, 3500)])
def test_chunks_are_the_log(broker: LogBroker, start: int, stop: int, chunk: int) -> None:
    """In order, each from one file, and on behind the end up to that of its file: the last record may reach there."""
    found = chunks(start, stop, chunk)
    assert found[0][0] == start
    assert all(at + len(data) == following for (at, data), (following, _) in pairwise(found))
    assert b"".join(data for _, data in found) == broker.log[start : min(-(-stop // SEGMENT) * SEGMENT, 3500)]
    assert all(at // SEGMENT == (at + len(data) - 1) // SEGMENT for at, data in found)


def test_what_an_answer_leaves_out_is_asked_for(broker: LogBroker) -> None:
    """Answers may be shorter than what was asked for: those to the requests behind them are not what follows."""
    broker.most = 70
    found = chunks(250, 3300, 300)
    assert b"".join(data for _, data in found) == broker.log[250:3500]
    assert all(at + len(data) == following for (at, data), (following, _) in pairwise(found))


def test_a_long_part_takes_no_more_memory_than_a_short_one(broker: LogBroker) -> None:
    """Every request was made before the first was sent; with maxBytesPerPartition=0 a task reads a whole log."""
    found = ServersSource("r:1", retries=0).chunks("b", 0, 3500, 1)
    tracemalloc.start()
    try:
        for _ in range(3):
            next(found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_part_without_a_file_is_left_out(broker: LogBroker) -> None:
    broker.gap = 1000
    found = chunks(500, 2700, 400)
    assert b"".join(data for _, data in found) == broker.log[500:1000] + broker.log[2000:3000]
    assert 2000 in [at for at, _ in found]
    assert all(not 1000 <= at < 2000 for at, _ in found)


@pytest.mark.parametrize(
    ("low", "high", "lost", "says"),
    [
        (2000, 3500, (500, 2000), "retention has removed them"),
        (3000, 3500, (500, 2700), "retention has removed them"),
        (0, 400, (500, 2700), "the log ends at 400 .it was cut off or replaced"),
    ],
)
def test_what_a_log_has_no_more_is_data_loss(
    broker: LogBroker, low: int, high: int, lost: tuple[int, int], says: str
) -> None:
    broker.low, broker.high = low, high
    with pytest.raises(DataLossError, match=says) as caught:
        chunks(500, 2700, 400)
    assert (caught.value.first_offset, caught.value.end_offset) == lost


def test_a_broker_of_another_kind_is_named(broker: LogBroker) -> None:
    broker.is_headrace = False
    with pytest.raises(ConfigError, match="'b' is not a Headrace broker and has no raw-log reads"):
        chunks(0, 100, 100)
    with pytest.raises(ConfigError, match="'b' is not a Headrace broker and has no raw-log reads"):
        remote_log.log_extents(ServersSource("r:1"))


@pytest.mark.parametrize(
    ("missing", "runs"),
    [
        ([], ((1000, 3500),)),
        ([(2000, 3000)], ((1000, 2000), (3000, 3500))),
        ([(0, 1000)], ((1000, 3500),)),
        ([(0, 500)], ((1000, 3500),)),
        ([(1000, 2000), (2000, 3500)], ()),
    ],
)
def test_an_extent_has_the_runs_between_what_is_missing(
    broker: LogBroker, missing: list[tuple[int, int]], runs: tuple[tuple[int, int], ...]
) -> None:
    broker.low, broker.missing = 1000, missing
    (extent,) = remote_log.log_extents(ServersSource("r:1"))
    assert (extent.broker, extent.segment_bytes, extent.store_id, extent.epoch) == ("b", SEGMENT, "s", 2)
    assert (extent.runs, extent.missing) == (runs, tuple(missing))
