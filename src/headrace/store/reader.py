"""A store's folder seen from outside: nothing is locked, mapped, made or written.

Works on a closed store and beside a living broker. What a broker may be changing at the moment (tails, files that come
and go) is for the caller to judge; ``state`` says whether to expect it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.errors import SideFileError, StoreError
from headrace.format.durable_mark import decode_mark, is_whole, read_mark
from headrace.format.layout import log_files, queue_folders
from headrace.format.names import segment_name
from headrace.format.queue_entry import StoredQueue, whole_entries
from headrace.format.record import check
from headrace.format.side_file import is_special, read_side_file
from headrace.lock_file import is_held
from headrace.store.directory import Identity, StoreDirectory

CLOSED: Final = "closed"
OPEN: Final = "open"
CRASHED: Final = "crashed"

_MAX_RECORD_BYTES: Final = 64 << 20
"""More cannot be a record, whatever an entry says: as ``LogWalk`` has it."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file of the commit log."""

    path: Path
    first_offset: int
    size_bytes: int


class StoreReader:
    """A store that somebody else may have open."""

    def __init__(self, root: Path) -> None:
        """Read the identity.

        Raises:
            StoreError: there is no store, or its identity cannot be read.
            FormatVersionError: it is of a newer version.
        """
        self.root = root
        self.directory = StoreDirectory(root)
        self.identity = self._load_identity()
        self.queue_file_bytes = whole_entries(self.identity.queue_file_bytes)

    def _load_identity(self) -> Identity:
        path = self.directory.identity
        if not self.root.is_dir():
            raise StoreError(f"{self.root} is not a directory: name the store's folder, the broker's --data-dir")
        try:
            identity = self.directory.load_identity()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}; check its permissions") from error
        if identity is None:
            if self.directory.identity_backup.exists():
                raise SideFileError(path, "is missing", f"copy {path}.bak over it")
            remedy = "name the broker's --data-dir"
            if self.directory.commit_log.is_dir() and self.directory.consume_queues.is_dir():
                remedy = "`headrace store import` copies a RocketMQ broker's into one"
            raise StoreError(f"{self.root} is not a Headrace store: it has no headrace/store.json; {remedy}")
        return identity

    def state(self) -> str:
        """Return whether the store was closed cleanly, is open in a process, or neither."""
        if not self.directory.abort.exists():
            return CLOSED
        return OPEN if is_held(self.directory.lock) else CRASHED

    def segments(self) -> list[SegmentFile]:
        """Return the commit log's files, oldest first."""
        found = []
        for path in self._log_files(is_between=False):
            with contextlib.suppress(FileNotFoundError):
                found.append(SegmentFile(path, int(path.name), path.stat().st_size))
        return found

    def files_between_segments(self) -> list[Path]:
        """Return what is named as a file of the log and begins where none does: a start refuses it."""
        return self._log_files(is_between=True)

    def _log_files(self, *, is_between: bool) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            paths = log_files(self.directory.commit_log)
            return [path for path in paths if bool(int(path.name) % self.identity.segment_bytes) is is_between]
        return []

    def queues(self) -> list[StoredQueue]:
        """Return every queue that has a folder."""
        try:
            folders = queue_folders(self.directory.consume_queues)
        except FileNotFoundError:
            return []
        return [self.queue(topic, queue_id) for topic, queue_id, _ in folders]

    def queue(self, topic: str, queue_id: int) -> StoredQueue:
        """Return one queue; its files need not exist."""
        return StoredQueue(self.directory.consume_queues, topic, queue_id, self.queue_file_bytes)

    def durable_mark(self) -> tuple[int, bool]:
        """Return (physical offset, is damaged) of the durable mark."""
        raw = read_mark(self.directory.durable_mark)
        if raw is None:
            return 0, False
        _, physical_offset, is_damaged = decode_mark(raw)
        is_damaged = is_damaged or not (is_whole(raw) or self.state() != CLOSED or not self.segments())
        return physical_offset, is_damaged

    def side_file(self, path: Path, kind: str) -> Any:
        """Return the payload of a side file, None when there is none.

        Raises:
            SideFileError, FormatVersionError: as ``read_side_file``.
        """
        return read_side_file(path, kind, "see docs/formats/side-files.md")

    def name_of(self, path: Path) -> str:
        """Return a path as reports show it: below the store's folder."""
        return self.directory.name_of(path)

    def record_at(self, physical_offset: int, record_bytes: int) -> bytes | None:
        """Return a copy of a whole record, None unless it is there and right."""
        size = self.identity.segment_bytes
        first = physical_offset // size * size
        path = self.directory.commit_log / segment_name(first)
        if record_bytes > _MAX_RECORD_BYTES or is_special(path):
            return None
        try:
            with path.open("rb", buffering=0) as file:
                raw = os.pread(file.fileno(), record_bytes, physical_offset - first)
        except OSError:
            return None
        return raw if check(raw, 0, physical_offset) == record_bytes else None
