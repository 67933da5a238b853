"""What several jobs need of a log: its topics, its splits between two times, and its rows as a DataFrame.

A log is in the order of storing, so when the first records of a split and of the next one were stored says what a split
may hold. All of them are looked at: a clock that once jumped leaves times that neither rise nor fall. Ten minutes on
either side are read as well, and the decoder's own test of each record's time decides. Where the clock was set back by
more than that, what was stored in a split before is not found by its time if the next split begins later than this one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.jobs.config import require_known_topics
from headrace.spark.jobs.summary import FAILED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.files import LogExtent
    from headrace.spark.jobs.config import JobConfig
    from headrace.spark.jobs.summary import Summary
    from headrace.spark.scan import LogSplit, Source

CLOCK_MARGIN_MS: Final = 600_000
_DAMAGE: Final = (
    "parts of the log hold no record, or one whose checksum is wrong, and were stepped over: what they held is not "
    "here; headrace job verify names them"
)
MOST_NAMED: Final = 10
"""Ranges without a file that a summary names."""
_PEEK_BYTES: Final = 64 << 10
_NEVER: Final = -1 << 62
_FOR_EVER: Final = 1 << 62


def source_of(config: JobConfig, broker: str = "") -> Source:
    """Return the log that a configuration names.

    Args:
        broker: What to call the broker of a store; empty: the folder's name.

    Raises:
        ConfigError: it names none, or both kinds.
    """
    from headrace.spark.scan import ServersSource, StoreSource  # noqa: PLC0415  # needs pyarrow

    config.require_source()
    if config.store is not None:
        return StoreSource(str(config.store), broker)
    return ServersSource(config.servers, config.access_key, config.secret_key())


def require_topics(source: Source, topics: Sequence[str], also: Collection[str] = ()) -> None:
    """Refuse topics that do not exist, of which a job would find nothing and say no more than that.

    The registries learn of a new topic some seconds after its broker, so the brokers are asked.

    Args:
        also: Topics that are known from elsewhere, as those of an archive beside the log.

    Raises:
        ConfigError: there is no such topic, with the nearest one.
        ClientError: the brokers do not answer.
        StoreError: there is no store.
    """
    topics = [topic for topic in topics if topic not in also]
    if not topics:
        return
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.scan import StoreSource  # noqa: PLC0415  # needs pyarrow

    known = {*also}
    if isinstance(source, StoreSource):
        found = source.files().topics()
        if found is None:
            return
        known.update(found)
    else:
        cluster = cluster_of(source)
        for address in cluster.brokers().values():
            for wanted in (None, sorted(topics)):  # the ordinary ones, and those that are named
                body = json.dumps({"topics": wanted, "log": False}).encode()
                state = cluster.reader_state(address, body, group="", wait_ms=0)
                known.update(state["topics"] if state is not None else ())
    require_known_topics(topics, known)


def plan_between(
    spark: SparkSession,
    config: JobConfig,
    summary: Summary,
    *,
    since: int | None = None,
    until: int | None = None,
) -> list[LogSplit]:
    """Return the splits that may hold messages stored in [since, until), ms since 1970.

    What is missing is noted; what tasks find damaged is counted for ``note_damage``.

    Raises:
        ConfigError, ClientError, StoreError: the logs cannot be looked at.
    """
    from headrace.spark.scan import plan_log  # noqa: PLC0415  # needs pyarrow

    source = source_of(config)
    extents = source.extents()
    note_missing(summary, extents)
    return watched(spark, splits_between(plan_log(source, extents=extents), since, until), summary)


def watched(spark: SparkSession, splits: Sequence[LogSplit], summary: Summary) -> list[LogSplit]:
    """Return the splits so that tasks which read them count damage; ``note_damage`` tells of it afterwards.

    Sessions of Spark Connect have no accumulators: there it stays in the tasks' logs.
    """
    try:
        summary.damage = spark.sparkContext.accumulator(0)
    except AttributeError:
        return list(splits)
    return [replace(split, damage=summary.damage) for split in splits]


def note_damage(summary: Summary) -> None:
    """Say that tasks came upon damage, when they have read what they had to: the job has failed, as far as it goes."""
    if summary.damage is None or not summary.damage.value:
        return
    summary.exit_code = FAILED
    if _DAMAGE not in summary.notes:  # a job that looks again and again says it once
        summary.notes.append(_DAMAGE)


def note_missing(summary: Summary, extents: Sequence[LogExtent]) -> None:
    """Say which files of logs are missing, whatever they held: the job has failed, as far as it goes."""
    missing = [(extent.broker, *lost) for extent in extents for lost in extent.missing]
    if not missing or "missing_bytes" in summary.facts:  # a job that looks again and again says it once
        return
    summary.exit_code = FAILED
    summary.facts["missing_bytes"] = sum(end - first for _, first, end in missing)
    summary.notes += [
        f"physical offsets {first} to {end} of broker {broker!r} are in no file of its log: what they held is not here"
        for broker, first, end in missing[:MOST_NAMED]
    ]
    if len(missing) > MOST_NAMED:
        summary.notes.append(f"{len(missing) - MOST_NAMED} more such ranges: headrace job verify names them")


def splits_between(splits: Sequence[LogSplit], since: int | None, until: int | None) -> list[LogSplit]:
    """Return the splits among ``splits``, which are in the order of the log, that a time range needs."""
    if since is None and until is None:
        return list(splits)
    low = _NEVER if since is None else since - CLOCK_MARGIN_MS
    high = _FOR_EVER if until is None else until + CLOCK_MARGIN_MS
    wanted: list[LogSplit] = []
    for _, group in groupby(splits, key=lambda split: split.broker):
        of_broker = list(group)
        begins = _begins(of_broker)
        for split, begin, end in zip(of_broker, begins, [*begins[1:], _FOR_EVER], strict=True):
            # Of a split in which the clock was set back nobody knows how late it was before, and how early then.
            was_set_back = end < begin - CLOCK_MARGIN_MS
            if was_set_back or (min(begin, end) < high and max(begin, end) >= low):
                wanted.append(split)
    return wanted


def _begins(splits: Sequence[LogSplit]) -> list[int]:
    """Return when the first record of each split was stored; of a split without one that of the next that has some."""
    begins: list[int] = []
    following = _FOR_EVER
    for split in reversed(splits):
        found = first_time_ms(split)
        following = found if found >= 0 else following
        begins.append(following)
    return begins[::-1]


def first_time_ms(split: LogSplit) -> int:
    """Return when the first record that starts in a split was stored, -1 when there is none with a time."""
    import pyarrow as pa  # noqa: PLC0415  # an extra

    from headrace.spark.decode import Decoder  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.scan import decode_split  # noqa: PLC0415  # needs pyarrow

    decoder = Decoder(("store_ts",), batch_rows=1, system_topics=True, retry_topics=True)
    for batch in decode_split(split, decoder, _PEEK_BYTES):
        times = batch.column(0).view(pa.int64()).drop_null()
        if len(times):
            return int(times[0].as_py()) // 1000
    return -1


def rows_of(
    spark: SparkSession, splits: Sequence[LogSplit], columns: Sequence[str], **decoder_options: Any
) -> DataFrame:
    """Return the rows of splits as a DataFrame, one task for each split.

    Args:
        columns: As few as needed: there is no other pruning.
        decoder_options: As ``Decoder`` has them.
    """
    from headrace.spark.scan import read_split  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.schema import arrow_schema  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.tasks import run_in_tasks  # noqa: PLC0415  # pyspark

    read = partial(read_split, columns=tuple(columns), **decoder_options)
    return run_in_tasks(spark, splits, read, arrow_schema(columns))
