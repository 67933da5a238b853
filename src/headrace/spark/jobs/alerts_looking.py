"""What ``headrace job alerts`` does: reading minutes, judging them in tasks, writing what was found."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.errors import HeadraceError
from headrace.format.side_file import sync_folder
from headrace.spark.jobs import alerts_model, stats_tables
from headrace.spark.jobs.alerts import Config
from headrace.spark.jobs.alerts_brokers import silent_brokers
from headrace.spark.jobs.alerts_series import (
    COUNTS,
    DAY,
    LEVELS,
    MINUTE_MS,
    MinuteSeries,
    features,
    judge,
    reach_minutes,
)
from headrace.spark.jobs.broker_counts import broker_counts, note_uncounted
from headrace.spark.jobs.config import require_known_topics, show_time
from headrace.spark.jobs.folder import hold_folder
from headrace.spark.jobs.log_rows import plan_between, require_topics, source_of
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.publishing import publish
from headrace.spark.jobs.stats_placing import mark_of
from headrace.spark.jobs.summary import Summary, Table

logger = logging.getLogger(__name__)

MODEL_RULE: Final = "model"
TRAINING_DAYS: Final = 2
LOCK: Final = ".alerts.lock"
_WAIT_S: Final = 60.0
"""For another job that adds alerts to the same folder, or puts hours of tables in place, which takes it a moment."""
_LOOK_AGAIN_S: Final = 0.05
_TRIES: Final = 5
"""To read tables that a run changes meanwhile; it does so twice, minutes apart as a rule."""
NEAR_MS: Final = 10 * MINUTE_MS
"""An alert of the model this near to one of a rule says nothing new."""

ALERT_SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("broker", pa.string()),
        ("rule", pa.string()),
        ("score", pa.float64()),
        ("value", pa.float64()),
        ("baseline", pa.float64()),
        ("minutes", pa.int64()),
        ("explanation", pa.string()),
    ]
)
UNCOUNTED: Final = ("damaged", "left_out")
"""Columns of ``broker_counts`` that say what is missing in its rows."""
_JUDGED_SCHEMA: Final = pa.schema([*ALERT_SCHEMA, ("features", pa.list_(pa.field("element", pa.float64())))])
"""Of alerts, and of minutes with features: those have no rule."""


class TablesBusyError(HeadraceError):
    """Tables cannot be read as one run left them."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """What one look found in the minutes [since, until), ms since 1970.

    Attributes:
        series, minutes: How many were judged.
        uncounted: Sums of the columns ``UNCOUNTED``.
        model: Of which the summary tells: threshold and rows.
    """

    since: int
    until: int
    found: list[dict[str, Any]]
    series: int = 0
    minutes: int = 0
    uncounted: tuple[int, int] = (0, 0)
    model: dict[str, float] = field(default_factory=dict)


def look_once(spark: SparkSession, config: Config, summary: Summary) -> list[dict[str, Any]]:
    """Judge the minutes of [since, until) once; write what was found, and return it. Raises: as ``alerts.run``."""
    judge_now = partial(_judge, spark, config, summary)
    judged = judge_now() if config.tables is None else _undisturbed(judge_now, config.tables)
    if judged.since >= judged.until:
        if config.tables is not None and not summary.facts:
            summary.notes.append(f"the tables end at {show_time(judged.until)}: run headrace job stats first")
        if config.fit:
            summary.notes.append("there are no minutes to judge, so no model was made")
        return []
    if not config.dry_run and judged.found:
        write_found(spark, judged.found, config)
    note_uncounted(summary, *judged.uncounted)
    facts = summary.facts
    facts |= judged.model
    facts["since"], facts["until"] = facts.get("since", show_time(judged.since)), show_time(judged.until)
    facts["until_ms"] = judged.until  # the next look begins there: when all that this one found is written
    facts["series"] = judged.series
    facts["minutes_judged"] = facts.get("minutes_judged", 0) + judged.minutes
    facts["alerts"] = facts.get("alerts", 0) + len(judged.found)
    return judged.found


def _undisturbed(judge_now: Callable[[], _Judged], tables: Path) -> _Judged:
    """Judge tables as one run of ``headrace job stats`` left them, however often others run meanwhile.

    Raises:
        TablesBusyError: they are not left as they are for long enough.
    """
    for _ in range(_TRIES):
        mark = _wait_for(tables)
        try:
            judged = judge_now()
        except Exception:  # raised, unless what it met was the change: files that were there are not any more
            if mark_of(tables) == mark:
                raise
        else:
            if mark_of(tables) == mark:
                return judged
        logger.info("tables changed while they were read, they are read again path=%s", tables)
    raise TablesBusyError(f"{tables}: headrace job stats changed the tables each of {_TRIES} times that they were read")


def _wait_for(tables: Path) -> int:
    """Return the tables' ``mark_of`` when they are whole. Raises: as ``_undisturbed``."""
    deadline = time.monotonic() + _WAIT_S
    while (mark := mark_of(tables)) is None:
        if time.monotonic() >= deadline:
            raise TablesBusyError(
                f"{tables}: headrace job stats puts hours in place, or was killed when it did: run it again, it goes on"
            )
        time.sleep(_LOOK_AGAIN_S)
    return mark


