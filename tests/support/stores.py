"""Small stores that tests append to, crash and open again; closing one runs the checker on it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.clock import ManualClock
from headrace.settings import StoreSettings
from headrace.store.check import check_store
from headrace.store.check_report import CheckReport
from headrace.store.store import Store
from tests.support import layouts

SEGMENT_BYTES = 64 << 10
"""Far below what the settings allow: rolls come often."""

Published = tuple[str, int, int, bytes]
"""topic, queue offset, physical offset, body"""


def small_settings(root: Path, **changes: Any) -> StoreSettings:
    """Settings of a store with small files."""
    return replace(StoreSettings(data_dir=root, segment_bytes=SEGMENT_BYTES, queue_file_bytes=400), **changes)


class StoreBench:
    """One store folder and the store that is open on it."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.settings = small_settings(root, **changes)
        self.clock = ManualClock(now_ms=1_700_000_000_000, monotonic_ms=0)
        self.store: Store
        self.open()

    def open(self, **changes: Any) -> Store:
        self.settings = replace(self.settings, **changes)
        self.store = Store.open(self.settings, self.clock)
        return self.store

    def append(
        self, topic: str, *bodies: bytes, flush: bool = True, command: bool = False, **entry: Any
    ) -> list[Published]:
        """Append one batch to queue 0 of a topic; ``command`` makes it one MPUB."""
        batch = PublishBatch()
        batch.destinations, batch.queues = [topic], [self.store.queue(topic, 0)]
        for number, body in enumerate(bodies):
            count = len(bodies) if command and number == 0 else 0 if command else 1
            batch.append(body, command_entries=count, **entry)
        self.store.append(batch)
        if flush:
            self.store.flush()
        return [(topic, batch.placed(i)[1], batch.placed(i)[0], body) for i, body in enumerate(bodies)]

    def settle(self) -> None:
        """Return when the store's two threads have done what they were given, such as the next segment."""
        both_are_free = threading.Barrier(2, timeout=30)
        for job in [self.store._executor.submit(both_are_free.wait) for _ in range(2)]:
            job.result()

    def crash(self) -> None:
        """Let go of the store as a killed process does."""
        self.store.abandon()

    def restart(self, **changes: Any) -> Store:
        """Close cleanly, check, open again."""
        self.close()
        return self.open(**changes)

    def crash_and_open(self, **changes: Any) -> Store:
        """Crash, check that nothing durable is missing, open again."""
        self.crash()
        report = self.check()
        assert report.exit_code == 0, report.to_json()
        return self.open(**changes)

    def close(self, *, whole: bool = True) -> None:
        """Close cleanly; the checker must agree."""
        self.store.close()
        report = self.check()
        assert report.error is None
        if whole:
            assert report.damage == [], report.to_json()

    def check(self) -> CheckReport:
        return check_store(self.root)

    def messages(self, topic: str, queue_id: int = 0) -> dict[int, bytes]:
        """Queue offset -> body of every readable message."""
        queue = self.store.queue(topic, queue_id)
        found = {}
        offset = queue.min_offset
        while entries := queue.entries(offset, 1000):
            for physical_offset, record_bytes, _ in entries:
                if record_bytes != layouts.FILLER[1]:
                    raw = self.store.log.read(physical_offset)
                    if raw is not None:
                        record = layouts.decode_record(raw)
                        assert (record.topic.decode(), record.queue_offset) == (topic, offset)
                        found[offset] = record.body
                offset += 1
        return found

    def segment(self, physical_offset: int) -> Path:
        first = physical_offset // self.settings.segment_bytes * self.settings.segment_bytes
        return self.root / "commitlog" / f"{first:020d}"

    def overwrite(self, physical_offset: int, data: bytes) -> None:
        """Change bytes of the log behind the store's back."""
        path = self.segment(physical_offset)
        with path.open("r+b") as file:
            file.seek(physical_offset % self.settings.segment_bytes)
            file.write(data)

    def bytes_at(self, physical_offset: int, size: int) -> bytes:
        with self.segment(physical_offset).open("rb") as file:
            file.seek(physical_offset % self.settings.segment_bytes)
            return file.read(size)

    def copy(self, to: Path) -> Path:
        """Copy the folder as it is at this moment: what a power cut would leave, at the most."""
        shutil.copytree(self.root, to)
        return to


@contextmanager
def store_bench(root: Path, **changes: Any) -> Iterator[StoreBench]:
    """A bench whose store is closed and checked at the end."""
    bench = StoreBench(root, **changes)
    try:
        yield bench
    except BaseException:
        with suppress(Exception):
            bench.store.abandon()
        raise
    if not bench.store._closed:
        bench.close()


MakeBench = Callable[..., StoreBench]


def count_reads(monkeypatch: pytest.MonkeyPatch, folder: str = "") -> list[int]:
    """Return where the size of each read of files, of all or of those below a folder, is noted from now on."""
    sizes: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        if folder in Path(f"/proc/self/fd/{fd}").readlink().parts or not folder:
            sizes.append(size)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    return sizes
