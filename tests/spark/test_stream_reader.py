"""The stream reader as Spark calls it, on a real broker, without a JVM (spark.md 5.4.5)."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
import time
from unittest.mock import patch

import pytest

from headrace import testing
from headrace.errors import ClientError, ConfigError, TopicNotFoundError
from headrace.remoting.blocking import BlockingClient, Cluster
from headrace.spark import connections, queue_reading, remote, remote_log
from headrace.spark.errors import DataLossError
from headrace.spark.options import ReadOptions
from headrace.spark.reader import BatchReader
from headrace.spark.scan import ServersSource
from headrace.spark.streams.positions import Position, PositionError, QueueKey
from headrace.spark.streams.stream import StreamReader
from tests.spark.conftest import delete_topic, make_topic, send, wait_registered

limits = pytest.importorskip("pyspark.sql.streaming.datasource")
ALL = limits.ReadAllAvailable()


def reader(broker, **options):
    found = {"servers": broker.registry, "topics": "orders", "group": "g", **options}
    return StreamReader(ReadOptions.parse(found), ("queue_id", "queue_offset", "body"))


def spelled(offset):
    """As Spark keeps and gives back an offset."""
    return json.loads(json.dumps(offset))


def rows(stream, start, end):
    found = []
    for partition in stream.partitions(spelled(start), spelled(end)):
        for batch in stream.read(partition):
            found += [row["body"].decode() for row in batch.to_pylist()]
    return found


def latest(stream, start, limit=None):
    return spelled(stream.latestOffset(start, limit or stream.getDefaultReadLimit()))


def until_news(stream, start, limit=None):
    deadline = time.monotonic() + 20
    while (end := latest(stream, start, limit)) == start:
        assert time.monotonic() < deadline
    return end


@pytest.fixture
def orders(broker):
    make_topic(broker, "orders", 2)
    wait_registered(broker, "orders")
    return broker


def test_latest_is_one_place_until_the_first_batch_is_committed(orders):
    """spark.md 5.4.5: data arrives between the two initialOffset calls, and in another process after a crash."""
    send(orders, "orders", ["before"])
    first = reader(orders, startingOffsets="latest")
    start = spelled(first.initialOffset())
    send(orders, "orders", ["one", "two"])
    assert spelled(first.initialOffset()) == start
    end = until_news(first, start)
    assert rows(first, start, end) == ["one", "two"]
    # Batch 0 was logged, not committed; a new process asks again.
    again = reader(orders, startingOffsets="latest")
    assert spelled(again.initialOffset()) == start
    assert rows(again, again.initialOffset(), end) == ["one", "two"]
    # Batch 0 is committed: a later query with a new checkpoint begins anew.
    again.commit(end)
    send(orders, "orders", ["three"])
    later = reader(orders, startingOffsets="latest")
    assert later.initialOffset()["q"] == {"orders": {"broker-a": {"0": 4, "1": 0}}}


def test_the_pin_outlives_the_broker(orders):
    stream = reader(orders, startingOffsets="latest")
    start = spelled(stream.initialOffset())
    orders.restart()
    wait_registered(orders, "orders")
    send(orders, "orders", ["one"])
    assert spelled(reader(orders, startingOffsets="latest").initialOffset()) == start


def test_committed_start_and_progress(orders):
    """spark.md 5.4.7: the group's offset is the exclusive end, and a query without checkpoint goes on there."""
    send(orders, "orders", ["a", "b", "c"])
    send(orders, "orders", ["d"], queue_id=1)
    stream = reader(orders, startingOffsets="earliest")
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    assert sorted(rows(stream, start, end)) == ["a", "b", "c", "d"]
    stream.commit(end)
    with Cluster(orders.registry) as cluster:
        assert cluster.query_offset("broker-a", "g", "orders", 0) == 3
        assert cluster.query_offset("broker-a", "g", "orders", 1) == 1
    assert reader(orders).initialOffset()["q"] == {"orders": {"broker-a": {"0": 3, "1": 1}}}


def test_committed_start_falls_back(orders):
    send(orders, "orders", ["a"])
    assert reader(orders, startingFallback="earliest", group="g1").initialOffset()["q"]["orders"]["broker-a"]["0"] == 0
    assert reader(orders, group="g2").initialOffset()["q"]["orders"]["broker-a"]["0"] == 1
    with pytest.raises(ConfigError, match="'g3' has committed nothing of topic 'orders' queue 0"):
        reader(orders, startingFallback="error", group="g3").initialOffset()


