"""``df.write`` and ``df.writeStream`` into a real broker (spark.md 3.5, 5.4.6)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.errors import PySparkException

from headrace import testing
from tests.spark.conftest import wait_registered
from tests.spark.test_sink_tasks import Killed
from tests.support.sink import bodies, read_topic

MODES = ["idempotent", "transactional", "at-least-once"]
EXACT = ["idempotent", "transactional"]
FILES, ROWS = 3, 400
"""Files of the stream's source, each one micro-batch, and rows of each."""


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__segment_bytes=16 << 20, store__durability="async") as running:
        wait_registered(running)
        yield running


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Path:
    """A folder of Parquet files, which a stream reads again in the same order."""
    folder = tmp_path / "files"
    for number in range(FILES):
        part = numbered(spark, ROWS, first=number * ROWS, partitions=1)
        part.write.parquet(str(tmp_path / f"part-{number}"))
        folder.mkdir(exist_ok=True)
        [file] = (tmp_path / f"part-{number}").glob("*.parquet")
        file.rename(folder / f"{number}.parquet")
        time.sleep(0.01)  # the order is that of their times
    return folder


def numbered(spark: Any, count: int, *, first: int = 0, partitions: int = 3) -> Any:
    found = spark.range(first, first + count, 1, partitions)
    return found.selectExpr("concat('row ', id) as body", "cast(id as string) as tags")


def expected(count: int) -> Counter[str]:
    return Counter(f"row {number}" for number in range(count))


def save(df: Any, broker: testing.RunningBroker, topic: str, **options: Any) -> None:
    df.write.format("headrace").mode("append").options(servers=broker.registry, topic=topic, **options).save()


