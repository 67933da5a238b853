"""Where reads begin and end: by time on RocketMQ, and what is refused. Ref: docs/spark/source.md."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, cast

import pytest

pytest.importorskip("pyspark.sql.datasource")

from headrace.errors import ConfigError
from headrace.format import record
from headrace.format.side_file import write_side_file
from headrace.remoting.blocking import Cluster, Pulled
from headrace.remoting.codes import ResponseCode
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent, StoreFiles
from headrace.spark.options import COMMITTED, EARLIEST, ReadOptions
from headrace.spark.partitions import LogPartition
from headrace.spark.reader import BatchReader, find_log_topics, plan_log_partitions
from headrace.spark.remote import BrokerState, QueueState, ServersView, Snapshot, TopicState, state_of_log
from headrace.spark.starts import resolve_ends, resolve_starts
from headrace.spark.streams.positions import QueueKey
from headrace.spark.streams.stream import StreamReader
from tests.unit.spark.test_files import SEGMENT, make_store, write_mark

BROKER = "b"
QUEUE_0 = QueueKey("t", BROKER, 0)


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
    view._foreign[BROKER] = ()
    return view, {BROKER: BrokerState(BROKER, {"t": TopicState(0, {0: broker.queue})})}


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
        assert resolve_starts(view.options, snapshot, "earliest", view) == {QUEUE_0: expected}
        view, snapshot = view_of(broker, **{names[1]: given})
        assert resolve_ends(view.options, snapshot, view) == {QUEUE_0: expected}
        assert broker.asked <= 8


@pytest.mark.parametrize("is_exact", [False, True])
def test_rocketmq_time_behind_the_newest_message(is_exact: bool) -> None:
    """The end takes the last message too; a start has none, which is an error or the end."""
    broker = RocketMQ(TIMES, 7, is_exact)
    view, snapshot = view_of(broker, endingTimestamp="5000")
    assert resolve_ends(view.options, snapshot, view) == {QUEUE_0: 7 + len(TIMES)}
    view, snapshot = view_of(broker, startingTimestamp="5000")
    with pytest.raises(ConfigError, match="no message stored at or after 5000"):
        resolve_starts(view.options, snapshot, "earliest", view)
    view, snapshot = view_of(broker, startingTimestamp="5000", startingTimestampStrategy="latest")
    assert resolve_starts(view.options, snapshot, "earliest", view) == {QUEUE_0: 7 + len(TIMES)}
    view, snapshot = view_of(RocketMQ([]), endingTimestamp="5000")
    assert resolve_ends(view.options, snapshot, view) == {QUEUE_0: 0}


QUEUE = RocketMQ([0] * 10, low=40)


def resolve(option: str, view: ServersView, snapshot: Snapshot) -> Any:
    if option.startswith("starting"):
        return resolve_starts(view.options, snapshot, "earliest", view)
    return resolve_ends(view.options, snapshot, view)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_queue(option: str) -> None:
    """Offsets that the queue has count as they are; others are an error, or the nearest that it has."""

    def found(given: int, **more: str) -> int:
        view, snapshot = view_of(QUEUE, **{option: json.dumps({"t": {BROKER: {"0": given}}})}, **more)
        return int(resolve(option, view, snapshot)[QUEUE_0])

    assert [found(given) for given in (40, 45, 50, -1, -2)] == [40, 45, 50, 50, 40]
    for given, lost, says in ((39, (39, 40), "are gone: retention"), (51, (50, 51), "beyond its end 50")):
        with pytest.raises(DataLossError, match=says) as caught:
            found(given)
        assert (caught.value.first_offset, caught.value.end_offset) == lost
        assert option in str(caught.value)
        assert found(given, failOnDataLoss="false") == (40 if given == 39 else 50)


@pytest.mark.parametrize(
    "option",
    ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"],
)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"u": {BROKER: {"0": 45}}}, "names topic 'u', which is not read; read are t$"),
        ({"t": {"c": {"0": 45}}}, "names broker 'c'.*; there are b$"),
        ({"t": {BROKER: {"1": 45}}}, "names queue 1 of topic 't' on broker 'b', which is not read; read are 0$"),
    ],
)
def test_offsets_of_what_is_not_read_are_named(option: str, given: Any, says: str) -> None:
    """A misspelt name would be ignored otherwise."""
    view, snapshot = view_of(QUEUE, **{option: json.dumps(given)})
    with pytest.raises(ConfigError, match=says) as caught:
        resolve(option, view, snapshot)
    assert caught.value.key == option


def test_a_start_where_the_group_has_committed() -> None:
    def found(committed: int, **more: str) -> Any:
        view, _ = view_of(QUEUE, startingOffsets=COMMITTED, group="g", **more)
        queue = QueueState(40, 50, committed)
        snapshot = {BROKER: BrokerState(BROKER, {"t": TopicState(0, {0: queue})})}
        return resolve_starts(view.options, snapshot, "earliest", view)[QUEUE_0]

    assert [found(committed) for committed in (40, 45, 50)] == [40, 45, 50]
    with pytest.raises(DataLossError, match=r"offsets 0 to 40 .* are gone: retention has removed them"):
        found(0)
    assert found(-1, startingFallback="earliest") == 40
    assert found(-1, startingFallback="latest") == 50
    with pytest.raises(ConfigError, match="group 'g' has committed nothing"):
        found(-1, startingFallback="error")


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
        resolve_starts(options, view.snapshot(), "earliest", view)
    assert caught.value.key == "assign"
    options = ReadOptions.parse({"servers": "a:1", "assign": json.dumps({"t": {BROKER: [2]}})})
    view = Everything(options.source, options, cast("Cluster", None))  # type: ignore[arg-type]
    assert resolve_starts(options, view.snapshot(), "earliest", view) == {QueueKey("t", BROKER, 2): 0}


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


def test_task_steps_over_the_end_of_a_file_that_was_cut_off(tmp_path, caplog):
    """The rows before the cut and those of the files behind it, and not silently."""
    raw, whole = make_store(tmp_path, 2000)
    cut = SEGMENT + 30_000
    os.truncate(tmp_path / "commitlog" / f"{SEGMENT:020d}", 30_000)
    given = {"store": str(tmp_path), "scan": "log", "brokerName": BROKER}
    (partition,) = plan_log_partitions(ReadOptions.parse(given))
    with pytest.raises(DataLossError, match=f"30000 bytes long instead of {SEGMENT}: physical offsets {cut} to"):
        list(BatchReader(ReadOptions.parse(given), ("queue_offset",)).read(partition))
    wanted, at = [], 0
    for number, one in enumerate(whole):
        at = raw.index(one, at)
        if at + len(one) <= cut or at >= 2 * SEGMENT:
            wanted.append(number)
        at += len(one)
    batches = BatchReader(ReadOptions.parse({**given, "failOnDataLoss": "false"}), ("queue_offset",)).read(partition)
    assert [row["queue_offset"] for batch in batches for row in batch.to_pylist()] == wanted
    assert "part of a log lost" in caplog.text


@pytest.mark.parametrize("gone", [[1], [5, 6], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_missing_files_are_a_loss(tmp_path, gone, caplog):
    """Of the middle, the end, or all of a folder: rows were silently not there."""
    raw, _ = make_store(tmp_path, 2000)
    for number in gone:
        (tmp_path / "commitlog" / f"{number * SEGMENT:020d}").unlink(missing_ok=True)
    low, high = gone[0] * SEGMENT, min((gone[-1] + 1) * SEGMENT, len(raw))
    given = {"store": str(tmp_path), "scan": "log", "brokerName": BROKER}
    with pytest.raises(DataLossError, match=f"has no files for {low} to {high}"):
        plan(tmp_path)
    stream = StreamReader(ReadOptions.parse(given), ("body",))
    start = stream.initialOffset()
    with pytest.raises(DataLossError, match=f"has no files for {low} to {high}"):
        stream.latestOffset(start, stream.getDefaultReadLimit())
    plan(tmp_path, failOnDataLoss="false")
    assert "has no files" in caplog.text
    if low:
        assert plan(tmp_path, endingOffsets={BROKER: low}) == [(0, low)]


def test_a_part_that_a_recovery_gave_up_is_no_loss(tmp_path):
    """The log went on in a later file (docs/formats/side-files.md)."""
    make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / f"{SEGMENT:020d}").unlink()
    epochs = [
        {"epoch": 1, "first_physical_offset": 0},
        {"epoch": 2, "first_physical_offset": 2 * SEGMENT, "previous_end_offset": SEGMENT - 100},
    ]
    write_side_file(tmp_path / "headrace" / "epochs.json", "epochs", epochs)
    assert len(plan(tmp_path)) == 2


@pytest.mark.parametrize("part", ["1KiB", "64KiB", "0"])
@pytest.mark.parametrize("has_file", [True, False])
def test_a_batch_that_begins_in_a_part_that_a_recovery_gave_up(tmp_path, has_file, part):
    """What lay behind the part was passed over without a word, or the file that nobody needs was missed."""
    make_store(tmp_path, 2000)
    given_up = tmp_path / "commitlog" / f"{SEGMENT:020d}"
    given_up.write_bytes((SEGMENT.to_bytes(4) + record.BLANK_MAGIC.to_bytes(4)).ljust(SEGMENT, b"\0"))
    if not has_file:
        given_up.unlink()
    epochs = [
        {"epoch": 1, "first_physical_offset": 0},
        {"epoch": 2, "first_physical_offset": 2 * SEGMENT, "previous_end_offset": SEGMENT - 100},
    ]
    write_side_file(tmp_path / "headrace" / "epochs.json", "epochs", epochs)
    given = {"store": str(tmp_path), "scan": "log", "maxBytesPerPartition": part}
    options = ReadOptions.parse({**given, "maxBytesPerTrigger": str(SEGMENT * 3 // 2)})
    stream, batch = StreamReader(options, ("queue_offset",)), BatchReader(options, ("queue_offset",))
    streamed = []
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        streamed += rows_of(stream, stream.partitions(start, end))
        start = end
    assert streamed == rows_of(batch, batch.partitions())


def rows_of(reader, partitions):
    return [row for p in partitions for found in reader.read(p) for row in found.to_pylist()]


def test_rows_before_a_loss_at_the_end_are_kept(folder, monkeypatch):
    """What the decoder had gathered when the log's end went away was dropped."""
    root, at, end = folder
    given = {"store": str(root), "scan": "log", "brokerName": BROKER, "failOnDataLoss": "false"}
    (partition,) = plan_log_partitions(ReadOptions.parse(given))
    chunks = StoreFiles.chunks

    def cut_off(files, start, stop, chunk_bytes):
        for base, data in chunks(files, start, stop, at[10]):
            if base >= at[60]:
                raise DataLossError("gone", broker=BROKER, first_offset=base, end_offset=end)
            yield base, data

    monkeypatch.setattr(StoreFiles, "chunks", cut_off)
    batches = list(BatchReader(ReadOptions.parse(given), ("queue_offset",)).read(partition))
    assert sum(batch.num_rows for batch in batches) >= 60