def _judge(spark: SparkSession, config: Config, summary: Summary) -> _Judged:
    """Judge the minutes of [since, until); the summary learns what is missing in a log."""
    until = _newest(spark, config)  # what is not there yet is no silence
    if config.until is not None:
        # Whoever names the end takes a last minute that the tables may have in part.
        until = min(config.until, until if config.tables is None else until + MINUTE_MS)
    until = until // MINUTE_MS * MINUTE_MS
    since = (until - 60 * MINUTE_MS if config.since is None else config.since) // MINUTE_MS * MINUTE_MS
    if since >= until:
        return _Judged(since, until, [])
    phase("reading minutes")
    begin = since - reach_minutes(config) * MINUTE_MS
    minutes = read_minutes(spark, config, summary, begin, until).persist()
    train = until - TRAINING_DAYS * DAY * MINUTE_MS if config.fit else since
    judged = judge_all(minutes.where(F.col("topic") != ""), config, since, until, train).persist()
    try:
        if config.topics and "since" not in summary.facts:  # the first look
            _require_topics(spark, config, {row["topic"] for row in minutes.select("topic").distinct().collect()})
        uncounted = minutes.agg(*(F.sum(name).alias(name) for name in UNCOUNTED)).first()
        assert uncounted is not None
        phase("judging")
        by_rules: list[dict[str, Any]] = judged.where(F.col("rule").isNotNull()).drop("features").toArrow().to_pylist()
        # Minutes that only the model is made of are there too.
        counted = judged.where(F.col("rule").isNull() & (F.unix_millis("time") >= since)).agg(
            F.count(F.lit(1)).alias("minutes"), F.countDistinct("topic", "group").alias("series")
        )
        row = counted.first()
        assert row is not None
        gone = _silent(minutes, since, until, config) if config.tables is not None else []
        model, by_model = _ask_model(spark, judged, config, since) if config.model is not None else ({}, [])
    finally:
        judged.unpersist()
        minutes.unpersist()
    return _Judged(
        since, until, by_rules + without_known(by_model, by_rules) + gone, row["series"], row["minutes"],
        (uncounted["damaged"] or 0, uncounted["left_out"] or 0), model,
    )  # fmt: skip


def _silent(minutes: DataFrame, since: int, until: int, rules: Config) -> list[dict[str, Any]]:
    rows = minutes.select("time_ms", "broker").distinct().toArrow()
    times, brokers = rows.column("time_ms").to_numpy(), rows.column("broker")
    seen = {one: times[pc.equal(brokers, one).to_numpy()] for one in pc.unique(brokers).to_pylist()}
    return silent_brokers(seen, since, until, rules)


