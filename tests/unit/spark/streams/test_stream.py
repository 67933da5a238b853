"""What the stream reader answers Spark, on brokers played by a table: starts, targets, loss, progress."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from headrace import testing
from headrace.errors import (
    ConfigError,
    ConnectionLostError,
    RemotingRefusedError,
    RouteNotFoundError,
    TopicNotFoundError,
)
from headrace.format.names import TEMPLATE_TOPICS, segment_name
from headrace.remoting.blocking import Cluster, Pulled, QueueStats, require
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.spark import connections, queue_reading, remote, remote_log
from headrace.spark.errors import BrokerGoneError, DataLossError
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import PartitionReader
from headrace.spark.reader import BatchReader
from headrace.spark.source import HeadraceDataSource
from headrace.spark.streams.positions import Position, QueueKey
from headrace.spark.streams.progress import ProgressListener, lag_of_progress
from headrace.spark.streams.stream import StreamReader
from tests.support.record_rows import lay_log

if TYPE_CHECKING:
    from headrace.spark.scan import ServersSource

ALL = ReadAllAvailable()
BROKER = "b"


@dataclass
class Brokers:
    """One broker and its registry.

    Attributes:
        queues: (low, high) by topic and queue id.
        groups: The groups that are known, None where every one is; the others are refused as RocketMQ 5 does.
    """

    queues: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    log: tuple[int, int] = (0, 0)
    store_id: str = "s1"
    address: str = "a:1"
    names: list[str] = field(default_factory=lambda: [BROKER])
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    groups: set[str] | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    unreadable: dict[tuple[str, int], int] = field(default_factory=dict)

    def brokers(self) -> dict[str, str]:
        return dict.fromkeys(self.names, self.address)

    def broker_address(self, broker: str) -> str:
        return self.address

    def known_addresses(self) -> dict[str, str]:
        return self.brokers()

    def client(self, address: str) -> Brokers:
        return self

    def topics(self) -> list[str]:
        return sorted(self.queues)

    def close(self) -> None:
        """Nothing is open."""

    def reader_state(self, address: str, body: bytes, *, group: str = "", wait_ms: int = 0) -> dict[str, Any]:
        wanted = json.loads(body)
        self.asked.append(wanted)
        names = list(self.queues) if wanted["topics"] is None else wanted["topics"]
        topics = {
            name: {
                "epoch": 1,
                "queues": {
                    str(queue_id): {
                        "min": low,
                        "max": high,
                        "committed": self.committed.get((group, name, queue_id), -1),
                    }
                    for queue_id, (low, high) in self.queues[name].items()
                },
            }
            for name in names
            if name in self.queues
        }
        log = {"min": self.log[0], "max": self.log[1]} if wanted.get("log") else None
        missing = [name for name in names if name not in self.queues]
        return {
            "topics": topics, "store_id": self.store_id, "epoch": 1, "segment_bytes": 1 << 20, "log": log,
            "missing": missing,
        }  # fmt: skip

    def query_offset(self, broker: str, group: str, topic: str, queue_id: int) -> int | None:
        return self.committed.get((group, topic, queue_id))

    def search_offset(self, broker: str, topic: str, queue_id: int, time_ms: int) -> int:
        return time_ms

    def max_offset(self, broker: str, topic: str, queue_id: int) -> int:
        return self.unreadable.get((topic, queue_id), 0)

    def announce_group(self, broker: str, group: str, topics: Iterable[str]) -> None:
        assert self.groups is not None
        assert list(topics)
        self.groups.add(group)

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]]) -> Iterator[Command]:
        for code, ext, _ in requests:
            assert code == RequestCode.UPDATE_CONSUMER_OFFSET
            yield Command(self._commit(ext), remark="as played")

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        assert code == RequestCode.READ_QUEUE
        return Command(0)  # no record to look at

    def _commit(self, ext: dict[str, str]) -> int:
        group, topic, queue_id = ext["consumerGroup"], ext["topic"], int(ext["queueId"])
        if self.groups is not None and group not in self.groups:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        if "forget" in ext:
            self.committed.pop((group, topic, queue_id), None)
        elif topic not in TEMPLATE_TOPICS and queue_id not in self.queues.get(topic, {}):
            return ResponseCode.TOPIC_NOT_EXIST
        else:
            self.committed[group, topic, queue_id] = int(ext["commitOffset"])
        return ResponseCode.SUCCESS


def reader(brokers: Brokers, **given: str) -> StreamReader:
    options = {"servers": "a:1", "topics": "t", "group": "g", **given}
    if "scan" in given or "topicPattern" in given or "assign" in given:
        del options["topics"]
    found = StreamReader(ReadOptions.parse(options), ("body",))
    found._view = remote.ServersView(found.options.source, found.options, cast("Cluster", brokers))  # type: ignore[arg-type]
    return found


def planned(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the ranges that a batch reads: queue id, start, end."""
    return [(r.queue_id, r.start, r.end) for p in stream.partitions(start, end) for r in p.ranges]  # type: ignore[attr-defined]


# Where a stream over whole logs begins


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingTimestamp": "0"}, 1000),
        ({"startingTimestamp": "0", "startingOffsets": "latest"}, 1000),
        ({"startingTimestamp": "0", "startingFallback": "error"}, 1000),
        ({"startingOffsets": "earliest"}, 1000),
        ({"startingOffsets": "latest"}, 9000),
        ({}, 9000),
        ({"startingFallback": "earliest"}, 1000),
        ({"startingOffsets": "committed", "startingFallback": "earliest"}, 1000),
        ({"startingOffsets": '{"b": 5000}'}, 5000),
        ({"startingOffsets": '{"b": -1}'}, 9000),
        ({"startingOffsets": '{"b": -2}'}, 1000),
        ({"startingOffsets": '{"b": 10}', "failOnDataLoss": "false"}, 1000),
        ({"startingOffsets": '{"b": 9001}', "failOnDataLoss": "false"}, 9000),
    ],
)
def test_start_of_a_log(given: dict[str, str], start: int) -> None:
    """docs/spark/source.md, "Options"."""
    brokers = Brokers(log=(1000, 9000))
    stream = reader(brokers, scan="log", **given)
    assert stream.initialOffset()["log"] == {BROKER: start}
    brokers.log = (1000, 20_000)
    assert reader(brokers, scan="log", **given).initialOffset()["log"] == {BROKER: start}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"startingFallback": "error"}, ConfigError, "startingFallback"),
        ({"startingOffsets": '{"c": 5000}'}, ConfigError, "broker 'c'"),
        ({"startingOffsets": '{"b": 10}'}, DataLossError, "10 to 1000 of broker 'b' are gone"),
        ({"startingOffsets": '{"b": 9001}'}, DataLossError, "9001 .* beyond its end 9000"),
    ],
)
def test_no_start_of_a_log(given: dict[str, str], error: type[Exception], says: str) -> None:
    brokers = Brokers(log=(1000, 9000))
    with pytest.raises(error, match=says):
        reader(brokers, scan="log", **given).initialOffset()
    assert not brokers.committed


