"""Folders that a job adds to, and paths as Spark takes them."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.lock_file import LockHeldError, release_lock, take_lock
from headrace.spark import functions as F  # noqa: N812  # as PySpark calls them
from headrace.spark.jobs.config import JobConfig
from headrace.spark.session import settings_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LOCK: Final = ".lock"
"""Whose name Spark passes over when it reads a folder."""
EVERY_FILE: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of reading where each file counts, also in a session that has Spark pass over those it cannot read."""
BINARY: Final = {"spark.sql.parquet.binaryAsString": "false"}
"""A body is no text, also in a session that reads files of Impala or Hive, which do not tell the two apart."""
_PATTERN: Final = re.compile(r"([\[\]{}*?\\])")
_LOOK_AGAIN_S: Final = 0.05


class FolderBusyError(HeadraceError):
    """Another run writes to a folder."""


def make_folder(path: Path | None, name: str) -> None:
    """Make a folder that is there when the work is done that it is for.

    Args:
        path: None: nothing is made.
        name: Of the option that says so.

    Raises:
        ConfigError: it cannot be made or written.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"--{name} {path} is no folder", key=name) from None
    except OSError as error:
        raise ConfigError(f"--{name} {path} cannot be made: {error.strerror}", key=name) from None
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"--{name} {path} cannot be written: {error.strerror}", key=name) from None


@contextmanager
def hold_folder(path: Path, name: str, *, lock: str = LOCK, wait_s: float = 0.0) -> Iterator[None]:
    """Have a folder that is there to oneself: whoever reads what is in it and replaces it must be alone.

    Args:
        name: Of the option that names it.
        lock: Path of the lock file in it; an absolute one lies elsewhere.
        wait_s: How long to wait for another run.

    Raises:
        ConfigError: the folder cannot be written.
        FolderBusyError: another run has it.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            held = take_lock(path / lock)
        except LockHeldError as error:
            if time.monotonic() >= deadline:
                run = f"another run (process {error.owner})" if error.owner else "another run"
                raise FolderBusyError(f"{run} writes to {path}: wait for its end; nothing was done") from None
            time.sleep(_LOOK_AGAIN_S)
        except OSError as error:
            raise ConfigError(
                f"--{name} {path} cannot be written: {error.strerror} ({error.filename})", key=name
            ) from None
        else:
            break
    try:
        yield
    finally:
        release_lock(held)


def read_path(path: Path | str) -> str:
    """Return a path as Spark's readers take it: for them a name with brackets, say, is a pattern."""
    return _PATTERN.sub(r"\\\1", str(Path(path).absolute()))


def wanted_rows(config: JobConfig) -> list[Column]:
    """Return what rows of an archive must meet to be of a configuration's topics and times."""
    found: list[Column] = []
    if config.topics:
        found.append(F.col("topic").isin(list(config.topics)))
    if config.since is not None:
        found.append(F.col("store_ts") >= F.timestamp_millis(F.lit(config.since)))
    if config.until is not None:
        found.append(F.col("store_ts") < F.timestamp_millis(F.lit(config.until)))
    return found


def read_files(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Return the rows of files of an archive, ``paths`` as ``read_path`` writes them.

    A page of a file that is not as it was written is an error when it is read: Spark compares its CRC-32.
    """
    with settings_of(spark, BINARY):  # it infers the schema at once
        return spark.read.options(**EVERY_FILE).option("parquet.page.verify-checksum.enabled", "true").parquet(*paths)
