"""Compare two logs over one range, such as a master's and a slave's, by the CRC-32 of blocks of 1 MiB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.format.checksum import checksum
from headrace.spark.files import LogExtent
from headrace.spark.scan import LogSplit, Source, raw_chunks
from headrace.spark.tasks import collect_from_tasks

BLOCK_BYTES: Final = 1 << 20
SPLIT_BLOCKS: Final = 64
RESULT: Final = pa.schema([("block", pa.int64())])


def common_ranges(mine: LogExtent, theirs: LogExtent) -> list[tuple[int, int]]:
    """Return the ranges [start, end) of physical offsets that two logs both have."""
    both = [(max(a, c), min(b, d)) for a, b in mine.runs for c, d in theirs.runs]
    return [(start, end) for start, end in both if start < end]


def compare_logs(
    spark: SparkSession,
    source: Source,
    mine: LogExtent,
    other: Source,
    theirs: LogExtent,
    start: int,
    end: int,
) -> list[int]:
    """Return the physical offset of each block in [start, end) that differs."""
    step = BLOCK_BYTES * SPLIT_BLOCKS
    cuts = range(start // step * step, end, step)
    source, other = source.located(), other.located()
    tasks = [
        (
            LogSplit(source, mine.broker, max(cut, start), min(cut + step, end), mine.segment_bytes),
            LogSplit(other, theirs.broker, max(cut, start), min(cut + step, end), theirs.segment_bytes),
        )
        for cut in cuts
    ]
    return sorted(row["block"] for row in collect_from_tasks(spark, tasks, compare_range, RESULT))


def compare_range(both: tuple[LogSplit, LogSplit]) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of one range, of two logs, that differ."""
    mine, theirs = map(_blocks, both)
    differing = sorted(at for at in mine.keys() | theirs.keys() if mine.get(at) != theirs.get(at))
    yield pa.record_batch([pa.array(differing, pa.int64())], schema=RESULT)


def _blocks(split: LogSplit) -> dict[int, tuple[int, int]]:
    """Return (bytes, CRC-32) of each block of 1 MiB by the physical offset where it begins."""
    found: dict[int, tuple[int, int]] = {}
    for base, data in raw_chunks(split):
        at = 0
        while at < len(data):
            block = (base + at) // BLOCK_BYTES * BLOCK_BYTES
            size = min(block + BLOCK_BYTES - base - at, len(data) - at)
            before, crc = found.get(block, (0, 0))
            found[block] = (before + size, checksum(data[at : at + size], crc))
            at += size
    return found
