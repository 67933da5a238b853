"""Explain dead letters and retries: which groups gave up what, why, since when, and how many; send them again.

Reads the topics %DLQ%GROUP (given up) and %RETRY%GROUP (to be tried again) of a log. The reason is taken from a
property of the message, where the application left one (--cause), with numbers and ids taken out so that equal reasons
count together; else it is how often the message was tried. --to writes every dead letter to Parquet, with the topic it
was published to: the list of what to send again. --resend sends them to those topics, with ORIGIN_MESSAGE_ID as it was;
a second run sends only what is new, a message that was given up again among it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.format.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from headrace.spark import functions as F  # noqa: N812  # as PySpark calls them
from headrace.spark.errors import UnsendableError
from headrace.spark.jobs.config import JobConfig, option, show_time, unknown
from headrace.spark.jobs.log_rows import note_damage, plan_between, require_topics, rows_of, source_of
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.publishing import born, closed_topics, name_of, publish, summarise_skipped
from headrace.spark.jobs.search import show_body
from headrace.spark.jobs.summary import Summary, Table, count_of
from headrace.spark.jobs.target import hold_target, replace_folder
from headrace.spark.session import settings_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.spark.scan import LogSplit

COLUMNS: Final = (
    "topic", "broker", "queue_id", "queue_offset", "log_offset", "msg_id", "unique_key", "keys", "tags", "flag",
    "sys_flag", "reconsume_times", "born_ts", "store_ts", "body", "properties",
)  # fmt: skip
ORIGIN_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
CAUSES: Final = ("EXCEPTION", "exception", "ERROR", "error", "REASON", "reason", "CAUSE", "cause")
"""Properties that applications leave a reason in, the first that is there counts."""
NOT_SENT: Final = (
    ORIGIN_TOPIC, "DELAY", "REAL_TOPIC", "REAL_QID", "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "MAX_RECONSUME_TIMES",
    "RECONSUME_TIME", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID",
)  # fmt: skip
"""Properties of the failure, or that have columns of their own."""
SECONDS_OF_A_DAY: Final = 86_400
LAST_WINS: Final = {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}
"""Names of properties that are no UTF-8 may be one name in a column: Spark would refuse them all for it."""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job deadletters``."""

    groups: tuple[str, ...] = option((), help="Only these consumer groups; all by default.")
    cause: tuple[str, ...] = option(
        CAUSES, help="Properties that may hold the reason of a failure; the first that a message has counts."
    )
    top: int = option(10, help="Causes shown.", least=1, most=1_000)
    samples: int = option(3, help="Bodies shown of each cause.", least=0, most=100)
    to: Path | None = option(None, help="Write all dead letters to this folder, as Parquet.", metavar="DIR")
    resend: bool = option(False, help="Send the dead letters to the topics they were published to (of --servers).")
    skip_unsendable: bool = option(
        False, help="Leave out messages that cannot be sent, as too long ones, and list them."
    )

    def validate(self) -> None:
        """Check what belongs together."""
        if self.resend and not self.servers:
            raise ConfigError("--resend needs --servers: messages are written to a running cluster", key="resend")
        self.require_source()


def run(spark: SparkSession, config: Config) -> Summary:
    """Explain dead letters, and send them again if asked to.

    Raises:
        ConfigError: wrong use, or a named topic does not exist.
        FolderBusyError: another run writes to the folder.
        HeadraceError: the log cannot be read, or messages not be written.
    """
    summary = Summary(job="deadletters", dry_run=config.dry_run)
    with hold_target(config.to, "to", dry_run=config.dry_run):
        phase("reading dead letters and retries")
        letters = read_letters(spark, config, summary).persist()
        try:
            _summarise(letters, config, summary)
            dead = letters.where(F.col("kind") == "dead")
            if config.dry_run:
                return summary
            if config.to is not None:
                phase("writing the list")
                replace_folder(dead.drop("kind"), config.to)
                summary.facts["list"] = str(config.to)
            if config.resend:
                phase("sending again")
                with settings_of(spark, LAST_WINS):
                    _resend(dead, config, summary)
        finally:
            letters.unpersist()
            note_damage(summary)
    return summary