def test_commit_can_be_switched_off(orders):
    send(orders, "orders", ["a"])
    stream = reader(orders, startingOffsets="earliest", commitOffsets="false")
    stream.commit(until_news(stream, spelled(stream.initialOffset())))
    with Cluster(orders.registry) as cluster:
        assert cluster.query_offset("broker-a", "g", "orders", 0) is None


def test_row_limit_is_shared_and_no_queue_starves(orders):
    send(orders, "orders", [f"a{i}" for i in range(90)])
    send(orders, "orders", ["b"], queue_id=1)
    stream = reader(orders, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    start = spelled(stream.initialOffset())
    assert isinstance(stream.getDefaultReadLimit(), limits.ReadMaxRows)
    seen, sizes = [], []
    while (end := latest(stream, start)) != start:
        batch = rows(stream, start, end)
        sizes.append(len(batch))
        seen += batch
        start = end
    assert sorted(seen) == sorted([f"a{i}" for i in range(90)] + ["b"])
    assert max(sizes) <= 31
    assert "b" in seen[:31]


def test_byte_limit_counts_sizes_of_records(orders):
    send(orders, "orders", ["x" * 2000] * 2000)
    stream = reader(orders, startingOffsets="earliest", maxBytesPerTrigger="1MiB")
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    assert 300 < end["q"]["orders"]["broker-a"]["0"] < 700
    assert until_news(stream, start, ALL)["q"]["orders"]["broker-a"]["0"] == 2000


def test_byte_limit_counts_few_large_records(orders):
    """Queues of less than 1,000 messages were taken for small: a batch of this limit had all of the 10 MB."""
    for queue_id in (0, 1):
        send(orders, "orders", ["x" * 50_000] * 100, queue_id=queue_id)
    stream = reader(orders, startingOffsets="earliest", maxBytesPerTrigger="1MiB")
    start = spelled(stream.initialOffset())
    assert sum(map(len, rows(stream, start, latest(stream, start)))) < 2 << 20
    batch = BatchReader(
        ReadOptions.parse({"servers": orders.registry, "topics": "orders", "maxBytesPerPartition": "1MiB"}), ("body",)
    )
    assert len(batch.partitions()) >= 10


def test_a_start_by_time_filters_no_later_rows(orders):
    """A query that goes on from its checkpoint has every row, whatever its options say of the start by now."""
    send(orders, "orders", ["before"])
    time.sleep(0.01)
    begin_ms = int(time.time() * 1000)
    send(orders, "orders", ["one"])
    stream = reader(orders, startingTimestamp=str(begin_ms), startingTimestampStrategy="latest")
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    again = reader(orders, startingTimestamp=str(begin_ms + 3_600_000))
    send(orders, "orders", ["two"])
    assert rows(stream, start, end) == rows(again, start, end) == ["one"]
    assert rows(again, end, until_news(again, end)) == ["two"]


def test_least_rows_wait_until_the_delay_is_over(orders):
    send(orders, "orders", ["a"])
    stream = reader(orders, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="2s")
    start = spelled(stream.initialOffset())
    began = time.monotonic()
    until_news(stream, start)
    assert time.monotonic() - began > 1


def test_available_now_ends_while_a_producer_writes(orders):
    """spark.md 5.4.5."""
    send(orders, "orders", [str(i) for i in range(100)])
    stream = reader(orders, startingOffsets="earliest", maxOffsetsPerTrigger="30", minOffsetsPerTrigger="1000")
    stream.prepareForTriggerAvailableNow()
    start = spelled(stream.initialOffset())
    end = latest(stream, start)
    stop = threading.Event()

    def produce():
        while not stop.is_set():
            send(orders, "orders", ["late"] * 20)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        seen = []
        while end != start:
            seen += rows(stream, start, end)
            start, end = end, latest(stream, end)
    finally:
        stop.set()
        producer.join()
    assert seen == [str(i) for i in range(100)]


def calls_a_second(stream, start):
    """Ask for three seconds as Spark does, with nothing to read."""
    callers, plain, began = [], BlockingClient.call, time.monotonic()

    def call(*given, **more):
        callers.append(threading.get_ident())  # the producer's is another
        return plain(*given, **more)

    with patch.object(BlockingClient, "call", call):
        while time.monotonic() - began < 3:
            assert latest(stream, start) == start
            stream.reportLatestOffset()
            time.sleep(0.01)
    assert callers
    return callers.count(threading.get_ident()) / (time.monotonic() - began)


def test_idle_polling_makes_few_calls(orders):
    """spark.md 5.4.5: at most 10 broker calls a second, though Spark asks every 10 ms."""
    stream = reader(orders, startingOffsets="earliest")
    assert calls_a_second(stream, spelled(stream.initialOffset())) <= 10


def test_waiting_for_more_rows_makes_few_calls(orders):
    """Each message ended the broker's waiting, so it was asked whenever Spark asked, 80 times a second."""
    stream = reader(orders, startingOffsets="earliest", minOffsetsPerTrigger="1000000")
    start = spelled(stream.initialOffset())
    assert latest(stream, start) == start
    stop = threading.Event()

    def produce():
        while not stop.is_set():
            send(orders, "orders", ["more"])

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        assert calls_a_second(stream, start) <= 10
    finally:
        stop.set()
        producer.join()


@pytest.mark.parametrize("selection", [{"topicPattern": "ord.*"}, {"assign": '{"orders": {"broker-a": [1]}}'}])
def test_what_is_not_selected_is_no_news(orders, selection):
    """A broker compares all that it has with what a reader knows."""
    make_topic(orders, "other", 1)
    wait_registered(orders, "other")
    send(orders, "other", ["not this"])
    send(orders, "orders", ["nor this, with assign"])
    options = {"servers": orders.registry, "group": "g", "startingOffsets": "latest", **selection}
    stream = StreamReader(ReadOptions.parse(options), ("body",))
    start = spelled(stream.initialOffset())
    assert calls_a_second(stream, start) <= 5
    stop = threading.Event()

    def produce():
        while not stop.is_set():
            send(orders, "other", ["more"])

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        assert calls_a_second(stream, start) <= 10
    finally:
        stop.set()
        producer.join()
    send(orders, "orders", ["this"], queue_id=1)
    assert rows(stream, start, until_news(stream, start)) == ["this"]


def test_news_are_seen_at_once(orders):
    stream = reader(orders, startingOffsets="earliest")
    start = spelled(stream.initialOffset())
    assert latest(stream, start) == start
    sent = []

    def produce():
        time.sleep(0.15)
        sent.append(time.monotonic())
        send(orders, "orders", ["x"])

    producer = threading.Thread(target=produce)
    producer.start()
    until_news(stream, start)
    producer.join()
    assert time.monotonic() - sent[0] < 2


def test_replayed_batch_has_the_same_partitions(orders):
    """spark.md 1.5: a pure function of its two offsets."""
    send(orders, "orders", [f"a{i}" * 50 for i in range(3000)])
    options = {"startingOffsets": "earliest", "maxBytesPerPartition": "65536"}
    stream = reader(orders, **options)
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    send(orders, "orders", ["much larger ones" * 1000] * 10)
    again = reader(orders, **options)
    cut = [[repr(p) for p in found.partitions(start, end)] for found in (stream, again)]
    assert cut[0] == cut[1]
    assert len(cut[0]) > 2
    assert rows(stream, start, end) == rows(again, start, end) == [f"a{i}" * 50 for i in range(3000)]
    assert again.partitions(end, end) == []


def test_same_rows_after_a_restart_of_the_broker(orders):
    send(orders, "orders", [f"a{i}" for i in range(500)])
    stream = reader(orders, startingOffsets="earliest")
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    before = rows(stream, start, end)
    orders.restart()
    wait_registered(orders, "orders")
    assert rows(reader(orders), start, end) == before
    assert latest(stream, end) == end


def test_new_queues_begin_at_their_beginning(orders):
    """spark.md 5.4.5."""
    send(orders, "orders", ["old"])
    stream = reader(orders, startingOffsets="latest")
    start = spelled(stream.initialOffset())
    make_topic(orders, "orders", 3)
    send(orders, "orders", ["new"], queue_id=2)
    end = until_news(stream, start)
    assert rows(stream, start, end) == ["new"]
    assert rows(reader(orders), start, end) == ["new"]
    skipping = reader(orders, newQueues="latest")
    assert skipping.latestOffset(start, ALL)["q"]["orders"]["broker-a"]["2"] == 1


def test_new_topics_of_a_pattern_are_found(broker):
    make_topic(broker, "a1", 1)
    wait_registered(broker, "a1")
    stream = StreamReader(
        ReadOptions.parse(
            {"servers": broker.registry, "topicPattern": "a.*", "group": "g", "startingOffsets": "latest"}
        ),
        ("body",),
    )
    start = spelled(stream.initialOffset())
    make_topic(broker, "a2", 1)
    make_topic(broker, "b1", 1)
    send(broker, "a2", ["new"])
    send(broker, "b1", ["not this"])
    end = until_news(stream, start)
    assert rows(stream, start, end) == ["new"]


def test_topic_made_again_is_an_error_that_says_so(orders):
    """spark.md 5.4.5."""
    send(orders, "orders", ["a", "b"])
    stream = reader(orders, startingOffsets="earliest")
    end = until_news(stream, spelled(stream.initialOffset()))
    delete_topic(orders, "orders")
    make_topic(orders, "orders", 2)
    wait_registered(orders, "orders")
    send(orders, "orders", ["c"])
    with pytest.raises(
        DataLossError, match=r"'orders' of broker 'broker-a' was deleted and made again.*failOnDataLoss=false"
    ):
        until_news(reader(orders), end)
    stream = reader(orders, failOnDataLoss="false")
    assert rows(stream, end, until_news(stream, end)) == ["c"]


def test_deleted_topic_is_an_error(orders):
    send(orders, "orders", ["a"])
    stream = reader(orders, startingOffsets="earliest")
    end = until_news(stream, spelled(stream.initialOffset()))
    delete_topic(orders, "orders")
    with pytest.raises((DataLossError, TopicNotFoundError), match="orders"):
        until_news(stream, end)


@pytest.mark.parametrize("gone", ["topic", "queue"])
def test_what_is_gone_between_planning_and_reading_is_a_loss(orders, gone):
    make_topic(orders, "other", 1)
    wait_registered(orders, "other")
    send(orders, "orders", ["a", "b"], queue_id=1)
    send(orders, "other", ["stays"])
    options = {"topics": "orders,other", "startingOffsets": "earliest"}
    stream = reader(orders, **options)
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    if gone == "topic":
        delete_topic(orders, "orders")
    else:
        make_topic(orders, "orders", 1)
    with pytest.raises(DataLossError, match=r"queue 1 of broker 'broker-a' has no more offsets 0 to 2.*not there any"):
        rows(stream, start, end)
    stream = reader(orders, **options, failOnDataLoss="false")
    assert rows(stream, start, end) == ["stays"]
    stream.commit(end)
    send(orders, "other", ["later"])
    later = until_news(stream, end)
    assert rows(stream, end, later) == ["later"]
    stream.commit(later)
    with Cluster(orders.registry) as cluster:
        assert cluster.query_offset("broker-a", "g", "other", 0) == 2
        assert cluster.query_offset("broker-a", "g_start", "other", 0) is None


def test_missing_topic_is_an_error(broker):
    with pytest.raises(TopicNotFoundError, match="'orders' does not exist"):
        reader(broker).initialOffset()


def test_replaced_store_is_an_error_that_says_so(orders, tmp_path):
    send(orders, "orders", ["a", "b"])
    stream = reader(orders, startingOffsets="earliest")
    end = until_news(stream, spelled(stream.initialOffset()))
    with testing.broker(broker__name="broker-a") as other:
        make_topic(other, "orders", 2)
        wait_registered(other, "orders")
        send(other, "orders", ["c"])
        with pytest.raises(DataLossError, match="another store than when the checkpoint was written"):
            until_news(reader(other), end)
        stream = reader(other, failOnDataLoss="false")
        assert rows(stream, end, until_news(stream, end)) == ["c"]


def test_start_behind_end_is_an_error(orders):
    """spark.md 1.5: partitions must raise, or rows would be missing silently."""
    stream = reader(orders)
    start = {"v": 1, "q": {"orders": {"broker-a": {"0": 9}}}}
    end = {"v": 1, "q": {"orders": {"broker-a": {"0": 7}}}}
    with pytest.raises(DataLossError, match="begins at 9 and ends at 7"):
        stream.partitions(start, end)
    assert reader(orders, failOnDataLoss="false").partitions(start, end) == []


def test_checkpoint_of_something_else_is_an_error(orders):
    for wrong in ({"x": 1}, {"v": 2, "q": {}}, {"v": 1, "q": {"t": 3}}):
        with pytest.raises(PositionError):
            Position.from_json(wrong)
    with pytest.raises(ConfigError, match="new checkpoint"):
        reader(orders).latestOffset({"v": 1, "log": {"broker-a": 0}}, ALL)


def test_offsets_have_one_spelling():
    """spark.md 1.5: Spark compares text."""
    offsets = {QueueKey("t", "b", queue_id): queue_id for queue_id in (10, 9, 0)}
    position = Position(offsets=offsets, lost=3, record_bytes={"b": 1, "a": 2})
    text = json.dumps(position.to_json())
    assert json.dumps(Position.from_json(json.loads(text)).to_json()) == text
    assert list(position.to_json()["q"]["t"]["b"]) == ["0", "9", "10"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingTimestamp": "5"}, "for batches"),
        ({"endingOffsets": '{"orders": {"broker-a": {"0": 1}}}'}, "for batches"),
    ],
)
def test_options_of_batches_are_refused(orders, options, says):
    with pytest.raises(ConfigError, match=says):
        reader(orders, **options)


