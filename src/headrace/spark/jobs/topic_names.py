"""Which topics a log has messages of: one narrow pass, a few rows from each task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.spark.scan import LogSplit, read_split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = pa.schema([("topic", pa.string())])


def topic_names(spark: SparkSession, splits: Sequence[LogSplit]) -> DataFrame:
    """Return the topics of each split, retry and dead-letter topics among them; not those of the broker itself."""
    from headrace.spark.tasks import run_in_tasks  # noqa: PLC0415  # pyspark

    return run_in_tasks(spark, splits, names_of, SCHEMA)


def names_of(split: LogSplit) -> Iterator[pa.RecordBatch]:
    """Yield each topic of a split once."""
    known: set[str] = set()
    for batch in read_split(split, ("topic",), retry_topics=True):
        known.update(batch.column(0).unique().to_pylist())
    yield pa.RecordBatch.from_pydict({"topic": sorted(known)}, schema=SCHEMA)
