"""The tables of ``headrace job stats``: minutes, and hours and days made of them.

One row for each time, topic, group, source, broker and host. Rows of puts have no group; rows of gets have one. What
can be added up is a number or a histogram, so that hours are made of minutes and never of the log.

Folder:

    minute/dt=2026-01-31/hour=07/part-...parquet
    hour/dt=2026-01-31/hour=07/part-...parquet
    day/dt=2026-01-31/part-...parquet
    stores.json                                 identity of each store -> the broker's name that its rows have
    _new/ _ready/ _old/                         of a run that puts hours in place, see ``stats_placing``

A run replaces what it has counted anew, the hours of brokers (with their days), so it may be repeated. Rows of brokers
that it did not read stay as they are: what the tables hold does not depend on who was away.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType

from headrace.errors import ConfigError
from headrace.spark.files import LogExtent
from headrace.spark.jobs.config import show_time
from headrace.spark.jobs.folder import EVERY_FILE, read_path
from headrace.spark.jobs.manifest import write_json
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.stats_merge import DIMENSIONS, SCHEMA, TABLE_SCHEMA, finish, merge_sorted
from headrace.spark.jobs.stats_placing import PARTITIONS, put_in_place
from headrace.spark.jobs.target import NEW, TIMES, write_beside

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.useLargeVarTypes": "false", **TIMES,
}  # fmt: skip
"""Folders are named after times in UTC, and what Python hands back to Spark has small texts."""
STORES: Final = "stores.json"
SPANS: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
"""Seconds of a span."""


class BrokerHour(NamedTuple):
    """What is counted as a whole: an hour, as ``2026-01-3107``, of one broker."""

    hour: str
    broker: str


def minute_counts(partials: DataFrame, counts: DataFrame) -> DataFrame:
    """Return what was counted by minute, still in parts: rows of ``stats_merge.SCHEMA``.

    Args:
        partials: Rows of ``stats_partials.SCHEMA``: what was put, from the log.
        counts: Rows of ``broker_counts.SCHEMA``: what was got, from the brokers.
    """
    puts = partials.withColumn("group", F.lit(""))
    # What brokers say of puts is in the log, more exactly. Rows without a time, of what is damaged or untimed, stand at
    # the beginning of time.
    gets = counts.where((F.col("group") != "") | (F.col("damaged") > 0) | (F.col("left_out") > 0)).drop(
        "put_messages", "put_bytes"
    )
    blank = {name: F.coalesce(F.col(name), F.lit("")) for name in DIMENSIONS}
    zero = F.coalesce(F.col("time"), F.timestamp_seconds(F.lit(0)))
    return as_schema(puts.unionByName(gets, allowMissingColumns=True).withColumns({**blank, "time": zero}))


def as_schema(table: DataFrame) -> DataFrame:
    """Return the columns of ``stats_merge.SCHEMA``, null where the table lacks one."""
    there = set(table.columns)
    return table.select(
        *(
            (F.col(field.name) if field.name in there else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in from_arrow_schema(SCHEMA)
        )
    )


def together(table: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return rows of ``stats_merge.SCHEMA``, one for each different ``keys``; other dimensions are empty."""
    blank = {name: F.lit("") for name in DIMENSIONS if name not in keys}
    if "time" not in keys:
        blank["time"] = F.timestamp_seconds(F.lit(0))
    return _sorted(as_schema(table).withColumns(blank)).mapInArrow(merge_sorted, from_arrow_schema(SCHEMA))


def table_of(counts: DataFrame, span: str) -> DataFrame:
    """Return a table of a span, made of rows of shorter ones (``stats_merge.SCHEMA``)."""
    rows = counts.withColumn("time", F.date_trunc(span, "time"))
    return _sorted(rows).mapInArrow(partial(finish, seconds=SPANS[span]), from_arrow_schema(TABLE_SCHEMA))


def _sorted(rows: DataFrame) -> DataFrame:
    return rows.repartition("time", *DIMENSIONS).sortWithinPartitions("time", *DIMENSIONS)


def with_days(table: DataFrame) -> DataFrame:
    """Return a table with the columns that its folders are named after."""
    return table.withColumns({"dt": F.date_format("time", "yyyy-MM-dd"), "hour": F.date_format("time", "HH")})


def marked(rows: DataFrame, counted: Collection[BrokerHour]) -> DataFrame:
    """Add to rows with ``broker``, ``dt`` and ``hour`` the column ``is_counted``: whether they are of ``counted``."""
    keys = [(each.broker, each.hour[:10], each.hour[10:], True) for each in sorted(counted)]
    known = rows.sparkSession.createDataFrame(keys, "broker string, dt string, hour string, is_counted boolean")
    joined = rows.join(F.broadcast(known), ["broker", "dt", "hour"], "left")
    return joined.withColumn("is_counted", F.coalesce("is_counted", F.lit(False)))


