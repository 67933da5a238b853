"""Spark's readers as Spark calls them, without a JVM of its own, against real RocketMQ brokers.

Ref: docs/spark/source.md, "RocketMQ"; spark.md 1.5.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="the extra spark is not installed")

from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode
from headrace.spark.errors import DataLossError
from headrace.spark.options import ReadOptions
from headrace.spark.reader import BatchReader
from headrace.spark.streams.stream import StreamReader
from tests.interop import rocketmq_peers as peers
from tests.support.waiting import until

BROKER = "broker-a"
COUNT = 300
COLUMNS = ("queue_id", "queue_offset", "body")


@pytest.fixture(scope="module", params=["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        peers.rocketmq(request.param, tmp_path_factory.mktemp(str(request.param))) as started,
        Cluster(started.namesrv) as found,
    ):
        until(lambda: BROKER in found.brokers(), 60)
        yield found


def make_topic(cluster: Cluster, topic: str, queues: int) -> None:
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    cluster.ask(BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    until(lambda: topic in cluster.topics(), 60)


def send(cluster: Cluster, topic: str, bodies: list[str], queue_id: int = 0) -> None:
    """Send messages to one queue, and wait until they can be read."""
    end = cluster.max_offset(BROKER, topic, queue_id) + len(bodies)
    for body in bodies:
        ext = {
            "producerGroup": "tests", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1000)), "flag": "0",
            "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        cluster.ask(BROKER, RequestCode.SEND_MESSAGE, ext, body.encode())
    until(lambda: cluster.max_offset(BROKER, topic, queue_id) == end, 20)


def options(cluster: Cluster, topic: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"servers": ";".join(cluster.servers), "topics": topic, **given})


def stream_of(cluster: Cluster, topic: str, **given: str) -> StreamReader:
    return StreamReader(options(cluster, topic, group=f"Group{topic}", **given), COLUMNS)


def rows(reader: Any, partitions: Any) -> list[str]:
    return [
        row["body"].decode()
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def spelled(offset: Any) -> Any:
    """As Spark keeps and gives back an offset."""
    return json.loads(json.dumps(offset))


def news(stream: StreamReader, start: Any) -> Any:
    """Return where the next batch ends, as soon as there is one."""
    ends: list[Any] = []

    def comes() -> bool:
        ends.append(spelled(stream.latestOffset(start, stream.getDefaultReadLimit())))
        return bool(ends[-1] != start)

    until(comes, 30)
    return ends[-1]


def test_batch(cluster: Cluster) -> None:
    make_topic(cluster, "Batch", 2)
    sent = [f"a{number}" for number in range(COUNT)]
    send(cluster, "Batch", sent)
    send(cluster, "Batch", ["b"], queue_id=1)
    reader = BatchReader(options(cluster, "Batch", maxRecordsPerPartition="100"), COLUMNS)
    partitions = reader.partitions()
    assert len(partitions) == 4
    assert rows(reader, partitions) == [*sent, "b"]


def test_stream_from_latest(cluster: Cluster) -> None:
    """The start is pinned as offsets of a group that the broker has never heard of: RocketMQ 5 wants it announced."""
    make_topic(cluster, "Orders", 2)
    send(cluster, "Orders", ["before"])
    given = {"startingOffsets": "latest"}
    stream = stream_of(cluster, "Orders", **given)
    start = spelled(stream.initialOffset())
    assert start["q"] == {"Orders": {BROKER: {"0": 1, "1": 0}}}
    sent = [f"a{number}" for number in range(COUNT)]
    send(cluster, "Orders", sent)
    assert spelled(stream_of(cluster, "Orders", **given).initialOffset()) == start
    end = news(stream, start)
    assert rows(stream, stream.partitions(start, end)) == sent
    again = stream_of(cluster, "Orders", **given)
    assert rows(again, again.partitions(start, end)) == sent
    again.commit(end)
    assert cluster.query_offset(BROKER, "GroupOrders", "Orders", 0) == COUNT + 1
    send(cluster, "Orders", ["c"], queue_id=1)
    later = news(again, end)
    assert rows(again, again.partitions(end, later)) == ["c"]
    # The pin was dropped: a query with a new checkpoint begins anew, the other where the group has come to.
    assert stream_of(cluster, "Orders", **given).initialOffset()["q"]["Orders"][BROKER] == {"0": COUNT + 1, "1": 1}


def test_many_first_starts(cluster: Cluster) -> None:
    """Of two first commits of a group for a topic RocketMQ may keep one (apache/rocketmq issue 10700)."""
    queues = 16
    make_topic(cluster, "Starts", queues)
    for queue_id in range(queues):
        send(cluster, "Starts", ["before"], queue_id=queue_id)
    for number in range(50):
        given = {"group": f"Starts{number}", "startingOffsets": "latest"}
        start = StreamReader(options(cluster, "Starts", **given), COLUMNS).initialOffset()
        assert start["q"] == {"Starts": {BROKER: dict.fromkeys(map(str, range(queues)), 1)}}
        pin = f"Starts{number}_start"
        pinned = [cluster.query_offset(BROKER, pin, "Starts", queue_id) for queue_id in range(queues)]
        assert pinned == [2] * queues, f"start {number}"


def test_available_now(cluster: Cluster) -> None:
    make_topic(cluster, "Now", 1)
    send(cluster, "Now", [f"a{number}" for number in range(COUNT)])
    stream = stream_of(cluster, "Now", startingOffsets="earliest", maxOffsetsPerTrigger="200")
    stream.prepareForTriggerAvailableNow()
    start = spelled(stream.initialOffset())
    seen, end = [], news(stream, start)
    send(cluster, "Now", ["late"])
    while end != start:
        seen += rows(stream, stream.partitions(start, end))
        start, end = end, spelled(stream.latestOffset(end, stream.getDefaultReadLimit()))
    assert seen == [f"a{number}" for number in range(COUNT)]


@pytest.mark.parametrize("gone", ["topic", "queue"])
def test_what_is_gone_between_planning_and_reading(cluster: Cluster, gone: str) -> None:
    topic = f"Gone{gone}"
    make_topic(cluster, topic, 2)
    send(cluster, topic, ["a", "b"], queue_id=1)
    stream = stream_of(cluster, topic, startingOffsets="earliest")
    start = spelled(stream.initialOffset())
    end = news(stream, start)
    planned = stream.partitions(start, end)
    if gone == "topic":
        cluster.ask(BROKER, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    else:
        make_topic(cluster, topic, 1)
    with pytest.raises(DataLossError, match="not there any more"):
        rows(stream, planned)
    lenient = stream_of(cluster, topic, failOnDataLoss="false")
    assert rows(lenient, planned) == []
    lenient.commit(end)
    assert lenient._is_pin_dropped