def _require_topics(spark: SparkSession, config: Config, counted: Set[str]) -> None:
    """Refuse named topics that do not exist: no alert would say that they are quiet.

    Args:
        counted: Topics of which there are minutes; one that was deleted may have some.

    Raises:
        ConfigError: there is no such topic, with the nearest one.
    """
    quiet = sorted(set(config.topics) - counted)
    if not quiet or config.tables is None:
        require_topics(source_of(config), quiet)
        return
    rows = stats_tables.read_table(spark, config.tables, "minute").select("topic").distinct().collect()
    known = {row["topic"] for row in rows} - {""}
    require_known_topics(quiet, known, "in the tables")


def _newest(spark: SparkSession, config: Config) -> int:
    """Return the end of the minutes that can be judged now, ms since 1970."""
    # Records of the last minute are written when it is over, a little later.
    now = int(time.time() * 1000) - MINUTE_MS
    if config.tables is None:
        return now
    # Messages of a clock that was ahead do not say how far the tables are.
    hours = [hour for hour in stats_tables.hours_there(config.tables) if hour <= stats_tables.hour_of(now)]
    if not hours:
        return now
    # What the tables do not have yet is no silence, and of their last minute they may have the beginning only.
    rows = stats_tables.read_table(spark, config.tables, "minute").where(F.concat("dt", "hour") == max(hours))
    last = rows.agg(F.max(F.unix_millis("time")).alias("last")).first()
    return now if last is None or last["last"] is None else min(now, int(last["last"]))


def read_minutes(spark: SparkSession, config: Config, summary: Summary, since: int, until: int) -> DataFrame:
    """Return rows for minutes of [since, until), with the measures of ``alerts_series``.

    They are of a topic, group, broker and source: lags of a group and a channel of one name stand side by side.

    What brokers counted in no row is in rows without a topic, see ``note_uncounted``.
    """
    if config.tables is not None:
        rows = stats_tables.read_table(spark, config.tables, "minute")
        days = [show_time(at)[:10] for at in (since, until)]
        rows = rows.where(F.col("dt").between(*days)).withColumns({name: F.lit(0) for name in UNCOUNTED})
    else:
        splits = plan_between(spark, config, summary, since=since, until=None) if config.store is not None else []
        rows = broker_counts(spark, config, splits, since=since, until=until)
        rows = rows.withColumn("latency_p99_ms", F.lit(None).cast("double"))
    at = F.unix_millis("time")
    is_wanted = F.col("topic").isin(list(config.topics)) if config.topics else F.col("topic") != ""
    is_uncounted = (F.col("damaged") > 0) | (F.col("left_out") > 0)
    rows = rows.where(((at >= since) & (at < until) & is_wanted) | is_uncounted)
    # A broker that stopped and started may say two lags of a minute.
    return rows.groupBy(F.unix_millis("time").alias("time_ms"), "topic", "group", "broker", "source").agg(
        *(F.sum(name).alias(name) for name in (*COUNTS, *UNCOUNTED)), *(F.max(name).alias(name) for name in LEVELS)
    )


def judge_all(minutes: DataFrame, config: Config, since: int, until: int, train: int) -> DataFrame:
    """Return alerts of [since, until), and features of the minutes of [min(train, since), until)."""

    def judge_one(table: pa.Table) -> pa.Table:
        return judge_table(table, config, since, until, min(train, since))

    return minutes.groupBy("topic", "group").applyInArrow(judge_one, from_arrow_schema(_JUDGED_SCHEMA))


