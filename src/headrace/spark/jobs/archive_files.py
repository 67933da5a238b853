"""What one task of the archive job does: a range of one log becomes Parquet files.

The range is decoded to Arrow, sorted within each file and written by pyarrow here, inside the Python task; Spark gets
one row about each range. File names follow from the range alone, so a task that runs twice writes the same files again:
each is written below ``_tmp`` and renamed into its place.

The log is in the order of time and, within a queue, of queue offsets. So sorting is a stable sort of small integers
(the queue of each row), whose order the offsets then prove; only where they do not (a log taken over from elsewhere may
repeat offsets) they are sorted themselves.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.format.checksum import checksum
from headrace.format.side_file import sync_folder
from headrace.spark import scan
from headrace.spark.decode import Decoder
from headrace.spark.jobs.manifest import FOLDER, TEMPORARY, ArchiveError, ArchiveFile
from headrace.spark.times import LAST_MS

ROW_GROUP_ROWS: Final = 128 * 1024
MAX_TABLE_BYTES: Final = 512 << 20
"""A range with more than that in memory (compressed bodies) becomes several files of each name, numbered."""
DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
NO_TIME_US: Final = -100_000_000_000_000_000
"""Stands for a store time outside of the years 1 to 9999, which is null; it lies before them."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark and Hive call a folder of such rows."""
NEEDED: Final = ("topic", "queue_id", "queue_offset", "log_offset", "store_ts")
"""Columns that sorting and manifest need; every archive has them."""
DICTIONARY: Final = (
    "topic", "broker", "tags", "queue_id", "flag", "sys_flag", "reconsume_times", "source_protocol", "store_host",
    "properties.key_value.key",
)  # fmt: skip
UNORDERED: Final = ("body", "properties")
"""Columns without the smallest and largest value: nobody asks for bodies in between."""
MIN_RUN_ROWS: Final = 128
"""Where a file's rows lie in the log in runs that are longer on average (producers' batches), runs are copied whole."""
WRITEBACK_BYTES: Final = 1 << 20
_SYNC_FILE_RANGE_WRITE: Final = 2
BLOOM: Final = ("unique_key", "keys")
BLOOM_FALSE_POSITIVES: Final = 0.01
COUNTERS: Final = ("rows", "skipped", "damaged", "bytes", "inflate_failures")
ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(32)))
"""Characters that Spark and Hive escape in the names of partition folders."""
LONGEST_NAME: Final = 255
"""Bytes of a name in Linux' file systems; RocketMQ's topics have up to 127 characters, of which any may be ``%``."""


@dataclass(frozen=True)
class ArchiveTask:
    """One range to archive; everything in it can be pickled.

    Attributes:
        root: The archive's folder.
        columns: Of the files, ``NEEDED`` among them.
        layout: "topic" or "hour".
        selection: Options of ``scan.read_split``.
        compression: A codec that pyarrow knows.
        compression_level: Of the codec; None for its own.
    """

    split: scan.LogSplit
    root: str
    columns: tuple[str, ...]
    layout: str
    selection: Mapping[str, Any]
    compression: str = "zstd"
    compression_level: int | None = None


class Group(NamedTuple):
    """Rows that become one file: a slice of the sorted order."""

    folder: str
    first: int
    end: int


def archive_split(task: ArchiveTask) -> dict[str, Any]:
    """Write the files of one range; return what was written, as JSON has it.

    Raises:
        ArchiveError: the folder is not there or cannot be written.
    """
    root = Path(task.root)
    if not (root / FOLDER).is_dir():
        raise ArchiveError(
            f"{root} is not there on this worker: driver and workers need the archive's folder under one path, "
            "such as a network file system"
        )
    temporary = root / TEMPORARY / f"{task.split.start}-{uuid.uuid4().hex}"
    counters: dict[str, int] = {}
    try:
        temporary.mkdir(parents=True)
        files = [asdict(file) for file in _write_split(task, root, temporary, counters)]
        for folder in sorted({(root / file["path"]).parent for file in files}):
            sync_folder(folder)
        temporary.rmdir()
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)  # the disk may be full
        if not isinstance(error, OSError):
            raise
        path = error.filename2 or error.filename or root  # of a renaming the second is the file's place
        raise ArchiveError(f"{path} cannot be written: {error.strerror or error}") from error
    return {"files": files, "counters": counters}


