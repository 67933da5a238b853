"""Find messages that are there more than once, and write each key once.

Two messages are the same when they have the same topic and the same key: the unique key that a RocketMQ producer gives
each message (--by unique_key), or the KEYS property (--by keys). The report says how often and where each key is found
and how far apart in time. With --to or --to-topic every key is written once, the first or the last message of it
(--keep), and messages without a key as they are. Reads a log or an archive; a second run gives the same, and adds
nothing to the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from headrace.errors import ConfigError
from headrace.spark import functions as F  # noqa: N812  # as PySpark calls them
from headrace.spark.jobs import manifest
from headrace.spark.jobs.config import JobConfig, option, require_known_topics, require_target_topic, show_time
from headrace.spark.jobs.folder import read_files, read_path, wanted_rows
from headrace.spark.jobs.log_rows import note_damage, plan_between, require_topics, rows_of, source_of
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.publishing import born, name_of, publish, summarise_skipped
from headrace.spark.jobs.summary import Summary, Table, count_of
from headrace.spark.jobs.target import hold_target, replace_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.spark.scan import LogSplit

PLACE: Final = ("store_ts", "broker", "log_offset", "queue_id", "queue_offset")
"""Where a message is; in this order they say which of two is the earlier. Many are stored in one millisecond: the
log of a broker says in which order, and of two brokers nobody knows."""
CONTENT: Final = (
    "topic", "broker", "queue_id", "queue_offset", "log_offset", "unique_key", "keys", "tags", "flag", "sys_flag",
    "born_ts", "store_ts", "body", "properties",
)  # fmt: skip
DAY_US: Final = 86_400_000_000
MAX_PLACES: Final = 10
"""Of one key, in the report."""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job dedup``."""

    archive: Path | None = option(None, help="Folder of an archive to read instead of a log.", metavar="DIR")
    by: Literal["unique_key", "keys"] = option("unique_key", help="What makes two messages of a topic the same.")
    keep: Literal["first", "last"] = option("first", help="Which message of a key is written.")
    to: Path | None = option(None, help="Write each key once to this folder, as Parquet.", metavar="DIR")
    to_topic: str = option("", help="Write each key once to this topic (of --servers).", metavar="TOPIC")
    skip_unsendable: bool = option(
        False, help="Leave out messages that cannot be sent, as too long ones, and list them."
    )
    report: Path | None = option(None, help="Write all duplicates to this folder, as Parquet.", metavar="DIR")
    top: int = option(20, help="Rows in the table of the summary.", least=1, most=10_000)

    def validate(self) -> None:
        """Check what belongs together."""
        if self.archive is None:
            self.require_source()
        elif self.store is not None:
            raise ConfigError("name either --archive DIR or --store DIR", key="archive")
        else:
            manifest.require_archive(self.archive)
        if self.to is not None and self.report is not None:
            to, report = self.to.resolve(), self.report.resolve()
            if to.is_relative_to(report) or report.is_relative_to(to):
                raise ConfigError("--to and --report are two folders: the one would replace the other", key="report")
        if self.to_topic and not self.servers:
            raise ConfigError("--to-topic needs --servers: messages are written to a running cluster", key="to_topic")
        require_target_topic(self.to_topic, "--to-topic")
        if self.to_topic and (not self.topics or self.to_topic in self.topics):
            raise ConfigError(
                "--to-topic needs --topics, and must not be one of them: the job would read what it writes",
                key="to_topic",
            )


