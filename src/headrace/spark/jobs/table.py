"""The jobs by name, and how one is run: its module is imported when it is asked for."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.extras import how_to_install
from headrace.spark.jobs.config import JobConfig, unknown
from headrace.spark.jobs.failure import JobFailedError, explain
from headrace.spark.jobs.summary import FAILED, NOT_CHECKED, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRAS: Final[Mapping[str, str]] = {
    "deltalake": "delta",
    "grpc": "connect",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "zstandard": "connect",
    **dict.fromkeys(("google", "jinja2", "matplotlib", "numpy", "pandas", "py4j", "pyarrow", "pyspark"), "spark"),
}
"""Module that may be missing -> the extra of this package that brings it."""
JAVA_GONE: Final = (
    "Spark's Java process ended in the middle of the job: it was killed, or out of memory "
    "(--conf spark.driver.memory=4g); the job may be run again"
)
_JAVA_ENDS_S: Final = 2.0
"""How long a process whose connections are closed may take to end."""


class JobEntry(NamedTuple):
    """One line of the table."""

    help: str
    needs_spark: bool = True
    """False: ``run`` is called with None and starts a session itself if it wants one."""
    failure_code: int = FAILED
    """Exit code when Spark does not start, or an error ends the job."""


class Job(NamedTuple):
    """A job whose module is imported."""

    name: str
    config: type[JobConfig]
    run: Callable[[Any, Any], Summary]
    doc: str


JOBS: Final[Mapping[str, JobEntry]] = {
    "archive": JobEntry("Write topics or the whole log to Parquet, exactly once."),
    "replay": JobEntry("Send archived messages to topics again."),
    "stats": JobEntry("Count messages, bytes and latencies by topic, host and time."),
    "dedup": JobEntry("Find messages that are there twice, and write each key once."),
    "deadletters": JobEntry("Explain dead letters and retries, and send them again."),
    "search": JobEntry("Find messages by key, id or time in log and archive."),
    "alerts": JobEntry("Find unusual throughput, lag and latency."),
    "rebuild": JobEntry("Make consume queues and the key index anew from the log."),
    "verify": JobEntry(
        "Check every record of a store, or every file of an archive.",
        failure_code=NOT_CHECKED,
    ),
    "doctor": JobEntry("Say whether jobs can run here, and what is missing.", False),
}


def load_job(name: str) -> Job:
    """Import one job.

    Raises:
        ConfigError: there is no such job (the nearest is named), or a library it needs is not installed.
    """
    if name not in JOBS:
        raise ConfigError(unknown(f"job {name!r}", name, JOBS), key=name)
    with missing_library(name):
        module = importlib.import_module(f"headrace.spark.jobs.{name}")
    return Job(name, module.Config, module.run, module.__doc__ or "")


def run_job(spark: SparkSession | None, name: str, config: JobConfig) -> Summary:
    """Run one job and return its summary, the time it took filled in.

    Raises:
        ConfigError: wrong use.
        HeadraceError: it failed; what Spark wrapped around an error of ours is taken off.
    """
    job = load_job(name)
    started = time.monotonic()
    with missing_library(name):
        try:
            summary = job.run(spark, config)
        except (HeadraceError, OSError, ModuleNotFoundError) as error:
            if isinstance(error, ConnectionError) and is_java_gone(spark):
                raise JobFailedError(JAVA_GONE) from error
            raise
        except Exception as error:
            # What Java itself raised, it was there to tell.
            if type(error).__name__ in ("Py4JNetworkError", "Py4JError") and is_java_gone(spark):
                raise JobFailedError(JAVA_GONE) from error
            found = explain(error)
            if found is None:
                raise
            raise found from error
    summary.seconds = time.monotonic() - started
    return summary


def is_java_gone(spark: SparkSession | None) -> bool:
    """Return whether the Java process that a session has started has ended; one of others is not known."""
    gateway = getattr(getattr(spark, "_sc", None), "_gateway", None)
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_JAVA_ENDS_S)
    return process.poll() is not None


@contextmanager
def missing_library(job: str) -> Iterator[None]:
    """Turn a missing optional library into the sentence that says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ConfigError(f"job {job} needs {error.name}, which is not installed: {how_to_install(extra)}") from error
