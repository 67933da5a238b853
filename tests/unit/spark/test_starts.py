"""Where reads begin and end: by time on RocketMQ, and what is refused. Ref: docs/spark/source.md."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, cast

import pytest

pytest.importorskip("pyspark.sql.datasource")

from headrace.errors import ConfigError
from headrace.format import record
from headrace.remoting.blocking import Cluster, Pulled
from headrace.remoting.codes import ResponseCode
from headrace.spark.errors import DataLossError
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import LogPartition
from headrace.spark.reader import BatchReader, plan_log_partitions
from headrace.spark.remote import BrokerState, QueueState, ServersView, Snapshot, TopicState
from headrace.spark.starts import resolve_ends, resolve_starts
from tests.unit.spark.test_files import make_store, write_mark

BROKER = "b"


@dataclass
class RocketMQ:
    """A broker whose one queue holds messages stored at ``times``; 4.9 finds the nearest one to a time.

    Attributes:
        low: Offset of the first message.
        is_exact: It is a 5.x, which finds the first message at or after a time.
        most: Messages of one pull.
    """

    times: list[int]
    low: int = 0
    is_exact: bool = False
    most: int = 3
    asked: int = 0

    @property
    def queue(self) -> QueueState:
        return QueueState(self.low, self.low + len(self.times))

    def brokers(self) -> dict[str, str]:
        return {BROKER: "a:1"}

    def search_offset(self, broker: str, topic: str, queue_id: int, time_ms: int) -> int:
        at = bisect_left(self.times, time_ms)
        if not self.is_exact and at:
            if time_ms in self.times:  # any of them
                at += self.times.count(time_ms) // 2
            elif at == len(self.times) or time_ms - self.times[at - 1] < self.times[at] - time_ms:
                at -= 1
        return self.low + at

    def pull(self, broker: str, group: str, topic: str, queue_id: int, offset: int, most: int = 32) -> Pulled:
        self.asked += 1
        low, high = self.low, self.low + len(self.times)
        if not low <= offset < high:
            return Pulled(ResponseCode.PULL_OFFSET_MOVED, max(offset, low), low, high, b"")
        # Messages of a pull may begin before the offset that was asked for, where they were sent as one.
        first, end = max(low, offset - offset % 2), min(high, offset + min(most, self.most))
        raw = b"".join(
            record.encode(b"x", topic.encode(), queue_offset=at, store_ms=self.times[at - low], physical_offset=at * 99)
            for at in range(first, end)
        )
        return Pulled(ResponseCode.SUCCESS, end, low, high, raw)


def view_of(broker: RocketMQ, **given: str) -> tuple[ServersView, Snapshot]:
    options = ReadOptions.parse({"servers": "a:1", "topics": "t", **given})
    view = ServersView(options.source, options, cast("Cluster", broker))  # type: ignore[arg-type]
    view._foreign.add(BROKER)
    return view, {BROKER: BrokerState(BROKER, {"t": TopicState(0, {0: broker.queue})}, is_headrace=False)}


TIMES = [100, 100, 110, 200, 200, 200, 200, 200, 300]


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("low", [0, 40])
@pytest.mark.parametrize("time_ms", [0, 1, 99, 100, 101, 109, 110, 111, 150, 199, 200, 201, 249, 251, 299, 300])
def test_rocketmq_reads_by_time_are_exact(time_ms: int, low: int, is_exact: bool) -> None:
    """4.9 answers with the message nearest to a time: a batch must still have all of its messages, and no other."""
    expected = low + bisect_left(TIMES, time_ms)
    for given in (str(time_ms), json.dumps({"t": {BROKER: {"0": time_ms}}})):
        by_queue = "" if given.isdecimal() else "OffsetsByTimestamp"
        names = ("starting" + (by_queue or "Timestamp"), "ending" + (by_queue or "Timestamp"))
        broker = RocketMQ(TIMES, low, is_exact)
        view, snapshot = view_of(broker, **{names[0]: given})
        assert resolve_starts(view, snapshot, "earliest") == {"t": {BROKER: {0: expected}}}
        view, snapshot = view_of(broker, **{names[1]: given})
        assert resolve_ends(view, snapshot) == {"t": {BROKER: {0: expected}}}
        assert broker.asked <= 8


@pytest.mark.parametrize("is_exact", [False, True])
def test_rocketmq_time_behind_the_newest_message(is_exact: bool) -> None:
    """The end takes the last message too; a start has none, which is an error or the end."""
    broker = RocketMQ(TIMES, 7, is_exact)
    view, snapshot = view_of(broker, endingTimestamp="5000")
    assert resolve_ends(view, snapshot) == {"t": {BROKER: {0: 7 + len(TIMES)}}}
    view, snapshot = view_of(broker, startingTimestamp="5000")
    with pytest.raises(ConfigError, match="no message stored at or after 5000"):
        resolve_starts(view, snapshot, "earliest")
    view, snapshot = view_of(broker, startingTimestamp="5000", startingTimestampStrategy="latest")
    assert resolve_starts(view, snapshot, "earliest") == {"t": {BROKER: {0: 7 + len(TIMES)}}}
    view, snapshot = view_of(RocketMQ([]), endingTimestamp="5000")
    assert resolve_ends(view, snapshot) == {"t": {BROKER: {0: 0}}}


class Everything(ServersView):
    """A view whose snapshot is of all queues: what the options leave out is left out by the real one."""

    def snapshot(self, **_: Any) -> dict[str, BrokerState]:
        queues = {queue_id: QueueState(0, 5) for queue_id in range(3)}
        wanted = {number: queue for number, queue in queues.items() if self.options.wants_queue("t", BROKER, number)}
        return {BROKER: BrokerState(BROKER, {"t": TopicState(0, wanted)})}


@pytest.mark.parametrize(
    ("assign", "says"),
    [
        ({"t": {BROKER: [0, 7]}}, "option assign names queue 7 of topic 't' on broker 'b'; there are 0, 1, 2$"),
        ({"t": {"bb": [0]}}, "option assign names broker 'bb'.*; there are b$"),
        ({"t": {BROKER: [0]}, "u": {BROKER: [1]}}, "queue 1 of topic 'u' on broker 'b'; there are none$"),
    ],
)
def test_assign_names_what_there_is(assign: dict[str, Any], says: str) -> None:
    options = ReadOptions.parse({"servers": "a:1", "assign": json.dumps(assign)})
    view = Everything(options.source, options, cast("Cluster", None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says) as caught:
        resolve_starts(view, view.snapshot(), "earliest")
    assert caught.value.key == "assign"
    options = ReadOptions.parse({"servers": "a:1", "assign": json.dumps({"t": {BROKER: [2]}})})
    view = Everything(options.source, options, cast("Cluster", None))  # type: ignore[arg-type]
    assert resolve_starts(view, view.snapshot(), "earliest") == {"t": {BROKER: {2: 0}}}


@pytest.fixture
def folder(tmp_path):
    raw, whole = make_store(tmp_path, 100)
    return tmp_path, [sum(map(len, whole[:number])) for number in range(100)], len(raw)


def plan(root, **given: Any) -> list[tuple[int, int]]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    options = ReadOptions.parse({"store": str(root), "scan": "log", "brokerName": BROKER, **texts})
    BatchReader(options, ("body",))
    partitions = cast("list[LogPartition]", plan_log_partitions(options))
    return [(partition.split.start, partition.split.end) for partition in partitions]


def test_offsets_of_a_log(folder):
    root, at, end = folder
    assert plan(root) == [(0, end)]
    assert plan(root, startingOffsets={BROKER: at[5]}, endingOffsets={BROKER: at[9]}) == [(at[5], at[9])]
    assert plan(root, startingOffsets={BROKER: -2}, endingOffsets={BROKER: -1}) == [(0, end)]
    assert plan(root, startingOffsets={BROKER: end}) == []
    assert plan(root, startingOffsets={BROKER: at[5]}, startingTimestamp="7") == [(0, end)]  # the time wins


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": {"bb": 5}}, "option startingOffsets names broker 'bb'.*there are b$"),
        ({"endingOffsets": {"bb": 5}}, "option endingOffsets names broker 'bb'.*there are b$"),
        ({"startingOffsets": {BROKER: 900}, "endingOffsets": {BROKER: 500}}, "begins at .* 900 and ends at 500"),
        ({"startingOffsetsByTimestamp": {"t": {BROKER: {"0": 5}}}}, "option startingOffsetsByTimestamp goes with"),
        ({"endingOffsetsByTimestamp": {"t": {BROKER: {"0": 5}}}}, "option endingOffsetsByTimestamp goes with"),
        ({"startingOffsets": "committed", "group": "g"}, "startingOffsets=committed goes with topics of servers"),
    ],
)
def test_wrong_offsets_of_a_log_are_named(folder, given, says):
    with pytest.raises(ConfigError, match=says):
        plan(folder[0], **given)


def test_offsets_that_a_log_has_not_are_data_loss(folder):
    root, _, end = folder
    beyond = end + 500
    for option, taken in (("startingOffsets", []), ("endingOffsets", [(0, end)])):
        with pytest.raises(DataLossError, match=f"offset {beyond} of broker 'b' lies beyond its end {end}"):
            plan(root, **{option: {BROKER: beyond}})
        assert plan(root, failOnDataLoss="false", **{option: {BROKER: beyond}}) == taken


def test_task_steps_over_the_end_that_a_log_has_lost(folder):
    """The log was cut off after the plan: an error, or the rows that there are."""
    root, at, end = folder
    given = {"store": str(root), "scan": "log", "brokerName": BROKER}
    (partition,) = plan_log_partitions(ReadOptions.parse(given))
    write_mark(root, at[60])
    with pytest.raises(DataLossError, match=f"{at[60]} to {end} are gone"):
        list(BatchReader(ReadOptions.parse(given), ("body",)).read(partition))
    batches = BatchReader(ReadOptions.parse({**given, "failOnDataLoss": "false"}), ("body",)).read(partition)
    assert sum(batch.num_rows for batch in batches) == 60


def test_start_below_the_oldest(tmp_path):
    raw, _ = make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="5 to 65536 of broker 'b' are gone"):
        plan(tmp_path, startingOffsets={BROKER: 5})
    assert plan(tmp_path, startingOffsets={BROKER: 5}, failOnDataLoss="false") == [(1 << 16, len(raw))]
    with pytest.raises(DataLossError, match="offset 5 of broker 'b' lies before its begin 65536"):
        plan(tmp_path, endingOffsets={BROKER: 5})
    assert plan(tmp_path, endingOffsets={BROKER: 5}, failOnDataLoss="false") == []
