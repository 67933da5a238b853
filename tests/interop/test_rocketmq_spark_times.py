"""Reads by time begin and end at the right message of any broker. Ref: docs/spark/source.md, "RocketMQ"."""

from __future__ import annotations

from bisect import bisect_left

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.remoting.blocking import Cluster
from headrace.spark.options import ReadOptions
from headrace.spark.remote import ServersView
from headrace.spark.starts import resolve_ends, resolve_starts
from headrace.spark.streams.positions import QueueKey
from tests.interop import rocketmq_peers as peers
from tests.interop.test_rocketmq_spark import BROKER, TOPIC, read_all
from tests.interop.test_rocketmq_spark import cluster as cluster
from tests.interop.test_rocketmq_spark import server as server


def test_reads_by_time_are_exact(server: peers.Cluster, cluster: Cluster) -> None:
    """4.9 finds the message nearest to a time, the others the first one at or after it."""
    times = [int(str(message["store_timestamp_ms"])) for message in read_all(cluster, 0)]
    wanted = {around for time_ms in set(times) for around in (time_ms - 1, time_ms, time_ms + 1, time_ms + 40)}
    for time_ms in sorted({1000, max(times) + 3_600_000} | wanted):
        expected = bisect_left(times, time_ms)
        options = ReadOptions.parse({
            "servers": server.namesrv, "topics": TOPIC, "startingTimestamp": str(time_ms),
            "endingTimestamp": str(time_ms), "startingTimestampStrategy": "latest",
        })  # fmt: skip
        view = ServersView.open(options)
        snapshot = view.snapshot()
        key = QueueKey(TOPIC, BROKER, 0)
        assert resolve_starts(options, snapshot, "earliest", view)[key] == expected, time_ms
        assert resolve_ends(options, snapshot, view)[key] == expected, time_ms