def replace_counted(
    minutes: DataFrame, folder: Path, counted: Collection[BrokerHour], topics: Collection[str] = ()
) -> None:
    """Replace what was counted anew in the three tables, or in none; all other rows of the same hours stay.

    Args:
        minutes: Rows of the table of minutes, of no other brokers' hours than ``counted``.
        topics: Only these were counted; none: all.

    Raises:
        HeadraceError: the tables cannot be written.
    """
    spark, hours, new = minutes.sparkSession, {each.hour for each in counted}, folder / NEW
    if not hours_there(folder).isdisjoint(hours):
        there = read_table(spark, folder, "minute").where(F.concat("dt", "hour").isin(sorted(hours)))
        is_replaced = F.col("is_counted")
        if topics:
            is_replaced &= F.col("topic").isin(sorted(topics))
        minutes = minutes.unionByName(marked(there, counted).where(~is_replaced).select(minutes.columns))
    _write(minutes, folder, "minute")
    phase("rolling up")
    _write(table_of(as_schema(read_table(spark, new, "minute")), "hour"), folder, "hour")
    of_days, days = read_table(spark, new, "hour"), {hour[:10] for hour in hours}
    others = {hour for hour in hours_there(folder, "hour") - hours if hour[:10] in days}
    if others:
        there = read_table(spark, folder, "hour")
        of_days = of_days.unionByName(there.where(F.concat("dt", "hour").isin(sorted(others))))
    _write(table_of(as_schema(of_days), "day"), folder, "day")
    phase("putting in place")
    put_in_place(folder)


def _write(table: DataFrame, folder: Path, span: str) -> None:
    """Write rows of a span beside the tables, to be put in place by ``put_in_place``."""
    partitions = PARTITIONS[span]
    rows = with_days(table).repartition(*partitions).sortWithinPartitions(*partitions, "time", *DIMENSIONS)
    rows = rows.drop("hour") if span == "day" else rows
    write_beside(rows, folder, folder.absolute() / NEW / span, *partitions)


def read_table(spark: SparkSession, folder: Path, span: str) -> DataFrame:
    """Return a table; ``dt`` and ``hour`` are texts."""
    columns = from_arrow_schema(TABLE_SCHEMA)
    for name in PARTITIONS[span]:
        columns = columns.add(name, StringType())
    return spark.read.options(**EVERY_FILE).schema(columns).parquet(read_path(folder / span))


def known_stores(folder: Path) -> dict[str, str]:
    """Return under which broker's name the tables have rows of which store.

    Raises:
        ConfigError: the file that says so is damaged or cannot be read.
    """
    path = folder / STORES
    try:
        stores = json.loads(path.read_text(encoding="utf-8"))
        return {str(store_id): str(broker) for store_id, broker in stores.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): remove it, and take care that each store keeps its name", key="to"
        ) from None


def refuse_renamed(stores: Mapping[str, str], extents: Iterable[LogExtent], folder: Path) -> None:
    """Refuse a store whose rows are in the tables under another name: its messages would count twice.

    Raises:
        ConfigError: there is one.
    """
    for extent in extents:
        name = stores.get(extent.store_id, extent.broker)
        if name != extent.broker:
            raise ConfigError(
                f"the tables in {folder} have this store as broker {name!r}, not {extent.broker!r}: go on with --store "
                f"DIR --broker {name}, or begin other tables in another folder",
                key="broker",
            )


def note_stores(stores: Mapping[str, str], extents: Iterable[LogExtent], folder: Path) -> None:
    """Write down which stores the tables have rows of from now on."""
    known = {extent.store_id: extent.broker for extent in extents if extent.store_id}
    if not known.items() <= stores.items():
        write_json(folder / STORES, {**stores, **known})


def hour_of(time_ms: int) -> str:
    """Return the hour of a time, as ``2026-01-3107``; such texts compare like times."""
    text = show_time(time_ms)
    return text[:10] + text[11:13]


def hours_there(folder: Path, span: str = "minute") -> set[str]:
    """Return the hours that the table of minutes, or that of hours, has, as ``2026-01-3107``."""
    return {
        hour.parent.name.removeprefix("dt=") + hour.name.removeprefix("hour=")
        for hour in (folder / span).glob("dt=*/hour=*")
        if any(hour.glob("*.parquet"))
    }


def counted_there(spark: SparkSession, folder: Path, hours: Collection[str]) -> set[BrokerHour]:
    """Return of which brokers the minute table has rows in some of its hours."""
    if hours_there(folder).isdisjoint(hours):
        return set()
    rows = read_table(spark, folder, "minute").select("broker", F.concat("dt", "hour").alias("hour"))
    found = rows.where(F.col("hour").isin(sorted(hours))).distinct().collect()
    return {BrokerHour(row["hour"], row["broker"]) for row in found}


def brokers_there(spark: SparkSession, folder: Path) -> set[str]:
    """Return of which brokers the tables have rows, whenever."""
    if not any((folder / "day").glob("dt=*/*.parquet")):
        return set()
    return {row["broker"] for row in read_table(spark, folder, "day").select("broker").distinct().collect()}
