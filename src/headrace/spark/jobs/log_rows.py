"""What several jobs need of a log: its splits between two times, and its rows as a DataFrame.

A log is in the order of storing, so the splits that a time range needs are found by looking at the first record of a
few of them. Clocks are set back now and then: ten minutes on either side are read as well, and the decoder's own test
of each record's time decides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.spark.decode import Decoder
from headrace.spark.scan import LogSplit, ServersSource, StoreSource, decode_split, open_source, plan_log, read_split
from headrace.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.jobs.config import JobConfig

CLOCK_MARGIN_MS: Final = 600_000
_PEEK_BYTES: Final = 64 << 10


def source_of(config: JobConfig) -> StoreSource | ServersSource:
    """Return the log that a configuration names.

    Raises:
        ConfigError: it names none, or both kinds.
    """
    config.require_source()
    return open_source(
        store=config.store, servers=config.servers or None, access_key=config.access_key, secret_key=config.secret_key()
    )


def plan_between(config: JobConfig, *, since: int | None = None, until: int | None = None) -> list[LogSplit]:
    """Return the splits that may hold messages stored in [since, until), ms since 1970.

    Raises:
        ConfigError, ClientError, StoreError: the logs cannot be looked at.
    """
    return splits_between(plan_log(source_of(config)), since, until)


def splits_between(splits: Sequence[LogSplit], since: int | None, until: int | None) -> list[LogSplit]:
    """Return the splits among ``splits``, which are in the order of the log, that a time range needs."""
    wanted: list[LogSplit] = []
    for _, group in groupby(splits, key=lambda split: split.broker):
        of_broker = list(group)
        times = _FirstTimes(of_broker)
        places = range(len(of_broker))
        first = 0 if since is None else max(0, bisect_right(places, since - CLOCK_MARGIN_MS, key=times.at) - 1)
        last = len(places) if until is None else bisect_left(places, until + CLOCK_MARGIN_MS, key=times.at)
        wanted += of_broker[first:last]
    return wanted


class _FirstTimes:
    """When the first record of each split was stored; each is read once, when it is asked for."""

    def __init__(self, splits: Sequence[LogSplit]) -> None:
        self._splits = splits
        self._known: dict[int, int] = {}

    def at(self, place: int) -> int:
        """Return ms since 1970; of a split without a record that of the next one that has some."""
        for looked in range(place, len(self._splits)):
            if looked not in self._known:
                self._known[looked] = first_time_ms(self._splits[looked])
            if self._known[looked] >= 0:
                return self._known[looked]
        return 1 << 62


def first_time_ms(split: LogSplit) -> int:
    """Return when the first record that starts in a split was stored, -1 when there is none with a time."""
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
    from headrace.spark.tasks import run_in_tasks  # noqa: PLC0415  # pyspark

    read = partial(_read, columns=tuple(columns), options=decoder_options)
    return run_in_tasks(spark, splits, read, arrow_schema(columns))


def _read(split: LogSplit, columns: tuple[str, ...], options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    yield from read_split(split, columns, **options)
