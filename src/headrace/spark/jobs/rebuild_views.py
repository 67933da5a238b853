"""What the tasks of the rebuild job do.

A consume queue is an array: the entry of queue offset n lies at byte 20 n. So each task writes the entries of its range
of the log to their places, in files that several tasks write to; no shuffle and no sort is needed, and a task that runs
twice writes the same bytes. What no record fills is zeros, which the driver turns into fillers.

The key index depends on order: an entry's number is the count of those before it. So the tasks of a first pass note
keys in files of their own, the driver counts, and a second pass makes one index file in each task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.errors import HeadraceError
from headrace.format.layout import queue_folder
from headrace.format.names import segment_name
from headrace.format.queue_entry import FILLER_BYTES
from headrace.format.record import SYS_TRANSACTION
from headrace.format.side_shapes import IndexFileNote
from headrace.spark.jobs.views import (
    ENTRY,
    INDEX_ENTRY,
    INDEX_HEADER_BYTES,
    Array,
    Headers,
    header_decoder,
    index_keys,
    read_headers,
)
from headrace.spark.scan import LogSplit

KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("store_ms", "<i8")])
"""A key as the first pass notes it."""
MAX_SECONDS: Final = 0x7FFFFFFF
SLOT_BLOCK: Final = 1 << 16


@dataclass(frozen=True)
class ScanTask:
    """One range of the log.

    Attributes:
        queues: Folder of the new consume queues; empty: none are made.
        keys: Folder where keys are noted; empty: none are.
    """

    split: LogSplit
    queues: str
    keys: str
    file_bytes: int
    delays_ms: Sequence[int]


@dataclass(frozen=True)
class IndexTask:
    """One index file to make.

    Attributes:
        parts: Path, first key and end in it, of the noted keys that become this file, in order.
    """

    path: str
    slots: int
    capacity: int
    parts: tuple[tuple[str, int, int], ...]


class QueueWriter:
    """Writes entries to their places; keeps the files of one batch open."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._folder = folder
        self._file_bytes = file_bytes

    def write(self, topic: str, queue_id: int, first: int, entries: Array) -> None:
        """Write entries from a queue offset on.

        Raises:
            HeadraceError: a file cannot be written.
        """
        folder = queue_folder(self._folder, topic, queue_id)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        raw = memoryview(entries.tobytes())
        at = first * ENTRY.itemsize
        while raw:
            start = at // self._file_bytes * self._file_bytes
            size = min(len(raw), start + self._file_bytes - at)
            path = folder / segment_name(start)
            with writing(path):
                self._write_part(path, raw[:size], at - start)
            raw = raw[size:]
            at += size

    def _write_part(self, path: Path, raw: memoryview, at: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, self._file_bytes)
            done = 0
            while done < len(raw):
                done += os.pwrite(descriptor, raw[done:], at + done)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say which file of the result cannot be written.

    Raises:
        HeadraceError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise HeadraceError(f"{path} cannot be written: {error.strerror}") from error


def fillers(count: int) -> Array:
    """Return entries that stand for queue offsets without a record."""
    made = np.zeros(count, ENTRY)
    made["size"] = FILLER_BYTES
    return made


def scan_range(task: ScanTask) -> dict[str, Any]:
    """Write the queue entries of one range and note its keys; return what there was, as JSON has it."""
    decoder = header_decoder(task.split, keys=bool(task.keys))
    found = _Range(task)
    for headers in read_headers(task.split, decoder, task.delays_ms):
        found.take(headers)
    return found.finish(decoder.damaged)