def judge_table(table: pa.Table, config: Config, since: int, until: int, train: int) -> pa.Table:
    """Judge the minutes of one topic and group: what runs in a task."""
    measures = {name: table.column(name).to_pylist() for name in (*COUNTS, *LEVELS)}
    said_by = pc.binary_join_element_wise(table.column("broker"), table.column("source"), " ").to_pylist()
    series = MinuteSeries(table.column("time_ms").to_pylist(), measures, until, said_by)
    topic, group = (table.column(name)[0].as_py() for name in ("topic", "group"))
    begin, end = series.place(since), series.place(until)
    rows = [
        {
            "time": series.time_ms(one.at) * 1000, "topic": topic, "group": group, "broker": "", "rule": one.rule,
            "score": one.score, "value": one.value, "baseline": one.baseline, "minutes": one.minutes,
            "explanation": one.explanation,
        }
        for one in judge(series, begin, end, config)
    ]  # fmt: skip
    alerts = pa.Table.from_pylist(rows, schema=_JUDGED_SCHEMA)
    first = series.place(train)
    if first >= end:
        return alerts
    moments = np.array([series.time_ms(place) * 1000 for place in range(first, end)])
    times = pa.array(moments).cast(_JUDGED_SCHEMA.field("time").type)
    count = end - first
    blank = {field.name: pa.nulls(count, field.type) for field in _JUDGED_SCHEMA}
    known: dict[str, Any] = {"time": times, "topic": pa.array([topic] * count), "group": pa.array([group] * count)}
    if config.model is not None:
        known["features"] = pa.array(
            features(series, first, end, config).tolist(), _JUDGED_SCHEMA.field("features").type
        )
    return pa.concat_tables([alerts, pa.table(blank | known, schema=_JUDGED_SCHEMA)])