def test_streams_need_a_group(orders):
    with pytest.raises(ConfigError, match="option group"):
        StreamReader(ReadOptions.parse({"servers": orders.registry, "topics": "orders"}), ("body",))


# RocketMQ: brokers that have none of our requests. Ours plays one; tests/interop has the real ones.


@pytest.fixture
def foreign(orders, monkeypatch):
    def no_ranges(*arguments):
        raise queue_reading._NotHeadraceError

    monkeypatch.setattr(remote, "ask_state", lambda *arguments, **more: None)
    monkeypatch.setattr(queue_reading.QueueReading, "_ranges", no_ranges)
    return orders


def test_rocketmq_is_read_by_pulls(foreign):
    send(foreign, "orders", [f"a{i}" for i in range(300)], properties="TAGS\x01x\x02")
    send(foreign, "orders", ["b"], queue_id=1, properties="TAGS\x01y\x02")
    stream = reader(foreign, startingOffsets="latest")
    start = spelled(stream.initialOffset())
    assert start["q"] == {"orders": {"broker-a": {"0": 300, "1": 1}}}
    send(foreign, "orders", [f"c{i}" for i in range(100)])
    assert spelled(reader(foreign, startingOffsets="latest").initialOffset()) == start
    end = until_news(stream, start)
    assert rows(stream, start, end) == [f"c{i}" for i in range(100)]
    stream.commit(end)
    with Cluster(foreign.registry) as cluster:
        assert cluster.query_offset("broker-a", "g", "orders", 0) == 400
    begin = {"v": 1, "q": {"orders": {"broker-a": {"0": 0, "1": 0}}}}
    tagged = reader(foreign, tags="y")
    assert rows(tagged, begin, end) == ["b"]
    assert "stores" not in start