class _Range:
    """The state of one scanning task."""

    def __init__(self, task: ScanTask) -> None:
        self._task = task
        self._writer = QueueWriter(Path(task.queues), task.file_bytes) if task.queues else None
        self._queues: dict[tuple[str, int], list[list[int]]] = {}
        self._repeated = 0
        self._keys: list[Array] = []
        self._records = 0

    def take(self, headers: Headers) -> None:
        """Take some records."""
        self._records += int(np.count_nonzero(headers.is_right))
        if self._writer is not None:
            for topic, queue_id, part in headers.groups(np.flatnonzero(headers.is_queued)):
                self._take_queue(self._writer, headers, topic, queue_id, part)
        if self._task.keys:
            self._take_keys(headers)

    def _take_queue(self, writer: QueueWriter, headers: Headers, topic: str, queue_id: int, part: Array) -> None:
        offsets = headers.queue_offset[part]
        runs = self._queues.setdefault((topic, queue_id), [])
        for run in np.split(np.arange(len(part)), np.flatnonzero(np.diff(offsets) != 1) + 1):
            first, end = int(offsets[run[0]]), int(offsets[run[-1]]) + 1
            known = max((after for _, after in runs), default=-1)
            if first < known:
                # An offset that came before: the first record has it, as for a broker that recovers.
                skipped = min(end, known) - first
                self._repeated += skipped
                run, first = run[skipped:], first + skipped
                if not len(run):
                    continue
            writer.write(topic, queue_id, first, headers.entries(part[run]))
            if runs and runs[-1][1] == first:
                runs[-1][1] = end
            else:
                runs.append([first, end])

    def _take_keys(self, headers: Headers) -> None:
        is_indexed = headers.is_right & ((headers.sys_flag & SYS_TRANSACTION) != SYS_TRANSACTION)
        rows, hashes = index_keys(headers, np.flatnonzero(is_indexed))
        if len(rows):
            keys = np.zeros(len(rows), KEY)
            keys["hash"], keys["offset"], keys["store_ms"] = hashes, headers.offset[rows], headers.store_ms[rows]
            self._keys.append(keys)

    def finish(self, damaged: int) -> dict[str, Any]:
        """Write the keys down and return what there was; ``damaged`` is the decoder's count."""
        count = sum(len(keys) for keys in self._keys)
        path = ""
        if count:
            name = f"keys-{self._task.split.start:020d}"
            beside = Path(self._task.keys, f"{name}.{os.getpid()}")
            with writing(beside), beside.open("wb") as file:
                for keys in self._keys:
                    file.write(keys.tobytes())
            path = str(Path(self._task.keys, name))
            beside.replace(path)
        queues = [[topic, queue_id, runs] for (topic, queue_id), runs in self._queues.items() if runs]
        return {
            "records": self._records, "damaged": damaged, "queues": queues, "repeated": self._repeated,
            "keys": count, "path": path,
        }  # fmt: skip


def make_index_file(task: IndexTask) -> dict[str, Any]:
    """Make one index file; return what the index's note says about it."""
    keys = np.concatenate(
        [np.fromfile(path, KEY, end - first, offset=first * KEY.itemsize) for path, first, end in task.parts]
    )
    slot = keys["hash"].astype(np.int64) % task.slots
    number = np.arange(1, len(keys) + 1)
    before = np.zeros(len(keys), np.int64)
    order = np.argsort(slot, kind="stable")
    is_same = np.flatnonzero(slot[order][1:] == slot[order][:-1])
    before[order[is_same + 1]] = number[order[is_same]]
    begin_ms = int(keys["store_ms"][0])
    entries = np.zeros(len(keys), INDEX_ENTRY)
    entries["hash"], entries["offset"], entries["before"] = keys["hash"], keys["offset"], before
    if begin_ms > 0:
        entries["seconds"] = np.clip((keys["store_ms"] - begin_ms) // 1000, 0, MAX_SECONDS)
    slots = np.zeros(task.slots, ">i4")
    slots[slot] = number  # of several the last one stays
    used = int(np.count_nonzero(slots))
    note = IndexFileNote(
        name=Path(task.path).name,
        count=len(keys) + 1,
        slots_count=len(keys) + 1,
        used_slots=used,
        begin_ms=begin_ms,
        end_ms=int(keys["store_ms"][-1]),
        begin_offset=int(keys["offset"][0]),
        end_offset=int(keys["offset"][-1]),
    )
    with writing(Path(task.path)):
        _write_index(task, note, slots, entries)
    return asdict(note)


def _write_index(task: IndexTask, note: IndexFileNote, slots: Array, entries: Array) -> None:
    """Write an index file, sparse where there are no slots and entries."""
    beside = f"{task.path}.{os.getpid()}"
    with Path(beside).open("wb") as file:
        file.truncate(INDEX_HEADER_BYTES + 4 * task.slots + INDEX_ENTRY.itemsize * task.capacity)
        file.write(note.header())
        raw = slots.tobytes()
        for at in range(0, len(raw), SLOT_BLOCK):
            block = raw[at : at + SLOT_BLOCK]
            if any(block):
                file.seek(INDEX_HEADER_BYTES + at)
                file.write(block)
        file.seek(INDEX_HEADER_BYTES + 4 * task.slots + INDEX_ENTRY.itemsize)
        file.write(entries.tobytes())
        file.flush()
        os.fsync(file.fileno())
    Path(beside).replace(task.path)
