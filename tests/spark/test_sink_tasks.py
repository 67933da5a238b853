"""What a task of the sink does, with a real broker and without Spark's JVM (spark.md 3.5, 5.4.6)."""

from __future__ import annotations

import datetime
import json
import pickle
import random
import socketserver
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

cramjam = pytest.importorskip("cramjam", reason="the extra spark is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace import testing  # noqa: E402
from headrace.broker.exactly_once.staged import StagedBatches  # noqa: E402
from headrace.errors import ClientError, ConfigError, InvalidRowError  # noqa: E402
from headrace.format.compression import GIVEN_AS_STORED, deflate  # noqa: E402
from headrace.remoting.blocking import Cluster  # noqa: E402
from headrace.remoting.codec import decode_command, encode_response  # noqa: E402
from headrace.remoting.codes import RequestCode  # noqa: E402
from headrace.settings.tree import TopicSettings  # noqa: E402
from headrace.spark.connections import close_connections  # noqa: E402
from headrace.spark.errors import BrokerGoneError, ExtensionMissingError, UnsendableError, WriteFailedError  # noqa: E402
from headrace.spark.jobs.message_writer import MessageWriter  # noqa: E402
from headrace.spark.writing import partition_writer  # noqa: E402
from headrace.spark.writing.encode import MAX_PROPERTIES  # noqa: E402
from headrace.spark.writing.end import end_write  # noqa: E402
from headrace.spark.writing.partition_writer import PartitionWriter, Written  # noqa: E402
from headrace.spark.writing.plan import WritePlan  # noqa: E402
from headrace.spark.writing.sink import (  # noqa: E402
    HeadraceWriter,
    make_stream_writer,
    make_writer,
)
from tests.crash.broker_process import BrokerProcess  # noqa: E402
from tests.spark.conftest import make_topic, wait_registered  # noqa: E402
from tests.support.ports import free_port  # noqa: E402
from tests.support.sink import bodies, read_queue, read_topic, schema  # noqa: E402

MODES = ["idempotent", "transactional", "at-least-once"]
EXACT = ["idempotent", "transactional"]


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    """A worker process ends with its connections; this one lives on."""
    yield
    close_connections()


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__segment_bytes=16 << 20, store__durability="async") as running:
        yield running


def writer(registry: str, topic: str, columns: dict[str, str] | None = None, **options: Any) -> HeadraceWriter:
    given = {"servers": registry, "topic": topic, **{name: str(value) for name, value in options.items()}}
    return make_writer(given, schema(**(columns or {"body": "string"})), False)


def texts(first: int, count: int, batch_rows: int = 100) -> Iterator[Any]:
    """Rows as Spark hands them to a task."""
    for start in range(first, first + count, batch_rows):
        numbers = range(start, min(start + batch_rows, first + count))
        yield pa.RecordBatch.from_pylist([{"body": f"row {number}"} for number in numbers])


def write(plan: WritePlan, rows: Iterator[Any], *, txn: str = "t", epoch: int = 0, partition: int = 0) -> Written:
    """Write a partition as a task does; what it returns goes through a pickle, as in Spark."""
    task: WritePlan = pickle.loads(pickle.dumps(plan))
    found: Written = pickle.loads(pickle.dumps(PartitionWriter(task, txn, epoch, partition).write(rows)))
    return found


def expected(count: int) -> Counter[str]:
    return Counter(f"row {number}" for number in range(count))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def dying(rows: Iterator[Any], after: int) -> Iterator[Any]:
    """A partition whose task dies after so many batches."""
    for number, batch in enumerate(rows):
        if number == after:
            raise RuntimeError("the task dies here")
        yield batch


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_written_once(broker: testing.RunningBroker, mode: str) -> None:
    """Row counts equal as multisets, over several partitions; the topic comes to be."""
    topic = f"once-{mode}"
    made = writer(broker.registry, topic, semantics=mode, batchBytes=2048)
    messages = [write(made.plan, texts(500 * number, 500), partition=number) for number in range(6)]
    assert [message.rows for message in messages] == [500] * 6
    if mode == "transactional":
        assert not bodies(broker.registry, topic)
    made.commit([*messages])
    assert bodies(broker.registry, topic) == expected(3000)


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_a_task_that_dies_and_is_tried_again_repeats_nothing(
    broker: testing.RunningBroker, mode: str, after: int
) -> None:
    """spark.md 5.4.6: task fails mid-partition and retries; the second try gets other Arrow batches."""
    topic = f"dies-{mode}-{after}"
    made = writer(broker.registry, topic, semantics=mode, batchBytes=1024)
    with pytest.raises(RuntimeError, match="dies here"):
        write(made.plan, dying(texts(0, 1000), after))
    again = write(made.plan, texts(0, 1000, batch_rows=73))
    made.commit([again])
    assert bodies(broker.registry, topic) == expected(1000)


