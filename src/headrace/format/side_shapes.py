"""What each kind of side file holds, and of which types.

A file whose checksum is right was written as it is, yet perhaps by another build. What it says is held against these
types before anybody looks at it; members that are not named here belong to a later build and are left out: a build
whose members must not be raises the version of the file.

Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NotRequired, TypedDict

import msgspec

from headrace.format.names import MAX_QUEUES

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What compiled code takes: a number beyond would end a start in an error of Python's."""
_FileBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
"""Of no bytes there would be files without end; somewhat more than the most is still a number of 64 bits."""
_Count = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
_FromZero = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Queues = Annotated[int, msgspec.Meta(ge=0, le=MAX_QUEUES)]

Positions = list[_Int64]


class _Identity(TypedDict):
    store_id: str
    format_version: _Int64
    segment_bytes: _FileBytes
    queue_file_bytes: _FileBytes
    created_ms: _Int64


class _Epoch(TypedDict):
    epoch: _Int64
    first_physical_offset: _Int64
    previous_end_offset: NotRequired[_Int64 | None]
    began_ms: NotRequired[_Int64 | None]
    queue_ends: NotRequired[dict[str, _Int64]]


class _Hole(TypedDict):
    first_offset: _Int64
    end_offset: _Int64
    reason: str


class _Checkpoint(TypedDict):
    physical_offset: _Int64
    queue_entries: _Int64
    clean: bool
    written_ms: NotRequired[_Int64]
    queue_ends: NotRequired[dict[str, _Int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFileNote:
    """One index file as far as it was synced."""

    name: str
    count: _Count
    """Number of the entry behind the last that counts."""
    slots_count: _Count
    """The slots in the file are as of this count; 1: nothing is known of them."""
    used_slots: _FromZero
    begin_ms: _Int64
    end_ms: _Int64
    begin_offset: _Int64
    end_offset: _Int64

    def header(self) -> bytes:
        """Return the header of a file that holds just this. Layout: docs/formats/index-file.md, "Header"."""
        return struct.pack(
            ">qqqqii", self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexNote:
    """The key index as far as it was synced."""

    slot_count: _Count
    capacity: _Count
    """Entries that a file has room for, number 0 included, which is not used."""
    physical_offset: _Int64
    """The keys of every record below are in the files."""
    keys_ahead: _Int64 = 0
    """So many keys of the records from there on are in the files too."""
    files: list[IndexFileNote]
    """Oldest first; the last one is being filled."""


class _Boot(TypedDict):
    boot_id: str


class _Channel(TypedDict):
    key: _Int64
    start: Positions
    paused: NotRequired[bool]
    empty_below: NotRequired[Positions]
    gaps: NotRequired[list[tuple[Positions, Positions]]]


class _Topic(TypedDict):
    queues: _Queues
    start: Positions
    frozen: Positions | None
    paused: NotRequired[bool]
    channels: dict[str, _Channel]
    config: NotRequired[dict[str, Any] | None]
    key: NotRequired[_Int64]


class _Catalog(TypedDict):
    applied_offset: _Int64
    deleted: dict[str, _Int64] | list[str]
    version: NotRequired[dict[str, _Int64]]
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
    applied: _Int64
    epoch: NotRequired[_Int64]
    log_end: NotRequired[_Int64]
    sequences: NotRequired[list[Sequence] | None]
    keys: NotRequired[list[tuple[str, int, list[tuple[int, list[_Int64]]]]] | None]
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

_QUEUE: Final = re.compile(r".+/[0-9]{1,5}", re.DOTALL)
"""TOPIC/QUEUE_ID, the id below ``MAX_QUEUES`` or not far above. A tenth of a microsecond; msgspec takes 12."""


def find_fault(kind: str, payload: Any) -> str:
    """Say what of a payload is not as it should be though its types are right; empty where all is."""
    rows: list[Mapping[str, Any]] = payload if kind == "epochs" else [payload] if kind == "checkpoint" else []
    for row in rows:
        for name in row.get("queue_ends", ()):
            if _QUEUE.fullmatch(name) is None:
                return f"queue_ends has a queue {name[:300]!r}, which is no TOPIC/QUEUE_ID"
    return ""
