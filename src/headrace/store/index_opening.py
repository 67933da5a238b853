"""Opening the key index: which of its files count, up to where, and from where on the log is to be indexed.

Nothing is read here that takes long: slots are loaded, and missing keys made, by the index's thread later.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Final

from headrace.errors import SideFileError, UnreadableError
from headrace.format.epochs import Epochs
from headrace.format.record import decode
from headrace.format.side_file import read_side_file
from headrace.format.side_shapes import IndexFileNote, IndexNote
from headrace.settings import StoreSettings
from headrace.store.commit_log import CommitLog
from headrace.store.directory import StoreDirectory
from headrace.store.index_file import IndexFile, file_bytes
from headrace.store.index_note import has_noted_header, is_index_name

logger = logging.getLogger(__name__)

COUNT_AHEAD: Final = -1
"""Stands for a number of keys that the newest file says: those it has of the record at the offset to go on from."""


def name_damage(path: Path, reason: str) -> None:
    """Log that a file is lost."""
    logger.error("index file damaged, made anew from the log path=%s reason=%s", path, reason)


class IndexOpening:
    """The opening of one store's key index: the files that count, and where to go on.

    Attributes:
        files: Oldest first.
        active: The newest one where it is to be filled further; its slots are not loaded.
        offset: The keys of every record below this physical offset are in.
        ahead: So many keys of the records from there on are in too, or COUNT_AHEAD.
        newest_name: Of the files that the note names, whether or not they are there.
    """

    def __init__(self, log: CommitLog, directory: StoreDirectory, settings: StoreSettings, epochs: Epochs) -> None:
        self.slot_count = settings.index_slots
        self.capacity = settings.index_entries
        self.noted_offset = 0
        self.files: list[IndexFile] = []
        self.active: IndexFile | None = None
        self.offset = log.first_offset
        self.ahead = 0
        self.damaged_files = 0
        self.newest_name = ""
        self._log = log
        self._directory = directory
        self._epochs = epochs

    def run(self) -> None:
        """Take up what the note says of the files; remove the others.

        Raises:
            FormatVersionError: the note is of a newer version.
        """
        note = self._read_note()
        if note is not None:
            self._adopt(note)
        self._remove_others()

    def _read_note(self) -> IndexNote | None:
        note: IndexNote | None
        try:
            note = read_side_file(self._directory.index_note, "index", "remove it: the index is made anew from the log")
        except (SideFileError, OSError) as error:
            logger.warning("note of the key index damaged, the index is made anew from the log error=%s", error)
            return None
        if note is not None and (note.slot_count, note.capacity) != (self.slot_count, self.capacity):
            usual = StoreSettings()
            is_set = (self.slot_count, self.capacity) != (usual.index_slots, usual.index_entries)
            logger.log(
                logging.WARNING if is_set else logging.INFO,
                "size of index files kept from the store slots=%d entries=%d",
                note.slot_count,
                note.capacity,
            )
            self.slot_count, self.capacity = note.slot_count, note.capacity
        return note

    def _adopt(self, note: IndexNote) -> None:
        self.noted_offset = self.offset = note.physical_offset
        self.ahead = note.keys_ahead
        self.newest_name = max((noted.name for noted in note.files), default="")
        for noted in note.files:
            is_last = noted is note.files[-1]
            if noted.end_offset < self._log.first_offset and not is_last:
                continue  # the log has none of its records any more
            file = self._open_file(noted, is_last=is_last)
            if file is None:
                self.offset, self.ahead = noted.begin_offset, COUNT_AHEAD
                break
            if not is_last:
                file.release()
            self.files.append(file)
        self._cut_lost()
        self._require_last_entry()
        self.offset = max(self.offset, self._log.first_offset)
        active = self.files[-1] if self.files else None
        if active is not None and not (active.is_full and active.slots_count == active.count):
            self.active = active

    def _open_file(self, noted: IndexFileNote, *, is_last: bool) -> IndexFile | None:
        path = self._directory.index / noted.name
        try:
            if path.stat().st_size != file_bytes(self.slot_count, self.capacity):
                raise OSError(errno.EIO, "wrong length")
            file = IndexFile(str(path), self.slot_count, self.capacity)
            file.restore(noted)
            if not is_last and not has_noted_header(path, noted):
                raise OSError(errno.EIO, "header of another state")
        except OSError as error:
            self.damaged_files += 1
            name_damage(path, str(error.strerror))
            return None
        return file

    def _cut_lost(self) -> None:
        """Cut off the entries of records that the log lost."""
        limit = self._limit()
        while self.files and self.files[-1].end_offset >= limit:
            newest = self.files[-1]
            self.offset, self.ahead = limit, 0
            try:
                if newest.cut(limit):
                    newest.set_end_ms(self._store_ms_at(newest.end_offset))
                    return
            except (OSError, UnreadableError) as error:
                self.damaged_files += 1
                name_damage(Path(newest.path), str(error))
                self.offset, self.ahead = newest.begin_offset, COUNT_AHEAD
            self.files.pop()
        if self.offset > limit:
            self.offset, self.ahead = limit, 0

    def _require_last_entry(self) -> None:
        """Give up the newest file where it is an older copy: that ends before the last entry that counts.

        Asked of what the log still has: behind a lost end, new entries may stand in the place of those that were noted.
        """
        newest = self.files[-1] if self.files else None
        if newest is None or newest.count == 1:
            return
        try:
            if newest.entry(newest.count - 1)[1] == newest.end_offset:
                return
            reason = "entries of another state"
        except OSError as error:
            reason = str(error.strerror)
        self.damaged_files += 1
        name_damage(Path(newest.path), reason)
        self.files.pop()
        self.offset, self.ahead = newest.begin_offset, COUNT_AHEAD
        self._cut_lost()

    def _limit(self) -> int:
        """Return where the log ends that the index knew: behind it the log lost what was indexed."""
        newest = self.files[-1].end_offset if self.files else 0
        for start, end in self._epochs.gaps:
            if start < self.offset < end or start <= newest < end:
                return start
        return self._log.end_offset

    def _store_ms_at(self, physical_offset: int) -> int:
        raw = self._log.read(physical_offset)
        return decode(raw)["store_timestamp_ms"] if raw is not None else 0

    def _remove_others(self) -> None:
        """Remove files that do not count: made after the last note, or given up."""
        known = {Path(file.path).name for file in self.files}
        folder = self._directory.index
        for path in folder.iterdir() if folder.is_dir() else ():
            if is_index_name(path.name) and path.name not in known:
                logger.info("index file not noted, removed path=%s", path)
                try:
                    path.unlink()
                except OSError as error:
                    logger.warning("index file not removed path=%s error=%s", path, error)
