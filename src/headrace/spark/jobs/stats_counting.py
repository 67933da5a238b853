"""What ``headrace job stats`` does: counting in tasks, what stays as it was counted before, tables and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from headrace.spark.files import LogExtent
from headrace.spark.jobs import stats_placing, stats_tables
from headrace.spark.jobs.broker_counts import broker_counts, note_uncounted
from headrace.spark.jobs.config import show_time
from headrace.spark.jobs.folder import hold_folder, make_folder
from headrace.spark.jobs.log_rows import (
    first_time_ms,
    note_damage,
    note_missing,
    require_topics,
    source_of,
    splits_between,
    watched,
)
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.stats import HOUR_MS, REPORT, Config
from headrace.spark.jobs.stats_merge import SUMS, UNCOUNTED, fold
from headrace.spark.jobs.stats_partials import COLUMNS, SCHEMA, count_batches
from headrace.spark.jobs.stats_tables import BrokerHour
from headrace.spark.jobs.summary import Summary, Table, count_of
from headrace.spark.jobs.target import require_outside
from headrace.spark.scan import LogSplit, plan_log, read_split
from headrace.spark.session import settings_of
from headrace.spark.tasks import parallelism, run_in_tasks

_LAST_HOUR: Final = "9999-12-3123"
"""Behind every hour that there is, as ``hour_of`` writes them."""


def count_log(spark: SparkSession, config: Config) -> Summary:
    """Count, write the tables, and say what was counted. Raises: as ``stats.run``."""
    summary = Summary(job="stats", dry_run=config.dry_run)
    require_outside(config.to, "to")
    stats_placing.require_own(config.to, stats_tables.STORES, *([REPORT] if config.report == "html" else []))
    if not config.dry_run:
        make_folder(config.to, "to")
    with nullcontext() if config.dry_run else hold_folder(config.to, "to"):
        if not config.dry_run:
            stats_placing.finish(config.to)
        phase("looking at the log")
        source = source_of(config, config.broker)
        extents = source.extents()
        stores = stats_tables.known_stores(config.to)
        stats_tables.refuse_renamed(stores, extents, config.to)
        note_missing(summary, extents)
        splits = plan_log(source, split_bytes=config.split_bytes, extents=extents, at_once=parallelism(spark))
        splits = watched(spark, splits, summary)
        with settings_of(spark, stats_tables.SETTINGS):
            _count(spark, splits, extents, stores, config, summary)
    note_damage(summary)
    return summary


def _count(
    spark: SparkSession,
    splits: Sequence[LogSplit],
    extents: Sequence[LogExtent],
    stores: Mapping[str, str],
    config: Config,
    summary: Summary,
) -> None:
    """Count what ``splits`` hold, write tables and report, and fill in the summary."""
    for broker in sorted(stats_tables.brokers_there(spark, config.to) - {split.broker for split in splits}):
        summary.notes.append(f"broker {broker!r} was not read: its rows in the tables stay as they are")
    phase("counting")
    read = {extent.broker for extent in extents}
    counts = count_minutes(spark, splits_between(splits, config.from_ms, config.to_ms), read, config).persist()
    try:
        counted = _summarise(counts, config, summary)
        if config.dry_run:
            return
        # Before the rows: of those that a killed run leaves it is known whose they are.
        brokers = {each.broker for each in counted}
        stats_tables.note_stores(stores, (extent for extent in extents if extent.broker in brokers), config.to)
        written = _write(counts, config, summary, counted - _kept(spark, splits, extents, config, summary, counted))
    finally:
        counts.unpersist()
    if config.report == "html":
        phase("drawing the report")
        _report(spark, config, summary, written)


def count_minutes(spark: SparkSession, splits: Sequence[LogSplit], brokers: Set[str], config: Config) -> DataFrame:
    """Return what was counted in each minute of what splits hold: rows of ``stats_merge.SCHEMA``, in parts.

    Args:
        brokers: Those whose logs are read. What one that has come since has written into HR_STATS would, as all that
            is counted of its hours, take the place of what it put.
    """
    work = partial(
        count_split, topics=config.topics or None, since=config.from_ms, until=config.to_ms, hosts=config.hosts
    )
    partials = run_in_tasks(spark, splits, work, SCHEMA)
    counts = broker_counts(spark, config, splits, since=config.from_ms, until=config.to_ms)
    counts = counts.where(F.col("broker").isin(sorted(brokers)))
    if config.topics:
        counts = counts.where(
            F.col("topic").isin(list(config.topics)) | (F.col("damaged") > 0) | (F.col("left_out") > 0)
        )
    if not config.hosts:
        counts = counts.withColumn("host", F.lit(""))
    return stats_tables.minute_counts(partials, counts)


def count_split(
    split: LogSplit, *, topics: Sequence[str] | None, since: int | None, until: int | None, hosts: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the counts of one split: what runs in a task."""
    batches = read_split(split, COLUMNS, topics=topics, start_ms=since, end_ms=until, retry_topics=True)
    yield from count_batches(batches, split.broker, hosts=hosts)


