"""Counting messages inside a task: one pass over batches of narrow columns, one row for each group and minute.

numpy works on whole batches: names become numbers by dictionary encoding, the numbers of a row one key, and every
measure is a ``bincount`` over the keys. Python runs once for each group of a batch, not for each message. What is
returned are sums that Spark adds up: counts, bytes, and histograms, since percentiles cannot be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

COLUMNS: Final = ("topic", "source_protocol", "born_host", "born_ts", "store_ts", "store_size")
"""What a batch must have."""

LATENCY_BOUNDS_MS: Final = (
    1, 2, 3, 4, 6, 10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1_000, 1_600, 2_500, 4_000, 6_300, 10_000, 16_000,
    25_000, 40_000, 63_000, 100_000, 250_000, 630_000, 3_600_000,
)  # fmt: skip
"""Upper bounds of the buckets of latency (born -> stored), five for each power of ten; one bucket more lies above."""
SIZE_BOUNDS: Final = (
    128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20,
)  # fmt: skip
"""The same of record sizes, bytes."""

LATENCIES: Final = len(LATENCY_BOUNDS_MS) + 1
SIZES: Final = len(SIZE_BOUNDS) + 1
SECONDS: Final = 60
MAX_GROUPS: Final = 20_000
"""Groups kept in a task, a kilobyte each, before they are given out; Spark adds up what comes in pieces."""

_MINUTE_US: Final = 60_000_000
_SECOND_US: Final = 1_000_000
_DENSE: Final = 1 << 22
"""Up to so many possible keys a table finds the groups, beyond it a sort."""
# Where each measure stands in a group's row.
_MESSAGES, _BYTES, _SKEWED, _AT_SECONDS = 0, 1, 2, 3
_AT_SIZES = _AT_SECONDS + SECONDS
_AT_LATENCIES = _AT_SIZES + SIZES
_WIDTH = _AT_LATENCIES + LATENCIES

COUNTS: Final = pa.list_(pa.field("element", pa.int64()))
SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("source", pa.string()),
        ("broker", pa.string()),
        ("host", pa.string()),
        ("put_messages", pa.int64()),
        ("put_bytes", pa.int64()),
        ("skewed", pa.int64()),
        ("untimed", pa.int64()),
        ("seconds", COUNTS),
        ("sizes", COUNTS),
        ("latencies", COUNTS),
    ]
)
"""Rows of ``take``. ``time`` is the minute of storing; ``skewed`` the messages that claim to be born after they were
stored; ``seconds`` the messages of each second of the minute; ``sizes`` and ``latencies`` histograms. Messages whose
store time is null belong to no minute: ``untimed`` is how many there were, in a row of its own without a time."""


class PartialCounts:
    """Counts of one broker's messages by minute, topic, source and host.

    Attributes:
        untimed: Messages without a store time, which are counted nowhere else.
    """

    def __init__(self, broker: str, *, hosts: bool = True) -> None:
        """Begin to count; without ``hosts`` all messages count for the host ``""``."""
        self._broker = broker
        self._hosts = hosts
        self.untimed = 0
        self._groups: dict[tuple[int, str, str, str], np.ndarray[Any, Any]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the messages of a batch that has ``COLUMNS``."""
        nulls = batch.column("store_ts").null_count
        if nulls:
            self.untimed += nulls
            batch = batch.filter(batch.column("store_ts").is_valid())
        if not batch.num_rows:
            return
        topics, topic_codes = _encode(batch.column("topic"))
        sources, source_codes = _encode(batch.column("source_protocol"))
        hosts, host_codes = _encode(batch.column("born_host")) if self._hosts else ([""], 0)
        stored = _microseconds(batch.column("store_ts"))
        born_ts = batch.column("born_ts")
        is_born = born_ts.is_valid().to_numpy(zero_copy_only=False) if born_ts.null_count else None
        born = _microseconds(born_ts)
        sizes = batch.column("store_size").to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        minutes = stored // _MINUTE_US
        first = int(minutes.min())
        spans = (int(minutes.max()) - first + 1, len(topics), len(sources), len(hosts))
        keys = minutes - first
        for codes, span in zip((topic_codes, source_codes, host_codes), spans[1:], strict=True):
            keys = keys * span + codes
        found, group_of = _groups(keys, spans)
        rows = _measure(group_of, len(found), stored, born, is_born, sizes)
        for key, row in zip(found.tolist(), rows, strict=True):
            key, host = divmod(key, spans[3])
            key, source = divmod(key, spans[2])
            minute, topic = divmod(key, spans[1])
            self._put((minute + first, topics[topic], sources[source], _address(hosts[host])), row)

    def _put(self, name: tuple[int, str, str, str], row: np.ndarray[Any, Any]) -> None:
        known = self._groups.get(name)
        if known is None:
            self._groups[name] = row.copy()  # its own memory: the rows of a batch are one array
        else:
            known += row

    def take(self) -> pa.RecordBatch:
        """Return the counts so far as rows of ``SCHEMA``, and begin anew."""
        names = list(self._groups)
        table = np.array(list(self._groups.values()), dtype=np.int64).reshape(len(names), _WIDTH)
        untimed, self.untimed = self.untimed, 0
        self._groups.clear()
        columns = [
            pa.array([minute * _MINUTE_US for minute, _, _, _ in names], pa.timestamp("us", tz="UTC")),
            *(pa.array([name[place] for name in names], pa.string()) for place in (1, 2)),
            pa.array([self._broker] * len(names), pa.string()),
            pa.array([name[3] for name in names], pa.string()),
            *(pa.array(table[:, place]) for place in (_MESSAGES, _BYTES, _SKEWED)),
            pa.array(np.zeros(len(names), dtype=np.int64)),
            lists(table[:, _AT_SECONDS:_AT_SIZES]),
            lists(table[:, _AT_SIZES:_AT_LATENCIES]),
            lists(table[:, _AT_LATENCIES:]),
        ]
        counted = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        if not untimed:
            return counted
        row = {"topic": "", "source": "", "broker": self._broker, "host": "", "untimed": untimed}
        return pa.concat_batches([counted, pa.RecordBatch.from_pylist([row], schema=SCHEMA)])


