"""Settings of a session that a job needs for a while, whosever session it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def settings_of(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Have a session, whosever it is, work as a job needs it for a while."""
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            if known is not None:
                spark.conf.set(key, known)