def test_damage_is_told_where_it_was_read(folder, caplog):
    root, at, _ = folder
    path = root / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[at[5] + 4] ^= 1  # a magic
    raw[at[9] - 40] ^= 1  # within a body or the properties of a record
    path.write_bytes(raw)
    given = {"store": str(root), "scan": "log", "brokerName": BROKER, "verifyCrc": "true"}
    (partition,) = plan_log_partitions(ReadOptions.parse(given))
    batches = BatchReader(ReadOptions.parse(given), ("queue_offset",)).read(partition)
    assert sum(batch.num_rows for batch in batches) == 99
    assert "damaged records or stretches of log where=the log of broker 'b' from 0" in caplog.text
    assert "count=2" in caplog.text
    assert "bodies not decompressed" not in caplog.text


def test_a_pattern_takes_no_system_topics_of_a_folder(folder):
    """The queues of delayed and staged messages have folders as other topics have."""
    root, _, _ = folder
    for topic in ("t", "SCHEDULE_TOPIC_XXXX", "HR_STAGED", "%SYS%CONTROL", "rmq_sys_REVIVE_LOG_c", "%RETRY%g"):
        (root / "consumequeue" / topic).mkdir(parents=True)
    given = {"store": str(root), "topicPattern": ".*"}
    assert find_log_topics(ReadOptions.parse(given)) == ("t",)
    everything = find_log_topics(ReadOptions.parse({**given, "includeSystemTopics": "true"}))
    assert everything is not None
    assert len(everything) == 5


