"""Entries of consume queues, for whoever reads a queue's files without its broker.

``store.consume_queue`` has the compiled loops over those of an open store.

Ref: docs/formats/consume-queue.md, "Files" and "Entry".
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.format.layout import queue_folder
from headrace.format.names import is_offset_name, segment_name

ENTRY: Final = struct.Struct(">qiq")  # physical offset, size of the record, tag hash

FILLER_BYTES: Final = 0x7FFFFFFF
"""Size in an entry without a record: the queue offset was issued, and what stood there is gone."""

DEFAULT_FILE_BYTES: Final = 6_000_000
"""Size of a queue's files where the store does not say it: RocketMQ's, and that of ``store.queue_file_bytes``."""


def whole_entries(file_bytes: int) -> int:
    """Return a size rounded up to a whole number of entries, as a queue's files have it."""
    return -(-file_bytes // ENTRY.size) * ENTRY.size


class StoredQueue:
    """The files of one consume queue."""

    def __init__(self, consume_queues: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        """Name a queue in the folder of all; its files need not exist."""
        self.topic = topic
        self.queue_id = queue_id
        self.path = queue_folder(consume_queues, topic, queue_id)
        self.file_bytes = file_bytes

    def files(self) -> list[tuple[int, int]]:
        """Return (first byte, size) of each file."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.path):
                # Of an entry that is a link to itself ``is_file`` is an error.
                if is_offset_name(entry.name) and Path(entry.path).is_file():
                    found.append((int(entry.name), entry.stat().st_size))
        return sorted(found)

    def extent(self) -> tuple[int, int]:
        """Return (first queue offset, queue offset behind the last entry written)."""
        files = self.files()
        if not files:
            return 0, 0
        low, high = files[0][0] // ENTRY.size, (files[-1][0] + self.file_bytes) // ENTRY.size
        first = low
        while low < high:
            middle = (low + high) // 2
            if ENTRY.unpack(self.read(middle, 1))[1] > 0:
                low = middle + 1
            else:
                high = middle
        return first, low

    def read(self, from_offset: int, count: int) -> bytes:
        """Return raw entries; those that no file has are zeros."""
        parts = []
        at, end = from_offset * ENTRY.size, (from_offset + count) * ENTRY.size
        while at < end:
            start = at // self.file_bytes * self.file_bytes
            size = min(end, start + self.file_bytes) - at
            raw = b""
            path = self.path / segment_name(start)
            if path.is_file():
                with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                    raw = os.pread(file.fileno(), size, at - start)
            parts.append(raw.ljust(size, b"\0"))
            at += size
        return b"".join(parts)

    def entries(self, from_offset: int, to_offset: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (queue offset, physical offset, record bytes, tag hash); record bytes 0 where there is no entry."""
        while from_offset < to_offset:
            count = min(4096, to_offset - from_offset)
            for physical_offset, record_bytes, tag_hash in ENTRY.iter_unpack(self.read(from_offset, count)):
                yield from_offset, physical_offset, record_bytes, tag_hash
                from_offset += 1
