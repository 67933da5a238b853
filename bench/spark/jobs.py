"""Headrace's packaged jobs, run in a worker's session."""

from typing import TYPE_CHECKING, Any

from headrace.spark.jobs.table import load_job
from headrace.spark.jobs.table import run_job as run_loaded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_job(spark: "SparkSession", name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a job with options as texts; return its summary's facts.

    Raises:
        RuntimeError: it did not end well.
    """
    summary = run_loaded(spark, name, load_job(name).config.parse(options))
    if summary.exit_code != 0:
        raise RuntimeError(f"job {name} ended with {summary.exit_code}: {summary.notes}")
    return summary.facts