def read_letters(spark: SparkSession, config: Config, summary: Summary) -> DataFrame:
    """Return the messages of dead-letter and retry topics with what is known of their failure.

    Columns: those of ``COLUMNS``, and ``kind`` (dead or retry), ``group``, ``origin_topic`` (null when the message does
    not say), ``origin_id``, ``cause``.
    """
    wanted = [prefix + group for group in config.groups for prefix in (DEAD_LETTER_PREFIX, RETRY_PREFIX)]
    splits = plan_between(spark, config, summary, since=config.since, until=config.until)
    limits: dict[str, Any] = {"start_ms": config.since, "end_ms": config.until, "retry_topics": True}
    if wanted:
        limits["topics"] = wanted
    else:
        limits["topics"] = failed_topics(spark, splits)
        if not limits["topics"]:
            splits = []
    rows = rows_of(spark, splits, COLUMNS, **limits)
    is_dead = F.startswith("topic", F.lit(DEAD_LETTER_PREFIX))
    rows = rows.withColumns(
        {
            "kind": F.when(is_dead, "dead").otherwise("retry"),
            "group": F.regexp_replace("topic", "^%(DLQ|RETRY)%", ""),
            "origin_topic": F.nullif(F.coalesce(_property(ORIGIN_TOPIC), _property("DLQ_ORIGIN_TOPIC")), F.lit("")),
            "origin_id": F.coalesce(_property(ORIGIN_ID), _property("DLQ_ORIGIN_MESSAGE_ID")),
            "cause": cause_of(config.cause),
        }
    )
    return rows.where(F.col("origin_topic").isin(list(config.topics))) if config.topics else rows


def failed_topics(spark: SparkSession, splits: Sequence[LogSplit]) -> list[str]:
    """Return the dead-letter and retry topics that have messages in the splits: one narrow pass, a few rows a task."""
    from headrace.spark.schema import arrow_schema  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.tasks import collect_from_tasks  # noqa: PLC0415  # pyspark

    return sorted({row["topic"] for row in collect_from_tasks(spark, splits, _failed_in, arrow_schema(("topic",)))})


def _failed_in(split: LogSplit) -> Iterator[pa.RecordBatch]:
    """Yield each such topic of a split once."""
    import pyarrow as pa  # noqa: PLC0415  # an extra

    from headrace.spark.scan import read_split  # noqa: PLC0415  # needs pyarrow

    known: set[str] = set()
    for batch in read_split(split, ("topic",), retry_topics=True):
        known.update(batch.column(0).unique().to_pylist())
    failed = [topic for topic in known if topic.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX))]
    yield pa.record_batch([pa.array(failed, pa.string())], names=["topic"])


def cause_of(names: tuple[str, ...]) -> Column:
    """Return why a message failed, as far as it says: equal causes are equal texts."""
    said = F.coalesce(*(F.nullif(_property(name), F.lit("")) for name in names)) if names else F.lit(None)
    line = F.trim(F.element_at(F.split(said.cast("string"), r"\R"), 1))
    plain = F.regexp_replace(F.substring(line, 1, 300), r"(?i)\b(0x)?[0-9a-f]{8}[0-9a-f-]*\b", "#")
    plain = F.regexp_replace(plain, r"\d+", "#")
    times = F.format_string("no reason given, tried %d times", F.col("reconsume_times"))
    return F.coalesce(F.nullif(plain, F.lit("")), times)


def _property(name: str) -> Column:
    return F.try_element_at("properties", F.lit(name))


def newest_of_each(dead: DataFrame) -> DataFrame:
    """Return the newest dead letter of each message: what two groups gave up is sent once, and both get it.

    A message is one unique key in one topic; one without a key is the one that its first id names.
    """
    from pyspark.sql import Window  # noqa: PLC0415  # pyspark

    message = F.coalesce(F.nullif(F.col("unique_key"), F.lit("")), F.col("origin_id"), place_of())
    newest = Window.partitionBy("origin_topic", message).orderBy(
        F.desc("store_ts"), F.desc("broker"), F.desc("log_offset")
    )
    return dead.withColumn("number", F.row_number().over(newest)).where(F.col("number") == 1).drop("number")


