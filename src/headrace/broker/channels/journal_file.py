"""One file of the channels' journal: its header, its records, and what is left of a damaged one.

Layout: docs/formats/channel-journal.md. ``journal`` says when which file is written.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import FormatVersionError, SideFileError
from headrace.format.side_file import is_special

FILE_MAGIC = b"HRCHANNL"
FILE_VERSION = 1
KIND_JOURNAL = 1
KIND_SNAPSHOT = 2
FILE_HEAD = struct.Struct("<8sHHQI")  # magic, version, kind, generation, crc32 of what precedes
RECORD_MAGIC = b"HRCR"
RECORD_HEAD = struct.Struct("<4sIIHH")  # magic, payload bytes, crc32 of what follows and the size, key bytes, flags
CHECKED_HEAD = struct.Struct("<IHH")  # what of the head the checksum covers: payload bytes, key bytes, flags
FLAG_FORGOTTEN = 1  # the channel was deleted: what came before does not count
FLAG_END = 2  # last record of a snapshot; its payload is the u32 number of the others
KNOWN_FLAGS = {0, FLAG_FORGOTTEN, FLAG_END}


@dataclass(slots=True)
class HistoryScan:
    """The records of one file."""

    records: list[tuple[bytes, int, bytes]] = field(default_factory=list)  # key, flags, payload
    generation: int = -1  # -1: the header is damaged
    end: int = 0  # behind the last good record
    torn_bytes: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_whole_snapshot(self) -> bool:
        """Whether nothing of a snapshot is missing; else the one before it counts beneath."""
        records = self.records
        return (
            self.generation >= 0
            and not self.damaged
            and bool(records)
            and records[-1][1:] == (FLAG_END, struct.pack("<I", len(records) - 1))
        )


def encode_record(key: bytes, payload: bytes, flags: int = 0) -> bytes:
    """Return one record of a journal or snapshot."""
    checked = CHECKED_HEAD.pack(len(payload), len(key), flags)
    crc = zlib.crc32(payload, zlib.crc32(key, zlib.crc32(checked)))
    return RECORD_HEAD.pack(RECORD_MAGIC, len(payload), crc, len(key), flags) + key + payload


def encode_file_head(kind: int, generation: int) -> bytes:
    """Return a file's header."""
    head = FILE_HEAD.pack(FILE_MAGIC, FILE_VERSION, kind, generation, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _decode_record(content: bytes, position: int) -> tuple[bytes, int, bytes, int] | None:
    """Return (key, flags, payload, end) of the record at ``position``, or None when there is no whole one."""
    if position + RECORD_HEAD.size > len(content):
        return None
    magic, size, crc, key_size, flags = RECORD_HEAD.unpack_from(content, position)
    key_at = position + RECORD_HEAD.size
    end = key_at + key_size + size
    if magic != RECORD_MAGIC or flags not in KNOWN_FLAGS or end > len(content):
        return None
    key, payload = content[key_at : key_at + key_size], content[key_at + key_size : end]
    checked = CHECKED_HEAD.pack(size, key_size, flags)
    if zlib.crc32(payload, zlib.crc32(key, zlib.crc32(checked))) != crc:
        return None
    return key, flags, payload, end


def scan_history(path: Path, kind: int) -> HistoryScan:
    """Read every whole record of a file; damage in the middle is skipped up to the next whole record."""
    if is_special(path):
        raise SideFileError(
            path, "is no regular file",
            "put the file back, or remove this: unfinished messages of its channels are then delivered again",
        )  # fmt: skip
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise SideFileError(
            path, f"cannot be read: {exc.strerror}",
            "repair the disk, or move the file away: unfinished messages of its channels are then delivered again",
        ) from exc  # fmt: skip
    scan = HistoryScan(end=min(FILE_HEAD.size, len(content)))
    if len(content) >= FILE_HEAD.size:
        magic, version, found_kind, generation, crc = FILE_HEAD.unpack_from(content)
        if magic == FILE_MAGIC and crc == zlib.crc32(content[: FILE_HEAD.size - 4]):
            if version > FILE_VERSION:
                raise FormatVersionError(
                    f"{path} has format version {version}, this Headrace reads up to {FILE_VERSION}: "
                    "use the Headrace that wrote it, or a newer one; the file was not changed"
                )
            scan.generation = generation if found_kind == kind else -1
    position = FILE_HEAD.size
    while position < len(content):
        record = _decode_record(content, position)
        if record is not None:
            scan.records.append(record[:3])
            position = scan.end = record[3]
            continue
        following = _find_record(content, position + 1)
        if following < 0:
            break
        scan.damaged.append((position, following))
        position = following
    scan.torn_bytes = len(content) - scan.end
    return scan


def find_journals(directory: Path) -> list[tuple[int, Path]]:
    """Return generation and path of the journals in a directory, oldest first; none where there is no directory.

    Raises:
        OSError: it cannot be listed; ``glob`` says nothing of that, or takes it for empty (CPython 3.13).
    """
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    journals = (path for path in paths if path.stem == "journal" and path.suffix[1:].isdigit())
    return sorted((int(path.suffix[1:]), path) for path in journals)


def lacks_beginning(directory: Path) -> bool:
    """Whether there is neither a snapshot nor the first journal, which stays until there is one.

    Then what channels had finished before is forgotten. The journals first: a living broker puts the snapshot in place
    before it removes them.
    """
    return all(generation > 1 for generation, _ in find_journals(directory)) and not (directory / "snapshot").exists()


def _find_record(content: bytes, position: int) -> int:
    """Return where the next whole record begins, or -1."""
    while (position := content.find(RECORD_MAGIC, position)) >= 0:
        if _decode_record(content, position) is not None:
            return position
        position += 1
    return -1