def last_cut_hours(splits: Sequence[LogSplit], missing_ends: Mapping[str, int]) -> dict[str, str]:
    """Return up to which hour the logs have lost messages, by broker.

    What was counted of such hours earlier is worth more. A log that begins at physical offset 0 and has all its files
    has lost nothing.

    Args:
        missing_ends: Where the last range without a file ends, by broker.
    """
    first_of: dict[str, LogSplit] = {}
    for split in splits:
        if split.start >= missing_ends.get(split.broker, 0):
            first_of.setdefault(split.broker, split)
    cut = {broker: stats_tables.hour_of(first_time_ms(split)) for broker, split in first_of.items() if split.start > 0}
    # Where nothing stands behind what is missing, nobody knows which hours it was of.
    return cut | {broker: _LAST_HOUR for broker in missing_ends if broker not in first_of}


def _summarise(counts: DataFrame, config: Config, summary: Summary) -> set[BrokerHour]:
    """Fill in the facts and the tables; return what was counted.

    Raises:
        ConfigError: a named topic does not exist and nothing was counted of it.
    """
    of_hours = counts.withColumn("time", F.date_trunc("hour", "time"))
    hourly = stats_tables.together(of_hours, ("time", "topic", "broker")).toArrow()
    damaged, untimed, left_out = (sum(hourly.column(name).to_pylist()) for name in UNCOUNTED)
    note_uncounted(summary, damaged, left_out)
    if untimed:
        summary.facts["untimed_messages"] = untimed
        summary.notes.append(
            f"{count_of(untimed, 'message was', 'messages were')} stored in no year from 1 to 9999, by a broker whose "
            "clock was wrong, and counted in none of the tables"
        )
    for name in UNCOUNTED:
        hourly = hourly.filter(pc.equal(hourly.column(name), 0))
    (total,) = fold(hourly, ()).to_pylist() or [dict.fromkeys(SUMS, 0)]
    for name in ("put_messages", "put_bytes", "get_messages", "sent_back", "dead_letters"):
        summary.facts[name] = total[name]
    topics = sorted(fold(hourly, ("topic",)).to_pylist(), key=lambda row: (-row["put_messages"], row["topic"]))
    hours = sorted(set(hourly.column("time").cast(pa.int64()).to_pylist()))
    # One that was deleted may have messages all the same.
    quiet = sorted(set(config.topics) - {row["topic"] for row in topics})
    require_topics(source_of(config), quiet)
    summary.facts["topics"] = len(topics)
    summary.facts["from"] = show_time(hours[0] // 1000 if hours else None)
    summary.facts["until"] = show_time(hours[-1] // 1000 + HOUR_MS if hours else None)
    if total["skewed"]:
        summary.notes.append(
            count_of(
                total["skewed"],
                "message claims to be made after it was stored: the producer's clock is ahead, and its",
                "messages claim to be made after they were stored: the producers' clocks are ahead, and their",
            )
            + " latency counts as less than a millisecond"
        )
    columns = ("topic", "put_messages", "put_bytes", "get_messages", "sent_back", "dead_letters")
    rows = [[row[name] for name in columns] for row in topics[: config.top]]
    summary.tables.append(Table("busiest", "Busiest topics", columns, rows))
    times, brokers = hourly.column("time").cast(pa.int64()).to_pylist(), hourly.column("broker").to_pylist()
    return {BrokerHour(stats_tables.hour_of(time // 1000), broker) for time, broker in zip(times, brokers, strict=True)}


def _kept(
    spark: SparkSession,
    splits: Sequence[LogSplit],
    extents: Sequence[LogExtent],
    config: Config,
    summary: Summary,
    counted: Set[BrokerHour],
) -> set[BrokerHour]:
    """Return what of ``counted`` stays as an earlier run counted it, and say so."""
    last_of = last_cut_hours(splits, {extent.broker: extent.missing[-1][1] for extent in extents if extent.missing})
    cut = {each for each in counted if each.hour <= last_of.get(each.broker, "")}
    kept = cut & stats_tables.counted_there(spark, config.to, {each.hour for each in cut})
    if kept:
        hours = sorted({each.hour for each in kept})
        stay = "stays as it was" if len(hours) == 1 else "stay as they were"
        summary.notes.append(
            f"{count_of(len(hours), 'hour', 'hours')} up to {hours[-1][:10]} {hours[-1][10:]}:00 {stay} counted "
            f"earlier: the log of {', '.join(sorted({each.broker for each in kept}))} no longer has all of that"
        )
    return kept


def _write(counts: DataFrame, config: Config, summary: Summary, counted: Set[BrokerHour]) -> list[str]:
    """Replace ``counted`` in the three tables; return the hours that have changed."""
    phase("writing the tables")
    written = sorted({each.hour for each in counted})
    summary.facts["hours_written"] = len(written)
    if not written:
        return []
    for name in UNCOUNTED:
        counts = counts.where(F.coalesce(name, F.lit(0)) == 0)
    wanted = stats_tables.marked(stats_tables.with_days(counts), counted)
    minutes = stats_tables.table_of(wanted.where("is_counted").select(*counts.columns), "minute")
    stats_tables.replace_counted(minutes, config.to, counted, config.topics)
    summary.facts["tables"] = str(config.to)
    return written


def _report(spark: SparkSession, config: Config, summary: Summary, written: Sequence[str]) -> None:
    from headrace.spark.jobs.stats_report import render, report_data  # noqa: PLC0415  # jinja2, matplotlib

    if not written:
        summary.notes.append("no report: nothing was counted")
        return
    data = report_data(spark, config.to, written, title=config.title, top=config.top)
    path = config.to / REPORT
    path.write_text(render(data), encoding="utf-8")
    summary.facts["report"] = str(path)