def test_rocketmq_has_no_whole_logs(foreign):
    options = {"servers": foreign.registry, "scan": "log", "group": "g"}
    with pytest.raises(ConfigError, match="no raw-log reads"):
        StreamReader(ReadOptions.parse(options), ("body",)).initialOffset()


# Whole logs


def test_log_of_a_broker(orders):
    send(orders, "orders", ["before"])
    options = {"servers": orders.registry, "scan": "log", "group": "g", "startingOffsets": "latest"}
    stream = StreamReader(ReadOptions.parse(options), ("body",))
    start = spelled(stream.initialOffset())
    send(orders, "orders", [f"a{i}" for i in range(100)])
    assert spelled(StreamReader(ReadOptions.parse(options), ("body",)).initialOffset()) == start
    seen = []
    while (end := latest(stream, start)) != start:
        seen += rows(stream, start, end)
        start = end
    assert seen == [f"a{i}" for i in range(100)]
    stream.commit(end)
    assert StreamReader(ReadOptions.parse(options), ("body",)).initialOffset()["log"]["broker-a"] > 0


def test_log_from_a_time_on(orders):
    """The time of the first start is in the checkpoint: batches have the same rows under another option."""
    send(orders, "orders", ["before"])
    time.sleep(0.01)
    begin_ms = int(time.time() * 1000)
    send(orders, "orders", ["one", "two"])
    options = {"servers": orders.registry, "scan": "log", "group": "g"}
    stream = StreamReader(ReadOptions.parse(options | {"startingTimestamp": str(begin_ms)}), ("body",))
    start = spelled(stream.initialOffset())
    end = until_news(stream, start)
    again = StreamReader(ReadOptions.parse(options | {"startingTimestamp": str(begin_ms + 3_600_000)}), ("body",))
    send(orders, "orders", ["three"])
    assert rows(stream, start, end) == rows(again, start, end) == ["one", "two"]
    assert rows(again, end, until_news(again, end)) == ["three"]


