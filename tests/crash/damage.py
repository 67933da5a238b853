"""Stores to damage: made once, copied, changed byte by byte, opened again."""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from headrace.batch import PublishBatch
from headrace.clock import ManualClock
from headrace.format import record
from headrace.lock_file import LockHeldError, lock_folder
from headrace.settings import StoreSettings
from headrace.store.store import Store

SEGMENT_BYTES = 1 << 20
_MEMORY_DISK = Path("/dev/shm")  # tests open a thousand stores: there an fsync costs nothing
_PREFIX = "headrace-test-"
_ROOM_BYTES = 512 << 20  # four workers take up to 100 MiB each; containers have 64 MiB there by default


def fast_folder(fallback: Path) -> Path:
    """Return a folder in memory where there is room for one."""
    if os.access(_MEMORY_DISK, os.W_OK) and shutil.disk_usage(_MEMORY_DISK).free >= _ROOM_BYTES:
        folder = _own_folder(_MEMORY_DISK, os.getpid()) / fallback.name
        folder.mkdir(exist_ok=True)
        return folder
    return fallback


@cache
def _own_folder(disk: Path, pid: int) -> Path:
    """Return the folder of this process, held until its end; what killed ones have left is removed."""
    for left in disk.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]  # an earlier version made one for each test
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            # A container may share the disk and not the numbers of processes.
            with suppress(OSError, LockHeldError):
                held = lock_folder(left)
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)
    own = disk / f"{_PREFIX}{pid}"
    own.mkdir(exist_ok=True)
    lock_folder(own)
    atexit.register(_remove_own, own, pid)
    return own


def _remove_own(own: Path, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked child
        shutil.rmtree(own, ignore_errors=True)


@dataclass
class Appended:
    """Where one record lies."""

    topic: str
    body: bytes
    physical_offset: int
    queue_offset: int
    record_bytes: int
    command: int
    """Number of the command that published it."""

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.record_bytes


@dataclass
class StoreRig:
    """An open store in a folder, and everything that was appended to it."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    appended: list[Appended] = field(default_factory=list)
    commands: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.settings = replace(StoreSettings(data_dir=self.folder, segment_bytes=SEGMENT_BYTES), **self.options)
        self.store = Store.open(self.settings, self.clock)

    def append(self, *bodies: bytes, topic: str = "t") -> list[Appended]:
        """Append one command: several bodies are one MPUB."""
        batch = PublishBatch()
        batch.queues = [self.store.queue(topic, 0)]
        for number, body in enumerate(bodies):
            batch.append(body, command_entries=len(bodies) if number == 0 else 0)
        self.store.append(batch)
        self.commands += 1
        made = []
        for number, body in enumerate(bodies):
            physical_offset, queue_offset, record_bytes = batch.placed(number)
            made.append(Appended(topic, body, physical_offset, queue_offset, record_bytes, self.commands))
        self.appended += made
        return made

    def snapshot(self, into: Path) -> None:
        """Copy the folder as a kill -9 at this moment would leave it."""
        copy_store(self.folder, into)

    def close(self) -> None:
        self.store.close()


def copy_store(folder: Path, into: Path) -> None:
    """Replace ``into`` by a copy of a store."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into)


def segment_file(folder: Path, physical_offset: int) -> tuple[Path, int]:
    """Return the file that holds a physical offset and the position in it."""
    first = physical_offset // SEGMENT_BYTES * SEGMENT_BYTES
    return folder / "commitlog" / f"{first:020d}", physical_offset - first


def overwrite(folder: Path, physical_offset: int, data: bytes) -> None:
    """Put other bytes into the log."""
    path, position = segment_file(folder, physical_offset)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def read_log(folder: Path, physical_offset: int, size: int) -> bytes:
    """Return bytes of the log."""
    path, position = segment_file(folder, physical_offset)
    with path.open("rb") as file:
        file.seek(position)
        return file.read(size)


def readable(store: Store) -> dict[tuple[str, int], bytes]:
    """Return what readers of every queue get: (topic, queue offset) -> body."""
    found = {}
    for (topic, _), queue in store.queues.items():
        offset = queue.min_offset
        while offset < queue.visible_offset:
            entries = queue.entries(offset, 512)
            assert entries, f"queue {topic} has no entry {offset} below its end {queue.visible_offset}"
            for physical_offset, record_bytes, _ in entries:
                raw = None if record_bytes == 0x7FFFFFFF else store.log.read(physical_offset)
                if raw is not None:
                    fields = record.decode(raw)
                    assert fields["topic"] == topic
                    assert fields["queue_offset"] == offset
                    found[topic, offset] = fields["body"]
                offset += 1
    return found


def expected(appended: list[Appended]) -> dict[tuple[str, int], bytes]:
    """Return what ``readable`` should find."""
    return {(one.topic, one.queue_offset): one.body for one in appended}