def test_a_folder_has_no_latest_in_any_spelling() -> None:
    """Nobody pins it: it moved between Spark's two questions, and what came in between was not read."""
    for given in ("latest", '{"b": -1}'):
        options = ReadOptions.parse({"store": "/nowhere", "scan": "log", "startingOffsets": given})
        with pytest.raises(ConfigError, match="nobody would remember where latest was"):
            StreamReader(options, ("body",))


def test_a_log_is_cut_finer_when_asked() -> None:
    brokers = Brokers(log=(1000, 9000))
    stream = reader(brokers, scan="log", startingOffsets="earliest", minPartitions="4")
    start = stream.initialOffset()
    found = stream.partitions(start, stream.latestOffset(start, ALL))
    bounds = [(p.split.start, p.split.end) for p in found]  # type: ignore[attr-defined]
    assert bounds == [(1000, 2000), (2000, 4000), (4000, 6000), (6000, 8000), (8000, 9000)]


def test_a_logs_start_time_is_in_the_offset() -> None:
    """A query started again with another time reads the same rows of a batch, and leaves out none of the later ones."""
    brokers = Brokers(log=(1000, 9000))
    first = reader(brokers, scan="log", startingTimestamp="77")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    again = reader(brokers, scan="log", startingTimestamp="5000")
    brokers.log = (1000, 9500)
    later = again.latestOffset(end, ALL)
    for begin, until in ((start, end), (again.initialOffset(), end), (end, later)):
        assert {p.start_ms for p in again.partitions(begin, until)} == {77}  # type: ignore[attr-defined]
    assert Position.from_json(json.loads(json.dumps(later))).start_ms == 77


def test_a_batch_of_a_folder_has_the_topics_that_a_pattern_chose_when_it_was_planned(tmp_path: Path) -> None:
    """Run again by another start it had rows of topics that had come since: a sink that numbers rows lost some."""
    topics = [b"ta", b"tb"] * 3
    raw, _ = lay_log([{"body": b"", "topic": topic, "queue_offset": i} for i, topic in enumerate(topics)], 1 << 20)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / segment_name(0)).write_bytes(raw.ljust(1 << 20, b"\0"))
    (tmp_path / "consumequeue" / "ta").mkdir(parents=True)
    options = ReadOptions.parse({"store": str(tmp_path), "brokerName": BROKER, "topicPattern": "t."})

    def read(begin: dict[str, Any], until: dict[str, Any]) -> list[str]:
        stream = pickle.loads(pickle.dumps(StreamReader(options, ("topic",))))  # another one than plans
        batches = [
            batch for p in StreamReader(options, ("topic",)).partitions(begin, until) for batch in stream.read(p)
        ]
        return [row["topic"] for batch in batches for row in batch.to_pylist()]

    first = StreamReader(options, ("topic",))
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    assert read(start, end) == ["ta"] * 3
    (tmp_path / "consumequeue" / "tb").mkdir()
    assert read(start, json.loads(json.dumps(end))) == ["ta"] * 3
    assert read(start, StreamReader(options, ("topic",)).latestOffset(start, ALL)) == ["ta", "tb"] * 3
    assert read(start, end | {"names": []}) == []


def test_the_start_time_filters_no_rows_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets at the start honour it; a stream goes on from there with every row."""
    seen = []

    def read(self: PartitionReader, partition: object) -> Iterator[Any]:
        seen.append(self.options)
        return iter(())

    monkeypatch.setattr(PartitionReader, "read", read)
    brokers = Brokers({"t": {0: (0, 9)}})
    stream = reader(brokers, startingTimestamp="7")
    start = stream.initialOffset()
    assert start["q"] == {"t": {BROKER: {"0": 7}}}
    (partition,) = stream.partitions(start, stream.latestOffset(start, ALL))
    list(stream.read(partition))
    log = reader(Brokers(log=(0, 9000)), scan="log", startingTimestamp="7")
    (partition,) = log.partitions(log.initialOffset(), log.latestOffset(log.initialOffset(), ALL))
    list(reader(brokers, scan="log", startingTimestamp="8").read(partition))
    assert [options.decoder_options()["start_ms"] for options in seen] == [None, 7]


# Where a stream over topics begins


def test_a_new_queue_beside_a_pin_needs_no_fallback() -> None:
    brokers = Brokers({"t": {0: (0, 9)}}, committed={("g", "t", 0): 5})
    stream = reader(brokers, startingFallback="error")
    assert stream.initialOffset()["q"]["t"][BROKER] == {"0": 5}
    brokers.committed.pop(("g", "t", 0))
    brokers.queues["t"][1] = (2, 4)
    assert stream.initialOffset()["q"]["t"][BROKER] == {"0": 5, "1": 2}


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_batch_0_with_a_new_queue_is_planned_again(fail_on_data_loss: str) -> None:
    """What the batch's end says of the queue counts, not a pin that was made later."""
    brokers = Brokers({"t": {0: (0, 9)}})
    options = {"startingOffsets": "earliest", "newQueues": "latest", "failOnDataLoss": fail_on_data_loss}
    stream = reader(brokers, **options)
    start = stream.initialOffset()
    brokers.queues["t"][1] = (0, 7)
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == [(0, 0, 9)]
    brokers.queues["t"][1] = (0, 20)
    again = reader(brokers, **options)
    moved = again.initialOffset()
    assert moved["q"]["t"][BROKER] == {"0": 0, "1": 20}
    assert planned(again, moved, end) == [(0, 0, 9)]
    later = again.latestOffset(end, ALL)
    assert planned(again, end, later) == [(1, 7, 20)]
    assert planned(again, later, later) == []


# availableNow