def _ask_model(
    spark: SparkSession, judged: DataFrame, config: Config, since: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return what the summary tells of the model, and its alerts."""
    assert config.model is not None
    rows = judged.where(F.col("rule").isNull()).select("time", "topic", "group", "features")
    if config.fit:
        phase("making the model")
        model = alerts_model.fit(rows, int(time.time() * 1000))
        if not config.dry_run:
            alerts_model.save(model, config.model)
    else:
        model = alerts_model.load(config.model)
    phase("asking the model")
    scored = alerts_model.score(model, rows.where(F.unix_millis("time") >= since))
    wild = scored.where(F.col("distance") > model.note.threshold).orderBy("topic", "group", "time")
    facts = {"model_threshold": model.note.threshold, "model_rows": model.note.rows}
    return facts, model_episodes(wild.drop("features").toArrow().to_pylist(), model.note.threshold)


def model_episodes(rows: Sequence[dict[str, Any]], threshold: float) -> list[dict[str, Any]]:
    """Return one alert for each run of two or more minutes beyond the threshold; rows are by series, then time."""
    runs: list[list[dict[str, Any]]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        is_next = last is not None and (last["topic"], last["group"]) == (row["topic"], row["group"])
        if is_next and last is not None and (row["time"] - last["time"]).total_seconds() <= 120:
            runs[-1].append(row)
        else:
            runs.append([row])
    found = []
    for run_rows in runs:
        if len(run_rows) < 2:
            continue
        peak = max(run_rows, key=lambda row: row["distance"])
        found.append(
            {
                "time": run_rows[0]["time"], "topic": peak["topic"], "group": peak["group"], "broker": "",
                "rule": MODEL_RULE, "score": round(peak["distance"], 2), "value": peak["distance"],
                "baseline": threshold, "minutes": len(run_rows),
                "explanation": f"the measures together are unlike any usual minute, {peak['widest']} most of all",
            }
        )  # fmt: skip
    return found


def without_known(by_model: list[dict[str, Any]], by_rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the model's alerts that no rule has said already."""
    near = NEAR_MS / 1000

    def is_known(one: dict[str, Any]) -> bool:
        return any(
            (other["topic"], other["group"]) == (one["topic"], one["group"])
            and -near <= (one["time"] - other["time"]).total_seconds() <= near + 60 * other["minutes"]
            for other in by_rules
        )

    return [one for one in by_model if not is_known(one)]


# -- writing ---------------------------------------------------------------------------------------------------------


def write_found(spark: SparkSession, found: Sequence[dict[str, Any]], config: Config) -> None:
    """Write alerts to where the options say. Raises: as ``alerts.run``."""
    phase("writing alerts")
    if config.to is not None:
        write_alerts(found, config.to)
    if config.to_topic:
        # Each day is a writer of its own: what was sent of a later one, by a clock that was ahead, ends none before it.
        for day, of_day in _by_day(found).items():
            publish(as_messages(spark, of_day), config, txn=f"headrace-alerts:{day}", topic=config.to_topic)


def _by_day(alerts: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return alerts by the day of their minutes, such as ``2026-01-31``."""
    by_day: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        by_day.setdefault(f"{alert['time']:%Y-%m-%d}", []).append(alert)
    return by_day


def key_of(alert: dict[str, Any]) -> str:
    """Return what an alert is known by: topic, group, minute and rule, and the broker where it is of one."""
    names = [alert["topic"], alert["group"], f"{alert['time']:%Y-%m-%dT%H:%M}", alert["rule"]]
    return "|".join([*names, alert["broker"]] if alert.get("broker") else names)


def as_messages(spark: SparkSession, alerts: Sequence[dict[str, Any]]) -> DataFrame:
    """Return alerts as the sink takes them: JSON, the rule as tag, topic, group and broker as keys."""
    rows = [
        (
            json.dumps({**alert, "time": f"{alert['time']:%Y-%m-%dT%H:%M:%SZ}"}, ensure_ascii=False),
            alert["rule"],
            " ".join(name for name in (alert["topic"], alert["group"], alert["broker"]) if name),
            key_of(alert),
        )
        for alert in alerts
    ]
    return spark.createDataFrame(rows, "body string, tags string, keys string, unique_key string").coalesce(1)


def write_alerts(alerts: Sequence[dict[str, Any]], folder: Path) -> None:
    """Add alerts to the files of their days; those that are there already are replaced.

    Several jobs may add to one folder: a standing one, and one that is run by hand.

    Raises:
        ConfigError, OSError: the folder cannot be written.
        FolderBusyError: another run does not let go of it.
        HeadraceError: the file of a day is damaged.
    """
    with hold_folder(folder, "to", lock=LOCK, wait_s=_WAIT_S):
        _merge_alerts(alerts, folder)


def _merge_alerts(alerts: Sequence[dict[str, Any]], folder: Path) -> None:
    for day, of_day in _by_day(alerts).items():
        path = folder / f"dt={day}" / "alerts.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        known: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                known = {key_of(alert): alert for alert in pq.ParquetFile(path).read().to_pylist()}
            except pa.ArrowException as error:
                raise HeadraceError(f"{path} cannot be read: {error}: move it away to go on without it") from error
        known |= {key_of(alert): alert for alert in of_day}
        merged = sorted(known.values(), key=lambda alert: (alert["time"], key_of(alert)))
        beside = path.with_name(".alerts.parquet.new")  # whose name Spark passes over, not as that of ``replacing``
        with beside.open("wb") as file:
            pq.write_table(pa.Table.from_pylist(merged, schema=ALERT_SCHEMA), file)
            file.flush()
            os.fsync(file.fileno())  # it takes the place of all that the day has
        beside.replace(path)
        sync_folder(path.parent)


def show_alerts(found: Sequence[dict[str, Any]], config: Config, summary: Summary) -> None:
    """Fill in the table of the newest alerts."""
    summary.facts.pop("until_ms", None)
    summary.facts.setdefault("alerts", 0)
    newest = sorted(found, key=lambda alert: (alert["time"], key_of(alert)), reverse=True)[: config.top]
    columns = ("time", "topic", "group", "rule", "score", "minutes", "explanation")
    shown = [
        [f"{alert['time'].astimezone(UTC):%Y-%m-%d %H:%M}", *(alert[name] for name in columns[1:])] for alert in newest
    ]
    summary.tables.append(Table("found", "Alerts, newest first", columns, shown))
    if config.to is not None and summary.facts["alerts"] and not config.dry_run:
        summary.facts["written"] = str(config.to)
