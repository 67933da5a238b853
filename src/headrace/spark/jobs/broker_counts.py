"""What brokers counted, read from their topic ``HR_STATS``: who got how much, how far groups are.

Layout of its messages: docs/formats/statistics-records.md. A message that cannot be read gives a row with ``damaged`` 1
and nothing else, so that a job can say so and go on; what brokers counted in no row gives one with ``left_out``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.format.names import STATISTICS_TOPIC
from headrace.spark.jobs.config import JobConfig
from headrace.spark.jobs.summary import Summary, count_of
from headrace.spark.scan import LogSplit, read_split
from headrace.spark.times import FIRST_MS, LAST_MS

VERSION: Final = 1
MINUTE_MS: Final = 60_000
LATE_MS: Final = 600_000
"""How much later than its minute a record may be stored: a store that takes no writes gets it later."""

SOURCES: Final[Mapping[str, str]] = {"remoting": "rocketmq"}
"""What brokers call a protocol -> what the column ``source_protocol`` calls it."""

MEASURES: Final = (
    "put_messages",
    "put_bytes",
    "get_messages",
    "get_bytes",
    "sent_back",
    "dead_letters",
    "lag_messages",
)
SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("source", pa.string()),
        ("broker", pa.string()),
        ("host", pa.string()),
        *((name, pa.int64()) for name in MEASURES),
        ("lag_seconds", pa.float64()),
        ("damaged", pa.int64()),
        ("left_out", pa.int64()),
    ]
)
"""Rows of ``broker_counts``. ``time`` is the minute; ``group`` is empty in rows of puts; ``topic`` is empty in the
row of ``left_out``, the messages of a minute that a broker counted in no row.
``lag_messages`` and ``lag_seconds`` are null where nothing was said of them."""


def broker_counts(
    spark: SparkSession, config: JobConfig, splits: Sequence[LogSplit], *, since: int | None, until: int | None
) -> DataFrame:
    """Return what the brokers of a configuration counted in the minutes of [since, until), ms since 1970.

    Brokers are asked for this one topic; of a store's files the splits of the log are gone through.
    """
    if config.store is not None:
        from headrace.spark.tasks import run_in_tasks  # noqa: PLC0415  # pyspark

        return run_in_tasks(spark, splits, partial(read_counts, since=since, until=until), SCHEMA)
    from headrace.spark.reading import read  # noqa: PLC0415  # pyspark

    stored_until = None if until is None else until + MINUTE_MS + LATE_MS
    rows = read(
        spark,
        servers=config.servers,
        topics=STATISTICS_TOPIC,
        columns=("broker", "body"),
        since=since,
        # A broker knows no time that is still to come.
        until=None if stored_until is None or stored_until > time.time() * 1000 else stored_until,
        includeSystemTopics=True,
        **config.auth_options(),
    )
    return rows.mapInArrow(partial(_parse, since=since, until=until), from_arrow_schema(SCHEMA))


def note_uncounted(summary: Summary, damaged: int, left_out: int) -> None:
    """Say what of the brokers' records is in no row; a job that looks again and again says it once.

    Args:
        damaged, left_out: Sums of these columns.
    """
    if damaged and "unreadable_records" not in summary.facts:
        summary.facts["unreadable_records"] = damaged
        summary.notes.append(
            count_of(
                damaged,
                f"record of {STATISTICS_TOPIC} is unreadable: what it counted is missing",
                f"records of {STATISTICS_TOPIC} are unreadable: what they counted is missing",
            )
        )
    if left_out and "left_out_messages" not in summary.facts:
        summary.facts["left_out_messages"] = left_out
        summary.notes.append(
            f"brokers counted {count_of(left_out, 'message', 'messages')}, sent or got, in no row of "
            f"{STATISTICS_TOPIC}, for lack of counters (broker.max_statistics): of which topics and groups is not known"
        )


def _parse(batches: Iterable[pa.RecordBatch], since: int | None, until: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for broker, body in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            rows += rows_of_record(broker, body, since, until)
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def read_counts(split: LogSplit, since: int | None = None, until: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the counts that stand in a split of a log."""
    limits: dict[str, Any] = {"start_ms": since, "end_ms": None if until is None else until + MINUTE_MS + LATE_MS}
    yield from _parse(read_split(split, ("broker", "body"), topics=(STATISTICS_TOPIC,), **limits), since, until)


def rows_of_record(
    broker: str, body: bytes | None, since: int | None = None, until: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of one message, none when its minute is outside of [since, until)."""
    try:
        content = json.loads(body or b"", parse_constant=_refuse)
        if content["v"] != VERSION:
            raise ValueError("unknown version")
        minute_ms = int(content["from_ms"]) // MINUTE_MS * MINUTE_MS
        if not FIRST_MS <= minute_ms <= LAST_MS:
            raise ValueError("no time")
        if (since is not None and minute_ms < since) or (until is not None and minute_ms >= until):
            return []
        rows = [row | {"time": minute_ms * 1000, "broker": broker} for row in _rows(content)]
        pa.RecordBatch.from_pylist(rows, schema=SCHEMA)  # raises where a value is none of its column
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return [{"broker": broker, "topic": "", "damaged": 1}]
    return rows


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _rows(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for topic, _, source, host, messages, size in content.get("put", ()):
        yield _row(topic, "", source, host, put_messages=messages, put_bytes=size)
    for topic, _, group, source, host, messages, size in content.get("get", ()):
        yield _row(topic, group, source, host, get_messages=messages, get_bytes=size)
    for topic, group, source, messages in content.get("back", ()):
        yield _row(topic, group, source, "", sent_back=messages)
    for topic, group, messages in content.get("dead", ()):
        yield _row(topic, group, "remoting", "", dead_letters=messages)
    lags: dict[tuple[str, str, str], list[float]] = {}
    for topic, group, source, _, messages, seconds in content.get("lag", ()):
        lag = lags.setdefault((topic, group, source), [0, -1.0])
        lag[0] += messages
        lag[1] = max(lag[1], seconds)
    for (topic, group, source), (messages, seconds) in lags.items():
        yield _row(topic, group, source, "", lag_messages=int(messages), lag_seconds=None if seconds < 0 else seconds)
    left_out = content.get("left_out", 0)
    if left_out:
        yield _row("", "", "", "", left_out=left_out)


def _row(topic: str, group: str, source: str, host: str, **measures: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "group": group,
        "source": SOURCES.get(source, source),
        "host": host,
        "damaged": 0,
    } | measures