@pytest.mark.parametrize("scan", [False, True])
def test_available_now_takes_its_target_after_the_start(scan: bool) -> None:
    """spark.md 1.5: Spark announces the run before it asks for the start."""
    brokers = Brokers({"t": {0: (0, 100)}}, log=(0, 100))
    stream = reader(brokers, scan="log") if scan else reader(brokers)
    stream.prepareForTriggerAvailableNow()
    brokers.queues["t"][0], brokers.log = (0, 105), (0, 105)
    start = stream.initialOffset()
    brokers.queues["t"][0], brokers.log = (0, 110), (0, 110)
    end = stream.latestOffset(start, ALL)
    brokers.queues["t"][0], brokers.log = (0, 120), (0, 120)
    assert stream.latestOffset(end, ALL) == end
    ends = [end["log"][BROKER]] if scan else [end["q"]["t"][BROKER]["0"]]
    assert ends == [110]


# What is asked


def test_the_broker_is_told_of_everything_it_told() -> None:
    """It compares all it has: what is left out would be news to it, and it would never wait."""
    brokers = Brokers({"t1": {0: (0, 5), 1: (0, 6)}, "other": {0: (0, 7)}})
    everything = {"t1": {"0": 5, "1": 6}, "other": {"0": 7}}
    stream = reader(brokers, topicPattern="t.*", startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert end["q"] == {"t1": {BROKER: {"0": 5, "1": 6}}}
    stream.latestOffset(end, ALL)
    assert brokers.asked[-1]["known"] == {"topics": everything}
    stream = reader(brokers, assign='{"t1": {"b": [1]}}', group="h", startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert end["q"] == {"t1": {BROKER: {"1": 6}}}
    stream.latestOffset(end, ALL)
    assert brokers.asked[-1]["known"]["topics"] == {"t1": everything["t1"]}


# Loss


def test_a_replaced_store_is_read_from_its_beginning() -> None:
    brokers = Brokers({"t": {0: (0, 50)}})
    stream = reader(brokers, startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    brokers.store_id, brokers.queues = "s2", {"t": {0: (3, 80)}}
    stream = reader(brokers, failOnDataLoss="false")
    later = stream.latestOffset(end, ALL)
    assert planned(stream, end, later) == [(0, 3, 80)]
    assert later["lost"] == 3
    assert stream.latestOffset(later, ALL) == later
    brokers.store_id, brokers.queues = "s3", {"t": {0: (0, 10)}}
    assert planned(stream, later, reader(brokers, failOnDataLoss="false").latestOffset(later, ALL)) == [(0, 0, 10)]


def test_topics_that_a_replaced_store_gets_later_are_read_from_their_beginning() -> None:
    """Whoever publishes makes them one by one: the first must not have the others taken for known."""
    brokers = Brokers({"t1": {0: (0, 50)}, "t2": {0: (0, 50), 1: (0, 20)}})
    stream = reader(brokers, topics="t1,t2", startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    brokers.store_id, brokers.queues = "s2", {"t1": {0: (0, 8)}}
    stream = reader(brokers, topics="t1,t2", failOnDataLoss="false")
    later = stream.latestOffset(end, ALL)
    assert planned(stream, end, later) == [(0, 0, 8)]
    brokers.queues["t2"] = {0: (0, 70), 1: (0, 5)}
    stream = reader(brokers, topics="t1,t2", failOnDataLoss="false")
    last = stream.latestOffset(later, ALL)
    assert sorted(planned(stream, later, last)) == [(0, 0, 70), (1, 0, 5)]
    assert stream.latestOffset(last, ALL) == last


def test_a_replaced_store_without_a_message_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of a query that had read nothing yet it was said with each look, several times a second."""
    brokers = Brokers({"t": {0: (0, 0)}})
    stream = reader(brokers, startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    brokers.store_id = "s2"
    stream = reader(brokers, failOnDataLoss="false")
    for _ in range(3):
        later = stream.latestOffset(end, ALL)
        assert stream.partitions(end, later) == []
        end = later
    assert sum("another store" in record.getMessage() for record in caplog.records) == 2  # the broker, and its queue


@pytest.mark.parametrize("is_once", [True, False])
def test_least_rows_are_not_waited_for_by_a_query_that_runs_once(*, is_once: bool) -> None:
    """spark.md 1.5: own limits do not count with ReadAllAvailable, or such a query would never read anything."""
    brokers = Brokers({"t": {0: (0, 50)}})
    stream = reader(brokers, startingOffsets="earliest", minOffsetsPerTrigger="5000", maxTriggerDelay="1h")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL if is_once else stream.getDefaultReadLimit())
    assert (end == start) != is_once


def test_a_replaced_log_is_read_from_its_beginning() -> None:
    brokers = Brokers(log=(0, 5000))
    given = {"scan": "log", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = reader(brokers, **given)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    brokers.store_id, brokers.log = "s2", (100, 900)
    stream = reader(brokers, **given)
    (partition,) = stream.partitions(end, stream.latestOffset(end, ALL))
    assert (partition.split.start, partition.split.end) == (100, 900)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, "topic[t] not exist, apply first please!"),
        (ResponseCode.SYSTEM_ERROR, "queueId[3] is illegal, topic:[t] topicConfig.readQueueNums:[2]"),
        (ResponseCode.INVALID_PARAMETER, "queueId[3] is illegal, topic:[t] topicConfig.readQueueNums:[2] consumer:[g]"),
    ],
)
def test_a_queue_that_is_gone_is_a_loss(caplog: pytest.LogCaptureFixture, code: int, remark: str) -> None:
    wanted = queue_reading.QueueRange("t", BROKER, 3, 5, 9)
    source = reader(Brokers()).options.source
    response = Command(code, remark=remark)

    def refuse(*arguments: object) -> None:
        raise RemotingRefusedError(code, remark, "a:1")

    pulling = cast("Cluster", type("Pulling", (), {"pull": staticmethod(refuse)}))
    strict = queue_reading.QueueReading(source)  # type: ignore[arg-type]
    with pytest.raises(DataLossError, match=r"queue 3 of broker 'b' has no more offsets 5 to 9.*not there any more"):
        strict._answer(response, wanted, 5, 9, "a:1")
    with pytest.raises(DataLossError, match="offsets 6 to 9"):
        list(strict._pulls(pulling, wanted, 6))
    lenient = queue_reading.QueueReading(source, fail_on_data_loss=False)  # type: ignore[arg-type]
    assert lenient._answer(response, wanted, 5, 9, "a:1") == (b"", 9)
    assert list(lenient._pulls(pulling, wanted, 6)) == [(b"", 6, 9)]
    assert [record.args[-1] for record in caplog.records] == [4, 3]  # type: ignore[index]
    with pytest.raises(RemotingRefusedError):
        lenient._answer(Command(ResponseCode.SYSTEM_ERROR, remark="a bug"), wanted, 5, 9, "a:1")


def test_a_broker_that_the_registries_do_not_know_is_said_once_and_read_on_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A registry forgets a broker that was down for minutes, and a new process has never known it."""
    brokers = Brokers({"t": {0: (0, 5)}})
    stream = reader(brokers)
    begin = {"v": 1, "q": {"t": {BROKER: {"0": 5}, "away": {"0": 7}}}}
    assert stream.latestOffset(begin, ALL) == begin
    brokers.queues["t"][0] = (0, 6)
    end = stream.latestOffset(begin, ALL)
    assert end["q"] == {"t": {BROKER: {"0": 6}, "away": {"0": 7}}}
    assert [record.getMessage() for record in caplog.records if "not known" in record.getMessage()] == [
        "broker of the checkpoint not known to the registries, not read until it is broker=away group=g"
    ]


def test_a_topic_that_is_gone_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({"t": {0: (0, 5), 1: (0, 5)}, "u": {0: (0, 5)}})
    given = {"topics": "t,u", "startingOffsets": "earliest"}
    end = reader(brokers, **given).latestOffset(reader(brokers, **given).initialOffset(), ALL)
    del brokers.queues["t"]
    stream = reader(brokers, **given, failOnDataLoss="false")
    for _ in range(2):
        assert stream.latestOffset(end, ALL) == end
    assert caplog.text.count("topic 't' of broker 'b' was deleted") == 1


def test_a_topic_that_is_gone_at_a_restart_is_said_with_the_remedy() -> None:
    """One that was never there is a wrong option."""
    brokers = Brokers({"t": {0: (0, 5)}, "u": {0: (0, 5)}})
    given = {"topics": "t,u", "startingOffsets": "earliest"}
    end = reader(brokers, **given).latestOffset(reader(brokers, **given).initialOffset(), ALL)
    del brokers.queues["t"]
    with pytest.raises(DataLossError, match=r"topic 't' .* was deleted .*; failOnDataLoss=false goes on without it"):
        reader(brokers, **given).latestOffset(end, ALL)
    with pytest.raises(TopicNotFoundError, match="'t'"):
        reader(brokers, **given).initialOffset()
    with pytest.raises(TopicNotFoundError, match="'never'"):
        reader(brokers, topics="u,never").latestOffset(end, ALL)


def test_unread_messages_of_a_queue_that_is_no_read_queue_any_more_are_a_loss() -> None:
    """readQueueNums was lowered: an error that says what is not read, or counted, once; what was read is no loss."""
    brokers = Brokers({"t": {0: (0, 5), 1: (0, 5), 2: (0, 5)}})
    end = reader(brokers).latestOffset(reader(brokers, startingOffsets="earliest").initialOffset(), ALL)
    brokers.queues["t"] = {0: (0, 6)}
    brokers.unreadable = {("t", 1): 5, ("t", 2): 9}
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"'t' queue 2 .* offsets 5 to 9 were not read yet; raise readQ"):
            reader(brokers).latestOffset(end, ALL)
    stream = reader(brokers, failOnDataLoss="false")
    later = stream.latestOffset(end, ALL)
    assert (later["q"]["t"][BROKER], later["lost"]) == ({"0": 6, "1": 5, "2": 9}, 4)
    assert planned(stream, end, later) == [(0, 5, 6)]
    for again in (stream, reader(brokers)):
        assert again.latestOffset(later, ALL) == later
    brokers.queues["t"] |= {2: (0, 10)}
    assert planned(stream, later, stream.latestOffset(later, ALL)) == [(2, 9, 10)]


def test_a_batch_that_ends_before_it_begins_by_time_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time 0 is a time as others are."""
    monkeypatch.setattr(connections, "cluster_of", lambda source: Brokers({"t": {0: (0, 9)}}))
    for time_ms in ("0", "1"):
        given = {"servers": "a:1", "topics": "t", "startingOffsets": '{"t": {"b": {"0": 5}}}'}
        assert BatchReader(ReadOptions.parse({**given, "endingTimestamp": time_ms}), ("body",)).partitions() == []


# Brokers that move


@dataclass
class Moving(Brokers):
    """A broker whose address is asked for now and then only, as ``Cluster`` does it."""

    known: str = "a:1"

    def brokers(self) -> dict[str, str]:
        self.known = self.address
        return super().brokers()

    def broker_address(self, broker: str) -> str:
        return self.known

    def reader_state(self, address: str, body: bytes, *, group: str = "", wait_ms: int = 0) -> dict[str, Any]:
        if address != self.address:
            raise ConnectionLostError(address, "refused")
        return super().reader_state(address, body, group=group, wait_ms=wait_ms)


def test_a_broker_that_moved_is_asked_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One retry is enough: an address that was asked for a moment ago is asked for again after a loss."""
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda seconds: None)
    brokers = Moving({"t": {0: (0, 9)}})
    stream = reader(brokers, startingOffsets="earliest", retries="1")
    start = stream.initialOffset()
    brokers.address = "a:2"
    assert stream.latestOffset(start, ALL)["q"] == {"t": {BROKER: {"0": 9}}}


@pytest.mark.parametrize("registry", ["away", "just started"])
def test_a_registry_that_does_not_know_the_brokers_ends_no_query(
    monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    brokers = Brokers({"t": {0: (0, 9)}})
    stream = reader(brokers, startingOffsets="earliest", retries="0")
    start = stream.initialOffset()

    def nobody() -> dict[str, str]:
        if registry == "away":
            raise ConnectionLostError("r:1", "refused")
        return {}

    monkeypatch.setattr(brokers, "brokers", nobody)
    monkeypatch.setattr(stream._view, "_brokers_until_s", 0.0)
    assert stream.latestOffset(start, ALL)["q"] == {"t": {BROKER: {"0": 9}}}
    reason = "r:1" if registry == "away" else "know of none"
    text = f"^no registry served the list of brokers in 1 attempts: .*{reason}.*; servers names registries, host:9876$"
    with pytest.raises(BrokerGoneError, match=text):
        reader(brokers, startingOffsets="earliest", retries="0").initialOffset()  # it has never known them


def test_a_broker_that_must_be_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry drops a dead broker at once: a batch that was planned then lacked its rows, without a word."""
    brokers = Brokers({"t": {0: (0, 9)}})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            brokers.names.append("c")

    monkeypatch.setattr("headrace.spark.retry.time.sleep", sleep)
    with pytest.raises(
        BrokerGoneError, match=r"^broker 'c' did not serve its part in 2 attempts: no route to 'c': .*a:1"
    ):
        reader(brokers, requireBrokers="b, c", retries="1").initialOffset()
    assert len(pauses) == 1
    assert reader(brokers, requireBrokers="b,c").initialOffset()["q"]["t"].keys() == {"b", "c"}
    assert len(pauses) == 2


@pytest.mark.parametrize("registry", ["away", "just started"])
def test_topics_of_rocketmq_are_not_gone_with_its_registry(monkeypatch: pytest.MonkeyPatch, registry: str) -> None:
    """A pattern is compared with the registry's topics."""
    known = {"t": {0: QueueStats(0, 9, 0)}, "u": {0: QueueStats(0, 9, 0)}}
    names: list[str] | None = ["t", "u"]

    def topics() -> list[str]:
        if names is None:
            raise ConnectionLostError("r:1", "refused")
        return names

    def topic_stats(address: str, topic: str) -> dict[int, QueueStats]:
        if topic not in known:
            raise RemotingRefusedError(ResponseCode.TOPIC_NOT_EXIST, "gone", address)
        return known[topic]

    brokers = Brokers()
    monkeypatch.setattr(brokers, "topics", topics)
    brokers.topic_stats = topic_stats  # type: ignore[attr-defined]
    monkeypatch.setattr(brokers, "reader_state", lambda *given, **more: None)
    view = reader(brokers, topicPattern=".*")._view
    assert set(view.snapshot()[BROKER].topics) == {"t", "u"}
    names = None if registry == "away" else []
    assert set(view.snapshot()[BROKER].topics) == {"t", "u"}
    del known["u"]
    assert set(view.snapshot()[BROKER].topics) == {"t"}


BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL)


class BusyClient:
    """Answers with a code first, a time for each connection that is asked for, then as it should."""

    def __init__(self, code: int, times: int) -> None:
        self.code, self.left = code, times
        self.address = "a:1"

    def brokers(self) -> dict[str, str]:
        return {BROKER: self.address}

    def broker_address(self, broker: str) -> str:
        return self.address

    def client(self, address: str) -> BusyClient:
        return self

    def close(self) -> None:
        """Nothing is open."""

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]], window: int = 4) -> Iterator[Command]:
        for request in requests:
            yield self.call(*request)

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        if self.left:
            self.left -= 1
            return Command(self.code, remark="later")
        if code == RequestCode.READ_LOG:
            following = str(int(ext["offset"]) + int(ext["maxBytes"]))
            return Command(0, {"nextOffset": following, "segmentBytes": "4096"}, b"x")
        reached = ext.get("endOffset", "0")
        return Command(0, {"nextOffset": reached, "minOffset": "0", "maxOffset": "99"}, b"x")

    def reader_state(self, address: str, body: bytes, **more: Any) -> dict[str, Any]:
        return {"is": require(self.call(RequestCode.READER_STATE, {}, body), address).code}

    def pull(self, *given: Any) -> Pulled:
        return Pulled(require(self.call(RequestCode.PULL_MESSAGE, {}, b""), self.address).code, 64, 0, 99, b"x")