def test_store_without_a_broker(orders):
    send(orders, "orders", [f"a{i}" for i in range(100)])
    make_topic(orders, "other", 1)
    wait_registered(orders, "other")
    send(orders, "other", ["not this"])
    orders.stop()
    options = {"store": str(orders.data_dir), "topics": "orders", "maxBytesPerTrigger": "5000"}
    stream = StreamReader(ReadOptions.parse(options), ("body",))
    start, seen, batches = spelled(stream.initialOffset()), [], 0
    while (end := latest(stream, start)) != start:
        seen += rows(stream, start, end)
        start, batches = end, batches + 1
    assert seen == [f"a{i}" for i in range(100)]
    assert batches > 3
    with pytest.raises(ConfigError, match="begins at earliest"):
        StreamReader(ReadOptions.parse(options | {"startingOffsets": "latest"}), ("body",))


def folder_reader(folder, **more):
    given = {"store": str(folder), "topics": "orders", **more}
    return StreamReader(ReadOptions.parse(given), ("broker", "body"))


def test_a_folder_with_another_name_is_the_same_log(orders, tmp_path):
    """The name told stores apart, not their identity: all was read again when a folder was renamed or mounted."""
    send(orders, "orders", ["one", "two"])
    orders.stop()
    first = folder_reader(orders.data_dir)
    start = spelled(first.initialOffset())
    end = latest(first, start)
    shutil.copytree(orders.data_dir, tmp_path / "renamed" / "there")
    orders.start()
    send(orders, "orders", ["three"])
    orders.stop()
    renamed = folder_reader(tmp_path / "renamed" / "there")
    assert rows(renamed, start, end) == ["one", "two"]  # batch 0 again, before anything else is asked
    assert latest(renamed, end) == end
    shutil.rmtree(tmp_path / "renamed" / "there")
    shutil.copytree(orders.data_dir, tmp_path / "renamed" / "there")
    grown = folder_reader(tmp_path / "renamed" / "there")
    more = latest(grown, end)
    assert list(more["log"]) == list(end["log"])
    (partition,) = grown.partitions(end, more)
    assert [row for batch in grown.read(partition) for row in batch.to_pylist()] == [
        {"broker": orders.data_dir.name, "body": b"three"}
    ]
    with pytest.raises(
        ConfigError, match=f"no log of broker 'mine' but of '{orders.data_dir.name}': set option brokerName"
    ):
        latest(folder_reader(orders.data_dir, brokerName="mine"), end)