@pytest.mark.parametrize("mode", EXACT)
def test_an_identity_counted_from_0_again_adds_nothing(
    broker: testing.RunningBroker, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it or nothing: which queue a partition goes to changes with the epoch."""
    topic = f"anew-{mode}"
    made = writer(broker.registry, topic, semantics=mode)
    for epoch in (100, *range(6)):
        made.commit([write(made.plan, texts(100 * epoch, 20), epoch=epoch, partition=part) for part in range(2)])
    assert bodies(broker.registry, topic) == Counter(2 * [f"row {number}" for number in range(10_000, 10_020)])
    assert caplog.text.count("nothing written: all rows are duplicates") == 6
    made.commit([write(made.plan, texts(0, 20), epoch=101)])
    assert sum(bodies(broker.registry, topic).values()) == 60


@pytest.mark.parametrize("mode", EXACT)
def test_an_epoch_written_again_adds_nothing(broker: testing.RunningBroker, mode: str) -> None:
    """spark.md 5.4.6: the same epoch replayed, by another driver: same rows, same order, other Arrow batches."""
    topic = f"again-{mode}"
    for turn in range(3):
        made = writer(broker.registry, topic, semantics=mode, batchBytes=1024)
        for epoch in range(2):
            found = [write(made.plan, texts(500 * epoch + 250 * number, 250, 100 - turn), epoch=epoch, partition=number)
                     for number in range(2)]  # fmt: skip
            end_write(made.plan, found, is_commit=True)
            assert [each.counters.stored for each in found] == ([250, 250] if turn == 0 else [0, 0])
            assert [each.counters.duplicates for each in found] == ([0, 0] if turn == 0 else [250, 250])
    assert bodies(broker.registry, topic) == expected(1000)


@pytest.mark.parametrize("mode", MODES)
def test_tasks_and_the_commit_need_no_registry(mode: str) -> None:
    """docs/spark/sink.md, "Failures": the driver asks for the route, with each write; a new worker does not."""
    with (
        testing.broker(broker__name="broker-r") as away,
        testing.broker(broker__name="broker-a", broker__registries=away.registry, registry__enabled=False) as running,
    ):
        running.listeners["registry"] = away.registry
        with Cluster(away.registry) as cluster:
            wait_until(lambda: "broker-a" in cluster.brokers())
            make_topic(running, "alone", 4)
            wait_until(lambda: "alone" in cluster.topics())
        made = writer(away.registry, "alone", semantics=mode, retries=0)
        away.stop()
        close_connections()  # as in a new process
        end_write(made.plan, [write(made.plan, texts(0, 300))], is_commit=True)
        away.start()
        with Cluster(away.registry) as cluster:
            wait_until(lambda: "alone" in cluster.topics())
        assert bodies(away.registry, "alone") == expected(300)


def test_a_driver_killed_between_write_and_commit_leaves_nothing_behind(broker: testing.RunningBroker) -> None:
    """spark.md 5.4.6: tasks staged everything, nobody committed; the next driver writes the epoch again."""
    topic = "killed"
    first = writer(broker.registry, topic, semantics="transactional")
    write(first.plan, texts(0, 500), epoch=7)
    assert not bodies(broker.registry, topic)
    second = writer(broker.registry, topic, semantics="transactional")
    found = write(second.plan, texts(0, 500), epoch=7)
    end_write(second.plan, [found], is_commit=True)
    assert bodies(broker.registry, topic) == expected(500)
    # It was killed once more, before Spark noted the commit: the epoch is committed again.
    third = writer(broker.registry, topic, semantics="transactional")
    end_write(third.plan, [write(third.plan, texts(0, 500), epoch=7)], is_commit=True)
    assert bodies(broker.registry, topic) == expected(500)


def test_a_loser_of_two_attempts_is_never_seen(broker: testing.RunningBroker) -> None:
    """Speculative execution is safe in a transaction: the commit names the attempt that counts."""
    topic = "speculative"
    made = writer(broker.registry, topic, semantics="transactional")
    tries = [write(made.plan, texts(0, 300)) for _ in range(2)]
    assert tries[0].attempt != tries[1].attempt
    made.commit([tries[1]])
    assert bodies(broker.registry, topic) == expected(300)


def test_a_long_commit_outlives_the_time_of_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker closes a connection on which nothing is asked for remoting.idle_timeout_ms, commit or not."""
    monkeypatch.setattr("headrace.spark.writing.end.COMMIT_ASK_S", 0.4, raising=False)
    deliver, begun = StagedBatches._deliver, time.monotonic()
    monkeypatch.setattr(StagedBatches, "_deliver", lambda self: time.monotonic() - begun > 4 and deliver(self))
    with testing.broker(remoting__idle_timeout_ms=1000) as impatient:
        made = writer(impatient.registry, "long", semantics="transactional", retries=0)
        made.commit([write(made.plan, texts(0, 100))])
        assert time.monotonic() - begun > 4
        assert bodies(impatient.registry, "long") == expected(100)


def test_an_aborted_transaction_is_forgotten(broker: testing.RunningBroker) -> None:
    topic = "aborted"
    made = writer(broker.registry, topic, semantics="transactional")
    found = write(made.plan, texts(0, 100), txn=made.txn)
    made.abort([found, None])
    made.abort([None])
    with pytest.raises(ClientError, match="refuses the commit"):
        made.commit([found])
    assert not bodies(broker.registry, topic)


def test_empty_writes_are_fine(broker: testing.RunningBroker) -> None:
    for mode in MODES:
        made = writer(broker.registry, f"empty-{mode}", semantics=mode)
        found = write(made.plan, iter([]))
        assert found.rows == 0
        made.commit([found, found])
        made.abort([found])


def test_keys_tell_duplicates_in_any_order(broker: testing.RunningBroker) -> None:
    """After a shuffle the order differs on a replay: the key column says what is the same."""
    topic = "keyed"
    rows = [{"id": number, "body": f"row {number}"} for number in range(1000)]
    made = writer(broker.registry, topic, {"id": "bigint", "body": "string"}, keyColumn="id", batchBytes=2048)
    for turn in range(3):
        random.Random(turn).shuffle(rows)
        half = 400 + 100 * turn  # the shuffle may also deal the rows to other partitions
        for partition, part in enumerate((rows[:half], rows[half:])):
            write(made.plan, iter([pa.RecordBatch.from_pylist(part)]), partition=partition)
    found = read_topic(broker.registry, topic)
    assert Counter(message["body"].decode() for message in found) == expected(1000)
    assert all(message["properties"]["UNIQ_KEY"] == message["body"].decode()[4:] for message in found)


def test_made_keys_name_query_epoch_partition_and_row(broker: testing.RunningBroker) -> None:
    """A consumer can drop duplicates of at-least-once by them: the same row has the same key."""
    topic = "made-keys"
    made = writer(broker.registry, topic, semantics="at-least-once")
    for _ in range(2):
        for partition in range(2):
            write(made.plan, texts(100 * partition, 100), partition=partition)
    keys: dict[str, set[str]] = {}
    for message in read_topic(broker.registry, topic):
        keys.setdefault(message["body"].decode(), set()).add(message["properties"]["UNIQ_KEY"])
    assert all(len(found) == 1 for found in keys.values())
    assert len(set.union(*keys.values())) == 200
    assert all(len(key) == 32 for found in keys.values() for key in found)


# -- where rows go and what they carry ---------------------------------------------------------------------------------


def test_rows_of_a_sharding_key_keep_their_order(broker: testing.RunningBroker) -> None:
    topic = "sharded"
    columns = {"body": "string", "sharding_key": "string"}
    made = writer(broker.registry, topic, columns, batchBytes=1024)
    rows = [{"body": f"{number % 17}:{number:04}", "sharding_key": f"k{number % 17}"} for number in range(1000)]
    write(made.plan, iter([pa.RecordBatch.from_pylist(rows[at : at + 70]) for at in range(0, 1000, 70)]))
    places: dict[str, set[int]] = {}
    order: dict[str, list[str]] = {}
    for message in read_topic(broker.registry, topic):
        key, _, number = message["body"].decode().partition(":")
        places.setdefault(key, set()).add(message["queue_id"])
        order.setdefault(key, []).append(number)
    assert all(len(queues) == 1 for queues in places.values())
    assert len(set.union(*places.values())) == 4
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_every_column_reaches_the_message(broker: testing.RunningBroker) -> None:
    topic = "columns"
    born = datetime.datetime(2025, 5, 17, 8, 30, 0, 250_000, tzinfo=datetime.UTC)
    columns = {
        "value": "binary",
        "tags": "string",
        "keys": "array<string>",
        "properties": "map<string,string>",
        "queue_id": "int",
        "flag": "int",
        "born_ts": "timestamp",
        "unique_key": "string",
        "region": "string",
        "amount": "bigint",
    }
    kinds = pa.schema(
        [
            ("value", pa.binary()),
            ("tags", pa.string()),
            ("keys", pa.list_(pa.string())),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("queue_id", pa.int32()),
            ("flag", pa.int32()),
            ("born_ts", pa.timestamp("us", tz="UTC")),
            ("unique_key", pa.string()),
            ("region", pa.string()),
            ("amount", pa.int64()),
        ]
    )
    row = {
        "value": b"\x00\xff",
        "tags": "new",
        "keys": ["k1", "k2"],
        "properties": [("colour", "grün"), ("CLUSTER", "elsewhere")],
        "queue_id": 2,
        "flag": 7,
        "born_ts": born,
        "unique_key": "key-1",
        "region": "north",
        "amount": 12,
    }
    made = writer(broker.registry, topic, columns, extraColumns="properties")
    write(made.plan, iter([pa.RecordBatch.from_pylist([row], schema=kinds)]))
    [message] = read_topic(broker.registry, topic)
    assert (message["body"], message["queue_id"], message["flag"]) == (b"\x00\xff", 2, 7)
    assert message["born_timestamp_ms"] == int(born.timestamp() * 1000)
    properties = {name: value for name, value in message["properties"].items() if not name.startswith("__")}
    assert properties == {
        "TAGS": "new",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "key-1",
        "colour": "grün",
        "region": "north",
        "amount": "12",
        "CLUSTER": "DefaultCluster",
    }


@pytest.mark.parametrize("mode", ["idempotent", "at-least-once"])
def test_delayed_rows_wait(broker: testing.RunningBroker, mode: str) -> None:
    """By level and by time, beside rows that do not; nothing is delivered at once in silence."""
    topic = f"delayed-{mode}"
    columns = {"body": "string", "delay_level": "int", "deliver_at": "timestamp"}
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=4)
    rows: list[dict[str, Any]] = [
        {"body": "now", "delay_level": None, "deliver_at": None},
        {"body": "level", "delay_level": 1, "deliver_at": None},
        {"body": "time", "delay_level": None, "deliver_at": due},
    ]
    made = writer(broker.registry, topic, columns, semantics=mode)
    for _ in range(2 if mode == "idempotent" else 1):
        write(made.plan, iter([pa.RecordBatch.from_pylist(rows)]))
    assert set(bodies(broker.registry, topic)) == {"now"}
    until = time.monotonic() + 20
    while len(bodies(broker.registry, topic)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert bodies(broker.registry, topic) == Counter(["now", "level", "time"])


def test_rows_may_name_their_topics(broker: testing.RunningBroker) -> None:
    given = {"servers": broker.registry, "semantics": "transactional"}
    made = make_writer(given, schema(topic="string", body="string"), False)
    rows = [{"topic": f"named-{number % 3}", "body": f"row {number}"} for number in range(300)]
    made.commit([write(made.plan, iter([pa.RecordBatch.from_pylist(rows)]))])
    found: Counter[str] = Counter()
    for number in range(3):
        found += bodies(broker.registry, f"named-{number}")
    assert found == expected(300)


@pytest.mark.parametrize("mode", MODES)
def test_topics_that_come_to_be_in_the_middle_of_a_partition_disturb_nothing(mode: str) -> None:
    """Their route is asked for of the broker to which rows are under way: their answers still come."""
    with testing.broker(store__segment_bytes=16 << 20) as fresh:
        given = {"servers": fresh.registry, "semantics": mode, "batchBytes": "1KiB", "sendTimeoutMs": "2000"}
        made = make_writer(given, schema(topic="string", body="string"), False)

        def rows() -> Iterator[Any]:
            for number in range(5):
                topics = ["base"] * 199 + [f"new-{number}"]
                yield pa.RecordBatch.from_pylist([{"topic": topic, "body": f"{number}" * 60} for topic in topics])

        found = write(made.plan, rows())
        made.commit([found])
        assert (found.counters.retries, found.counters.duplicates) == (0, 0)
        assert bodies(fresh.registry, "base") == Counter({f"{number}" * 60: 199 for number in range(5)})
        assert bodies(fresh.registry, "new-4").total() == 1


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_null_is_named_with_its_row(broker: testing.RunningBroker) -> None:
    """spark.md 5.4.6."""
    made = writer(broker.registry, "nulls")
    rows = pa.RecordBatch.from_pylist([{"body": "a"}, {"body": None}], schema=pa.schema([("body", pa.string())]))
    with pytest.raises(InvalidRowError, match="row 101 of partition 4: column 'body' is null"):
        write(made.plan, iter([*texts(0, 100), rows]), partition=4)


def test_overwriting_a_topic_is_refused(broker: testing.RunningBroker) -> None:
    for make in (make_writer, make_stream_writer):
        with pytest.raises(ConfigError, match=r'use .mode\("append"\)'):
            make({"servers": broker.registry, "topic": "t"}, schema(body="string"), True)


def test_a_topic_that_nobody_makes_is_refused_on_the_driver() -> None:
    with testing.broker(remoting__auto_create_topics=False) as closed:
        with pytest.raises(ConfigError, match="'new' does not exist, and no broker"):
            writer(closed.registry, "new")
        given = {"servers": closed.registry}
        named = make_writer(given, schema(topic="string", body="string"), False)
        rows = pa.RecordBatch.from_pylist([{"topic": "new", "body": "a"}])
        with pytest.raises(ConfigError, match="'new' does not exist"):
            write(named.plan, iter([rows]))


def test_a_message_above_a_limit_is_named_with_the_setting() -> None:
    """Ours, and the broker's own."""
    with testing.broker(remoting__max_message_bytes=65536, store__segment_bytes=16 << 20) as small:
        big = pa.RecordBatch.from_pylist([{"body": "x" * 70_000}])
        made = writer(small.registry, "big", maxMessageBytes="64KiB")
        with pytest.raises(
            InvalidRowError, match=r"above option maxMessageBytes = 65536; .*remoting.max_message_bytes"
        ):
            write(made.plan, iter([big]))
        plain = writer(small.registry, "big", semantics="at-least-once")
        with pytest.raises(WriteFailedError, match=r"remoting.max_message_bytes = 65536"):
            write(plain.plan, iter([big]))


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_message_that_a_producer_can_send_is_written(mode: str) -> None:
    """A body of remoting.max_message_bytes and long properties: a copy or a replay of such a topic ended at it."""
    kind = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    large = bytes(4 << 20)
    rows = [{"body": b"small"}, {"body": large, "properties": [("note", "y" * 30_000)]}, {"body": large}]
    batch = pa.RecordBatch.from_pylist(rows, schema=kind)
    with testing.broker(broker__name="broker-a", store__segment_bytes=16 << 20) as running:
        columns = {"body": "binary", "properties": "map<string,string>"}
        made = writer(running.registry, "largest", columns, semantics=mode)
        made.commit([write(made.plan, iter([batch]))])
        assert bodies(running.registry, "largest") == {"small": 1, large.decode(): 2}


def test_a_job_names_what_cannot_be_sent_and_may_leave_it_out(broker: testing.RunningBroker) -> None:
    """Rows around it are written, and numbered in the same way when they are written again."""
    columns = {"body": "string", "unique_key": "string", "place": "string"}
    plan = writer(broker.registry, "unsendable", columns, extraColumns="ignore", maxMessageBytes=10).plan
    batches = [
        pa.RecordBatch.from_pylist(
            [{"body": "x" * size, "unique_key": f"k{size}", "place": f"b:{size}"} for size in sizes]
        )
        for sizes in ((1, 2, 11, 3, 12), (13,), (4, 5))
    ]
    with pytest.raises(
        UnsendableError, match=r"message b:11 of 'o' cannot be sent: column 'body' is a body of 11 bytes"
    ):
        MessageWriter(plan, "u", 0, 0, named_by="place", of=" of 'o'").write(iter(batches))
    for stored in (5, 0):
        made = MessageWriter(plan, "u", 0, 0, named_by="place", skip=True)
        made.write(iter(batches))
        found = made.answer()
        assert (found["rows"], found["stored"], found["skipped"]) == (5, stored, 3)
        assert [message for message, _ in found["listed"]] == ["b:11", "b:12", "b:13"]
    assert bodies(broker.registry, "unsendable") == Counter("x" * size for size in range(1, 6))


def test_rows_around_those_left_out_are_compressed_once(
    broker: testing.RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the rest of an Arrow batch once more behind each of them."""
    compressed: list[int] = []

    def counted(body: bytes, sys_flag: int) -> bytes:
        compressed.append(len(body))
        return deflate(body, sys_flag)

    monkeypatch.setattr(partition_writer, "deflate", counted)
    columns = {"body": "binary", "sys_flag": "int", "place": "string"}
    plan = writer(broker.registry, "once", columns, extraColumns="ignore", maxMessageBytes=100).plan
    made = MessageWriter(plan, "u", 0, 0, named_by="place", skip=True)
    rows = [{"body": bytes(size), "sys_flag": flag, "place": ""} for size, flag in [(101, 0), (1_000, 0x101)] * 3]
    kind = pa.schema([("body", pa.binary()), ("sys_flag", pa.int32()), ("place", pa.string())])
    made.write(iter([pa.RecordBatch.from_pylist(rows, schema=kind)]))
    found = made.answer()
    assert (found["stored"], found["skipped"], compressed) == (3, 3, [1_000] * 3)


@pytest.mark.parametrize("mode", MODES)
def test_properties_end_where_every_broker_has_room_for_its_own(mode: str) -> None:
    """In a cluster and a topic with the longest of names, delayed or not; a byte more is a row that may be left out."""
    columns = {"body": "string", "place": "string", "properties": "map<string,string>"}
    fields = [pa.field("body", pa.string()), pa.field("place", pa.string())]
    fields += [pa.field("properties", pa.map_(pa.string(), pa.string()))]
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    delays: list[tuple[dict[str, Any], int]] = [({}, 0)]
    if mode != "transactional":
        columns |= {"delay_level": "int", "deliver_at": "timestamp"}
        fields += [pa.field("delay_level", pa.int32()), pa.field("deliver_at", pa.timestamp("us", "UTC"))]
        delays += [({"delay_level": 3}, len("DELAY_3_"))]
        delays += [({"deliver_at": due}, len("TIMER_DELIVER_MS_1234567890123_"))]
    unique_key = "k" * 20
    own = len(f"UNIQ_KEY_{unique_key}_p__")
    rows = [
        {
            "body": "x",
            "place": f"spare {spare}",
            "properties": [("UNIQ_KEY", unique_key), ("p", "v" * (MAX_PROPERTIES - own - delay_bytes - spare))],
            **delay,
        }
        for delay, delay_bytes in delays
        for spare in (0, -1)
    ]
    with testing.broker(remoting__cluster="c" * 255) as running:
        plan = writer(running.registry, "t" * 127, columns, semantics=mode, extraColumns="ignore").plan
        made = MessageWriter(plan, "u", 0, 0, named_by="place", skip=True)
        made.write(iter([pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))]))
        found = made.answer()
    assert (found["rows"], [message for message, _ in found["listed"]]) == (len(delays), ["spare -1"] * len(delays))


@pytest.mark.parametrize("mode", MODES)
def test_a_compressed_body_stays_one(broker: testing.RunningBroker, mode: str) -> None:
    """What the source gives as stored is sent so, what is too large again as it came: consumers read both."""
    topic = f"compressed-{mode}"
    large, own = b"hello world " * 500_000, zlib.compress(b"the application's own")
    rows = [
        {"body": zlib.compress(large), "sys_flag": 0x1 | GIVEN_AS_STORED},
        {"body": large, "sys_flag": 0x301},
        {"body": large[::-1], "sys_flag": 0x101},
        {"body": own, "sys_flag": None},
    ]
    made = writer(broker.registry, topic, {"body": "binary", "sys_flag": "int"}, semantics=mode)
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("body", pa.binary()), ("sys_flag", pa.int32())]))
    made.commit([write(made.plan, iter([batch]))])
    found = {message["sys_flag"]: message["body"] for message in read_topic(broker.registry, topic)}
    assert bytes(cramjam.lz4.decompress(found.pop(0x101))) == large[::-1]
    assert found == {0x1: large, 0x301: large, 0: own}


def test_an_ack_that_the_broker_does_not_give_is_refused(broker: testing.RunningBroker) -> None:
    """What it stores is what it says: flushDiskType and brokerRole."""
    with pytest.raises(
        ConfigError, match=r"ack=flushed is not what broker .* ASYNC_FLUSH; needs store.durability=fsync"
    ):
        writer(broker.registry, "acks", ack="flushed")
    with pytest.raises(ConfigError, match=r"ack=replicated is not what broker .* ASYNC_MASTER"):
        writer(broker.registry, "acks", ack="replicated")
    with testing.broker(store__durability="fsync") as durable:
        made = writer(durable.registry, "acks", ack="flushed")
        write(made.plan, texts(0, 100))
        assert bodies(durable.registry, "acks") == expected(100)


def test_a_topics_own_level_decides_what_flushed_means() -> None:
    """An async topic of an fsync broker is acknowledged before it is on disk."""
    topics = {"loose": TopicSettings(durability="async"), "strict": TopicSettings(durability="fsync")}
    named = {"topic": "string", "body": "string"}

    def row(topic: str) -> Iterator[Any]:
        return iter([pa.RecordBatch.from_pylist([{"topic": topic, "body": "x"}])])

    refusal = r"for topic 'loose': its flushDiskType.loose is ASYNC_FLUSH; needs topics.\"loose\".durability"
    with testing.broker(store__durability="fsync", store__topics=topics) as fsync:
        with pytest.raises(ConfigError, match=refusal):
            writer(fsync.registry, "loose", ack="flushed")
        write(writer(fsync.registry, "strict", ack="flushed").plan, texts(0, 10))
        made = make_writer({"servers": fsync.registry, "ack": "flushed"}, schema(**named), False)
        for topic in ("strict", "other"):
            assert write(made.plan, row(topic)).counters.stored == 1
        with pytest.raises(ConfigError, match=refusal):
            write(made.plan, row("loose"))
        with Cluster(fsync.registry) as cluster:
            assert "loose" not in cluster.topics()
        unasked = replace(writer(fsync.registry, "loose").plan, unasked=frozenset(made.plan.addresses))
        late = replace(unasked, options=replace(unasked.options, ack="flushed"))
        with pytest.raises(ConfigError, match=refusal):
            write(late, texts(0, 1))
    with testing.broker(store__durability="async", store__topics=topics) as loose:
        write(writer(loose.registry, "strict", ack="flushed").plan, texts(0, 10))
        with pytest.raises(ConfigError, match=r"its flushDiskType is ASYNC_FLUSH"):
            writer(loose.registry, "other", ack="flushed")


def test_batches_are_cut_to_what_the_broker_takes() -> None:
    """A plain batch is one message to a broker's limit: none was written where that is below ``batchBytes``."""
    with testing.broker(broker__name="broker-a", remoting__max_message_bytes=65_536) as broker:
        make_topic(broker, "t", 2)
        wait_registered(broker, "t")
        plan = writer(broker.registry, "t", semantics="at-least-once", retries=0).plan
        write(plan, texts(0, 20_000))
        assert bodies(broker.registry, "t") == expected(20_000)


@pytest.mark.parametrize("size", [65_400, 65_472, 65_496, 65_536])
def test_a_row_that_is_within_the_limit_by_itself_is_no_batch(size: int) -> None:
    """What a batch adds to it is not the row's: it goes as a message."""
    with testing.broker(broker__name="broker-a", remoting__max_message_bytes=65_536) as broker:
        make_topic(broker, "t", 2)
        wait_registered(broker, "t")
        plan = writer(broker.registry, "t", semantics="at-least-once", retries=0).plan
        write(plan, iter([pa.record_batch({"body": ["x" * size, "y", "z" * size]})]))
        assert sorted(map(len, bodies(broker.registry, "t"))) == [1, size, size]


def test_rows_above_batch_bytes_keep_their_order() -> None:
    """A batch of one, in its place: only what a broker takes in no batch goes by itself."""
    with testing.broker(broker__name="broker-a", store__segment_bytes=64 << 20) as broker:
        make_topic(broker, "t", 1)
        wait_registered(broker, "t")
        plan = writer(broker.registry, "t", semantics="at-least-once").plan
        rows = ["1", "2" * 1_100_000, "3", "4" * 1_100_000, "5"]
        write(plan, iter([pa.record_batch({"body": rows})]))
        assert [message["body"][:1] for message in read_topic(broker.registry, "t")] == [b"1", b"2", b"3", b"4", b"5"]


def test_rows_that_go_by_themselves_keep_their_order(broker: testing.RunningBroker) -> None:
    """Bodies just below the limit, which no batch has room for, came behind all others of their task."""
    made = writer(broker.registry, "near-the-limit", semantics="at-least-once", maxMessageBytes=1000)
    rows = [f"{number:02}" + "x" * (990 if number % 3 else 10) for number in range(30)]
    write(made.plan, iter([pa.record_batch({"body": rows})]))
    assert [message["body"].decode() for message in read_topic(broker.registry, "near-the-limit")] == rows


@pytest.mark.parametrize("mode", ["at-least-once", "idempotent", "transactional"])
def test_a_row_above_the_limit_of_the_broker_is_an_error_that_names_it(mode: str) -> None:
    with testing.broker(broker__name="broker-a", remoting__max_message_bytes=65_536) as broker:
        make_topic(broker, "t", 2)
        wait_registered(broker, "t")
        plan = writer(broker.registry, "t", semantics=mode, retries=0).plan
        long = pa.record_batch({"body": ["x" * 65_537]})
        with pytest.raises(WriteFailedError, match=r"remoting\.max_message_bytes = 65536"):
            write(plan, iter([long]))
        assert not bodies(broker.registry, "t")


def test_nobody_answers() -> None:
    """Retries with a limit, then an error that names what does not answer."""
    port = free_port()
    text = f"no registry served the list of brokers in 2 attempts: .*127.0.0.1:{port}"
    with pytest.raises(BrokerGoneError, match=text):
        writer(f"127.0.0.1:{port}", "t", retries=1)
    with pytest.raises(ConfigError, match="option servers = 'localhost' is not accepted"):
        writer("localhost", "t")


def test_an_epoch_without_an_identity_is_refused(broker: testing.RunningBroker) -> None:
    """A repetition would be a write of its own, and be stored again."""
    with pytest.raises(ConfigError, match="option epoch counts the writes of a txnId: name one"):
        writer(broker.registry, "t", epoch=4)


def test_a_broker_that_is_not_back_yet_is_waited_for() -> None:
    """Its registry is, and knows nobody: the topic is not missed, and the brokers are not said to lack something."""
    with OldBroker() as old:
        old.brokers_known_after = 2
        threading.Thread(target=old.serve_forever, daemon=True).start()
        made = writer(old.address, "t", semantics="at-least-once", retries=3)
        assert made.plan.addresses == {"old": old.address}
        old.brokers_known_after = 9
        with pytest.raises(BrokerGoneError, match=r"the registries .* know of none"):
            writer(old.address, "t", semantics="at-least-once", retries=0)
        close_connections()
        old.shutdown()


def test_epochs_are_the_streams_own(broker: testing.RunningBroker) -> None:
    with pytest.raises(ConfigError, match="number of the micro-batch"):
        make_stream_writer({"servers": broker.registry, "topic": "t", "epoch": "3"}, schema(body="string"), False)


class OldBroker(socketserver.ThreadingTCPServer):
    """A registry and the broker that it knows, which answers 3 to everything: none of Headrace."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OldBroker.Connection)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.codes: set[int] = set()
        self.brokers_known_after = 0

    def answer(self, code: int) -> tuple[int, dict[str, Any]]:
        self.codes.add(code)
        broker = {"brokerName": "old", "brokerAddrs": {"0": self.address}, "cluster": "c"}
        if code == RequestCode.GET_BROKER_CLUSTER_INFO and self.brokers_known_after:
            self.brokers_known_after -= 1
            return 0, {"brokerAddrTable": {}, "clusterAddrTable": {}}
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return 0, {"brokerAddrTable": {"old": broker}, "clusterAddrTable": {"c": ["old"]}}
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = {"brokerName": "old", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
            return 0, {"brokerDatas": [broker], "queueDatas": [queues]}
        return 3, {}

    class Connection(socketserver.StreamRequestHandler):
        server: OldBroker

        def handle(self) -> None:
            while head := self.rfile.read(4):
                command = decode_command(head + self.rfile.read(int.from_bytes(head, "big")))
                code, body = self.server.answer(command.code)
                encoded = json.dumps(body).encode() if body else None
                self.wfile.write(
                    encode_response(0, command.opaque, code, "not supported" if code else None, None, encoded)
                )


@pytest.mark.parametrize("mode", EXACT)
def test_a_broker_without_the_extensions_is_refused_in_one_sentence(mode: str) -> None:
    """Real RocketMQ, or an older Headrace; asked on the driver, and by a task that meets such a broker later."""
    with OldBroker() as old:
        threading.Thread(target=old.serve_forever, daemon=True).start()
        sentence = rf"the broker at {old.address} .* semantics={mode}: write with semantics=at-least-once"
        with pytest.raises(ExtensionMissingError, match=sentence):
            writer(old.address, "t", semantics=mode)
        plan = writer(old.address, "t", semantics="at-least-once").plan
        plan = replace(plan, options=replace(plan.options, semantics=mode))
        with pytest.raises(ExtensionMissingError, match=sentence):
            write(plan, texts(0, 10))
        close_connections()
        old.shutdown()
    assert {RequestCode.READER_STATE, RequestCode.SEND_SEQUENCED} <= old.codes


# -- brokers that go away ----------------------------------------------------------------------------------------------


class Killed:
    """A broker in a process of its own, at ports that stay."""

    def __init__(self, folder: Path) -> None:
        self.registry = f"127.0.0.1:{free_port()}"
        names = ("remoting.address", "nsq.tcp-address", "nsq.http-address", "admin.address")
        addresses = [part for name in names for part in (f"--{name}", f"127.0.0.1:{free_port()}")]
        self.process = BrokerProcess(
            folder,
            (*addresses, "--registry.address", self.registry, "--remoting.vip-listener", "false",
             "--store.segment-bytes", "16MiB"),
            free_ports=False,
        )  # fmt: skip

    def again(self) -> None:
        self.process.kill()
        self.process.start()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Killed]:
    found = Killed(tmp_path)
    found.process.start()
    try:
        yield found
    finally:
        found.process.kill()


@pytest.mark.parametrize("mode", EXACT)
def test_a_broker_killed_while_rows_are_written_loses_and_repeats_nothing(mortal: Killed, mode: str) -> None:
    """spark.md 5.4.6, kill -9 of the broker twice: the task goes on by itself."""
    count, topic = 20_000, "killed"
    made = writer(mortal.registry, topic, semantics=mode, batchBytes=2048, retries=8)

    def slowly(rows: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(rows):
            if number in (50, 120):
                # While it dies and comes back, the window behind this row is under way.
                threading.Thread(target=mortal.again).start()
            time.sleep(0.005)
            yield batch

    found = write(made.plan, slowly(texts(0, count)))
    assert found.counters.retries > 0
    made.commit([found])
    assert bodies(mortal.registry, topic) == expected(count)


@pytest.mark.parametrize("mode", EXACT)
def test_an_epoch_written_again_after_a_kill_adds_nothing(mortal: Killed, mode: str) -> None:
    """What the broker knows of its producers survives with the messages."""
    made = writer(mortal.registry, "t", semantics=mode)
    with pytest.raises(RuntimeError, match="dies"):
        write(made.plan, dying(texts(0, 5000), 40))
    first = write(made.plan, texts(0, 5000), partition=1)
    mortal.again()
    second = write(made.plan, texts(5000, 5000))
    made.commit([first, second])
    mortal.again()
    for partition, start in ((1, 0), (0, 5000)):
        assert write(made.plan, texts(start, 5000), partition=partition).counters.duplicates == 5000
    found = bodies(mortal.registry, "t")
    if mode == "idempotent":
        # The dead task wrote other rows under partition 0, which is what must not happen: those numbers are taken.
        assert sum(found.values()) == 10_000
    else:
        assert found == expected(10_000)


@pytest.mark.parametrize("mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in EXACT), "at-least-once"])
def test_rows_that_come_slowly_are_not_sent_again(mode: str) -> None:
    """The broker closes the silent connection while answers of it are not read yet: nothing has failed."""
    with testing.broker(remoting__idle_timeout_ms=1000) as impatient:
        made = writer(impatient.registry, "slow", semantics=mode, batchBytes=1024)

        def rows() -> Iterator[Any]:
            for number in range(3):
                yield from texts(number * 400, 400)
                time.sleep(2.5)

        found = write(made.plan, rows())
        made.commit([found])
        assert (found.counters.retries, found.counters.duplicates) == (0, 0)
        assert bodies(impatient.registry, "slow") == expected(1200)


def test_a_broker_that_stays_away_fails_the_task(mortal: Killed) -> None:
    """Names broker, topic, queue, and how often it was tried."""
    made = writer(mortal.registry, "t", retries=1)

    def rows() -> Iterator[Any]:
        yield from texts(0, 1000)
        mortal.process.kill()
        yield from texts(1000, 1000)

    says = r"broker '.*', topic 't', queue 0: rows are not written, tried 2 times"
    with pytest.raises(WriteFailedError, match=says) as caught:
        write(made.plan, rows())
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1  # Spark shows what is chained too


def test_routes_are_found_again_by_the_next_task(broker: testing.RunningBroker) -> None:
    """A worker process keeps its connections; a broker that restarts closes them."""
    topic = "restarted"
    made = writer(broker.registry, topic)
    write(made.plan, texts(0, 100), partition=0)
    broker.restart()
    write(made.plan, texts(100, 100), partition=1)
    with Cluster(broker.registry) as cluster:
        assert [message["body"] for message in read_queue(cluster, next(iter(made.plan.addresses)), topic, 1)] == [
            f"row {number}".encode() for number in range(100, 200)
        ]
