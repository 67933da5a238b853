"""A PySpark that is too old is one sentence, wherever a user meets it first."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyspark.sql.datasource
from pyspark.sql.types import StructType

import headrace.spark
from headrace.cli.job import start_job
from headrace.errors import ConfigError
from headrace.spark.extras import load_part
from headrace.spark.jobs.table import JOBS, load_job, missing_library
from headrace.spark.source import HeadraceDataSource

SOURCE: Any = HeadraceDataSource({})
NOT_ASKED: Any = None


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda: SOURCE.streamReader(StructType()), "to read streams"),
        (lambda: SOURCE.writer(StructType(), False), "to write"),
        (lambda: SOURCE.streamWriter(StructType(), False), "to write"),
        (lambda: headrace.spark.write_batch, "for write_batch"),
    ],
    ids=["streamReader", "writer", "streamWriter", "write_batch"],
)
def test_an_old_pyspark_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, use: Any, what: str) -> None:
    """PySpark 4.0 has no stream of Arrow batches, 4.0 and 4.1 have no limits of what a batch reads."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    for name in ("headrace.spark.streams.stream", "headrace.spark.writing.sink"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match=rf"PySpark 4\.2 or newer is needed {what}, found 4\.0\.5: pip install"):
        use()


def test_another_missing_module_is_not_blamed_on_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.spark.writing.plan", None)
    monkeypatch.delitem(sys.modules, "headrace.spark.writing.sink", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"headrace\.spark\.writing\.plan"):
        load_part("writing.sink", "to write")


@pytest.mark.parametrize("name", sorted(name for name, entry in JOBS.items() if entry.needs_spark))
def test_a_job_says_that_a_library_is_missing_before_spark_starts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = load_job(name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("headrace.cli.job.session", lambda *_, **__: pytest.fail("Spark is started"))
    with pytest.raises(
        ConfigError, match=rf"job {name} needs pyarrow, which is not installed: pip install '.\[spark\]'"
    ):
        start_job(found, NOT_ASKED, None, None)


@pytest.mark.parametrize("module", ["grpc", "zstandard"])
def test_the_extra_that_brings_a_library_is_named(module: str) -> None:
    """Spark Connect needs both."""
    with pytest.raises(ConfigError, match=r"pip install '.\[connect\]'"), missing_library("stats"):
        raise ModuleNotFoundError(name=module)