def _write_split(task: ArchiveTask, root: Path, temporary: Path, counters: dict[str, int]) -> Iterator[ArchiveFile]:
    batches: list[pa.RecordBatch] = []
    size, part = 0, 0
    # What is damaged does not become part of an archive.
    decoder = Decoder(task.columns, broker=task.split.broker, only_right=True, **task.selection)
    for batch in scan.decode_split(task.split, decoder):
        batches.append(batch)
        size += batch.nbytes
        if size > MAX_TABLE_BYTES:
            yield from write_table(task, pa.Table.from_batches(batches), part, root, temporary)
            batches, size, part = [], 0, part + 1
    if batches:
        yield from write_table(task, pa.Table.from_batches(batches), part, root, temporary)
    counters |= {name: getattr(decoder, name) for name in COUNTERS}


def write_table(task: ArchiveTask, table: pa.Table, part: int, root: Path, temporary: Path) -> Iterator[ArchiveFile]:
    """Sort the rows of a range and write them; yield what the manifest says of each file."""
    if not table.num_rows:
        return
    split = task.split
    name = f"part-{split.start:020d}-{split.end:020d}{f'-{part}' if part else ''}.parquet"
    order, groups = arrange(table, task.layout)
    is_in_runs = len(_run_starts(order)) * MIN_RUN_ROWS <= len(order)
    if not is_in_runs:
        table = table.combine_chunks()
    for group in groups:
        of_file = order[group.first : group.end]
        rows = join_runs(table, of_file) if is_in_runs else table.take(pa.array(of_file))
        folder = f"{group.folder}/{folder_name('broker', split.broker)}"
        size, crc = write_parquet(temporary / name, rows, task.compression, task.compression_level)
        target = root / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).replace(target)
        yield describe(rows, f"{folder}/{name}", size, crc, split)


def _run_starts(order: np.ndarray) -> np.ndarray:
    """Return where in ``order`` each run of neighbouring rows begins."""
    return np.concatenate(([0], np.flatnonzero(np.diff(order) != 1) + 1))


def join_runs(table: pa.Table, order: np.ndarray) -> pa.Table:
    """Return what ``table.take(order)`` does, with one copy of each run of neighbours instead of one of each value."""
    starts = _run_starts(order)
    lengths = np.diff(starts, append=len(order))
    runs = [table.slice(row, length) for row, length in zip(order[starts].tolist(), lengths.tolist(), strict=True)]
    # One array for each column: the pages of a file must not depend on the batches that its rows were read in.
    return pa.concat_tables(runs).combine_chunks()


def arrange(table: pa.Table, layout: str) -> tuple[np.ndarray, list[Group]]:
    """Return the order of rows and which of them make up each file.

    Files are by (topic, day) or by hour, the rows in a file by topic, queue and queue offset.
    """
    topics = table.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    ranked = sorted(range(len(names)), key=lambda number: names[number].encode())
    rank = np.empty(len(names), np.int64)
    rank[ranked] = np.arange(len(names))
    topic = rank[topics.indices.to_numpy(zero_copy_only=False)]
    stored_us = table.column("store_ts").cast(pa.int64()).fill_null(NO_TIME_US).to_numpy()
    period = stored_us // (DAY_US if layout == "topic" else HOUR_US)
    queue = table.column("queue_id").to_numpy().astype(np.int64)
    outer, inner = (topic, period) if layout == "topic" else (period, topic)
    code = _join(_join(outer, inner), queue)
    # Of 16-bit numbers, where they do: numpy sorts those by counting.
    order = np.argsort(code.astype(np.uint16) if int(code.max()) < 1 << 16 else code, kind="stable")
    offsets = table.column("queue_offset").to_numpy()
    if not bool(np.all((np.diff(offsets[order]) >= 0) | (np.diff(code[order]) != 0))):
        order = np.lexsort((offsets, code))
    of_file = _join(topic, period)[order] if layout == "topic" else period[order]
    cuts = [0, *(np.flatnonzero(np.diff(of_file)) + 1).tolist(), len(order)]
    groups = []
    for first, end in pairwise(cuts):
        row = order[first]
        groups.append(Group(_folder(names[ranked[topic[row]]], int(period[row]), layout), first, end))
    return order, groups


