"""What a start after a crash reads (recovery starts at the checkpoint)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.clock import ManualClock
from headrace.settings import StoreSettings
from headrace.store.segment import Segment
from headrace.store.store import Store
from tests.support.stores import StoreBench, count_reads
from tests.support.toolchain import cannot_run

SEGMENT_BYTES = 256 << 20


def open_store(folder: Path) -> Store:
    return Store.open(StoreSettings(data_dir=folder, segment_bytes=SEGMENT_BYTES), ManualClock())


def test_the_unwritten_part_of_segments_is_not_read(tmp_path: Path) -> None:
    """What is read through the mapping counts as data from then on: had everything been read, all would be data."""
    store = open_store(tmp_path / "store")
    batch = PublishBatch()
    batch.destinations = ["orders"]
    batch.queues = [store.queue("orders", 0)]
    batch.append(b"one")
    store.append(batch)
    store.flush()
    store.abandon()
    paths = sorted((tmp_path / "store" / "commitlog").iterdir())

    def unread(path: Path) -> bool:
        segment = Segment(str(path), 0, SEGMENT_BYTES)
        return not segment.written_ranges(SEGMENT_BYTES // 2)

    if not all(unread(path) for path in paths):
        cannot_run("this file system does not tell allocated from written: choose another with TMPDIR")
    again = open_store(tmp_path / "store")
    assert again.recovery.scan.records == 1
    again.close()
    assert all(unread(path) for path in paths)


def test_entries_of_what_retention_took_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's first file may have 300,000 of them, and there may be ten thousand queues."""
    bench = StoreBench(tmp_path / "store", queue_file_bytes=6_000_000)
    for _ in range(60):
        bench.append("t", *[b"x"] * 100)
    bench.close()
    for path in sorted((bench.root / "commitlog").iterdir())[:8]:
        path.unlink()
    read = count_reads(monkeypatch, "consumequeue")
    bench.open()
    kept = bench.store.recovery.scan.records
    bench.store.close()
    assert 0 < kept < 2_000
    assert sum(read) < 20 * kept + 10_000