def run(spark: SparkSession, config: Config) -> Summary:
    """Look for duplicates, and write what was asked for.

    Raises:
        ConfigError: wrong use.
        FolderBusyError: another run writes to one of the folders.
        HeadraceError: the messages cannot be read or written.
    """
    summary = Summary(job="dedup", dry_run=config.dry_run)
    with (
        hold_target(config.to, "to", dry_run=config.dry_run),
        hold_target(config.report, "report", dry_run=config.dry_run),
    ):
        phase("looking for duplicates")
        places = plan_messages(spark, config, summary)
        keyed = read_messages(spark, config, places, ("topic", config.by, *PLACE)).withColumnRenamed(config.by, "key")
        counted = groups_of(keyed).persist()
        try:
            _summarise(counted, keyed, config, summary)
            if config.dry_run:
                return summary
            if config.to is not None:
                _require_folders(counted, config.to)
            if config.report is not None:
                replace_folder(duplicates(counted), config.report)
                summary.facts["report"] = str(config.report)
            if config.to is not None or config.to_topic:
                phase("writing each key once")
                kept = compacted(read_messages(spark, config, places, CONTENT), counted, config)
                if config.to is not None:
                    # The day in UTC, whatever time zone the session has.
                    day = F.date_from_unix_date(F.floor(F.unix_micros("store_ts") / DAY_US).cast("int"))
                    replace_folder(kept.withColumn("dt", day), config.to, "topic", "dt")
                    summary.facts["to"] = str(config.to)
                if config.to_topic:
                    answers = publish(
                        as_messages(kept, config), config, txn=_identity(config), topic=config.to_topic,
                        named_by="message", skip_unsendable=config.skip_unsendable,
                    )  # fmt: skip
                    summarise_skipped(summary, answers)
                    summary.facts["to_topic"] = config.to_topic
                    summary.facts["sent"] = sum(answer["stored"] for answer in answers)
                summary.facts["kept_messages"] = summary.facts["messages"] - summary.facts["surplus"]
        finally:
            counted.unpersist()
            note_damage(summary)
    return summary


def plan_messages(spark: SparkSession, config: Config, summary: Summary) -> list[LogSplit] | list[str]:
    """Return where the messages are that a configuration names: ranges of logs, or files of an archive.

    Both passes read the same: a message that came between them would be a duplicate that nobody has counted.

    Raises:
        ConfigError: there is no such topic, or no archive.
        ClientError, StoreError, ArchiveError: the messages cannot be looked at.
    """
    if config.archive is None:
        require_topics(source_of(config), config.topics)
        return plan_between(spark, config, summary, since=config.since, until=config.until)
    archive = manifest.load(config.archive)
    require_known_topics(config.topics, archive.known_topics, "in the archive")
    files = archive.select(topics=config.topics, since=config.since, until=config.until)
    return [read_path(archive.locate(file)) for file in files]


def read_messages(
    spark: SparkSession, config: Config, places: list[LogSplit] | list[str], columns: tuple[str, ...]
) -> DataFrame:
    """Return these columns of the messages at ``places``.

    Raises:
        ConfigError: an archive lacks one.
    """
    if config.archive is None or not places:
        limits = {"topics": config.topics or None, "start_ms": config.since, "end_ms": config.until}
        return rows_of(spark, cast("list[LogSplit]", places), columns, **limits)
    rows = read_files(spark, cast("list[str]", places))
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise ConfigError(f"the archive {config.archive} has no column {missing[0]}", key="archive")
    for condition in wanted_rows(config):
        rows = rows.where(condition)
    return rows.select(*columns)


def groups_of(keyed: DataFrame) -> DataFrame:
    """Return (topic, key, count, first, last) of each key; ``key`` is null in the row of those that have none."""
    place = F.struct(*PLACE)
    key = F.when(F.col("key") != "", F.col("key"))
    return (
        keyed.groupBy("topic", key.alias("key"))
        .agg(F.count(F.lit(1)).alias("count"), F.min(place).alias("first"), F.max(place).alias("last"))
    )  # fmt: skip


def duplicates(groups: DataFrame) -> DataFrame:
    """Return the keys that are there more than once, with the seconds between their first and last message."""
    apart = F.unix_micros("last.store_ts") - F.unix_micros("first.store_ts")
    return groups.where(F.col("key").isNotNull() & (F.col("count") > 1)).withColumn("seconds_apart", apart / 1e6)


def compacted(messages: DataFrame, groups: DataFrame, config: Config) -> DataFrame:
    """Return the messages that are kept: one of each key, and all without a key."""
    # Only of keys that are there twice does anything go; there are few of them as a rule.
    twice = duplicates(groups).select("topic", F.col("key").alias(config.by), F.col(config.keep).alias("kept"))
    joined = messages.join(twice, ["topic", config.by], "left")
    is_kept = (F.col("broker") == F.col("kept.broker")) & (F.col("log_offset") == F.col("kept.log_offset"))
    return joined.where(F.col("kept").isNull() | is_kept).select(*messages.columns)