def _join(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return one number for each pair, ordered as pairs are."""
    spread = low - low.min()
    joined: np.ndarray = (high - high.min()) * (int(spread.max()) + 1) + spread
    return joined


def _folder(topic: str, period: int, layout: str) -> str:
    if layout == "topic":
        is_timed = period != NO_TIME_US // DAY_US
        day = datetime.fromtimestamp(period * 86_400, UTC).strftime("%Y-%m-%d") if is_timed else NULL
        return f"{folder_name('topic', topic)}/dt={day}"
    if period == NO_TIME_US // HOUR_US:
        return f"dt={NULL}/hour={NULL}"
    return f"{datetime.fromtimestamp(period * 3_600, UTC):dt=%Y-%m-%d/hour=%H}"


def folder_name(column: str, value: str) -> str:
    """Return the name of a partition folder; one too long for a file system is cut, and a hash of the value added."""
    name = f"{column}={escape(value)}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(value.encode()).hexdigest()[:32]
    return f"{name.encode()[: LONGEST_NAME - 33].decode(errors='ignore')}~{digest}"


def escape(value: str) -> str:
    """Write a value as the name of a partition folder has it, as Spark and Hive do."""
    return "".join(f"%{ord(character):02X}" if character in ESCAPED else character for character in value)


def _find_writeback() -> Callable[[int, int, int], object]:
    """Return what begins to write a range of a file to the disk, and does not wait; where Linux has it."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return lambda file, first, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda file, first, size: call(file, first, size, _SYNC_FILE_RANGE_WRITE)


_begin_writeback = _find_writeback()


class _Sink:
    """A file that sums up what is written to it. The disk has most of it when the last of it is made durable."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._given = 0
        self.closed = False
        self.size = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc = checksum(view, self.crc)
        self.size += len(view)
        while view:
            view = view[self._file.write(view) :]
        if self.size - self._given >= WRITEBACK_BYTES:
            # Whether it works is for fsync to say.
            _begin_writeback(self._file.fileno(), self._given, self.size - self._given)
            self._given = self.size
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.fsync(self._file.fileno())
            self._file.close()


def write_parquet(path: Path, table: pa.Table, codec: str = "zstd", level: int | None = None) -> tuple[int, int]:
    """Write one file and return its length and CRC-32.

    Raises:
        OSError: it cannot be written.
    """
    present = set(table.column_names)
    leaves = [name for name in DICTIONARY if name.partition(".")[0] in present]
    ordering = [(name, "ascending") for name in ("topic", "queue_id", "queue_offset")]
    sink = _Sink(path)
    try:
        with pq.ParquetWriter(
            sink,
            table.schema,
            compression=codec,
            compression_level=level,
            use_dictionary=leaves,
            write_statistics=[name for name in table.column_names if name not in UNORDERED],
            write_page_checksum=True,
            sorting_columns=pq.SortingColumn.from_ordering(table.schema, ordering),
            **_bloom(table),
        ) as writer:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    finally:
        sink.close()
    return sink.size, sink.crc


def _bloom(table: pa.Table) -> dict[str, Any]:
    """Options for Bloom filters on the key columns; none where this pyarrow cannot write them."""
    if not can_bloom():
        return {}
    rows = min(table.num_rows, ROW_GROUP_ROWS)
    options = {
        name: {"ndv": max(1, rows), "fpp": BLOOM_FALSE_POSITIVES}
        for name in BLOOM
        if name in table.column_names and table.column(name).null_count < table.num_rows
    }
    return {"bloom_filter_options": options} if options else {}


def can_bloom() -> bool:
    """Whether this pyarrow writes Bloom filters; it does from 24 on."""
    return "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters or (
        "bloom_filter_options" in (pq.ParquetWriter.__doc__ or "")
    )


def time_range(table: pa.Table) -> tuple[int, int]:
    """Return the store times of the oldest and the newest row that has one, ms since 1970; else a time behind all."""
    stored_us = table.column("store_ts").cast(pa.int64()).drop_null().to_numpy()
    return (int(stored_us.min()) // 1000, int(stored_us.max()) // 1000) if len(stored_us) else (LAST_MS + 1,) * 2


def describe(table: pa.Table, path: str, size: int, crc: int, split: scan.LogSplit) -> ArchiveFile:
    """Return what the manifest says about a file."""
    offsets = table.column("log_offset").to_numpy()
    min_ts, max_ts = time_range(table)
    counts = table.column("topic").value_counts().to_pylist()
    return ArchiveFile(
        path=path,
        rows=table.num_rows,
        size_bytes=size,
        crc32=crc,
        broker=split.broker,
        start=split.start,
        end=split.end,
        min_offset=int(offsets.min()),
        max_offset=int(offsets.max()),
        min_ts=min_ts,
        max_ts=max_ts,
        topics={item["values"]: item["counts"] for item in counts},
    )
