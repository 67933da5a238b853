"""Adding up rows of counts that are sorted by their key, in numpy: on the driver, and in tasks behind Spark's sort.

Spark could do it with one ``sum`` for each bucket of each histogram, but a hundred expressions take it far longer to
compile than most logs take to count. Behind a sort equal keys are neighbours, so a batch is enough to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.jobs.stats_partials import COUNTS, LATENCIES, LATENCY_BOUNDS_MS, SECONDS, SIZES, lists

DIMENSIONS: Final = ("topic", "group", "source", "broker", "host")
SUMS: Final = (
    "put_messages", "put_bytes", "skewed", "get_messages", "get_bytes", "sent_back", "dead_letters", "damaged",
    "untimed", "left_out",
)  # fmt: skip
UNCOUNTED: Final = ("damaged", "untimed", "left_out")
"""Of these in rows of their own, which are in none of the tables."""
PEAKS: Final = ("put_per_second_max", "lag_messages", "lag_seconds")
"""Of which the largest counts; null where nothing is known."""
HISTOGRAMS: Final = {"seconds": SECONDS, "sizes": SIZES, "latencies": LATENCIES}
QUANTILES: Final = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99}

SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in DIMENSIONS),
        *((name, pa.int64()) for name in SUMS),
        ("put_per_second_max", pa.int64()),
        ("lag_messages", pa.int64()),
        ("lag_seconds", pa.float64()),
        *((name, COUNTS) for name in HISTOGRAMS),
    ]
)
"""What is added up. ``seconds`` is null but in the counts of one minute; a histogram is null where nothing was put."""

Matrix = np.ndarray[Any, Any]


def fold(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return a table of ``SCHEMA`` with one row for each different key, sorted; dimensions beside the key are empty."""
    blank = pa.array([""] * len(table), pa.string())
    for name in DIMENSIONS:
        if name not in keys:
            table = table.set_column(table.schema.get_field_index(name), name, blank)
    if "time" not in keys:
        zero = pa.array(np.zeros(len(table), dtype=np.int64)).view(SCHEMA.field("time").type)
        table = table.set_column(0, SCHEMA.field("time"), zero)
    table = table.sort_by([(key, "ascending") for key in keys]) if keys else table
    merged = merge_sorted(table.combine_chunks().to_batches())
    return pa.Table.from_batches(merged, schema=SCHEMA)


def merge_sorted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up neighbours of equal time and dimensions; batches are of ``SCHEMA``, sorted or at least grouped by them.

    Those of Spark say of columns that it can prove to have no nulls that they have none, and have large texts where its
    session says so.
    """
    carry: pa.RecordBatch | None = None  # the last row so far: its key may go on in the next batch
    for given in batches:
        if not given.num_rows:
            continue
        batch = given.cast(SCHEMA)
        joined = batch if carry is None else pa.concat_batches([carry, batch])
        merged = _merge(joined)
        if merged.num_rows > 1:
            yield merged.slice(0, merged.num_rows - 1)
        carry = merged.slice(merged.num_rows - 1)
    if carry is not None:
        yield carry


def _merge(batch: pa.RecordBatch) -> pa.RecordBatch:
    begins = _begins(batch)
    columns: list[pa.Array] = []
    for field in SCHEMA:
        column = batch.column(field.name)
        if field.name in SUMS:
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
            columns.append(pa.array(np.add.reduceat(numbers, begins), pa.int64()))
        elif field.name in PEAKS:
            numbers = column.cast(pa.float64()).fill_null(-1.0).to_numpy(zero_copy_only=False)
            peaks = np.maximum.reduceat(numbers, begins)
            columns.append(pa.array(peaks, pa.float64(), mask=peaks < 0).cast(field.type))
        elif field.name in HISTOGRAMS:
            columns.append(_add_lists(column, HISTOGRAMS[field.name], begins))
        else:
            columns.append(column.take(pa.array(begins)))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _begins(batch: pa.RecordBatch) -> Matrix:
    """Return where a new key begins."""
    rows = batch.num_rows
    is_new = np.zeros(rows, dtype=bool)
    is_new[0] = True
    for name in ("time", *DIMENSIONS):
        column = batch.column(name)
        differs = pc.not_equal(column.slice(1), column.slice(0, rows - 1))
        is_new[1:] |= differs.fill_null(True).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_new)


def matrix(column: pa.Array, width: int) -> Matrix:
    """Return a column of histograms as rows of numbers, those that are null as zeros."""
    is_valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    table = np.zeros((len(column), width), dtype=np.int64)
    table[is_valid] = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return table


def _add_lists(column: pa.Array, width: int, begins: Matrix) -> pa.Array:
    is_valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    return lists(np.add.reduceat(matrix(column, width), begins, axis=0), np.logical_or.reduceat(is_valid, begins))


def quantiles(counts: Matrix, bounds: Sequence[float], share: float) -> pa.Array:
    """Return the value below which ``share`` of each row's counts lie, linear within a bucket; null without any.

    Values above the last bound count as that bound: nothing says how large they are.
    """
    limits = np.array([0.0, *bounds, bounds[-1]])
    sums = np.cumsum(counts, axis=1)
    total = sums[:, -1]
    wanted = share * total
    places = np.minimum((sums < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(len(counts))
    within = counts[rows, places]
    below = sums[rows, places] - within
    part = np.clip((wanted - below) / np.maximum(within, 1), 0.0, 1.0)
    values = limits[places] + (limits[places + 1] - limits[places]) * part
    return pa.array(values, pa.float64(), mask=total == 0)


def finish(batches: Iterable[pa.RecordBatch], seconds: int) -> Iterator[pa.RecordBatch]:
    """Turn merged rows into those of a table that covers spans of ``seconds``: with rates and percentiles."""
    for batch in merge_sorted(batches):
        columns = {name: batch.column(name) for name in SCHEMA.names}
        per_second = columns.pop("seconds")
        if per_second.null_count < len(per_second):
            peaks = matrix(per_second, SECONDS).max(axis=1)
            known = columns["put_per_second_max"].fill_null(0).to_numpy(zero_copy_only=False)
            columns["put_per_second_max"] = pa.array(np.maximum(peaks, known))
        columns["put_per_second_max"] = columns["put_per_second_max"].fill_null(0)
        puts = columns["put_messages"].to_numpy(zero_copy_only=False)
        columns["put_per_second"] = pa.array(puts / seconds)
        latencies = matrix(columns["latencies"], LATENCIES)
        for name, share in QUANTILES.items():
            columns[name] = quantiles(latencies, LATENCY_BOUNDS_MS, share)
        yield pa.RecordBatch.from_arrays([columns[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)


TABLE_SCHEMA: Final = pa.schema(
    [
        *(field for field in SCHEMA if field.name not in {"seconds", *UNCOUNTED, "sizes", "latencies"}),
        ("put_per_second", pa.float64()),
        *((name, pa.float64()) for name in QUANTILES),
        ("sizes", COUNTS),
        ("latencies", COUNTS),
    ]
)
"""Rows of the tables on disk."""
