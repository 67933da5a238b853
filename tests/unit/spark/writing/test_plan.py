"""The pieces of the sink that need neither a broker nor a JVM."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.spark.writing.options import WriteColumns, WriteOptions  # noqa: E402
from headrace.spark.writing.partition_writer import Written, cast_columns, key_prefix  # noqa: E402
from headrace.spark.writing.plan import WritePlan, is_numbered  # noqa: E402
from headrace.spark.writing.route import TopicRoute  # noqa: E402

COLUMNS = WriteColumns({"body": 0}, (), (), is_keyed=False)
ROUTE = TopicRoute("orders", (("a", 0), ("b", 0)))


def plan(**options: str) -> WritePlan:
    parsed = WriteOptions.parse({"servers": "r:1", "topic": "orders", **options})
    return WritePlan(parsed, COLUMNS, ROUTE, {"a": "a:1", "b": "b:1", "c": "c:1"})


def test_one_identity_writes_several_topics() -> None:
    """A transaction of one topic says nothing about another one's; long names stay within the protocol's bound."""
    assert plan().identity("query") == "query/orders"
    rows_say = dataclasses.replace(plan(), options=WriteOptions("r:1"))
    assert rows_say.identity("query") == "query"
    long = plan().identity("q" * 128)
    assert re.fullmatch("[0-9a-f]{64}", long)
    assert long != plan(topic="bills").identity("q" * 128)


def test_a_transaction_lives_where_the_topic_does() -> None:
    homes = {plan().home(f"txn-{number}") for number in range(50)}
    assert homes == {"a", "b"}
    anywhere = dataclasses.replace(plan(), route=None)
    assert {anywhere.home(f"txn-{number}") for number in range(50)} == {"a", "b", "c"}


def test_made_keys_look_like_those_of_rocketmq() -> None:
    """32 upper-case hex digits with the row's 12; others for every query, epoch and partition."""
    prefixes = {key_prefix(txn, epoch, partition) for txn in ("a", "b") for epoch in range(3) for partition in range(3)}
    assert len(prefixes) == 18
    assert all(re.fullmatch(b"[0-9A-F]{20}", prefix) for prefix in prefixes)
    assert key_prefix("query/orders", 7, 3) == b"DAFFF4060F4823AB633F"


def test_only_numbered_writes_mind_speculation() -> None:
    made = plan()
    assert is_numbered(made.options, made.columns)
    assert not is_numbered(plan(semantics="transactional").options, made.columns)
    assert not is_numbered(made.options, dataclasses.replace(COLUMNS, is_keyed=True))


def test_plans_and_messages_are_pickled_without_showing_secrets() -> None:
    secret = plan(**{"auth.accessKey": "who", "auth.secretKey": "hush"})
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert "hush" not in repr(secret)
    message = Written("t", 1, 2, 3, rows=4)
    assert pickle.loads(pickle.dumps(message)) == message


def test_numbers_and_times_become_text() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": 7, "b": "x", "c": None}, {"a": None, "b": "y", "c": True}])
    found = cast_columns(batch, (0, 2))
    assert found.to_pylist() == [{"a": "7", "b": "x", "c": None}, {"a": None, "b": "y", "c": "true"}]
    assert found.schema.names == ["a", "b", "c"]
    assert cast_columns(batch, ()) is batch


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_the_text_of_a_time_is_the_same_in_every_session(zone: str) -> None:
    """Spark gives times in the session's zone: a key that says so would be another one after a restart elsewhere."""
    moment = pa.array([1_767_225_600_000_001, None], pa.timestamp("us", tz=zone))
    found = cast_columns(pa.RecordBatch.from_arrays([moment], names=["k"]), (0,))
    assert found.column(0).to_pylist() == ["2026-01-01 00:00:00.000001Z", None]