def test_batch_0_that_was_not_committed_is_planned_again_in_a_renamed_folder(orders, tmp_path):
    """Its start is asked for under the new name, its end has the old one: the batch must not become empty."""
    send(orders, "orders", ["one", "two"])
    orders.stop()
    first = folder_reader(orders.data_dir)
    end = latest(first, spelled(first.initialOffset()))
    shutil.copytree(orders.data_dir, tmp_path / "renamed")
    renamed = folder_reader(tmp_path / "renamed")
    start = spelled(renamed.initialOffset())
    assert list(start["log"]) == ["renamed"]
    assert rows(renamed, start, end) == ["one", "two"]
    assert latest(renamed, end) == end


def test_a_batch_of_which_nobody_knows_the_start_is_an_error(orders):
    send(orders, "orders", ["one"])
    orders.stop()
    reader = folder_reader(orders.data_dir)
    end = latest(reader, spelled(reader.initialOffset()))
    with pytest.raises(DataLossError, match="where it begins is not known any more"):
        reader.partitions({**end, "log": {"other": 0}}, end)
    assert folder_reader(orders.data_dir, failOnDataLoss="false").partitions({**end, "log": {"other": 0}}, end) == []


@pytest.mark.parametrize("has_identity", [True, False])
def test_another_store_under_another_name_is_another_store(orders, tmp_path, has_identity):
    """Without an identity (RocketMQ's folders) the name is all there is: nothing of it is skipped without a word."""
    send(orders, "orders", ["one", "two"])
    orders.stop()
    with testing.broker(broker__name="broker-a") as other:
        make_topic(other, "orders", 1)
        send(other, "orders", ["three"])
        other.stop()
        shutil.copytree(other.data_dir, tmp_path / "other")
    shutil.copytree(orders.data_dir, tmp_path / "one")
    if not has_identity:
        for folder in ("one", "other"):
            shutil.rmtree(tmp_path / folder / "headrace")
    first = folder_reader(tmp_path / "one")
    start = spelled(first.initialOffset())
    end = latest(first, start)
    expected = "this folder is another store" if has_identity else "nothing says which store that was"
    with pytest.raises(ConfigError, match=f"no log of broker 'other' but of 'one': {expected}; set option brokerName"):
        latest(folder_reader(tmp_path / "other"), end)
    beside = folder_reader(tmp_path / "other", brokerName="two")
    with pytest.raises(ConfigError, match="a batch of the log of broker 'one' was planned and not finished"):
        beside.partitions(start, end)
    if has_identity:
        with pytest.raises(DataLossError, match="was planned over another store"):
            folder_reader(tmp_path / "other", brokerName="one").partitions(start, end)
    more = latest(beside, end)
    assert set(more["log"]) == {"one", "two"}
    assert rows(beside, end, more) == ["three"]