def place_of() -> Column:
    """Return where a dead letter lies. Brokers know it by that: it is sent once, one that came after it anew."""
    return F.concat_ws(":", F.lit("dlq"), "broker", F.col("log_offset").cast("string"))


def as_messages(dead: DataFrame) -> DataFrame:
    """Return dead letters as the sink takes them: to where they were published first, with their first id kept."""
    kept = F.map_filter("properties", lambda name, _: ~name.isin(list(NOT_SENT)))
    origin = F.when(F.col("origin_id").isNotNull(), F.create_map(F.lit(ORIGIN_ID), "origin_id"))
    kept = F.map_concat(
        F.map_filter(kept, lambda name, _: name != ORIGIN_ID),
        F.coalesce(origin, F.create_map().cast("map<string,string>")),
    )
    return dead.select(
        F.col("origin_topic").alias("topic"),
        "body",
        "tags",
        "keys",
        "flag",
        "sys_flag",
        born(),
        kept.alias("properties"),
        place_of().alias("unique_key"),
        name_of().alias("message"),
    )


def _resend(dead: DataFrame, config: Config, summary: Summary) -> None:
    known = dead.where(F.col("origin_topic").isNotNull())
    lost = summary.facts["dead_letters"] - known.count()
    if lost:
        summary.notes.append(
            count_of(
                lost,
                "dead letter does not say which topic it is from; it was not sent",
                "dead letters do not say which topic they are from; they were not sent",
            )
        )
    messages = as_messages(newest_of_each(known))
    counts = {row["topic"]: row["count"] for row in messages.groupBy("topic").count().orderBy("topic").collect()}
    closed = closed_topics(config, counts)
    if closed and not config.skip_unsendable:
        # Before anything is sent: where a task finds out, others have sent what they had.
        raise UnsendableError(f"of topic {next(iter(closed))!r}", next(iter(closed.values())))
    answers = publish(
        messages.where(~F.col("topic").isin(list(closed))) if closed else messages,
        config,
        txn="headrace-deadletters",
        named_by="message",
        skip_unsendable=config.skip_unsendable,
    )
    answers += [
        {"rows": 0, "stored": 0, "skipped": counts[topic], "listed": [(f"{counts[topic]} of topic {topic!r}", reason)]}
        for topic, reason in closed.items()
    ]
    summary.facts["chosen"] = sum(answer["rows"] + answer["skipped"] for answer in answers)
    summary.facts["sent"] = sum(answer["stored"] for answer in answers)
    summarise_skipped(summary, answers)
    summary.notes.append(
        "the chosen dead letters that could be sent are in their topics, once; sent does not count those that an "
        "earlier run has sent, or this one before an answer or a task was lost; every group of those topics gets them, "
        "not only the one that gave them up"
    )


def _summarise(letters: DataFrame, config: Config, summary: Summary) -> None:
    stored = F.unix_millis("store_ts")
    by_group = (
        letters.groupBy("kind", "group", "origin_topic")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.min(stored).alias("first"),
            F.max(stored).alias("last"),
            F.max("reconsume_times").alias("most_tries"),
        )
        .orderBy(F.desc("messages"), "kind", "group", "origin_topic")
        .collect()
    )
    for kind, fact in (("dead", "dead_letters"), ("retry", "retries")):
        summary.facts[fact] = sum(row["messages"] for row in by_group if row["kind"] == kind)
    groups = {row["group"] for row in by_group}
    summary.facts["groups_found"] = len(groups)  # "groups" is their list
    # Topics that were deleted may have dead letters all the same.
    require_topics(source_of(config), sorted(set(config.topics) - {row["origin_topic"] for row in by_group}))
    summary.notes += _unknown_groups(config, sorted(set(config.groups) - groups))
    firsts = [row["first"] for row in by_group if row["kind"] == "dead" and row["first"] is not None]
    summary.facts["since"] = show_time(min(firsts)) if firsts else None
    summary.tables.append(
        Table(
            "groups",
            "By group and the topic messages were published to",
            ("group", "kind", "origin_topic", "messages", "first", "last", "most_tries"),
            [
                [row["group"], row["kind"], row["origin_topic"], row["messages"], show_time(row["first"]),
                 show_time(row["last"]), row["most_tries"]]
                for row in by_group
            ],
        )
    )  # fmt: skip
    summary.tables.append(_ages(letters))
    _causes(letters, config, summary)


