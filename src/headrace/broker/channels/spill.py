"""Files for deferred messages that do not fit in memory.

One directory per channel, one file per time bucket, written once and read once. The files are not a source of truth:
the channel journal is, so what an earlier process left is removed at start, nothing is synced, and a block that does
not match its checksum is reported as missing, upon which the channel makes those messages deliverable again.

Layout of a block: u32 bytes | u32 crc32 of the entries | entries of 24 bytes (MessageEntry of channel_state.pxd).
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.format.names import is_offset_name, segment_name
from headrace.lock_file import require_in_place

logger = logging.getLogger(__name__)

BLOCK_HEAD = struct.Struct("<II")
ENTRY_BYTES = 24
MAX_BLOCK_BYTES = 65_536 * ENTRY_BYTES + (1 << 16)


class SpillFile:
    """The entries of one bucket that went to disk. It is open only while it is written or read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.touch()
        self._end = 0
        self._read_at = 0
        self.missing = 0  # entries that were appended and not read back

    def append(self, entries: bytes) -> None:
        """Write one block at the end."""
        block = BLOCK_HEAD.pack(len(entries), zlib.crc32(entries)) + entries
        require_in_place(self._path)
        with self._path.open("r+b") as file:
            file.truncate(self._end)  # what a write that failed may have left
            file.seek(self._end)
            file.write(block)
        self._end += len(block)
        self.missing += len(entries) // ENTRY_BYTES

    def read_block(self) -> bytes | None:
        """Return the next block's entries; None at the end or where the file is damaged (see ``missing``)."""
        block = self._block_at(self._read_at)
        if block is None:
            if self.missing:
                logger.warning(
                    "spill file damaged path=%s position=%d missing_entries=%d effect=%s",
                    self._path,
                    self._read_at,
                    self.missing,
                    "the messages become ready at once",
                )
            return None
        self._read_at += BLOCK_HEAD.size + len(block)
        self.missing -= len(block) // ENTRY_BYTES
        return block

    def peek_blocks(self) -> Iterator[bytes]:
        """Yield the blocks not yet read, without taking them."""
        at = self._read_at
        while (block := self._block_at(at)) is not None:
            yield block
            at += BLOCK_HEAD.size + len(block)

    def _block_at(self, position: int) -> bytes | None:
        try:
            require_in_place(self._path)
            with self._path.open("rb") as file:
                file.seek(position)
                head = file.read(BLOCK_HEAD.size)
                if len(head) < BLOCK_HEAD.size:
                    return None
                size, crc = BLOCK_HEAD.unpack(head)
                if size > MAX_BLOCK_BYTES or size % ENTRY_BYTES:
                    return None
                block = file.read(size)
        except OSError as exc:
            logger.warning("spill file unreadable path=%s error=%s", self._path, exc)
            return None
        return block if len(block) == size and zlib.crc32(block) == crc else None

    def remove(self) -> None:
        """Delete the file; what cannot be deleted the next start does."""
        try:
            require_in_place(self._path)
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("spill file not removed, the next start does it path=%s error=%s", self._path, error)


class SpillDirectory:
    """Makes a channel's spill files; the directory appears with the first of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next_number = 0
        for left_over in directory.glob("*.spill") if self._is_there() else ():
            left_over.unlink()

    def _is_there(self) -> bool:
        """Whether the directory is there. Where the system refuses to look it counts as missing: starts look again."""
        try:
            return self._directory.is_dir()
        except OSError:
            return False

    def create(self) -> SpillFile:
        """Make a new, empty file."""
        require_in_place(self._directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._next_number += 1
        return SpillFile(self._directory / f"{self._next_number:08d}.spill")

    def remove(self) -> None:
        """Delete the directory if it is there; its files must have been removed."""
        if self._is_there():
            try:
                require_in_place(self._directory)
                self._directory.rmdir()
            except OSError as error:
                logger.warning("folder of spill files not removed path=%s error=%s", self._directory, error)


def remove_left_over(directory: Path, keys: Iterable[int]) -> None:
    """Delete the folders of channels that are no more: a power cut may bring back what was deleted with them.

    Args:
        keys: Of the channels that there are.
    """
    there = set(map(segment_name, keys))
    for folder in directory.iterdir():
        if is_offset_name(folder.name) and folder.name not in there:
            SpillDirectory(folder).remove()