def as_messages(rows: DataFrame, config: Config) -> DataFrame:
    """Return rows as the sink takes them, each with a unique key of its own.

    That is the producer's where it tells the kept messages apart, else one made of the message's position.
    """
    key = F.concat_ws(":", "broker", F.col("log_offset").cast("string"))
    if _keeps_keys(config):
        key = F.when(F.col("unique_key") != "", F.col("unique_key")).otherwise(key)
    return rows.select(
        "body", "tags", "keys", "properties", "flag", "sys_flag", born(), key.alias("unique_key"),
        name_of().alias("message"),
    )  # fmt: skip


def _keeps_keys(config: Config) -> bool:
    """Return whether the producer's unique keys tell the kept messages apart."""
    return config.by == "unique_key" and len(config.topics) == 1


def _identity(config: Config) -> str:
    """Return under which name brokers remember the keys that were written, which is that of all runs like this one.

    Messages of two topics may have one unique key, and are not the same for it.
    """
    return f"dedup:{config.to_topic}:{config.topics[0]}" if _keeps_keys(config) else f"dedup:{config.to_topic}"


def _require_folders(counted: DataFrame, to: Path) -> None:
    """Refuse topics for which Spark could make no folder, before it has deleted what is there.

    Raises:
        ConfigError: a name is longer than a file system takes.
    """
    from headrace.spark.jobs.archive_files import LONGEST_NAME, escape  # noqa: PLC0415  # needs pyarrow

    for row in counted.select("topic").distinct().collect():
        size = len(f"topic={escape(row['topic'])}".encode())
        if size > LONGEST_NAME:
            raise ConfigError(
                f"--to {to}: the folder of topic {row['topic']!r} would have a name of {size} bytes, and file systems "
                f"take {LONGEST_NAME}: name the other topics with --topics, or write to a topic with --to-topic",
                key="to",
            )


def _summarise(counted: DataFrame, keyed: DataFrame, config: Config, summary: Summary) -> None:
    is_twice = F.col("key").isNotNull() & (F.col("count") > 1)
    total = counted.agg(
        F.sum("count").alias("messages"),
        F.sum(F.when(F.col("key").isNull(), F.col("count"))).alias("without_key"),
        F.count("key").alias("keys"),
        F.count(F.when(is_twice, 1)).alias("duplicated_keys"),
        F.sum(F.when(is_twice, F.col("count") - 1)).alias("surplus"),
    ).first()
    assert total is not None
    for name in ("messages", "without_key", "keys", "duplicated_keys", "surplus"):
        summary.facts[name] = total[name] or 0
    if summary.facts["without_key"]:
        summary.notes.append(
            count_of(
                summary.facts["without_key"],
                f"message has no {config.by}: it counts as different",
                f"messages have no {config.by}: they count as different",
            )
        )
    worst = duplicates(counted).orderBy(F.desc("count"), F.desc("seconds_apart"), "topic", "key").limit(config.top)
    # Times as numbers: Python has no local time for the first and last hours of the years 1 to 9999.
    begin = F.unix_millis("first.store_ts").alias("begin")
    rows = worst.select("topic", "key", "count", begin, "seconds_apart").collect()
    places = _places(keyed, rows) if rows else {}
    summary.tables.append(
        Table(
            "duplicates",
            "Keys that are there most often",
            ("topic", "key", "count", "first_stored", "seconds_apart", "places"),
            [
                [
                    row["topic"],
                    row["key"],
                    row["count"],
                    show_time(row["begin"]),
                    row["seconds_apart"],
                    places.get((row["topic"], row["key"]), []),
                ]
                for row in rows
            ],
        )
    )


def _places(keyed: DataFrame, rows: list[Row]) -> dict[tuple[str, str], list[str]]:
    """Return where the messages of the shown keys are, ``broker/queue@queue offset``."""
    from pyspark.sql import Window  # noqa: PLC0415  # pyspark

    keys = [row["key"] for row in rows]
    number = F.row_number().over(Window.partitionBy("topic", "key").orderBy(*PLACE))
    # Cut down before they come to the driver: all messages of a topic may have one key.
    found = keyed.where(F.col("key").isin(keys)).withColumn("number", number).where(F.col("number") <= MAX_PLACES)
    places: dict[tuple[str, str], list[str]] = {}
    for row in found.orderBy("number").select("topic", "key", "broker", "queue_id", "queue_offset").collect():
        of_key = places.setdefault((row["topic"], row["key"]), [])
        of_key.append(f"{row['broker']}/{row['queue_id']}@{row['queue_offset']}")
    return places