def _unknown_groups(config: Config, groups: list[str]) -> list[str]:
    """Return a sentence about each of ``groups`` that has neither a dead-letter nor a retry topic."""
    if not groups:
        return []
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.scan import StoreSource  # noqa: PLC0415  # needs pyarrow

    source = source_of(config)
    topics = source.files().topics() if isinstance(source, StoreSource) else cluster_of(source).topics()
    prefixes = (DEAD_LETTER_PREFIX, RETRY_PREFIX)
    known = {topic.removeprefix(prefix) for topic in topics or () for prefix in prefixes if topic.startswith(prefix)}
    return [
        unknown(f"group {group!r} with dead letters or retries", group, known) for group in groups if group not in known
    ]


def _ages(letters: DataFrame) -> Table:
    """Return how old dead letters are."""
    bounds = (("last hour", 3_600), ("last day", SECONDS_OF_A_DAY), ("last week", 7 * SECONDS_OF_A_DAY))
    age = F.lit(int(time.time())) - F.unix_seconds("store_ts")
    name = F.lit("older")
    for label, seconds in reversed(bounds):
        name = F.when(age <= seconds, label).otherwise(name)
    counts = letters.where(F.col("kind") == "dead").groupBy(name.alias("age")).count().collect()
    found = {row["age"]: row["count"] for row in counts}
    order = [*(label for label, _ in bounds), "older"]
    return Table("ages", "Age of the dead letters", ("age", "messages"), [[one, found.get(one, 0)] for one in order])


def _causes(letters: DataFrame, config: Config, summary: Summary) -> None:
    dead = letters.where(F.col("kind") == "dead")
    stored = F.unix_millis("store_ts")
    top = (
        dead.groupBy("group", "cause")
        .agg(F.count(F.lit(1)).alias("messages"), F.min(stored).alias("first"), F.max(stored).alias("last"))
        .orderBy(F.desc("messages"), "group", "cause")
        .limit(config.top)
        .collect()
    )
    columns = ("group", "cause", "messages", "first", "last")
    shown = [
        [row["group"], row["cause"], row["messages"], show_time(row["first"]), show_time(row["last"])] for row in top
    ]
    summary.tables.append(Table("causes", "Most frequent causes", columns, shown))
    if config.samples and top:
        summary.tables.append(_samples(dead, {(row["group"], row["cause"]) for row in top}, config.samples))


def _samples(dead: DataFrame, causes: set[tuple[str, str]], count: int) -> Table:
    """Return the newest ``count`` dead letters of each (group, cause)."""
    from pyspark.sql import Window  # noqa: PLC0415  # pyspark

    newest = Window.partitionBy("group", "cause").orderBy(F.desc("store_ts"), F.desc("log_offset"))
    rows = (
        dead.where(F.col("cause").isin(sorted({cause for _, cause in causes})))
        .withColumn("number", F.row_number().over(newest))
        .where(F.col("number") <= count)
        .select("group", "cause", "origin_topic", "msg_id", "keys", "body", "number")
        .orderBy("group", "cause", "number")
        .collect()
    )
    return Table(
        "samples",
        "Newest dead letters of each cause",
        ("group", "cause", "origin_topic", "msg_id", "keys", "body"),
        [
            [row["group"], row["cause"], row["origin_topic"], row["msg_id"], row["keys"], show_body(row["body"])]
            for row in rows
            if (row["group"], row["cause"]) in causes
        ],
    )
