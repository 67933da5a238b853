"""The durable mark: up to where fdatasync has returned.

Two slots of 24 bytes, written in turn, each ``i64 sequence | i64 physical_offset | u32 crc32 | u32 zero``: a write torn
by a power cut damages one slot and the other still stands. The file is mapped, since it is noted after every flush and
a write call would add an inode to each of the log's journal commits. Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

from headrace.errors import SideFileError
from headrace.format.durable_mark import CHECKED, MARK_BYTES, SLOT
from headrace.format.durable_mark import decode_mark as decode_mark
from headrace.format.side_file import is_special


class DurableMark:
    """The open mark of one store."""

    def __init__(self, path: Path) -> None:
        """Open the mark, made now if there is none.

        Raises:
            SideFileError: something else is in its place.
            OSError: with the file's name; it cannot be opened or mapped.
        """
        if is_special(path):
            raise SideFileError(path, "is no regular file", "remove it")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._fd).st_size < MARK_BYTES:
            os.posix_fallocate(self._fd, 0, MARK_BYTES)
        try:
            self._map = mmap.mmap(self._fd, MARK_BYTES)
        except OSError as error:
            os.close(self._fd)
            raise OSError(error.errno, error.strerror, str(path)) from error
        self._sequence, self.physical_offset, self.is_damaged = decode_mark(bytes(self._map))
        self.noted_offset = self.physical_offset
        self.synced_offset = self.physical_offset

    def note(self, physical_offset: int) -> None:
        """Write the mark; it is synced later (``sync``)."""
        self._sequence += 1
        at = (self._sequence & 1) * SLOT.size
        checked = CHECKED.pack(self._sequence, physical_offset)
        SLOT.pack_into(self._map, at, self._sequence, physical_offset, zlib.crc32(checked), 0)
        self.noted_offset = physical_offset

    def sync(self) -> None:
        """fdatasync the mark. Blocks: for a thread."""
        offset = self.noted_offset
        os.fdatasync(self._fd)
        self.synced_offset = offset

    def close(self) -> None:
        """Unmap and close the file."""
        self._map.close()
        os.close(self._fd)
