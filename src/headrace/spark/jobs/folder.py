"""Folders that a job adds to, and paths as Spark takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATTERN: Final = re.compile(r"([\[\]{}*?\\])")


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
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--{name} {path} cannot be written", key=name)


def read_path(path: Path | str) -> str:
    """Return a path as Spark's readers take it: for them a name with brackets, say, is a pattern."""
    return _PATTERN.sub(r"\\\1", str(Path(path).absolute()))


def read_files(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Return the rows of files of an archive, ``paths`` as ``read_path`` writes them.

    A page of a file that is not as it was written is an error when it is read: Spark compares its CRC-32.
    """
    return spark.read.option("parquet.page.verify-checksum.enabled", "true").parquet(*paths)
