"""``format("headrace")`` as a batch source (spark.md 5.4.3, 5.4.4, 5.4.8)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode
from headrace.spark import read
from tests.spark.conftest import make_topic, send, wait_registered


def load(spark, **options):
    schema = options.pop("schema", None)
    found = spark.read.format("headrace").options(**options)
    return (found.schema(schema) if schema else found).load()


def bodies(frame):
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def error_of(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark wraps ours in one of many kinds
        action()
    return str(caught.value)


@pytest.fixture
def orders(broker):
    make_topic(broker, "orders", 2)
    wait_registered(broker, "orders")
    send(broker, "orders", [f"a{i}" for i in range(100)], properties="TAGS\x01paid\x02KEYS\x01k1\x02region\x01eu")
    send(broker, "orders", [f"b{i}" for i in range(50)], queue_id=1, properties="TAGS\x01sent\x02KEYS\x01k2 k3")
    return broker


ALL = sorted([f"a{i}" for i in range(100)] + [f"b{i}" for i in range(50)])


def test_none_is_not_to_set_an_option(spark, orders):
    """An argument that a function hands on: as text it would be a tag of that name, which nothing has."""
    frame = read(spark, servers=orders.registry, topics="orders", tags=None, minPartitions=None, columns="body")
    assert bodies(frame) == ALL
    assert bodies(read(spark, servers=orders.registry, topicPattern=None, columns="body")) == ALL


@pytest.mark.parametrize(
    "twice",
    [{"since": 0, "startingTimestamp": 5}, {"until": 9, "ENDINGTIMESTAMP": 5}, {"group": "a", "GROUP": "b"}],
)
def test_an_option_is_given_once(spark, twice):
    """Spark would take one of the two: which one, nobody said."""
    with pytest.raises(ConfigError, match="is given twice"):
        read(spark, servers="127.0.0.1:1", topics="orders", **twice)


def test_a_strategy_counts_however_it_is_spelled(spark, orders):
    late = {"servers": orders.registry, "topics": "orders", "since": "2100-01-01", "startingtimestampstrategy": "error"}
    assert "no message stored at or after" in error_of(lambda: bodies(read(spark, **late)))


def test_same_rows_from_every_side(spark, orders):
    """Over the network by topic and as a log, and from the folder."""
    ways = [
        {"servers": orders.registry, "topics": "orders"},
        {"servers": orders.registry, "topicPattern": "ord.*"},
        {"servers": orders.registry, "assign": '{"orders": {"broker-a": [0, 1]}}'},
        {"servers": orders.registry, "scan": "log"},
        {"store": str(orders.data_dir), "topics": "orders", "brokerName": "broker-a"},
        {"store": str(orders.data_dir), "scan": "log", "brokerName": "broker-a"},
    ]
    found = [
        sorted(map(str, load(spark, **way).drop("properties").collect()))  # compares every column
        for way in ways
    ]
    assert len(found[0]) == 150
    assert all(rows == found[0] for rows in found[1:])


def test_selection(spark, orders):
    way = {"servers": orders.registry, "topics": "orders"}
    assert bodies(load(spark, **way, tags="sent || none")) == ALL[100:]
    assert load(spark, **way, keys="k3").count() == 50
    assert load(spark, servers=orders.registry, assign='{"orders": {"broker-a": [1]}}').count() == 50
    offsets = {
        "startingOffsets": '{"orders": {"broker-a": {"0": 90, "1": -2}}}',
        "endingOffsets": '{"orders": {"broker-a": {"0": 95, "1": -1}}}',
    }
    assert load(spark, **way, **offsets).count() == 55
    small = {"maxRecordsPerPartition": "7", "batchRows": "3"}
    assert bodies(load(spark, **way, **small)) == ALL
    assert load(spark, **way, **small).rdd.getNumPartitions() > 20
    assert load(spark, **way, coalesceQueues="true").rdd.getNumPartitions() == 1


def test_selection_by_time(spark, orders):
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    send(orders, "orders", ["late"])
    for way in ({"servers": orders.registry}, {"store": orders.data_dir}):
        assert bodies(read(spark, **way, topics="orders", since=middle)) == ["late"]
        assert bodies(read(spark, **way, topics="orders", until=middle)) == ALL
    assert "has no message stored at or after" in error_of(
        load(spark, servers=orders.registry, topics="orders", startingTimestamp=str(middle)).count
    )


def test_columns_and_schemas(spark, orders):
    """spark.md 5.4.3."""
    way = {"servers": orders.registry, "topics": "orders"}
    assert load(spark, **way, columns="tags,prop:region").dtypes == [("tags", "string"), ("prop_region", "string")]
    row = load(spark, **way, schema="prop_region string, queue_offset bigint, properties map<string,string>").first()
    assert row.prop_region == "eu"
    assert row.properties["KEYS"] == "k1"
    assert "body_crc_ok" in load(spark, **way, columns="body_crc_ok").columns
    assert load(spark, **way, columns="body_crc_ok").where("body_crc_ok").count() == 150
    for schema, says in (
        ("tags string not null", "NOT NULL"),
        ("queue_offset int", "is bigint, the schema says int"),
        ("tag string", "did you mean 'tags'"),
    ):
        assert says in error_of(load(spark, **way, schema=schema).count)


def test_sessions_whose_timestamps_have_no_zone(spark, orders):
    """spark.sql.timestampType is about the word in a schema, not about what a message has."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = load(spark, servers=orders.registry, topics="orders", columns="store_ts,prop:a`b")
        assert [field.dataType.simpleString() for field in frame.schema] == ["timestamp", "string"]
        assert frame.where("store_ts is not null").count() == 150
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_mistakes_are_one_clear_error_on_the_driver(spark, orders):
    way = {"servers": orders.registry, "topics": "orders"}
    for options, says in (
        (way | {"stratOffsets": "1"}, "there is no option 'stratoffsets'"),
        (way | {"topics": "order"}, "topic 'order' does not exist: did you mean 'orders'"),
        (way | {"columns": "topc"}, "did you mean 'topic'"),
        (way | {"startingOffsets": "latest"}, "is for streams"),
        (
            way | {"startingOffsets": '{"orders": {"broker-a": {"0": 5000}}}'},
            "the offset 5000 of topic 'orders' queue 0",
        ),
        (way | {"startingOffsets": '{"order": {"broker-a": {"0": 5}}}'}, "did you mean 'orders'"),
        (way | {"startingOffsets": '{"orders": {"broker-b": {"0": 5}}}'}, "did you mean 'broker-a'"),
        ({"servers": orders.registry, "assign": '{"orders": {"broker-b": [0]}}'}, "did you mean 'broker-a'"),
        ({"servers": orders.registry, "assign": '{"orders": {"broker-a": [0, 9]}}'}, "queue 9 of topic 'orders'"),
        (
            {"servers": orders.registry, "scan": "log", "startingOffsets": '{"broker-b": 5}'},
            "option startingOffsets names broker 'broker-b'",
        ),
        (
            {"store": str(orders.data_dir), "scan": "log", "brokerName": "b", "endingOffsets": '{"b": 99999999}'},
            "lies beyond its end",
        ),
        ({"store": "/nowhere", "scan": "log"}, "/nowhere is no store"),
        ({"store": str(orders.data_dir), "topics": "nothing"}, "topic 'nothing' does not exist"),
        ({"servers": "127.0.0.1:1", "topics": "a", "retries": "0"}, "127.0.0.1:1"),
    ):
        assert says in error_of(lambda options=options: load(spark, **options).count())


def test_loaded_frame_is_a_snapshot(spark, orders):
    """spark.md 5.4.4: a second action equals the first although the topic grew; a new load sees the new rows."""
    way = {"servers": orders.registry, "topics": "orders"}
    frame = load(spark, **way)
    assert frame.count() == 150
    send(orders, "orders", ["more"] * 10)
    assert frame.count() == 150
    assert load(spark, **way).count() == 160


def test_same_rows_after_a_restart_of_the_broker(spark, orders):
    frame = load(spark, servers=orders.registry, topics="orders")
    before = sorted(map(str, frame.collect()))
    orders.restart()
    wait_registered(orders, "orders")
    assert sorted(map(str, frame.collect())) == before


def test_pushdown_setting_changes_nothing(spark, orders):
    """spark.md 5.4.4: readers do not override pushFilters."""
    frame = load(spark, servers=orders.registry, topics="orders", columns="tags,queue_offset")
    found = []
    for value in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", value)
        try:
            found.append(
                [frame.count(), frame.where("queue_offset >= 90").count(), frame.where("tags = 'sent'").count()]
            )
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == [[150, 10, 50]] * 2


def test_tables_in_sql(spark, orders):
    """spark.md 1.7: views and tables; of a catalog's table Spark hands the options to no Python source."""
    options = f"servers '{orders.registry}', topics 'orders'"
    behind = options.replace(" '", " = '")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING headrace OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM seen WHERE queue_id = 1").first()[0] == 50
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW into_it (body STRING, tags STRING) USING headrace "
              f"OPTIONS (servers '{orders.registry}', topic 'orders')")  # fmt: skip
    spark.sql("INSERT INTO into_it VALUES ('inserted', 'paid')")
    for columns in ("", "(tags STRING)"):
        spark.sql(f"CREATE TABLE kept {columns} USING headrace OPTIONS ({options})")
        try:
            assert spark.sql(f"SELECT count(*) FROM kept WITH ({behind}) WHERE tags = 'paid'").first()[0] == 101
            assert "make it a CREATE TEMPORARY VIEW" in error_of(lambda: spark.sql("SELECT * FROM kept").collect())
        finally:
            spark.sql("DROP TABLE kept")


def test_run_in_tasks(spark, orders):
    import pyarrow as pa

    from headrace.errors import ConfigError
    from headrace.spark.scan import StoreSource, plan_log, read_split
    from headrace.spark.tasks import run_in_tasks, tasks_for

    def work(split):
        rows = sum(batch.num_rows for batch in read_split(split, ["topic"], topics=["orders"]))
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})

    schema = pa.schema([("rows", pa.int64())])
    splits = plan_log(StoreSource(str(orders.data_dir)), split_bytes=2048)
    assert len(splits) > 2
    assert 1 < tasks_for(spark, len(splits)) < len(splits)
    for wanted in (None, 1, 3, len(splits)):
        frame = run_in_tasks(spark, splits, work, schema, tasks=wanted)
        assert frame.rdd.getNumPartitions() == (wanted or tasks_for(spark, len(splits)))
        rows = [row.rows for row in frame.collect()]
        assert len(rows) == len(splits)
        assert sum(rows) == 150
    assert run_in_tasks(spark, [], work, schema).collect() == []
    with pytest.raises(ConfigError, match="Spark takes"):
        run_in_tasks(spark, [], work, pa.schema([("rows", pa.dictionary(pa.int32(), pa.string()))]))


def test_a_broker_that_must_be_there(spark, orders):
    """docs/spark/source.md, "Errors": one that no registry knows is not read, unless it is named."""
    options = {"servers": orders.registry, "topics": "orders", "retries": "1"}
    assert bodies(load(spark, **options, requireBrokers="broker-a")) == ALL
    error = error_of(lambda: load(spark, **options, requireBrokers="broker-a,broker-b").count())
    assert "broker 'broker-b' did not serve its part in 2 attempts" in error
    error = error_of(
        lambda: load(spark, store=str(orders.data_dir), topics="orders", requireBrokers="broker-a").count()
    )
    assert "requireBrokers goes with servers" in error


def test_a_topic_that_is_made_again_under_a_frame(spark, orders):
    """Its offsets go on above those of the first one, of which the frame has planned some."""
    frame = load(spark, servers=orders.registry, topics="orders")
    assert frame.count() == 150
    with Cluster(orders.registry) as cluster:
        cluster.ask("broker-a", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    make_topic(orders, "orders", 2)
    wait_registered(orders, "orders")
    send(orders, "orders", ["new"])
    error = error_of(frame.count)
    assert "retention has removed them, or the topic was deleted and made again" in error


@pytest.mark.parametrize("is_local", [True, False])
def test_collect_from_tasks(spark, monkeypatch, is_local):
    """By an RDD where Spark is in this process, by a data source elsewhere: the same rows from as many tasks."""
    import pyarrow as pa
    from pyspark import TaskContext

    from headrace.spark import tasks
    from headrace.spark.tasks import collect_from_tasks

    def work(item):
        context = TaskContext.get()
        assert context is not None
        yield pa.record_batch([[context.partitionId()] * item, [item] * item], schema=schema)

    schema = pa.schema([("task", pa.int64()), ("item", pa.int64())])
    if not is_local:
        monkeypatch.setattr(tasks, "parallelism", lambda spark: None)
    rows = collect_from_tasks(spark, [3, 0, 1, 2], work, schema, tasks=2)
    assert sorted((row["task"], row["item"]) for row in rows) == [(0, 3)] * 3 + [(1, 1)] + [(1, 2)] * 2
    assert collect_from_tasks(spark, [], work, schema) == []


DISCOVERY = """
import sys
from headrace.spark.session import TESTING, prepare
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for key, value in (prepare("local[1]", {}) | dict(TESTING)).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
def count():
    return spark.read.format("headrace").option("store", sys.argv[1]).option("topics", "orders").load().count()
try:
    print("discovered", count())
except Exception as error:
    print("not discovered", "DATA_SOURCE_NOT_FOUND" in str(error))
import headrace.spark
headrace.spark.register(spark)
print("registered", count())
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_broken", [pytest.param(False, marks=pytest.mark.slow), True])
def test_discovery_with_and_without_a_broken_neighbour(orders, tmp_path, is_broken):
    """spark.md 5.4.8: another pyspark_ module that fails hides ours; registering helps."""
    (tmp_path / "pyspark_zzz.py").write_text("raise ImportError('broken')" if is_broken else "")
    script = tmp_path / "program.py"
    script.write_text(DISCOVERY)
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, str(script), str(orders.data_dir)],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{source}"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first = "not discovered True" if is_broken else "discovered 150"
    assert done.stdout.splitlines()[-2:] == [first, "registered 150"]
