"""``register`` and ``read``: the front door for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark.source import FORMAT, HeadraceDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Make ``format("headrace")`` known to a session; doing it again is harmless."""
    spark.dataSource.register(HeadraceDataSource)


def read(
    spark: SparkSession,
    *,
    servers: str | None = None,
    store: str | None = None,
    topics: str | Sequence[str] | None = None,
    since: datetime | str | int | None = None,
    until: datetime | str | int | None = None,
    columns: str | Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return messages as a DataFrame.

    Args:
        servers: Registries, ``host:9876``; or
        store: A store's folder.
        topics: Names; without any, and without ``topicPattern`` or ``assign``, the whole log is read.
        since: Stored at or after that time: a datetime, ISO 8601, or ms since 1970.
        until: Stored before that time.
        columns: What to read: the fewer, the faster. ``prop:NAME`` is one property.
        options: Any other option of docs/spark/source.md, as it is spelled there; None is not to set it.

    Raises:
        ConfigError: when the DataFrame is made: an option is wrong, or given twice.
    """
    register(spark)
    arguments = {
        "servers": servers,
        "store": store,
        "topics": _joined(topics),
        "startingTimestamp": since.isoformat() if isinstance(since, datetime) else since,
        "endingTimestamp": until.isoformat() if isinstance(until, datetime) else until,
        "columns": _joined(columns),
    }
    found: dict[str, str] = {}  # names in lower case: of two spellings Spark would take one, without a word
    for name, value in (*arguments.items(), *options.items()):
        if value is None:
            continue
        if name.lower() in found:
            raise ConfigError(
                f"option {name} is given twice: since is startingTimestamp, until endingTimestamp", key=name
            )
        found[name.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    if not {"topics", "topicpattern", "assign", "scan"} & found.keys():
        found["scan"] = "log"
    if since is not None:
        found.setdefault("startingtimestampstrategy", "latest")
    return spark.read.format(FORMAT).options(**found).load()


def _joined(names: str | Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)
