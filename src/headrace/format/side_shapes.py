"""What each kind of side file holds, and of which types.

A file whose checksum is right was written as it is, yet perhaps by another build. What it says is held against these
types before anybody looks at it; members that are not named here belong to a later build and are left out: a build
whose members must not be raises the version of the file.

Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict

import msgspec

Positions = list[int]


class _Identity(TypedDict):
    store_id: str
    format_version: int
    segment_bytes: int
    queue_file_bytes: int
    created_ms: int


class _Epoch(TypedDict):
    epoch: int
    first_physical_offset: int
    previous_end_offset: NotRequired[int | None]
    began_ms: NotRequired[int | None]
    queue_ends: NotRequired[dict[str, int]]


class _Hole(TypedDict):
    first_offset: int
    end_offset: int
    reason: str


class _Checkpoint(TypedDict):
    physical_offset: int
    queue_entries: int
    clean: bool
    written_ms: NotRequired[int]
    queue_ends: NotRequired[dict[str, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFileNote:
    """One index file as far as it was synced."""

    name: str
    count: int
    """Number of the entry behind the last that counts."""
    slots_count: int
    """The slots in the file are as of this count; 1: nothing is known of them."""
    used_slots: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int

    def header(self) -> bytes:
        """Return the header of a file that holds just this. Layout: docs/formats/index-file.md, "Header"."""
        return struct.pack(
            ">qqqqii", self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexNote:
    """The key index as far as it was synced."""

    slot_count: int
    capacity: int
    """Entries that a file has room for, number 0 included, which is not used."""
    physical_offset: int
    """The keys of every record below are in the files."""
    keys_ahead: int = 0
    """So many keys of the records from there on are in the files too."""
    files: list[IndexFileNote]
    """Oldest first; the last one is being filled."""


class _Boot(TypedDict):
    boot_id: str


class _Channel(TypedDict):
    key: int
    start: Positions
    paused: NotRequired[bool]
    empty_below: NotRequired[Positions]
    gaps: NotRequired[list[tuple[Positions, Positions]]]


class _Topic(TypedDict):
    queues: int
    start: Positions
    frozen: Positions | None
    paused: NotRequired[bool]
    channels: dict[str, _Channel]
    config: NotRequired[dict[str, Any] | None]
    key: NotRequired[int]


class _Catalog(TypedDict):
    applied_offset: int
    deleted: dict[str, int] | list[str]
    version: NotRequired[dict[str, int]]
    topics: dict[str, _Topic]


class Sequence(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How far a producer came in one queue."""

    txn: str
    partition: int
    topic: str
    queue_id: int
    epoch: int
    end: int
    offset: int | None = None
    """Queue offset of the last batch; an earlier build did not note it."""


_Place = tuple[str, int, int]
_Run = tuple[str, int, int, int]
_Commit = tuple[list[tuple[int, int]], int, int, int]
_Attempt = tuple[int, int, int, list[_Place], list[_Run]]


class _Staged(TypedDict):
    committed: list[tuple[str, int]]
    batches: list[tuple[str, int, int, int, _Commit | None, list[_Attempt]]]


class _Producers(TypedDict):
    applied: int
    epoch: NotRequired[int]
    log_end: NotRequired[int]
    sequences: NotRequired[list[Sequence] | None]
    keys: NotRequired[list[tuple[str, int, list[tuple[int, list[int]]]]] | None]
    staged: NotRequired[_Staged | None]


SHAPES: Final[dict[str, Any]] = {
    "store": _Identity,
    "epochs": list[_Epoch],
    "holes": list[_Hole],
    "checkpoint": _Checkpoint,
    "index": IndexNote,
    "boot": _Boot,
    "catalog": _Catalog,
    "producers": _Producers,
}
"""By the kind in a file's first line."""
