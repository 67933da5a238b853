"""The note of how far the key index is on disk: ``headrace/index.json``.

An index file says nothing reliable of itself after a crash: its header, slots and entries reach the disk in any order.
The note is written after they were synced, so what it counts can be trusted; everything behind it is made anew from the
log. Without a note that can be read the whole index is.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from headrace.format.side_file import write_side_file
from headrace.format.side_shapes import IndexFileNote, IndexNote
from headrace.store.index_file import IndexFile

NAME_DIGITS: Final = 17
_NAME_SECONDS: Final = "%Y%m%d%H%M%S"


def note_file(file: IndexFile) -> IndexFileNote:
    """Note an index file as it is now."""
    return IndexFileNote(
        name=Path(file.path).name,
        count=file.count,
        slots_count=file.slots_count,
        used_slots=file.used_slots,
        begin_ms=file.begin_ms,
        end_ms=file.end_ms,
        begin_offset=file.begin_offset,
        end_offset=file.end_offset,
    )


def has_noted_header(path: Path, noted: IndexFileNote) -> bool:
    """Whether an index file begins as it was noted; that of the newest may be older or newer."""
    header = noted.header()
    with path.open("rb") as file:
        return file.read(len(header)) == header


def write_note(note: IndexNote, path: Path) -> None:
    """Replace the note. Blocks."""
    write_side_file(path, "index", asdict(note))


def is_index_name(name: str) -> bool:
    """Whether a file of the index folder is one of the index."""
    return len(name) == NAME_DIGITS and name.isdigit()


def name_of_time(now_ms: int, newest: str) -> str:
    """Return the name of a file made now, yyyyMMddHHmmssSSS in local time, behind the newest one in any case.

    Names give the order of the files. Local time goes back once a year, and clocks are set: then the name follows the
    newest one by a millisecond.
    """
    name = time.strftime(_NAME_SECONDS, time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
    if name > newest:
        return name
    after_ms = int(newest[14:]) + 1
    seconds = time.mktime(time.strptime(newest[:14], _NAME_SECONDS)) + after_ms // 1000
    following = time.strftime(_NAME_SECONDS, time.localtime(seconds)) + f"{after_ms % 1000:03d}"
    # In the hour that local time repeats even that may not be later: any higher number will do.
    return following if following > newest else f"{int(newest) + 1:017d}"
