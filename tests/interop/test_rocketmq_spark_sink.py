"""The tasks of Spark's sink against real RocketMQ brokers: at-least-once works, the other modes say that they do not.

Ref: docs/spark/sink.md, "Modes"; spark.md 3.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.errors import ConfigError  # noqa: E402
from headrace.remoting.blocking import Cluster  # noqa: E402
from headrace.spark.connections import close_connections  # noqa: E402
from headrace.spark.errors import ExtensionMissingError  # noqa: E402
from headrace.spark.writing.partition_writer import PartitionWriter  # noqa: E402
from headrace.spark.writing.sink import make_writer  # noqa: E402
from tests.interop import rocketmq_peers as peers  # noqa: E402
from tests.support.sink import bodies, read_topic, schema  # noqa: E402
from tests.support.waiting import until  # noqa: E402

COUNT = 20_000


@pytest.fixture(scope="module", params=["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with peers.rocketmq(request.param, tmp_path_factory.mktemp(str(request.param))) as started:
        with Cluster(started.namesrv) as cluster:
            until(lambda: bool(cluster.brokers()) and "TBW102" in cluster.topics(), 60)
        yield started.namesrv
        close_connections()


def test_rows_reach_rocketmq(registry: str) -> None:
    """In batches of its own encoding, to a topic that it makes; tags, keys and made ids are its own."""
    options = {"servers": registry, "topic": "FromSpark", "semantics": "at-least-once", "batchBytes": "256KiB"}
    made = make_writer(options, schema(body="string", tags="string", keys="array<string>"), False)
    rows = [{"body": f"row {number}", "tags": "t", "keys": [f"k{number}", "all"]} for number in range(COUNT)]
    batches = (pa.RecordBatch.from_pylist(rows[at : at + 1000]) for at in range(0, COUNT, 1000))
    written = PartitionWriter(made.plan, "txn", 0, 0).write(batches)
    assert (written.rows, written.counters.stored) == (COUNT, COUNT)
    until(lambda: bodies(registry, "FromSpark").total() == COUNT, 60)
    found = read_topic(registry, "FromSpark")
    assert Counter(message["body"].decode() for message in found) == Counter(row["body"] for row in rows)
    assert {message["properties"]["TAGS"] for message in found} == {"t"}
    assert {message["properties"]["KEYS"] for message in found} == {f"k{number} all" for number in range(COUNT)}
    assert len({message["properties"]["UNIQ_KEY"] for message in found}) == COUNT


def test_delayed_rows_wait_at_rocketmq(registry: str) -> None:
    """One by one: a batch cannot wait."""
    options = {"servers": registry, "topic": "FromSparkLater", "semantics": "at-least-once"}
    made = make_writer(options, schema(body="string", delay_level="int"), False)
    rows = [{"body": "now", "delay_level": 0}, {"body": "later", "delay_level": 1}]
    PartitionWriter(made.plan, "txn", 0, 0).write(iter([pa.RecordBatch.from_pylist(rows)]))
    until(lambda: set(bodies(registry, "FromSparkLater")) == {"now", "later"}, 60)
    # It is stored again when it becomes due, a second after it was made.
    waited = {
        message["body"]: message["store_timestamp_ms"] - message["born_timestamp_ms"]
        for message in read_topic(registry, "FromSparkLater")
    }
    assert waited[b"later"] >= 1000, waited


@pytest.mark.parametrize("mode", ["idempotent", "transactional"])
def test_other_modes_say_what_is_missing(registry: str, mode: str) -> None:
    with pytest.raises(ExtensionMissingError, match="write with semantics=at-least-once"):
        make_writer({"servers": registry, "topic": "FromSpark", "semantics": mode}, schema(body="string"), False)


def test_what_rocketmq_does_with_a_message_is_asked(registry: str) -> None:
    options = {"servers": registry, "topic": "FromSpark", "semantics": "at-least-once", "ack": "flushed"}
    with pytest.raises(ConfigError, match="its flushDiskType is ASYNC_FLUSH"):
        make_writer(options, schema(body="string"), False)
