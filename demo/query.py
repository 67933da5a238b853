"""The Spark process: a standing query over both topics, then the check of what it wrote, then the report.

``python -m demo.query REGISTRY FOLDER``. It tells what happens in lines of JSON on standard output (``demo.spark``
reads them), and goes on from the standing query to the rest when a line comes in on standard input.

Every micro-batch goes to the topic through the sink, each row under the flight's key, and to a Parquet folder of its
own. When one is done again after a failure the broker passes over the keys it has and the folder is written anew: both
hold each row once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from demo import flights, results, weather
from demo.join import delays_by_weather
from demo.result_judge import join_by_hand, judge, rows_of_bodies, rows_of_parquet
from headrace.spark import read, write_batch
from headrace.spark.jobs import stats
from headrace.spark.session import session

MAX_RESTARTS: Final = 5
LOOK_SECONDS: Final = 0.2

CONF: Final = {
    # For minutes, not days: compiled quickly rather than well, which takes a third less of the processor.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}

Tell = Callable[..., None]


class DelayQuery:
    """The standing query, which is started again where it stopped when it fails.

    Attributes:
        restarts: Why it was started again, for each time.
    """

    def __init__(self, spark: SparkSession, registry: str, folder: Path, tell: Tell) -> None:
        self.restarts: list[str] = []
        self._rows: dict[int, tuple[int, int]] = {}
        self._spark = spark
        self._registry = registry
        self._folder = folder
        self._tell = tell
        self._runs = [self._start()]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows written so far: those with weather, those without."""
        with_weather = sum(joined for joined, _ in self._rows.values())
        return with_weather, sum(bare for _, bare in self._rows.values())

    def run(self, is_finishing: threading.Event) -> None:
        """Keep it running until ``is_finishing`` is set, then until everything that came in is written."""
        while not is_finishing.wait(LOOK_SECONDS):
            if not self._runs[-1].isActive:
                self._start_again()
        while True:
            try:
                self._runs[-1].processAllAvailable()
            except StreamingQueryException:
                self._start_again()
            else:
                self._runs[-1].stop()
                return

    def totals(self) -> dict[str, float]:
        """Return what all micro-batches took in, dropped as too late, and took in time."""
        batches = [batch for query in self._runs for batch in query.recentProgress]
        operators = [operator for batch in batches for operator in batch.stateOperators]
        return {
            "read": sum(batch.numInputRows for batch in batches),
            "dropped_late": sum(operator.numRowsDroppedByWatermark for operator in operators),
            "seconds": sum(batch.durationMs.get("triggerExecution", 0) for batch in batches) / 1000,
        }

    def _start(self) -> StreamingQuery:
        rows = delays_by_weather(self._read(flights.TOPIC), self._read(weather.TOPIC))
        writer = rows.writeStream.foreachBatch(self._write).outputMode("append").queryName("delays")
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def _start_again(self) -> None:
        reason = str(self._runs[-1].exception()).splitlines()[0]
        if len(self.restarts) == MAX_RESTARTS:
            raise RuntimeError(f"the query failed {MAX_RESTARTS + 1} times, at last with: {reason}")
        self.restarts.append(reason)
        self._tell("restarted", reason=reason)
        time.sleep(1)
        self._runs.append(self._start())

    def _read(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("headrace").option("servers", self._registry).option("topics", topic)
        reader = reader.option("group", "delays").option("startingOffsets", "earliest").option("columns", "body")
        return reader.load()

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch to both places."""
        rows = rows.persist()
        try:
            counts = rows.agg(f.count("weather"), f.count("*")).first()
            assert counts is not None
            body = f.to_json(f.struct(*rows.columns))
            messages = rows.select(body.alias("body"), f.col("flight").alias("unique_key"))
            write_batch(messages, batch_id, txn_id="delays", servers=self._registry, topic=results.TOPIC)
            part = self._folder / results.FOLDER / f"batch={batch_id:06}"
            rows.coalesce(1).write.mode("overwrite").parquet(str(part))
        finally:
            rows.unpersist()
        self._rows[batch_id] = (counts[0], counts[1] - counts[0])
        with_weather, without = self.rows
        self._tell("wrote", batches=len(self._rows), with_weather=with_weather, without=without)


def make_tell() -> Tell:
    """Return what tells the parent process; everything else that is printed goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: str, **facts: Any) -> None:
        channel.write(json.dumps({"event": event, **facts}) + "\n")
        channel.flush()

    return tell


def check_results(spark: SparkSession, registry: str, folder: Path) -> dict[str, dict[str, int]]:
    """Read the results again, from the topic and from Parquet, and compare both with the join done by hand."""
    expected = join_by_hand()
    bodies = read(spark, servers=registry, topics=results.TOPIC, columns="body").toArrow().column(0).to_pylist()
    return {
        "topic": judge(rows_of_bodies(bodies), expected).to_dict(),
        "parquet": judge(rows_of_parquet(folder / results.FOLDER), expected).to_dict(),
    }


def delays_of(spark: SparkSession, folder: Path) -> list[list[Any]]:
    """Return for each weather: flights, mean delay, share of flights late by more than 15 minutes, and never left."""
    left = f.col("dep_delay").isNotNull()
    rows = (
        spark.read.parquet(str(folder / results.FOLDER))
        .groupBy("weather")
        .agg(
            f.count("*").alias("flights"),
            f.mean("dep_delay").alias("mean"),
            f.mean((f.col("dep_delay") > 15).cast("double")),
            f.mean((~left).cast("double")),
        )
        .orderBy(f.desc("mean"))
    )
    return [list(row) for row in rows.collect()]


def _wait_for_line(is_there: threading.Event) -> None:
    if not sys.stdin.readline():  # the parent was killed: nobody is left to tell
        os._exit(1)
    is_there.set()


def main() -> None:
    """Run as the command says."""
    registry, folder = sys.argv[1], Path(sys.argv[2])
    tell = make_tell()
    is_finishing = threading.Event()
    threading.Thread(target=_wait_for_line, args=(is_finishing,), daemon=True).start()
    places = {"spark.local.dir": str(folder / "spark"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    with session("headrace-demo", master="local[2]", conf={**CONF, **places}) as spark:
        query = DelayQuery(spark, registry, folder, tell)
        tell("standing")
        query.run(is_finishing)
        tell("stage", name="checking")
        found = check_results(spark, registry, folder)
        delays = delays_of(spark, folder)
        tell("stage", name="reporting")
        stats.run(spark, stats.Config(servers=registry, to=folder / "report", title="The demo's messages"))
        tell("done", found=found, delays=delays, **query.totals())


if __name__ == "__main__":
    main()
