"""How rows are put in order for an archive's files. Ref: docs/spark/jobs/archive.md."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from headrace.spark.jobs import archive_files  # noqa: E402
from headrace.spark.jobs.archive_files import (  # noqa: E402
    MIN_RUN_ROWS,
    ArchiveTask,
    archive_split,
    join_runs,
    write_parquet,
    write_table,
)
from headrace.spark.jobs.manifest import FOLDER, ArchiveError  # noqa: E402
from headrace.spark.scan import LogSplit, StoreSource  # noqa: E402
from tests.unit.spark.test_files import SEGMENT, make_store  # noqa: E402

QUEUES = 3


def make_rows(queues: list[int]) -> Any:
    """Return a row of the log for each number of a queue."""
    offsets = [queues[:at].count(queue) for at, queue in enumerate(queues)]
    numbers = range(len(queues))
    return pa.table({
        "topic": ["orders"] * len(queues),
        "queue_id": pa.array(queues, pa.int32()),
        "queue_offset": pa.array(offsets, pa.int64()),
        "log_offset": pa.array([100 * number for number in numbers], pa.int64()),
        "store_ts": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * len(queues), pa.timestamp("us", tz="UTC")),
        "keys": [None if number % 3 else f"key-{number}" for number in numbers],
        "body": [b"x" * (number % 5) for number in numbers],
        "properties": pa.array(
            [[("n", str(number))] * (number % 3) for number in numbers], pa.map_(pa.string(), pa.string())
        ),
    })  # fmt: skip


def in_batches(rows: Any, cuts: list[int]) -> Any:
    """Return the same rows as they come when they are read in batches that end at ``cuts``."""
    ends = [*sorted({cut for cut in cuts if 0 < cut < rows.num_rows}), rows.num_rows]
    starts = [0, *ends[:-1]]
    batches = (rows.slice(start, end - start).combine_chunks() for start, end in zip(starts, ends, strict=True))
    return pa.concat_tables(batches)


@given(order=st.lists(st.integers(0, 59), min_size=1, max_size=80), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_runs_joined_are_the_rows_taken_one_by_one(order, cuts):
    """Any order, rows in any batches: the same values, one array for each column."""
    rows = make_rows([number % QUEUES for number in range(60)])
    joined = join_runs(in_batches(rows, cuts), np.array(order))
    assert joined.equals(rows.take(order))
    assert all(column.num_chunks == 1 for column in joined.columns)


@pytest.mark.parametrize("run", [1, MIN_RUN_ROWS - 1, MIN_RUN_ROWS, 4 * MIN_RUN_ROWS])
def test_a_range_becomes_the_same_bytes_whatever_batches_it_is_read_in(tmp_path, run):
    """A-STORE, spark.md 4.1: a task that runs again writes the same files, for messages one by one and in batches."""
    rows = make_rows([at // run % QUEUES for at in range(12 * MIN_RUN_ROWS)])
    written = []
    for name, cuts in (("one", []), ("many", [5, 77, 500])):
        (tmp_path / name).mkdir()
        split = LogSplit(StoreSource("store"), "b", 0, 100 * rows.num_rows, 1 << 20)
        task = ArchiveTask(split, str(tmp_path), tuple(rows.column_names), "topic", {})
        (file,) = write_table(task, in_batches(rows, cuts), 0, tmp_path, tmp_path / name)
        written.append((tmp_path / file.path).read_bytes())
        found = pq.read_table(tmp_path / file.path, partitioning=None)
        assert found.column("log_offset").to_pylist() == [
            row["log_offset"] for row in sorted(rows.to_pylist(), key=lambda row: (row["queue_id"], row["log_offset"]))
        ]
    assert written[0] == written[1]


def test_a_file_goes_to_the_disk_while_it_is_written(tmp_path, monkeypatch):
    """Ranges that follow each other, none twice; fsync, which says whether they got there, is still called."""
    ranges: list[tuple[int, int]] = []
    synced: list[int] = []
    began = lambda file, first, size: ranges.append((first, first + size))  # noqa: E731
    monkeypatch.setattr(archive_files, "_begin_writeback", began)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    rows = make_rows([0] * 4096).append_column("noise", pa.array([os.urandom(2_000) for _ in range(4096)]))
    size, _ = write_parquet(tmp_path / "file", rows)
    assert synced == [size]
    assert len(ranges) >= 3
    assert ranges[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert 0 <= size - ranges[-1][1] < archive_files.WRITEBACK_BYTES


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "none"])
def test_files_are_written_with_the_codec_that_was_asked_for(tmp_path, codec):
    """Of every column, and they are read as they were."""
    rows = make_rows([0] * 500)
    write_parquet(tmp_path / "file", rows, codec)
    opened = pq.ParquetFile(tmp_path / "file")
    row_group = opened.metadata.row_group(0)
    used = {row_group.column(at).compression for at in range(row_group.num_columns)}
    assert used == {{"none": "UNCOMPRESSED"}.get(codec, codec.upper())}
    assert opened.read().equals(rows)


def test_a_higher_level_makes_smaller_files(tmp_path):
    rows = make_rows([0] * 500).append_column("text", pa.array([f"{n * n} squares, {n} of them" for n in range(500)]))
    quick, _ = write_parquet(tmp_path / "quick", rows, "zstd", 1)
    small, _ = write_parquet(tmp_path / "small", rows, "zstd", 19)
    assert small < quick


def test_a_file_that_cannot_be_put_in_its_place_is_named(tmp_path):
    """Not the one below ``_tmp`` that was to become it, which is gone when somebody looks."""
    _, whole = make_store(tmp_path / "store", 10)
    split = LogSplit(StoreSource(str(tmp_path / "store")), "b", 0, sum(map(len, whole)), SEGMENT)
    task = ArchiveTask(split, str(tmp_path), archive_files.NEEDED, "topic", {})
    (tmp_path / FOLDER).mkdir()
    (written,) = archive_split(task)["files"]
    target = tmp_path / written["path"]
    target.unlink()
    (target / "in the way").mkdir(parents=True)
    with pytest.raises(ArchiveError, match=re.escape(f"{target} cannot be written")):
        archive_split(task)


def test_where_linux_is_not_nothing_is_begun(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    archive_files._find_writeback()(0, 0, 1)


def test_a_disk_that_is_full_gets_back_what_was_written(tmp_path, monkeypatch):
    _, whole = make_store(tmp_path / "store", 10)
    split = LogSplit(StoreSource(str(tmp_path / "store")), "b", 0, sum(map(len, whole)), SEGMENT)
    root = tmp_path / "archive"
    task = ArchiveTask(split, str(root), archive_files.NEEDED, "topic", {})
    (root / FOLDER).mkdir(parents=True)

    def fill(path: Any, *_: Any) -> Any:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(archive_files, "write_parquet", fill)
    with pytest.raises(ArchiveError, match="No space left on device"):
        archive_split(task)
    assert [path for path in root.rglob("*") if path.is_file()] == []
