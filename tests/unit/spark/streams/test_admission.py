"""How much of a backlog a micro-batch takes, and how it is cut into tasks."""

import pytest

pytest.importorskip("pyspark")

from headrace.spark.options import ReadOptions
from headrace.spark.partitions import cut_queues, split_bytes
from headrace.spark.queue_reading import QueueRange
from headrace.spark.streams.admission import Backlog, admit
from headrace.spark.streams.positions import QueueKey


def options(**more):
    return ReadOptions.parse({"servers": "a:1", "topics": "t", **more})


def ends(backlogs, sizes=None, **limits):
    return [end for _, end in admit(backlogs, sizes or {}, **limits)]


def test_everything_without_limits():
    assert ends([Backlog(QueueKey("t", "b", 0), 5, 105), Backlog(QueueKey("t", "b", 1), 0, 3)]) == [105, 3]


def test_rows_in_proportion_and_one_of_each():
    backlogs = [
        Backlog(QueueKey("t", "b", 0), 0, 900),
        Backlog(QueueKey("t", "b", 1), 50, 150),
        Backlog(QueueKey("t", "b", 2), 7, 8),
    ]
    assert ends(backlogs, max_rows=100) == [89, 59, 8]


def test_bytes_by_size_of_records():
    backlogs = [Backlog(QueueKey("small", "b", 0), 0, 1000), Backlog(QueueKey("large", "b", 0), 0, 1000)]
    assert ends(backlogs, {"small": 100, "large": 900}, max_bytes=100_000) == [100, 100]
    assert ends(backlogs, {"small": 100, "large": 900}, max_bytes=1) == [1, 1]


def test_the_smaller_limit_counts():
    backlogs = [Backlog(QueueKey("t", "b", 0), 0, 1000)]
    assert ends(backlogs, {"t": 100}, max_bytes=50_000, max_rows=100) == [100]
    assert ends(backlogs, {"t": 100}, max_bytes=5_000, max_rows=100) == [50]


def pieces(ranges, *, is_stream=False, **more):
    cut = cut_queues(ranges, options(**more), is_stream=is_stream)
    return [[(r.queue_id, r.start, r.end) for r in p.ranges] for p in cut]


def test_ranges_are_cut_by_bytes_and_rows():
    found = [QueueRange("t", "b", 0, 0, 100, 1000)]
    assert pieces(found, maxBytesPerPartition="50000") == [[(0, 0, 50)], [(0, 50, 100)]]
    assert pieces(found, maxRecordsPerPartition="40") == [[(0, 0, 33)], [(0, 33, 66)], [(0, 66, 100)]]
    assert len(pieces(found, minPartitions="7")) == 7
    assert pieces(found, maxBytesPerPartition="0") == [[(0, 0, 100)]]
    assert pieces([QueueRange("t", "b", 0, 5, 5)]) == []


def test_small_queues_are_put_together_when_asked():
    found = [QueueRange("t", "b", q, 0, 10, 1000) for q in range(4)] + [QueueRange("t", "c", 0, 0, 10, 1000)]
    assert len(pieces(found)) == 5
    assert pieces(found, coalesceQueues="true", maxBytesPerPartition="30000") == [
        [(0, 0, 10), (1, 0, 10), (2, 0, 10)],
        [(3, 0, 10)],
        [(0, 0, 10)],
    ]
    assert pieces([], coalesceQueues="true") == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_small_ones_of_very_many_queues_are_put_together(is_stream):
    """A task takes Spark longer than reading a few rows: 300 queues of four rows took half a minute."""
    few = [QueueRange("t", "b", q, 0, 50, 1000) for q in range(32)]
    assert len(pieces(few, is_stream=is_stream)) == 32
    many = [QueueRange(f"t{q}", "b", 0, 0, 50, 1000) for q in range(300)]
    assert [len(ranges) for ranges in pieces(many, is_stream=is_stream)] == [83, 83, 83, 51]
    assert len(pieces(many, is_stream=is_stream, maxBytesPerPartition="16000000")) == 15
    for more in ({"coalesceQueues": "false"}, {"minPartitions": "2"}, {"maxBytesPerPartition": "0"}):
        assert len(pieces(many, is_stream=is_stream, **more)) == 300
    assert len(pieces(many, maxBytesPerPartition="15")) == 300 * 50  # a sixteenth of it is not "no limit"
    assert max(map(len, pieces(many, is_stream=is_stream, maxRecordsPerPartition="100"))) == 2
    large = [QueueRange("t", "b", q, 0, 5000, 1000) for q in range(40)]
    assert len(pieces([*many, *large], is_stream=is_stream)) == 44


def test_a_small_batch_of_a_stream_takes_one_task_for_each_broker():
    found = [QueueRange("t", "b", q, 0, 10, 1000) for q in range(4)] + [QueueRange("t", "c", 0, 0, 10, 1000)]
    assert [len(ranges) for ranges in pieces(found, is_stream=True)] == [4, 1]
    assert len(pieces(found, is_stream=True, coalesceQueues="auto")) == 2
    assert len(pieces(found, is_stream=True, coalesceQueues="false")) == 5
    assert len(pieces(found, is_stream=True, minPartitions="5")) == 5
    assert [len(ranges) for ranges in pieces(found, is_stream=True, maxRecordsPerPartition="20")] == [2, 2, 1]
    large = [QueueRange("t", "b", q, 0, 501, 1000) for q in range(2)]
    assert len(pieces(large, is_stream=True)) == 2


def test_logs_are_cut_by_bytes_and_into_so_many_at_least():
    def size(**more):
        return split_bytes(ReadOptions.parse({"servers": "a:1", "scan": "log", **more}), 1001)

    assert size() == 64 << 20
    assert size(maxBytesPerPartition="500") == 500
    assert size(maxBytesPerPartition="0") > 1 << 60
    assert size(minPartitions="10") == 101
    assert size(minPartitions="10", maxBytesPerPartition="50") == 50
    assert size(minPartitions="5000") == 1
