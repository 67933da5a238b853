"""The part of ``headrace store check`` and ``inspect`` that looks at the key index.

What the note counts is held to the rules of the format: each entry names the one before it of its slot, entries lie in
the order of the log and inside it, and after a clean end the slots are those of the entries. Whether an entry's key is
its record's is not asked: queries look at the record in any case, and a wrong entry costs a look.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.format.findings import Finding
from headrace.format.side_shapes import IndexFileNote, IndexNote
from headrace.store.check_report import CheckReport
from headrace.store.index_file import file_bytes, verify_file
from headrace.store.index_note import has_noted_header
from headrace.store.reader import CLOSED, StoreReader

_ANEW: Final = "the next start makes it and all newer ones anew from the log"
_REMEDY: Final = f"queries by key may miss messages: remove it while the broker is down, {_ANEW}"
"""A start does not read the slots and entries of every file: gigabytes."""
_OTHER_HEADER: Final = "its header is not what was noted"
_AT_THE_STOP: Final = "the broker does not read it of the newest file, and the next stop writes it"


def check_index(reader: StoreReader, report: CheckReport, note: IndexNote | None) -> None:
    """Check the index files that the note counts."""
    if note is None:
        return
    report.index.files = len(note.files)
    report.index.keys = sum(noted.count - 1 for noted in note.files)
    report.index.indexed_offset = note.physical_offset
    for noted in note.files:
        found = _check_file(reader, report, note, noted)
        if found is not None:
            reason, effect = found
            report.index.damaged_files += 1
            name = reader.name_of(reader.directory.index / noted.name)
            report.damage.append(Finding(
                kind="index_file", file=name, physical_offset=noted.begin_offset, reason=reason,
                message=f"{name}: {reason}; {effect}",
            ))  # fmt: skip


def _check_file(
    reader: StoreReader, report: CheckReport, note: IndexNote, noted: IndexFileNote
) -> tuple[str, str] | None:
    """Return what is wrong with one file and what comes of it, None when nothing is."""
    path = reader.directory.index / noted.name
    is_newest = noted is note.files[-1]
    # A note that the stop could not write is from before: the file has gone on, and a start makes its slots anew.
    is_of_the_end = report.state == CLOSED and note.physical_offset >= report.log.end_offset
    is_finished = not is_newest or (is_of_the_end and noted.slots_count == noted.count)
    try:
        if path.stat().st_size != file_bytes(note.slot_count, note.capacity):
            return f"it is not {file_bytes(note.slot_count, note.capacity)} bytes long", _ANEW
        has_other_header = is_finished and not has_noted_header(path, noted)
        if has_other_header and not is_newest:
            return _OTHER_HEADER, _ANEW
        reason = verify_file(str(path), note.slot_count, noted.count, noted.begin_offset, noted.end_offset, is_finished)
        if reason is None and has_other_header:
            return _OTHER_HEADER, _AT_THE_STOP
    except FileNotFoundError:
        # A living broker removes files whose records are gone.
        return ("it is missing", _ANEW) if noted.end_offset >= report.log.first_offset else None
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    return None if reason is None else (reason, _REMEDY)


def inspect_index(reader: StoreReader, note: IndexNote) -> dict[str, Any]:
    """Return what the index holds as far as it was noted."""
    paths = [reader.directory.index / noted.name for noted in note.files]
    return {
        "slots": note.slot_count,
        "entries": note.capacity,
        "physical_offset": note.physical_offset,
        "keys": sum(noted.count - 1 for noted in note.files),
        "files": [
            {
                "file": f"index/{noted.name}", "keys": noted.count - 1, "used_slots": noted.used_slots,
                "begin_ms": noted.begin_ms, "end_ms": noted.end_ms,
                "begin_offset": noted.begin_offset, "end_offset": noted.end_offset,
                "allocated_bytes": path.stat().st_blocks * 512 if path.is_file() else None,
            }
            for noted, path in zip(note.files, paths, strict=True)
        ],
    }  # fmt: skip