@pytest.mark.parametrize("code", BUSY)
@pytest.mark.parametrize("what", ["queue", "pull", "log", "state", "commit"])
def test_a_busy_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch, what: str, code: int) -> None:
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda seconds: None)

    def ask(busy: BusyClient) -> Any:
        monkeypatch.setattr(connections, "cluster_of", lambda source: busy)
        monkeypatch.setattr(connections, "new_cluster", lambda source: busy)
        stream = reader(Brokers(), retries="2")
        source, cluster = cast("ServersSource", stream.options.source), cast("Cluster", busy)
        if what in ("queue", "pull"):
            reading = queue_reading.QueueReading(source)
            if what == "pull":
                monkeypatch.setattr(reading.__class__, "_ranges", no_ranges)
            return list(reading.records(queue_reading.QueueRange("t", BROKER, 0, 0, 64)))
        if what == "log":
            return list(remote_log.log_chunks(source, BROKER, 0, 4096, 4096))
        if what == "state":
            return remote.ask_state(cluster, source, BROKER, {})
        return remote.ServersView(source, stream.options, cluster).commit("g", [(QueueKey("t", BROKER, 0), 9)])

    def no_ranges(*given: Any) -> Any:
        raise queue_reading._NotHeadraceError

    assert ask(BusyClient(0, 0)) == ask(BusyClient(code, 2))
    with pytest.raises(BrokerGoneError, match=r"in 3 attempts: a:1 refused with code \d+: later"):
        ask(BusyClient(code, 3))
    with pytest.raises(RemotingRefusedError, match="code 16: later"):
        ask(BusyClient(ResponseCode.NO_PERMISSION, 1))


