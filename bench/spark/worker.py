"""A Spark session that does what it is told: ``python -m bench.spark.worker SETTINGS``.

Runs under the Python of either contestant, so nothing but Spark is imported at the start. SETTINGS is a JSON object:
``conf`` of the session, ``is_prepared`` for what ``headrace.spark.session`` sets else, and what to ``register``. Each
line of the input is a JSON request, its ``op`` one of OPERATIONS and the rest that one's arguments; each is answered by
a line with its result, or with ``error``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = dict[str, Any]
# How long a stream may take to its first batches.
STREAM_START_S = 120.0


def main() -> int:
    """Serve requests until the input ends."""
    # The JVM and Spark's own prints go to the log: the standard output is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = _start(settings)
    print(json.dumps({"spark": spark.version}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = OPERATIONS[request.pop("op")](spark, **request)
        except Exception as exc:  # noqa: BLE001  # the outermost line: who asked reports it
            traceback.print_exc()
            result = {"error": f"{type(exc).__name__}: {exc}"[:2000]}
        print(json.dumps(result), file=answers)
    spark.stop()
    return 0


def _start(settings: dict[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415  # after the environment is set

    conf: dict[str, str] = settings["conf"]
    if settings["is_prepared"]:
        from headrace.spark.session import prepare  # noqa: PLC0415  # only one contestant has it

        conf = prepare(conf["spark.master"], conf)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for name in settings["register"]:
        _REGISTRATIONS[name](spark)
    return spark


def _register_headrace(spark: SparkSession) -> None:
    from headrace.spark import register  # noqa: PLC0415  # only one contestant has it

    register(spark)


def _register_ceiling(spark: SparkSession) -> None:
    from bench.spark.ceiling import CeilingDataSource  # noqa: PLC0415  # Kafka's Spark needs none

    spark.dataSource.register(CeilingDataSource)


_REGISTRATIONS: dict[str, Callable[[SparkSession], None]] = {
    "headrace": _register_headrace,
    "ceiling": _register_ceiling,
}


def _load(spark: SparkSession, source: dict[str, Any]) -> DataFrame:
    """Return the DataFrame of a source: ``format``, ``options``, and what to ``select`` of it."""
    frame = spark.read.format(source["format"]).options(**source["options"]).load()
    return frame.selectExpr(*source["select"]) if source.get("select") else frame


def scan(spark: SparkSession, source: dict[str, Any]) -> Result:
    """Read all of a source and throw it away."""
    start = time.monotonic()
    _load(spark, source).write.format("noop").mode("overwrite").save()
    return {"seconds": time.monotonic() - start}


def count(spark: SparkSession, source: dict[str, Any]) -> Result:
    """Count the rows of a source: whether a scan reads what it should."""
    start = time.monotonic()
    rows = _load(spark, source).count()
    return {"seconds": time.monotonic() - start, "rows": rows}


def parquet(spark: SparkSession, source: dict[str, Any], folder: str) -> Result:
    """Write all of a source to Parquet with Spark's own writer."""
    start = time.monotonic()
    _load(spark, source).write.mode("overwrite").parquet(folder)
    return {"seconds": time.monotonic() - start, "bytes": _file_bytes(folder)}


def write(spark: SparkSession, source: dict[str, Any], sink: dict[str, Any]) -> Result:
    """Copy a source to a sink: ``format`` and ``options``. Format ``range`` makes up its ``rows``."""
    start = time.monotonic()
    if source["format"] == "range":
        frame = spark.range(0, source["rows"], 1, source["partitions"]).selectExpr(*source["select"])
    else:
        frame = _load(spark, source)
    frame.write.format(sink["format"]).options(**sink["options"]).mode("append").save()
    return {"seconds": time.monotonic() - start}


def job(spark: SparkSession, name: str, options: dict[str, Any], folder: str) -> Result:
    """Run one of Headrace's packaged jobs in this session."""
    from bench.spark.jobs import run_job  # noqa: PLC0415  # only one contestant has them

    start = time.monotonic()
    summary = run_job(spark, name, options)
    return {"seconds": time.monotonic() - start, "bytes": _file_bytes(folder), "summary": summary}


def latency(
    spark: SparkSession,
    source: dict[str, Any],
    checkpoint: str,
    warm_batches: int,
    seconds: float,
) -> Result:
    """Read a stream whose bodies begin with their time in ns; return ms until ``foreachBatch`` has each.

    The first ``warm_batches`` that have rows do not count; then messages made within ``seconds`` do.
    """
    latencies: list[float] = []
    batches = 0
    measured_from = 0
    is_warm = threading.Event()

    def handle(frame: DataFrame, _: int) -> None:
        nonlocal batches, measured_from
        bodies = frame.toArrow().column(0).to_pylist()
        now = time.time_ns()
        if not bodies:
            return
        batches += 1
        if batches == warm_batches:
            measured_from = now
            is_warm.set()
        elif batches > warm_batches:
            made = [int(body[:19]) for body in bodies]
            latencies.extend((now - at) / 1e6 for at in made if at >= measured_from)

    frame = spark.readStream.format(source["format"]).options(**source["options"]).load()
    query = (
        frame.selectExpr(*source["select"])
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        deadline = time.monotonic() + STREAM_START_S
        while not is_warm.wait(0.2):
            if (failure := query.exception()) is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{batches} batches in {STREAM_START_S:.0f} s")
        time.sleep(seconds)
        if (failure := query.exception()) is not None:
            raise failure
    finally:
        query.stop()
    return {"latencies_ms": latencies, "batches": batches - warm_batches}


def _file_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


OPERATIONS: dict[str, Callable[..., Result]] = {
    "scan": scan,
    "count": count,
    "parquet": parquet,
    "write": write,
    "job": job,
    "latency": latency,
}

if __name__ == "__main__":
    sys.exit(main())
