"""Opening the key index: which of its files count, up to where, and from where on the log is to be indexed.

Nothing is read here that takes long: slots are loaded, and missing keys made, by the index's thread later.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.errors import SideFileError, UnreadableError
from headrace.format.epochs import Epochs
from headrace.format.record import decode
from headrace.settings import StoreSettings
from headrace.store.commit_log import CommitLog
from headrace.store.directory import StoreDirectory
from headrace.store.index_file import IndexFile, file_bytes
from headrace.store.index_note import FileNote, IndexNote, is_index_name

logger = logging.getLogger(__name__)

COUNT_AHEAD: Final = -1
"""Stands for a number of keys that the newest file says: those it has of the record at the offset to go on from."""

_HEADER_BYTES: Final = 40


@dataclass(kw_only=True, slots=True)
class OpenedIndex:
    """The files of an index, and where to go on."""

    slot_count: int
    capacity: int
    noted_offset: int = 0
    files: list[IndexFile] = field(default_factory=list)
    """Oldest first."""
    active: IndexFile | None = None
    """The newest one where it is to be filled further; its slots are not loaded."""
    offset: int = 0
    """The keys of every record below this physical offset are in."""
    ahead: int = 0
    """So many keys of the records from there on are in too, or COUNT_AHEAD."""
    damaged_files: int = 0
    newest_name: str = ""
    """Of the files that the note names, whether or not they are there."""


def name_damage(path: Path, reason: str) -> None:
    """Log that a file is lost."""
    logger.error("index file damaged, made anew from the log path=%s reason=%s", path, reason)


class IndexOpening:
    """The opening of one store's key index."""

    def __init__(self, log: CommitLog, directory: StoreDirectory, settings: StoreSettings, epochs: Epochs) -> None:
        self._log = log
        self._directory = directory
        self._epochs = epochs
        self._opened = OpenedIndex(
            slot_count=settings.index_slots, capacity=settings.index_entries, offset=log.first_offset
        )

    def run(self) -> OpenedIndex:
        """Take up what the note says of the files; remove the others.

        Raises:
            FormatVersionError: the note is of a newer version.
        """
        note = self._read_note()
        if note is not None:
            self._adopt(note)
        self._remove_others()
        return self._opened

    def _read_note(self) -> IndexNote | None:
        opened = self._opened
        try:
            note = IndexNote.read(self._directory.index_note)
        except (SideFileError, OSError) as error:
            logger.warning("note of the key index damaged, the index is made anew from the log error=%s", error)
            return None
        if note is not None and (note.slot_count, note.capacity) != (opened.slot_count, opened.capacity):
            usual = StoreSettings()
            is_set = (opened.slot_count, opened.capacity) != (usual.index_slots, usual.index_entries)
            logger.log(
                logging.WARNING if is_set else logging.INFO,
                "size of index files kept from the store slots=%d entries=%d",
                note.slot_count,
                note.capacity,
            )
            opened.slot_count, opened.capacity = note.slot_count, note.capacity
        return note

    def _adopt(self, note: IndexNote) -> None:
        opened = self._opened
        opened.noted_offset = opened.offset = note.physical_offset
        opened.ahead = note.keys_ahead
        opened.newest_name = max((noted.name for noted in note.files), default="")
        for noted in note.files:
            is_last = noted is note.files[-1]
            if noted.end_offset < self._log.first_offset and not is_last:
                continue  # the log has none of its records any more
            file = self._open_file(noted, is_last=is_last)
            if file is None:
                opened.offset, opened.ahead = noted.begin_offset, COUNT_AHEAD
                break
            if not is_last:
                file.release()
            opened.files.append(file)
        self._cut_lost()
        self._require_last_entry()
        opened.offset = max(opened.offset, self._log.first_offset)
        active = opened.files[-1] if opened.files else None
        if active is not None and not (active.is_full and active.slots_count == active.count):
            opened.active = active

    def _open_file(self, noted: FileNote, *, is_last: bool) -> IndexFile | None:
        path = self._directory.index / noted.name
        opened = self._opened
        try:
            if path.stat().st_size != file_bytes(opened.slot_count, opened.capacity):
                raise OSError(errno.EIO, "wrong length")
            file = IndexFile(str(path), opened.slot_count, opened.capacity)
            noted.apply_to(file)
            with path.open("rb") as raw:
                # The header of the newest may be older than the note, or newer.
                if not is_last and raw.read(_HEADER_BYTES) != file.header():
                    raise OSError(errno.EIO, "header of another state")
        except OSError as error:
            opened.damaged_files += 1
            name_damage(path, str(error.strerror))
            return None
        return file

    def _cut_lost(self) -> None:
        """Cut off the entries of records that the log lost."""
        opened = self._opened
        limit = self._limit()
        while opened.files and opened.files[-1].end_offset >= limit:
            newest = opened.files[-1]
            opened.offset, opened.ahead = limit, 0
            try:
                if newest.cut(limit):
                    newest.set_end_ms(self._store_ms_at(newest.end_offset))
                    return
            except (OSError, UnreadableError) as error:
                opened.damaged_files += 1
                name_damage(Path(newest.path), str(error))
                opened.offset, opened.ahead = newest.begin_offset, COUNT_AHEAD
            opened.files.pop()
        if opened.offset > limit:
            opened.offset, opened.ahead = limit, 0

    def _require_last_entry(self) -> None:
        """Give up the newest file where it is an older copy: that ends before the last entry that counts.

        Asked of what the log still has: behind a lost end, new entries may stand in the place of those that were noted.
        """
        opened = self._opened
        newest = opened.files[-1] if opened.files else None
        if newest is None or newest.count == 1:
            return
        try:
            if newest.entry(newest.count - 1)[1] == newest.end_offset:
                return
            reason = "entries of another state"
        except OSError as error:
            reason = str(error.strerror)
        opened.damaged_files += 1
        name_damage(Path(newest.path), reason)
        opened.files.pop()
        opened.offset, opened.ahead = newest.begin_offset, COUNT_AHEAD
        self._cut_lost()

    def _limit(self) -> int:
        """Return where the log ends that the index knew: behind it the log lost what was indexed."""
        newest = self._opened.files[-1].end_offset if self._opened.files else 0
        for start, end in self._epochs.gaps:
            if start < self._opened.offset < end or start <= newest < end:
                return start
        return self._log.end_offset

    def _store_ms_at(self, physical_offset: int) -> int:
        raw = self._log.read(physical_offset)
        return decode(raw)["store_timestamp_ms"] if raw is not None else 0

    def _remove_others(self) -> None:
        """Remove files that do not count: made after the last note, or given up."""
        known = {Path(file.path).name for file in self._opened.files}
        folder = self._directory.index
        for path in folder.iterdir() if folder.is_dir() else ():
            if is_index_name(path.name) and path.name not in known:
                logger.info("index file not noted, removed path=%s", path)
                try:
                    path.unlink()
                except OSError as error:
                    logger.warning("index file not removed path=%s error=%s", path, error)
