"""The durable mark: up to where fdatasync has returned.

Two slots of 24 bytes, written in turn, each ``i64 sequence | i64 physical_offset | u32 crc32 | u32 zero``: a write torn
by a power cut damages one slot and the other still stands. It is noted after every flush, so on ext4 it is mapped: a
write call would add an inode to each of the log's journal commits. Elsewhere a write may take a new block (btrfs
always, XFS once the file was copied by reference), and without room for it a write to a mapping is SIGBUS.

Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

from headrace.errors import SideFileError
from headrace.format.durable_mark import CHECKED, MARK_BYTES, SLOT, decode_mark, is_whole
from headrace.format.side_file import is_special, naming
from headrace.store.segment import is_overwritten_in_place


class DurableMark:
    """The open mark of one store.

    Attributes:
        is_damaged: Nothing in the file that was found can be used; ``is_whole`` is false where a part of it is not as a
            clean end leaves it.
    """

    def __init__(self, path: Path) -> None:
        """Open the mark, made now if there is none.

        Raises:
            SideFileError: something else is in its place.
            OSError: with the file's name; it cannot be opened or mapped.
        """
        if is_special(path):
            raise SideFileError(path, "is no regular file", "remove it")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._path = path
        self._map: mmap.mmap | None = None
        try:
            found = os.pread(self._fd, MARK_BYTES + 1, 0)
            if len(found) < MARK_BYTES:
                os.posix_fallocate(self._fd, 0, MARK_BYTES)
            os.ftruncate(self._fd, MARK_BYTES)
            if is_overwritten_in_place(str(path)):
                self._map = mmap.mmap(self._fd, MARK_BYTES)
        except OSError as error:
            os.close(self._fd)
            raise OSError(error.errno, error.strerror, str(path)) from error
        self._sequence, self.physical_offset, self.is_damaged = decode_mark(found)
        self.is_whole = not found or is_whole(found)
        self.noted_offset = self.physical_offset
        self.synced_offset = self.physical_offset

    def note(self, physical_offset: int) -> None:
        """Write the mark; it is synced later (``sync``).

        Raises:
            OSError: with the file's name; the disk is full, and the mark before stands.
        """
        sequence = self._sequence + 1
        at = (sequence & 1) * SLOT.size
        checked = CHECKED.pack(sequence, physical_offset)
        slot = SLOT.pack(sequence, physical_offset, zlib.crc32(checked), 0)
        if self._map is not None:
            self._map[at : at + SLOT.size] = slot
        else:
            with naming(self._path):
                os.pwrite(self._fd, slot, at)
        self._sequence = sequence
        self.noted_offset = physical_offset

    def sync(self) -> None:
        """fdatasync the mark. Blocks: for a thread."""
        offset = self.noted_offset
        with naming(self._path):
            os.fdatasync(self._fd)
        self.synced_offset = offset

    def close(self) -> None:
        """Unmap and close the file."""
        if self._map is not None:
            self._map.close()
        os.close(self._fd)
