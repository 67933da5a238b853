"""What write_batch keeps from one micro-batch to the next; no Spark runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource")

from pyspark.sql.types import StringType, StructField, StructType

from headrace.errors import ConfigError
from headrace.spark.writing import sink
from headrace.spark.writing.sink import QUERY_ID, RUN_ID, write_batch


class Rows:
    """A DataFrame of a query's run, as far as write_batch looks; writing it is remembered."""

    schema = StructType([StructField("body", StringType())])

    def __init__(self, run: str) -> None:
        self.saved = 0
        context = SimpleNamespace(getLocalProperty={QUERY_ID: "q", RUN_ID: run}.get)
        self.sparkSession = SimpleNamespace(
            conf=SimpleNamespace(get=lambda key, default: default),
            sparkContext=context,
            createDataFrame=lambda rows, schema: None,
        )

    @property
    def write(self) -> Rows:
        return self

    def format(self, name: str) -> Rows:
        return self

    mode = format

    def option(self, name: str, value: str) -> Rows:
        return self

    def options(self, **given: str) -> Rows:
        return self

    def save(self) -> None:
        self.saved += 1


def write(rows: Any, batch_id: int) -> None:
    write_batch(rows, batch_id, servers="a:1", topic="t")


def test_a_driver_that_runs_a_query_for_ever_keeps_one_entry() -> None:
    """Each run of availableNow left one."""
    before = len(sink._batches)
    for number in range(100):
        rows = Rows(f"run {number}")
        write(rows, number)
        with pytest.raises(ConfigError, match="was written to topic 't' as 'q' before"):
            write(rows, number)
        write(Rows(f"run {number} again"), number)  # the micro-batch runs again
        assert rows.saved == 1
    assert len(sink._batches) == before + 1