@dataclass
class Pieces:
    """Connections to a broker that moves while a range is read, and says half of it in each answer."""

    at: list[str] = field(default_factory=lambda: ["a:1", "a:2"])
    opened: list[str] = field(default_factory=list)

    def brokers(self) -> dict[str, str]:
        return {BROKER: self.at[0]}

    def broker_address(self, broker: str) -> str:
        return self.at[0]

    def client(self, address: str) -> Any:
        self.opened.append(address)
        return PieceClient(self, address)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class PieceClient:
    brokers: Pieces
    address: str

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]], window: int) -> Iterator[Command]:
        for request in requests:
            yield self.call(*request)
            if self.address == "a:1":
                self.brokers.at = ["a:2"]

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        if self.address != self.brokers.at[0]:
            raise ConnectionLostError(self.address, "refused")
        low, high = int(ext["offset"]), int(ext["endOffset"])
        reached = low + (high - low + 1) // 2
        return Command(0, {"nextOffset": str(reached), "minOffset": "0", "maxOffset": "99"})


def test_the_rest_of_an_answer_is_asked_for_where_the_broker_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second connection of a read stayed at the old address, which cost a failure for each answer that was cut."""
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda seconds: None)
    pieces = Pieces()
    monkeypatch.setattr(connections, "cluster_of", lambda source: pieces)
    monkeypatch.setattr(connections, "new_cluster", lambda source: pieces)
    reading = queue_reading.QueueReading(reader(Brokers(), retries="1").options.source, pull_bytes=80)  # type: ignore[arg-type]
    wanted = queue_reading.QueueRange("t", BROKER, 0, 0, 64, 10)
    assert list(reading.records(wanted)) == []  # answers without a record
    assert set(pieces.opened) == {"a:1", "a:2"}
    assert pieces.opened == sorted(pieces.opened)  # never back to where it was


def test_reads_say_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker at the address refuses them with what passes: the registries are asked for the right one."""
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda seconds: None)
    with testing.broker(broker__name="other") as other:
        asked: list[str] = []

        class Stale(Cluster):
            def broker_address(self, broker: str, *, anew: bool = False) -> str:
                return other.remoting

            def brokers(self) -> dict[str, str]:
                asked.append("registry")
                return {}

        cluster = Stale(other.registry)
        monkeypatch.setattr(connections, "cluster_of", lambda source: cluster)
        source = cast("ServersSource", reader(Brokers(), retries="1").options.source)
        queue = queue_reading.QueueRange("t", BROKER, 0, 0, 64)
        for read in (
            queue_reading.QueueReading(source).records(queue),
            remote_log.log_chunks(source, BROKER, 0, 9, 4096),
        ):
            with pytest.raises(BrokerGoneError, match="broker 'other' is here now, not 'b'"):
                list(read)
        assert asked == ["registry"] * 2
        cluster.close()


