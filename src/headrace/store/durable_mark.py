"""The durable mark: up to where fdatasync has returned.

Two slots of 24 bytes, written in turn, each ``i64 sequence | i64 physical_offset | u32 crc32 | u32 zero``: a write torn
by a power cut damages one slot and the other still stands. Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

_SLOT = struct.Struct(">qqII")
_SLOT_BYTES = 24


class DurableMark:
    """The open mark of one store."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._sequence = 0
        self.is_damaged = False
        self.physical_offset = self._load()
        self.noted_offset = self.physical_offset
        self.synced_offset = self.physical_offset

    def _load(self) -> int:
        raw = os.pread(self._fd, 2 * _SLOT_BYTES, 0)
        offset = 0
        slots = [raw[i : i + _SLOT_BYTES] for i in range(0, len(raw), _SLOT_BYTES)]
        whole = 0
        for slot in slots:
            if len(slot) != _SLOT_BYTES:
                continue
            sequence, physical_offset, crc, _ = _SLOT.unpack(slot)
            if zlib.crc32(slot[:16]) != crc:
                continue
            whole += 1
            if sequence > self._sequence:
                self._sequence, offset = sequence, physical_offset
        self.is_damaged = bool(raw.strip(b"\0")) and whole == 0
        return offset

    def note(self, physical_offset: int) -> None:
        """Write the mark; it is synced later (``sync``)."""
        self._sequence += 1
        head = struct.pack(">qq", self._sequence, physical_offset)
        slot = head + struct.pack(">II", zlib.crc32(head), 0)
        os.pwrite(self._fd, slot, (self._sequence & 1) * _SLOT_BYTES)
        self.noted_offset = physical_offset

    def sync(self) -> None:
        """fdatasync the mark. Blocks: for a thread."""
        offset = self.noted_offset
        os.fdatasync(self._fd)
        self.synced_offset = offset

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