@pytest.mark.parametrize("how", [{"topics": "orders"}, {"topics": None, "scan": "log"}])
def test_tasks_need_no_registry(how):
    """Its brokers are up: a task in a new process, or on another machine, finds them where the driver did."""
    with (
        testing.broker(broker__name="broker-r") as registry,
        testing.broker(
            broker__name="broker-a", broker__registries=registry.registry, registry__enabled=False
        ) as broker,
    ):
        broker.listeners["registry"] = registry.registry
        with Cluster(broker.registry) as cluster:
            deadline = time.monotonic() + 60
            while "broker-a" not in cluster.brokers():
                assert time.monotonic() < deadline, "the broker did not register"
                time.sleep(0.02)
        make_topic(broker, "orders", 2)
        wait_registered(broker, "orders")
        send(broker, "orders", ["a", "b", "c"])
        wait_registered(broker, "orders")
        options = {name: text for name, text in how.items() if text is not None}
        batch = BatchReader(ReadOptions.parse({"servers": broker.registry, "retries": "0", **options}), ("body",))
        planned = pickle.loads(pickle.dumps((batch, list(batch.partitions()))))
        stream = StreamReader(
            ReadOptions.parse(
                {"servers": broker.registry, "retries": "0", "group": "g", "startingOffsets": "earliest", **options}
            ),
            ("body",),
        )
        start = spelled(stream.initialOffset())
        streamed = pickle.loads(pickle.dumps((stream, list(stream.partitions(start, until_news(stream, start))))))
        registry.stop()
        for reading, partitions in (planned, streamed):
            connections.close_connections()  # there are none in a new process
            found = [row["body"] for part in partitions for rows in reading.read(part) for row in rows.to_pylist()]
            assert sorted(found) == [b"a", b"b", b"c"]


def test_jobs_beside_each_other_have_connections_of_their_own(broker):
    """In one driver, each in a thread: one took the other's answers, and both waited for what never came."""
    source = ServersSource(broker.registry, timeout_ms=2000, retries=0)
    failures = []

    def look():
        try:
            for _ in range(100):
                remote_log.log_extents(source)
        except ClientError as error:
            failures.append(error)
        connections.cluster_of(source).close()

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