def stream(spark: Any, files: Path, broker: testing.RunningBroker, topic: str, checkpoint: Path, **options: Any) -> Any:
    """Run a query over all files, one for each micro-batch, and return it."""
    rows = spark.readStream.schema("body string, tags string").option("maxFilesPerTrigger", 1).parquet(str(files))
    query = (
        rows.writeStream.format("headrace")
        .options(servers=broker.registry, topic=topic, **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return query


def refusal(attempt: Callable[[], object]) -> str:
    """Return the text of the error that Spark shows; ours is inside."""
    with pytest.raises(PySparkException) as caught:
        attempt()
    return str(caught.value)


# -- batch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_dataframe_is_written_once(spark: Any, broker: testing.RunningBroker, mode: str) -> None:
    """Row counts equal as multisets."""
    save(numbered(spark, 3000), broker, f"batch-{mode}", semantics=mode)
    found = read_topic(broker.registry, f"batch-{mode}")
    assert Counter(message["body"].decode() for message in found) == expected(3000)
    assert all(message["properties"]["TAGS"] == message["body"].decode()[4:] for message in found)


@pytest.mark.parametrize("mode", EXACT)
def test_a_write_with_its_own_identity_can_be_repeated(spark: Any, broker: testing.RunningBroker, mode: str) -> None:
    """txnId and epoch say that it is the same write; two writes without are two."""
    topic = f"repeated-{mode}"
    for _ in range(2):
        save(numbered(spark, 500), broker, topic, semantics=mode, txnId="nightly", epoch="4")
    assert bodies(broker.registry, topic) == expected(500)
    save(numbered(spark, 500), broker, topic, semantics=mode)
    assert bodies(broker.registry, topic).total() == 1000


@pytest.mark.parametrize("mode", EXACT)
def test_a_job_that_fails_midway_and_runs_again_repeats_nothing(
    spark: Any, broker: testing.RunningBroker, mode: str
) -> None:
    """The second partition fails after rows were sent; the rest was written, or was aborted."""
    topic = f"midway-{mode}"
    with urllib.request.urlopen(f"http://{broker.nsq_http}/topic/create?topic={topic}", data=b""):
        pass  # the task that could make it may be ended before it has
    rows = numbered(spark, 2000, partitions=2)
    sick = rows.selectExpr("if(body = 'row 1900', raise_error('sick'), body) as body", "tags")
    text = refusal(lambda: save(sick, broker, topic, semantics=mode, txnId="a", batchBytes="2KiB"))
    assert "sick" in text
    if mode == "transactional":
        assert not bodies(broker.registry, topic)
    save(rows, broker, topic, semantics=mode, txnId="a", batchBytes="2KiB")
    assert bodies(broker.registry, topic) == expected(2000)


RETRY = """
import sys
from pathlib import Path
from pyspark import TaskContext
from headrace.spark.session import TESTING, create_session

servers, mode, flag = sys.argv[1:]

def sick(batches):
    for number, batch in enumerate(batches):
        if number == 5 and TaskContext.get().partitionId() == 1 and TaskContext.get().attemptNumber() < 2:
            Path(flag).open("a").write("x")
            raise RuntimeError("the task dies here")
        yield batch

conf = {**TESTING, "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
spark = create_session("retry", master="local[2,4]", conf=conf)
rows = spark.range(0, 3000, 1, 3).selectExpr("concat('row ', id) as body").mapInArrow(sick, "body string")
rows.write.format("headrace").mode("append").options(servers=servers, topic="retry-" + mode, semantics=mode).options(
    batchBytes="1KiB").save()
spark.stop()
"""


@pytest.mark.parametrize("mode", EXACT)
def test_a_task_that_fails_midway_is_tried_again_by_spark(
    broker: testing.RunningBroker, tmp_path: Path, mode: str
) -> None:
    """spark.md 5.4.6: twice, in a session that allows it."""
    flag = tmp_path / "died"
    command = [sys.executable, "-c", RETRY, broker.registry, mode, str(flag)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert flag.read_text() == "xx"
    assert bodies(broker.registry, f"retry-{mode}") == expected(3000)


@pytest.mark.parametrize("mode", EXACT)
def test_a_broker_killed_during_a_job_loses_and_repeats_nothing(spark: Any, tmp_path: Path, mode: str) -> None:
    """spark.md 5.4.6: kill -9 while both tasks write."""
    mortal = Killed(tmp_path)
    mortal.process.start()
    try:
        rows = numbered(spark, 20_000, partitions=4)
        done = threading.Event()

        def killing() -> None:
            for _ in range(3):
                if done.wait(1.0):
                    return
                mortal.again()

        killer = threading.Thread(target=killing)
        killer.start()
        try:
            rows.write.format("headrace").mode("append").options(
                servers=mortal.registry, topic="t", semantics=mode, batchBytes="1KiB", maxInFlight="2", retries="12"
            ).save()
        finally:
            done.set()
            killer.join()
        assert bodies(mortal.registry, "t") == expected(20_000)
    finally:
        mortal.process.kill()


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", EXACT)
def test_a_micro_batch_that_runs_again_adds_nothing(
    spark: Any, broker: testing.RunningBroker, files: Path, tmp_path: Path, mode: str
) -> None:
    """spark.md 5.4.6: the driver died after the rows were written (and committed), before Spark noted it."""
    topic, checkpoint = f"stream-{mode}", tmp_path / "checkpoint"
    stream(spark, files, broker, topic, checkpoint, semantics=mode)
    assert bodies(broker.registry, topic) == expected(FILES * ROWS)
    for _ in range(2):
        (checkpoint / "commits" / str(FILES - 1)).unlink()
        (checkpoint / "commits" / f".{FILES - 1}.crc").unlink(missing_ok=True)
        query = stream(spark, files, broker, topic, checkpoint, semantics=mode)
        assert query.lastProgress["batchId"] == FILES - 1
    assert bodies(broker.registry, topic) == expected(FILES * ROWS)


def test_at_least_once_repeats_a_micro_batch_under_the_same_keys(
    spark: Any, broker: testing.RunningBroker, files: Path, tmp_path: Path
) -> None:
    """What its name says; whoever reads can drop the repetitions by UNIQ_KEY."""
    topic, checkpoint = "stream-plain", tmp_path / "checkpoint"
    stream(spark, files, broker, topic, checkpoint, semantics="at-least-once")
    (checkpoint / "commits" / str(FILES - 1)).unlink()
    stream(spark, files, broker, topic, checkpoint, semantics="at-least-once")
    found = read_topic(broker.registry, topic)
    assert len(found) == (FILES + 1) * ROWS
    assert len({message["properties"]["UNIQ_KEY"] for message in found}) == FILES * ROWS


@pytest.mark.parametrize("mode", EXACT)
def test_foreach_batch_has_the_same_guarantees(
    spark: Any, broker: testing.RunningBroker, files: Path, tmp_path: Path, mode: str
) -> None:
    """write_batch to two topics and twice to one, in a micro-batch that runs again."""
    from headrace.spark import write_batch

    checkpoint = tmp_path / "checkpoint"
    options = {"servers": broker.registry, "semantics": mode}

    def run() -> None:
        def save_batch(df: Any, batch_id: int) -> None:
            write_batch(df, batch_id, topic=f"each-{mode}-a", **options)
            write_batch(df.where("tags < 100"), batch_id, topic=f"each-{mode}-b", **options)
            write_batch(df.where("tags >= 100"), batch_id, txn_id="rest", topic=f"each-{mode}-b", **options)

        rows = spark.readStream.schema("body string, tags string").option("maxFilesPerTrigger", 1).parquet(str(files))
        query = rows.writeStream.foreachBatch(save_batch).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(120)

    run()
    (checkpoint / "commits" / str(FILES - 1)).unlink()
    run()
    for topic in ("a", "b"):
        assert bodies(broker.registry, f"each-{mode}-{topic}") == expected(FILES * ROWS)


def test_foreach_batch_repeats_rows_under_the_same_keys(
    spark: Any, broker: testing.RunningBroker, files: Path, tmp_path: Path
) -> None:
    """At least once: the query, or txn_id, is in the keys, so whoever reads can drop the repetitions. Options as they
    are at hand, numbers among them."""
    from headrace.spark import write_batch

    checkpoint = tmp_path / "checkpoint"
    options: dict[str, Any] = {"servers": broker.registry, "semantics": "at-least-once", "retries": 5, "ack": None}

    def run() -> None:
        def save_batch(df: Any, batch_id: int) -> None:
            write_batch(df, batch_id, topic="each-plain", **options)
            write_batch(df, batch_id, txn_id="again", topic="each-plain", **options)

        rows = spark.readStream.schema("body string, tags string").option("maxFilesPerTrigger", 1).parquet(str(files))
        query = rows.writeStream.foreachBatch(save_batch).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(120)

    run()
    (checkpoint / "commits" / str(FILES - 1)).unlink()
    run()
    found = read_topic(broker.registry, "each-plain")
    assert len(found) == 2 * (FILES + 1) * ROWS
    assert len({message["properties"]["UNIQ_KEY"] for message in found}) == 2 * FILES * ROWS


def test_two_writes_of_a_micro_batch_need_two_identities(
    spark: Any, broker: testing.RunningBroker, files: Path, tmp_path: Path
) -> None:
    """The broker would drop the second one's rows as duplicates: an error instead."""
    from headrace.spark import write_batch

    def save_batch(df: Any, batch_id: int) -> None:
        for _ in range(2):
            write_batch(df, batch_id, servers=broker.registry, topic="twice")

    rows = spark.readStream.schema("body string, tags string").parquet(str(files))
    query = rows.writeStream.foreachBatch(save_batch).option("checkpointLocation", str(tmp_path / "c")).start()
    assert "a txn_id of its own" in refusal(lambda: query.awaitTermination(60))


def test_write_batch_works_in_threads_of_the_caller(spark: Any, broker: testing.RunningBroker) -> None:
    """Spark looks for the format in the thread's own session, which a thread that Python made has not."""
    from headrace.spark import write_batch

    def write(topic: str, semantics: str) -> None:
        rows = numbered(spark, 10)
        write_batch(rows, 1, txn_id=topic, servers=broker.registry, topic=topic, semantics=semantics)

    def write_plainly() -> None:
        spark.createDataFrame([], "none INT")
        save(numbered(spark, 10), broker, "threads-plain")

    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(write, f"threads-{mode}", mode) for mode in MODES]
        for future in [*written, pool.submit(write_plainly)]:
            future.result(60)
    assert all(bodies(broker.registry, f"threads-{name}") == expected(10) for name in [*MODES, "plain"])


def test_write_batch_outside_of_a_stream_needs_an_identity(spark: Any, broker: testing.RunningBroker) -> None:
    from headrace.errors import ConfigError
    from headrace.spark import write_batch

    with pytest.raises(ConfigError, match="give txn_id"):
        write_batch(numbered(spark, 10), 1, servers=broker.registry, topic="outside")
    with pytest.raises(ConfigError, match="as arguments"):
        write_batch(numbered(spark, 10), 1, servers=broker.registry, topic="outside", epoch="1")
    for _ in range(2):
        write_batch(numbered(spark, 10), 1, txn_id="mine", servers=broker.registry, topic="outside")
    write_batch(numbered(spark, 10), 1, servers=broker.registry, topic="outside", semantics="at-least-once")
    assert bodies(broker.registry, "outside").total() == 20


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_speculation_is_refused_where_rows_are_numbered(spark: Any, broker: testing.RunningBroker) -> None:
    """spark.md 3.5: in sequence mode; keyed and transactional writes are safe."""
    from headrace.errors import ConfigError
    from headrace.spark import write_batch

    context = spark.sparkContext
    context.setLocalProperty("spark.speculation", "true")
    try:
        assert "spark.speculation=true" in refusal(lambda: save(numbered(spark, 10), broker, "speculative"))
        keyed = numbered(spark, 10).withColumnRenamed("tags", "unique_key")
        save(keyed, broker, "speculative")
        save(numbered(spark, 10), broker, "speculative-b", semantics="transactional")
    finally:
        context.setLocalProperty("spark.speculation", None)
    assert bodies(broker.registry, "speculative") == expected(10)

    class Speculating:
        """A session that speculates, as far as write_batch looks."""

        def __init__(self, df: Any) -> None:
            self.schema, self.write, self.sparkSession = df.schema, df.write, self
            self.conf = {"spark.speculation": "true"}

    with pytest.raises(ConfigError, match=r"spark.speculation=true"):
        write_batch(Speculating(numbered(spark, 10)), 2, txn_id="s", servers=broker.registry, topic="t")


def test_nulls_and_schemas_are_refused_on_the_driver(spark: Any, broker: testing.RunningBroker) -> None:
    """spark.md 5.4.6: one clear error that names row and column, or the columns that there are."""
    sick = numbered(spark, 100, partitions=1).selectExpr("if(tags = '57', null, body) as body")
    text = refusal(lambda: save(sick, broker, "refused"))
    assert "InvalidRowError: row 57 of partition 0: column 'body' is null" in text
    text = refusal(lambda: save(numbered(spark, 1).withColumnRenamed("tags", "tag"), broker, "refused"))
    assert "ConfigError: unknown column 'tag'; did you mean 'tags'?" in text
    text = refusal(lambda: save(spark.range(1).selectExpr("id as body"), broker, "refused"))
    assert "column 'body' is of type bigint, accepted: string, binary" in text
    assert "did you mean 'topic'?" in refusal(lambda: save(numbered(spark, 1), broker, "refused", topics="x"))


def test_only_appending_is_a_save_mode(spark: Any, broker: testing.RunningBroker) -> None:
    writer = numbered(spark, 1).write.format("headrace").options(servers=broker.registry, topic="refused")
    assert "a topic is never overwritten" in refusal(lambda: writer.mode("overwrite").save())
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refusal(lambda: writer.mode("error").save())


def test_void_and_ntz_columns_are_written(spark: Any, broker: testing.RunningBroker) -> None:
    """What Spark makes of literals: a column of nulls, times without a zone, further columns of every simple type."""
    rows = spark.range(1).selectExpr(
        "binary('x') as value",
        "null as tags",
        "timestamp_ntz'2026-01-02 03:04:05' as born_ts",
        "array('a', 'b') as keys",
        "map('m', 'n') as properties",
        "1.5D as price",
        "true as paid",
        "date'2026-01-02' as day",
        "12.30BD as amount",
    )
    save(rows, broker, "columns", extraColumns="properties")
    [message] = read_topic(broker.registry, "columns")
    assert message["born_timestamp_ms"] == 1767323045000
    found = {name: value for name, value in message["properties"].items() if name != "UNIQ_KEY"}
    assert {name: value for name, value in found.items() if not name.startswith("__")} == {
        "KEYS": "a b",
        "m": "n",
        "price": "1.5",
        "paid": "true",
        "day": "2026-01-02",
        "amount": "12.30",
        "CLUSTER": "DefaultCluster",
    }


@pytest.mark.parametrize("way", ["batch", "stream", "foreachBatch"])
def test_rows_of_a_source_that_leaves_out_what_is_gone_are_not_numbered(
    spark: Any, broker: testing.RunningBroker, tmp_path: Path, way: str
) -> None:
    """Written a second time fewer of them came: others had their numbers and were dropped as repetitions."""
    from headrace.spark import write_batch

    save(numbered(spark, 30), broker, f"lossy-{way}")
    given = {"servers": broker.registry, "topics": f"lossy-{way}", "columns": "body,tags,unique_key"}
    given |= {"failOnDataLoss": "false", "startingOffsets": "earliest"} | ({} if way == "batch" else {"group": way})

    def write(name: str, columns: list[str], **options: str) -> None:
        options |= {"servers": broker.registry, "topic": f"lossy-{way}-{name}"}
        if way == "batch":
            rows = spark.read.format("headrace").options(**given).load().select(columns)
            rows.write.format("headrace").mode("append").options(**options).save()
            return
        rows = spark.readStream.format("headrace").options(**given).load().select(columns).where("body is not null")
        if way == "stream":
            query = rows.writeStream.format("headrace").options(**options)
        else:
            query = rows.writeStream.foreachBatch(lambda df, batch_id: write_batch(df, batch_id, **options))
        query = query.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        query.awaitTermination(120)

    assert "failOnDataLoss=false cannot be numbered" in refusal(lambda: write("numbered", ["body"]))
    write("keyed", ["body", "unique_key"])
    write("whole", ["body"], semantics="transactional")
    for name in ("keyed", "whole"):
        assert bodies(broker.registry, f"lossy-{way}-{name}") == expected(30)


def test_what_the_source_reads_the_sink_writes(spark: Any, broker: testing.RunningBroker) -> None:
    """A copy of a topic, properties and all."""
    save(numbered(spark, 300), broker, "origin")
    read = (
        spark.read.format("headrace")
        .options(servers=broker.registry, topics="origin")
        .options(columns="body,tags,keys,flag,properties")
    )
    save(read.load(), broker, "copy")
    found = read_topic(broker.registry, "copy")
    assert Counter(message["body"].decode() for message in found) == expected(300)
    origin = {message["body"]: message["properties"]["UNIQ_KEY"] for message in read_topic(broker.registry, "origin")}
    assert all(message["properties"]["UNIQ_KEY"] == origin[message["body"]] for message in found)
