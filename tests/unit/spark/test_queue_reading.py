"""How ranges of queues are asked for, with a broker that is a list of answers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import RemotingRefusedError
from headrace.remoting.blocking import Pulled
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark import connections
from headrace.spark.errors import DataLossError
from headrace.spark.queue_reading import QueueRange, QueueReading
from headrace.spark.scan import ServersSource


class Broker:
    """Answers with at most so many records; it is the cluster and its own client."""

    address = "b:1"

    def __init__(self, most: int) -> None:
        self.most = most
        self.opened = 0
        self.closed = 0

    def client(self, address: str) -> Broker:
        assert address == self.address
        return self

    def broker_address(self, name: str) -> str:
        return self.address

    def open_another(self, source: ServersSource) -> Broker:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        low = int(ext["offset"])
        high = min(int(ext["endOffset"]), low + self.most)
        found = {"nextOffset": str(high), "minOffset": "0", "maxOffset": "1000"}
        return Command(int(ResponseCode.SUCCESS), found, b"x" * (high - low))

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]], window: int) -> Iterator[Command]:
        for request in requests:
            yield self.call(*request)


@pytest.mark.parametrize(("most", "opened"), [(100, 0), (7, 1)])
def test_a_second_connection_is_opened_when_an_answer_leaves_something_out(
    most: int, opened: int, monkeypatch: Any
) -> None:
    broker = Broker(most)
    monkeypatch.setattr(connections, "cluster_of", lambda source: broker)
    monkeypatch.setattr(connections, "new_cluster", broker.open_another)
    reading = QueueReading(ServersSource("r:1"), pull_bytes=4_000)
    found = list(reading.records(QueueRange("t", "b", 0, 0, 100, record_bytes=100)))
    assert b"".join(records for records, _, _ in found) == b"x" * 100
    assert [end for _, _, end in found][-1] == 100
    assert (broker.opened, broker.closed) == (opened, opened)


class ShortQueue(Broker):
    """A broker whose queue has the offsets ``low`` to ``high`` only, with a byte for each; it may be RocketMQ's.

    Attributes:
        refusal: Code and text of what it refuses every read with.
        retries: How many pulls it answers with PULL_RETRY_IMMEDIATELY first.
    """

    def __init__(self, low: int, high: int, *, is_headrace: bool = True, skipped: int = 0) -> None:
        super().__init__(most=10)
        self.low = low
        self.high = high
        self.is_headrace = is_headrace
        self.skipped = skipped
        self.refusal: tuple[ResponseCode, str] | None = None
        self.retries = 0

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        if not self.is_headrace:
            return Command(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        if self.refusal is not None:
            return Command(int(self.refusal[0]), remark=self.refusal[1])
        low = int(ext["offset"])
        extent = {"minOffset": str(self.low), "maxOffset": str(self.high)}
        if not self.low <= low < self.high:
            code = ResponseCode.PULL_NOT_FOUND if low == self.high else ResponseCode.PULL_OFFSET_MOVED
            return Command(int(code), extent | {"nextOffset": str(low)})
        high = min(int(ext["endOffset"]), low + self.most, self.high)
        found = extent | {"nextOffset": str(high), "skipped": str(self.skipped)}
        return Command(int(ResponseCode.SUCCESS), found, b"x" * (high - low))

    def pull(self, broker: str, group: str, topic: str, queue_id: int, at: int, most: int, tags: str) -> Pulled:
        if self.refusal is not None:
            raise RemotingRefusedError(*self.refusal, self.address)
        if self.retries:
            self.retries -= 1
            return Pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, at, self.low, self.high, b"")
        if not self.low <= at < self.high:
            return Pulled(ResponseCode.PULL_OFFSET_MOVED, self.low, self.low, self.high, b"")
        end = min(at + most, at + self.most, self.high)
        return Pulled(ResponseCode.SUCCESS, end, self.low, self.high, b"x" * (end - at))


def read(broker: ShortQueue, monkeypatch: Any, **options: Any) -> list[tuple[bytes, int, int]]:
    """Read the offsets 0 to 100."""
    monkeypatch.setattr(connections, "cluster_of", lambda source: broker)
    monkeypatch.setattr(connections, "new_cluster", broker.open_another)
    reading = QueueReading(ServersSource("r:1", retries=0), **options)
    return list(reading.records(QueueRange("t", "b", 3, 0, 100)))


@pytest.mark.parametrize("is_headrace", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "lost", "says"),
    [
        (
            30,
            100,
            (0, 30),
            "retention has removed them, or the topic was deleted and made again, the queue begins at 30",
        ),
        (0, 60, (60, 100), "the queue ends at 60: its broker lost the end of its log, or the topic is new"),
        (200, 300, (0, 100), "the queue begins at 200"),
        (0, 0, (0, 100), "the queue ends at 0"),
    ],
)
def test_offsets_that_a_queue_has_no_more_are_data_loss(
    low: int, high: int, lost: tuple[int, int], says: str, is_headrace: bool, monkeypatch: Any, caplog: Any
) -> None:
    """Never silently less: an error, or a count."""
    broker = ShortQueue(low, high, is_headrace=is_headrace)
    with pytest.raises(DataLossError, match=says) as caught:
        read(broker, monkeypatch)
    assert (caught.value.first_offset, caught.value.end_offset) == lost
    found = read(broker, monkeypatch, fail_on_data_loss=False)
    assert sum(len(records) for records, _, _ in found) == 100 - (lost[1] - lost[0])
    assert all(len(records) == end - first for records, first, end in found)
    assert f"count={lost[1] - lost[0]}" in caplog.text


@pytest.mark.parametrize("is_headrace", [True, False])
@pytest.mark.parametrize(
    "refusal", [(ResponseCode.TOPIC_NOT_EXIST, ""), (ResponseCode.SYSTEM_ERROR, "queueId[3] is illegal, topic:[t]")]
)
def test_a_queue_that_is_gone_is_data_loss(
    refusal: tuple[ResponseCode, str], is_headrace: bool, monkeypatch: Any, caplog: Any
) -> None:
    broker = ShortQueue(0, 100, is_headrace=is_headrace)
    broker.refusal = refusal
    with pytest.raises(DataLossError, match="is not there any more"):
        read(broker, monkeypatch)
    found = read(broker, monkeypatch, fail_on_data_loss=False)
    assert found == []
    assert "count=100" in caplog.text


@pytest.mark.parametrize("is_headrace", [True, False])
def test_other_refusals_are_no_loss(is_headrace: bool, monkeypatch: Any) -> None:
    broker = ShortQueue(0, 100, is_headrace=is_headrace)
    broker.refusal = ResponseCode.NO_PERMISSION, "not yours"
    with pytest.raises(RemotingRefusedError, match="not yours"):
        read(broker, monkeypatch, fail_on_data_loss=False)


def test_offsets_without_a_record_are_counted(monkeypatch: Any, caplog: Any) -> None:
    found = read(ShortQueue(0, 100, skipped=2), monkeypatch)
    assert found[-1][2] == 100
    assert [record.args[-1] for record in caplog.records] == [2] * 10
    assert "messages lost" not in caplog.text


@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND])
@pytest.mark.parametrize(("tags", "told"), [("", [30]), ("paid", [])])
def test_a_pull_that_goes_on_without_a_record_is_told(
    code: int, tags: str, told: list[int], monkeypatch: Any, caplog: Any
) -> None:
    """RocketMQ answers so where files of its log are gone, whose entries its queue has still; and beside a filter."""

    class Removing(ShortQueue):
        def pull(self, broker: str, group: str, topic: str, queue_id: int, at: int, most: int, tags: str) -> Pulled:
            if at < 30:
                return Pulled(code, 30, self.low, self.high, b"")
            return super().pull(broker, group, topic, queue_id, at, most, tags)

    found = read(Removing(0, 100, is_headrace=False), monkeypatch, tags=tags)
    assert sum(len(records) for records, _, _ in found) == 70
    assert [record.args[-1] for record in caplog.records] == told


def test_a_pull_that_is_to_be_made_again_is(monkeypatch: Any) -> None:
    broker = ShortQueue(0, 100, is_headrace=False)
    broker.retries = 2
    found = read(broker, monkeypatch)
    assert sum(len(records) for records, _, _ in found) == 100


@pytest.mark.parametrize("step", [0, 35])
def test_an_answer_counts_up_to_the_end_that_was_asked_for(step: int, monkeypatch: Any) -> None:
    """One that does not get on at all would be asked for again for ever."""

    class OwnPace(ShortQueue):
        def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
            reached = int(ext["offset"]) + step
            found = {"nextOffset": str(reached), "minOffset": "0", "maxOffset": "500"}
            return Command(int(ResponseCode.SUCCESS), found, b"x" * step)

    if not step:
        with pytest.raises(DataLossError, match="has no more offsets 0 to 100"):
            read(OwnPace(0, 500), monkeypatch)
        return
    found = read(OwnPace(0, 500), monkeypatch)
    assert [(first, end) for _, first, end in found] == [(0, 35), (35, 70), (70, 100)]


def test_a_long_range_takes_no_more_memory_than_a_short_one(monkeypatch: Any) -> None:
    """A task of maxBytesPerPartition=0 made every request of its queue first, 390 MB for a thousand million records."""
    monkeypatch.setattr(connections, "cluster_of", lambda source: Broker(1 << 30))
    records = QueueReading(ServersSource("r:1")).records(QueueRange("t", "b", 0, 0, 10_000_000))
    tracemalloc.start()
    try:
        next(records)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