def count_batches(batches: Iterator[pa.RecordBatch], broker: str, *, hosts: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield the counts of one broker's batches: few rows, in pieces where there are very many groups."""
    counts = PartialCounts(broker, hosts=hosts)
    for batch in batches:
        counts.add(batch)
        if len(counts) >= MAX_GROUPS:
            yield counts.take()
    if len(counts) or counts.untimed:
        yield counts.take()


def _encode(column: pa.Array) -> tuple[list[str], Any]:
    """Return the different values of a column of texts and, for each row, the number of its value."""
    encoded = (column.fill_null("") if column.null_count else column).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _microseconds(column: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _groups(keys: np.ndarray[Any, Any], spans: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the different keys, and for each row which of them it has."""
    possible = int(np.prod(np.array(spans, dtype=object)))
    if possible > _DENSE:
        found, group_of = np.unique(keys, return_inverse=True)
        return found, group_of
    found = np.flatnonzero(np.bincount(keys, minlength=possible))
    places = np.zeros(possible, dtype=np.int64)
    places[found] = np.arange(len(found))
    return found, places[keys]


def _measure(
    group_of: np.ndarray[Any, Any],
    groups: int,
    stored: np.ndarray[Any, Any],
    born: np.ndarray[Any, Any],
    is_born: np.ndarray[Any, Any] | None,
    sizes: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return one row of measures for each group.

    Args:
        is_born: Which messages say when they were made, None for all: the others have no latency.
    """
    rows = np.zeros((groups, _WIDTH), dtype=np.int64)
    rows[:, _MESSAGES] = np.bincount(group_of, minlength=groups)
    # Sums of doubles are exact up to 2**53, which no batch comes near.
    rows[:, _BYTES] = np.bincount(group_of, weights=sizes, minlength=groups)
    of_born = slice(None) if is_born is None else is_born
    latencies = ((stored - born) // 1000)[of_born]
    rows[:, _SKEWED] = np.bincount(group_of[of_born][latencies < 0], minlength=groups)
    for at, width, of, buckets in (
        (_AT_SECONDS, SECONDS, group_of, stored // _SECOND_US % SECONDS),
        (_AT_SIZES, SIZES, group_of, np.searchsorted(SIZE_BOUNDS, sizes)),
        (_AT_LATENCIES, LATENCIES, group_of[of_born], np.searchsorted(LATENCY_BOUNDS_MS, latencies)),
    ):
        counts = np.bincount(of * width + buckets, minlength=groups * width)
        rows[:, at : at + width] = counts.reshape(groups, width)
    return rows


def lists(table: np.ndarray[Any, Any], is_valid: np.ndarray[Any, Any] | None = None) -> pa.Array:
    """Return rows of numbers as a column of lists, of which those that are not valid are null."""
    rows, width = table.shape
    if is_valid is None:
        is_valid = np.ones(rows, dtype=bool)
    offsets = pa.array(np.concatenate(([0], np.cumsum(np.where(is_valid, width, 0)))).astype(np.int32))
    values = pa.array(np.ascontiguousarray(table[is_valid]).reshape(-1))
    return pa.ListArray.from_arrays(offsets, values, type=COUNTS, mask=pa.array(~is_valid) if rows else None)


def _address(host: str) -> str:
    """Return a producer's address without its port: ``10.0.0.5:4711`` or ``[::1]:4711``."""
    return host.rpartition(":")[0].strip("[]") if ":" in host else host