def test_start_below_the_oldest(tmp_path):
    raw, _ = make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="5 to 65536 of broker 'b' are gone"):
        plan(tmp_path, startingOffsets={BROKER: 5})
    assert plan(tmp_path, startingOffsets={BROKER: 5}, failOnDataLoss="false") == [(1 << 16, len(raw))]
    with pytest.raises(DataLossError, match="offset 5 of broker 'b' lies before its begin 65536"):
        plan(tmp_path, endingOffsets={BROKER: 5})
    assert plan(tmp_path, endingOffsets={BROKER: 5}, failOnDataLoss="false") == []


def test_logs_that_are_not_named_begin_as_by_default():
    """docs/spark/source.md, "Options": a batch at their beginning, a stream where startingFallback says."""
    options = ReadOptions.parse({"servers": "a:1", "scan": "log", "startingOffsets": '{"b": -1}'})
    extents = (LogExtent("a", 1000, ((100, 900),)), LogExtent("b", 1000, ((0, 700),)))
    snapshot = {extent.broker: state_of_log(extent) for extent in extents}
    a, b = QueueKey.of_log("a"), QueueKey.of_log("b")
    assert resolve_starts(options, snapshot, EARLIEST) == {a: 100, b: 700}
    assert resolve_starts(options, snapshot, COMMITTED) == {a: 900, b: 700}