# Progress


def test_topics_that_are_gone_do_not_stop_reports(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({"t": {0: (0, 9), 1: (0, 4)}, "u": {0: (0, 3)}})
    stream = reader(brokers, topics="t,u", startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert brokers.committed["g_start", "t", 0] == 0
    del brokers.queues["u"]
    del brokers.queues["t"][1]
    again = reader(brokers, topics="t,u", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        again.commit(end)
        again.commit(end)
    assert {key: at for key, at in brokers.committed.items() if key[1:] == ("t", 0)} == {("g", "t", 0): 9}
    assert [record.getMessage() for record in caplog.records if "not kept" in record.getMessage()] == [
        "offsets not kept: the broker has no such queue broker=b queues=t/1,u/0"
    ]


class OneAway(Brokers):
    """One more broker was there; the registries do not know it."""

    def broker_address(self, broker: str) -> str:
        if broker not in self.names:
            raise RouteNotFoundError(broker, "a:1")
        return self.address


WITH_ONE_AWAY: dict[str, Any] = {"v": 1, "q": {"t": {"away": {"0": 7}, BROKER: {"0": 5}}}}


def no_wait(seconds: float) -> None:
    pytest.fail(f"waited {seconds} s")


def test_a_broker_that_is_away_holds_up_no_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was asked again and again behind each micro-batch, and no broker was told of any progress."""
    monkeypatch.setattr("headrace.spark.retry.time.sleep", no_wait)
    brokers = OneAway({"t": {0: (0, 9)}}, committed={("g_start", "t", 0): 2})
    stream = reader(brokers)
    with caplog.at_level(logging.WARNING):
        stream.commit(WITH_ONE_AWAY)
    assert not caplog.records
    assert brokers.committed == {("g_start", "t", 0): 2, ("g", "t", 0): 5}  # a part of a pin is worse than all of it
    brokers.names.append("away")
    stream._view._brokers_until_s = 0.0
    stream.commit(WITH_ONE_AWAY)
    assert brokers.committed == {("g", "t", 0): 7}  # one table for both


def test_a_log_of_a_broker_that_is_away_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.retry.time.sleep", no_wait)
    brokers = OneAway(log=(0, 900))
    reader(brokers, scan="log").commit({"v": 1, "log": {"away": 7, BROKER: 500}})


def test_a_listener_passes_over_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.retry.time.sleep", no_wait)
    brokers = OneAway({"t": {0: (0, 9)}}, committed={("g_start", "t", 0): 2})
    listener = ProgressListener("a:1", "g")
    listener._view.cluster = cast("Cluster", brokers)
    listener._report([Position.from_json(WITH_ONE_AWAY)])
    assert brokers.committed == {("g_start", "t", 0): 2, ("g", "t", 0): 5}


def test_what_is_not_told_to_a_broker_that_went_away_is_told_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener lives on while its query is started again, and knows the broker still."""
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda _: None)
    brokers = OneAway({"t": {0: (0, 9), 1: (0, 9)}}, names=["away", BROKER])
    listener = ProgressListener("a:1", "g")
    listener._view.cluster = cast("Cluster", brokers)
    listener._report([Position(offsets={QueueKey("t", "away", 0): 1, QueueKey("t", BROKER, 1): 1})])
    brokers.names.remove("away")
    with pytest.raises(BrokerGoneError, match="'away'"):
        listener._report([Position(offsets={QueueKey("t", "away", 0): 2, QueueKey("t", BROKER, 1): 3})])
    assert brokers.committed == {("g", "t", 0): 1, ("g", "t", 1): 3}


def test_a_start_that_cannot_be_pinned_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({"t": {0: (0, 9)}})
    monkeypatch.setattr(brokers, "_commit", lambda ext: ResponseCode.TOPIC_NOT_EXIST)
    with pytest.raises(RemotingRefusedError, match="code 17"):
        reader(brokers).initialOffset()


@pytest.mark.parametrize("scan", [False, True])
def test_an_unfinished_pin_does_not_count(monkeypatch: pytest.MonkeyPatch, scan: bool) -> None:
    """Queues that it lacked were taken for new ones: a stream from the end began there with all that there was."""
    brokers = Brokers({"t": {0: (0, 9), 1: (0, 4)}}, log=(100, 900))
    given = {"startingOffsets": "latest"} | ({"scan": "log"} if scan else {})
    kept = brokers._commit
    left = [1 if scan else 2]  # the mark, and the first queue

    def fail(ext: dict[str, str]) -> int:
        left[0] -= 1
        return kept(ext) if left[0] >= 0 else ResponseCode.NO_PERMISSION

    monkeypatch.setattr(brokers, "_commit", fail)
    with pytest.raises(RemotingRefusedError):
        reader(brokers, **given).initialOffset()
    assert len(brokers.committed) == (1 if scan else 2)
    monkeypatch.setattr(brokers, "_commit", kept)
    brokers.queues["t"] = {0: (0, 11), 1: (0, 6)}
    brokers.log = (100, 1900)
    start = reader(brokers, **given).initialOffset()
    assert start.get("log", start.get("q")) == ({BROKER: 1900} if scan else {"t": {BROKER: {"0": 11, "1": 6}}})
    assert len(brokers.committed) == (1 if scan else 2)  # the pin, and no mark
    brokers.queues["t"] = {0: (0, 20), 1: (0, 20)}
    brokers.log = (100, 2900)
    assert reader(brokers, **given).initialOffset() == start


ELSEWHERE = [
    ({"startingOffsets": "earliest"}, {"0": 0, "1": 2}),
    ({"startingOffsets": '{"t": {"b": {"0": 4, "1": -2}}}'}, {"0": 4, "1": 2}),
    ({"startingTimestamp": "3"}, {"0": 3, "1": 3}),
    ({"startingOffsetsByTimestamp": '{"t": {"b": {"0": 1, "1": 1}}}'}, {"0": 1, "1": 2}),
]


@pytest.mark.parametrize(("given", "expected"), ELSEWHERE)
def test_a_start_that_is_asked_for_wins_over_the_pin_of_another(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], expected: dict[str, int]
) -> None:
    """A run from the end that read nothing leaves its pin: whoever asks for all with a new checkpoint got nothing."""
    brokers = Brokers({"t": {0: (0, 9), 1: (2, 7)}})
    reader(brokers).initialOffset()
    stream = reader(brokers, **given)
    start = stream.initialOffset()
    assert start["q"]["t"][BROKER] == expected
    assert caplog.text.count("start pin is of a stream that was to begin elsewhere") == 1
    brokers.queues["t"] = {0: (0, 20), 1: (2, 30)}
    for again in (stream, reader(brokers, **given)):
        assert again.initialOffset() == start
    assert caplog.text.count("start pin is of a stream that was to begin elsewhere") == 1


def test_numbers_win_also_where_one_queue_agrees() -> None:
    """With newQueues=latest, where a queue that came later is pinned at its end, only numbers can tell."""
    brokers = Brokers({"t": {0: (0, 9), 1: (0, 500)}}, committed={("g_start", "t", 0): 0, ("g_start", "t", 1): 500})
    given = {"startingOffsets": '{"t": {"b": {"0": 0, "1": 10}}}', "newQueues": "latest"}
    assert reader(brokers, **given).initialOffset()["q"]["t"][BROKER] == {"0": 0, "1": 10}


def test_a_queue_that_came_later_keeps_its_pin() -> None:
    """The answer is the same however often Spark asks, until the first batch is committed."""
    brokers = Brokers({"t": {0: (0, 0)}})
    given = {"startingOffsets": "earliest", "newQueues": "latest"}
    reader(brokers, **given).initialOffset()
    brokers.queues["t"][1] = (0, 40)
    for _ in range(2):
        assert reader(brokers, **given).initialOffset()["q"]["t"][BROKER] == {"0": 0, "1": 40}


@pytest.mark.parametrize(
    "given", [{"startingOffsets": "earliest"}, {"startingOffsets": '{"b": 300}'}, {"startingTimestamp": "3"}]
)
def test_a_start_in_a_log_that_is_asked_for_wins_too(given: dict[str, str]) -> None:
    """The same with physical offsets."""
    brokers = Brokers(log=(100, 900))
    reader(brokers, scan="log").initialOffset()
    start = reader(brokers, scan="log", **given).initialOffset()
    assert start["log"] == {BROKER: 300 if "300" in str(given) else 100}
    brokers.log = (100, 1900)
    assert reader(brokers, scan="log", **given).initialOffset() == start


@pytest.mark.parametrize("given", [{}, {"startingOffsets": "latest"}, {"startingOffsets": '{"t": {"b": {"0": -1}}}'}])
def test_a_start_that_moves_keeps_its_pin(given: dict[str, str]) -> None:
    """Of the end and of what a group committed nobody can say that it was not pinned by this very query."""
    brokers = Brokers({"t": {0: (0, 9)}})
    reader(brokers, startingOffsets="latest").initialOffset()
    brokers.queues["t"] = {0: (0, 20)}
    assert reader(brokers, **given).initialOffset()["q"]["t"][BROKER] == {"0": 9}


def test_a_pin_behind_a_beginning_that_moved_is_kept() -> None:
    """What was removed meanwhile is missed, not passed over."""
    brokers = Brokers({"t": {0: (3, 9)}})
    start = reader(brokers, startingOffsets="earliest").initialOffset()
    brokers.queues["t"] = {0: (5, 20)}
    assert reader(brokers, startingOffsets="earliest").initialOffset() == start


def test_a_pin_of_many_queues_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each durable commit is a write of the whole file: a pattern of 5,000 topics took a minute to begin."""
    brokers = Brokers({"t": dict.fromkeys(range(500), (0, 9))})
    kept = brokers._commit
    durable: list[str] = []

    def note(ext: dict[str, str]) -> int:
        durable.extend(ext["queueId"] for name in ext if name == "durable" and ext["topic"] == "t")
        return kept(ext)

    monkeypatch.setattr(brokers, "_commit", note)
    reader(brokers, startingOffsets="latest").initialOffset()
    assert durable == ["499"]


class Racing(Brokers):
    """Of the first commits of a group for a topic that come together it keeps the last one.

    Ref: apache/rocketmq issue 10700.
    """

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]]) -> Iterator[Command]:
        requests = list(requests)
        known = {(group, topic) for group, topic, _ in self.committed}
        answers = list(super().call_many(requests))
        last = {
            (ext["consumerGroup"], ext["topic"]): (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
            for _, ext, _ in requests
        }
        for key in list(self.committed):
            if key[:2] not in known and key != last[key[:2]]:
                del self.committed[key]
        return iter(answers)


def test_first_commits_of_a_group_do_not_race() -> None:
    """A queue that the pin lacks would be read from its beginning at the next start."""
    queues = {0: (0, 9), 1: (0, 8), 2: (0, 7)}
    brokers = Racing({"t": dict(queues), "u": dict(queues)})
    stream = reader(brokers, topics="t,u", startingOffsets="latest")
    start = stream.initialOffset()
    for topic in ("t", "u"):
        brokers.queues[topic] = dict.fromkeys(queues, (0, 20))
    assert reader(brokers, topics="t,u", startingOffsets="latest").initialOffset() == start


def test_a_user_of_some_topics_can_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of an unfinished pin lies in a topic that such a user may not read."""
    brokers = Brokers({"t": {0: (0, 9)}})
    kept = brokers._commit

    def refuse(ext: dict[str, str]) -> int:
        return ResponseCode.NO_PERMISSION if ext["topic"] in TEMPLATE_TOPICS else kept(ext)

    monkeypatch.setattr(brokers, "_commit", refuse)
    start = reader(brokers, startingOffsets="latest").initialOffset()
    brokers.queues["t"] = {0: (0, 20)}
    assert reader(brokers, startingOffsets="latest").initialOffset() == start


def test_another_broker_at_the_address_is_not_taken_for_the_one_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.retry.time.sleep", lambda seconds: None)
    brokers = Brokers({"t": {0: (0, 9)}})
    stream = reader(brokers, startingOffsets="earliest", retries="1")
    start = stream.initialOffset()
    answer = brokers.reader_state
    monkeypatch.setattr(brokers, "reader_state", lambda *given, **more: answer(*given, **more) | {"broker": "c"})
    with pytest.raises(BrokerGoneError, match="broker 'c' is there now"):
        stream.latestOffset(start, ALL)


def test_a_listener_passes_over_topics_that_are_gone() -> None:
    brokers = Brokers({"t": {0: (0, 9)}}, committed={("g_start", "t", 0): 0})
    listener = ProgressListener("a:1", "g")
    listener._view.cluster = cast("Cluster", brokers)
    listener._report([Position(offsets={QueueKey("t", BROKER, 0): 9, QueueKey("u", BROKER, 0): 3})])
    assert brokers.committed == {("g", "t", 0): 9}


def test_a_listener_drops_the_pin_of_each_run() -> None:
    """A session lives longer than its queries: the next one with a new checkpoint began where the one before had."""
    brokers = Brokers({"t": {0: (0, 9)}})
    listener = ProgressListener("a:1", "g")
    listener._view.cluster = cast("Cluster", brokers)
    end = Position(offsets={QueueKey("t", BROKER, 0): 9}).to_json()
    for run in ("one", "two"):
        brokers.committed["g_start", "t", 0] = 4
        source = SimpleNamespace(endOffset=end, latestOffset=None)
        progress = SimpleNamespace(runId=run, name=None, batchDuration=1, numInputRows=5, sources=[source])
        listener.onQueryProgress(cast("Any", SimpleNamespace(progress=progress)))
        assert brokers.committed == {("g", "t", 0): 9}


def test_a_listener_drops_the_pin_of_a_stream_over_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ 5 has no topic for the mark, and 4 would keep it: the listener has to ask what it talks to."""
    brokers = Brokers({"t": {0: (0, 9)}}, committed={("g_start", "t", 0): 4})
    asked: list[str] = []

    def refuse_state(address: str, *given: Any, **more: Any) -> None:
        asked.append(address)

    def commit(ext: dict[str, str]) -> int:
        if ext["topic"] in TEMPLATE_TOPICS:
            return ResponseCode.TOPIC_NOT_EXIST
        brokers.committed[ext["consumerGroup"], ext["topic"], int(ext["queueId"])] = int(ext["commitOffset"])
        return ResponseCode.SUCCESS

    monkeypatch.setattr(brokers, "reader_state", refuse_state)
    monkeypatch.setattr(brokers, "_commit", commit)
    listener = ProgressListener("a:1", "g")
    listener._view.cluster = cast("Cluster", brokers)
    for _ in range(2):
        listener._report([Position(offsets={QueueKey("t", BROKER, 0): 9})])
    assert brokers.committed == {("g", "t", 0): 9, ("g_start", "t", 0): 0}  # 0: nothing, as that broker says it
    assert len(asked) == 1


def test_listeners_of_a_query_with_two_sources(caplog: pytest.LogCaptureFixture) -> None:
    """Each source has its group; a listener that is told whose topics are whose reports no others."""
    brokers = Brokers({"t": {0: (0, 9)}, "u": {0: (0, 9)}})
    ends = [
        Position(offsets={QueueKey("t", BROKER, 0): 5, QueueKey("u", BROKER, 0): 3}),
        Position(offsets={QueueKey("u", BROKER, 0): 7}),
    ]

    def report(**options: str) -> None:
        listener = ProgressListener("a:1", "g", **options)
        listener._view.cluster = cast("Cluster", brokers)
        brokers.committed.clear()
        with caplog.at_level(logging.WARNING):
            listener._report(ends)
            listener._report(ends)

    report(topics="u")
    assert brokers.committed == {("g", "u", 0): 3}
    report(topicPattern="t|x")
    assert brokers.committed == {("g", "t", 0): 5}
    report(topics="x")
    assert brokers.committed == {}
    assert not caplog.records
    report()
    assert brokers.committed == {("g", "t", 0): 5, ("g", "u", 0): 3}
    assert [record.getMessage()[:26] for record in caplog.records] == ["query with several sources"]


def test_the_lag_of_a_query_over_a_log_and_topics_is_not_counted_in_messages() -> None:
    """It was the messages of those sources that come behind the log, less one."""
    log = [Position(is_log=True, offsets={QueueKey.of_log(BROKER): high}).to_json() for high in (100, 350)]
    topics = [Position(offsets={QueueKey("t", BROKER, 0): high}).to_json() for high in (5, 12)]
    sources = [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)} for end, latest in (log, topics)]
    for order in (sources, sources[::-1]):
        found = lag_of_progress({"sources": order})
        assert found.messages == -1
        assert found.queues == {("", BROKER, -1): 250, ("t", BROKER, 0): 7}
    assert lag_of_progress({"sources": sources[1:]}).messages == 7


def test_columns_beside_another_schema_are_refused() -> None:
    """The schema decided, and nobody was told."""
    two = StructType([StructField("body", BinaryType()), StructField("keys", StringType())])
    for columns in ("body", "body,keys,tags"):
        source = HeadraceDataSource({"servers": "a:1", "topics": "t", "group": "g", "columns": columns})
        says = rf"option columns names {columns.replace(',', ', ')}, the schema"
        with pytest.raises(ConfigError, match=says):
            source.reader(two)
        stream = source.streamReader(two)
        with pytest.raises(ConfigError, match=says):
            stream.initialOffset()
        with pytest.raises(ConfigError, match=says):  # with a checkpoint Spark begins here
            stream.latestOffset({}, ALL)
    for given in ({"columns": "keys,body"}, {}):
        source = HeadraceDataSource({"servers": "a:1", "topics": "t", "group": "g", **given})
        source.reader(two)
        assert isinstance(source.streamReader(two), StreamReader)


def test_unknown_groups_are_announced() -> None:
    """RocketMQ 5 keeps no offsets of groups that it does not know."""
    brokers = Brokers({"t": {0: (0, 9)}}, groups=set())
    stream = reader(brokers, startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert brokers.groups == {"g_start"}
    stream.commit(end)
    assert brokers.groups == {"g_start", "g"}
    assert brokers.committed == {("g", "t", 0): 9}
