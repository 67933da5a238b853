"""The bytes of the durable mark: up to where fdatasync has returned.

Ref: docs/formats/side-files.md, "Durable mark".
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from headrace.format.side_file import is_special, naming

SLOT: Final = struct.Struct(">qqII")
MARK_BYTES: Final = 2 * SLOT.size
CHECKED: Final = struct.Struct(">qq")
"""The part of a slot that its CRC is of: sequence and physical offset."""
_DAMAGED: Final = b"\xff"


def read_mark(path: Path) -> bytes | None:
    """Return the bytes of a mark, None where there is none; those of a damaged one where something else is."""
    try:
        with naming(path):
            return _DAMAGED if is_special(path) else path.read_bytes()
    except FileNotFoundError:
        return None


def decode_mark(raw: bytes) -> tuple[int, int, bool]:
    """Return (sequence, physical_offset, is_damaged) of a mark's bytes; an empty file is a mark at 0."""
    sequence = offset = whole = 0
    for at in range(0, min(len(raw), MARK_BYTES) // SLOT.size * SLOT.size, SLOT.size):
        slot_sequence, physical_offset, crc, _ = SLOT.unpack_from(raw, at)
        if zlib.crc32(raw[at : at + CHECKED.size]) != crc:
            continue
        whole += 1
        if slot_sequence > sequence:
            sequence, offset = slot_sequence, physical_offset
    return sequence, offset, bool(raw.strip(b"\0")) and not whole


def is_whole(raw: bytes) -> bool:
    """Return whether a mark is as a clean end leaves it: of its size, no slot torn, at most the older never written."""
    slots = [raw[at : at + SLOT.size] for at in range(0, len(raw), SLOT.size)]
    written = [slot for slot in slots if slot.strip(b"\0")]
    return len(raw) == MARK_BYTES and bool(written) and all(decode_mark(slot)[0] for slot in written)
