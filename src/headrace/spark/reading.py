"""``register`` and ``read``: the front door for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

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
        ConfigError: when the DataFrame is made: an option is wrong.
    """
    register(spark)
    found: dict[str, str] = {name: _option_text(value) for name, value in options.items() if value is not None}
    if servers is not None:
        found["servers"] = servers
    if store is not None:
        found["store"] = str(store)
    if topics is not None:
        found["topics"] = topics if isinstance(topics, str) else ",".join(topics)
    elif not {"topicpattern", "assign", "scan"} & {name.lower() for name in found}:
        found["scan"] = "log"
    if since is not None:
        found["startingTimestamp"] = _time_text(since)
        found.setdefault("startingTimestampStrategy", "latest")
    if until is not None:
        found["endingTimestamp"] = _time_text(until)
    if columns is not None:
        found["columns"] = columns if isinstance(columns, str) else ",".join(columns)
    return spark.read.format(FORMAT).options(**found).load()


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time_text(value: datetime | str | int) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
