"""The journal of all channels' delivery state.

One append-only file takes what changed in any channel; when it has grown well beyond the last snapshot, a new snapshot
replaces it. The journal knows nothing of what a state says: it keeps bytes per channel key, in order.

Everything here leans to redelivery, never to loss: a state only ever says that messages are finished or wait, so
leaving one out makes messages deliverable again. Therefore damage is skipped and named in a warning, a channel whose
record in the snapshot is damaged falls back to the snapshot before it, and a start is never refused for it.

Files, all in one directory (layout: docs/formats/channel-journal.md):

    journal.GENERATION    changes since snapshot GENERATION was begun, and possibly while it was being written
    snapshot              one state per channel; its header names its generation
    snapshot.previous     the snapshot before it

Compaction: begin_compaction() opens journal N+1, to which all further changes go; the caller takes a snapshot of every
channel, large ones in parts with other work in between (add_to_snapshot()); finish_compaction() syncs snapshot N+1,
renames it and only then removes the journals below N+1. A crash anywhere in between leaves snapshot N with the journals
N and N+1. States are idempotent, so it does no harm that journal N+1 may repeat what snapshot N+1 has.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from headrace.broker.channels.journal_file import (
    FLAG_END,
    FLAG_FORGOTTEN,
    KIND_JOURNAL,
    KIND_SNAPSHOT,
    HistoryScan,
    encode_file_head,
    encode_record,
    find_journals,
    scan_history,
)
from headrace.errors import SideFileError, UnsyncedError, remedy_for
from headrace.format.side_file import is_removed, sync_folder
from headrace.lock_file import require_in_place

logger = logging.getLogger(__name__)

PREVIOUS_SNAPSHOT = "snapshot.previous"
MIN_COMPACTION_BYTES = 4 << 20
WRITE_BYTES = 1 << 20


Histories = dict[bytes, list[bytes]]
"""What the journal has of each channel, by its key: the states that Channel.restore() takes, in order."""


def begin_journal(directory: Path) -> None:
    """Have the channels of a store that is made from other files begin anew: nothing that they finished is missing.

    Raises:
        SideFileError: the directory cannot be written.
        UnsyncedError: the journal may not be on disk.
    """
    journal = ChannelJournal(directory)
    journal.load()
    journal.close()


def _report(path: Path, scan: HistoryScan) -> None:
    """Log what is wrong with a journal."""
    for start, end in scan.damaged:
        logger.warning(
            "channel journal damaged path=%s position=%d bytes=%d effect=%s",
            path, start, end - start, "skipped; messages may be delivered again",
        )  # fmt: skip
    if scan.torn_bytes:
        logger.info("channel journal cut path=%s position=%d torn_bytes=%d", path, scan.end, scan.torn_bytes)
    if scan.generation < 0 and (scan.records or scan.torn_bytes):
        logger.warning("channel journal header damaged path=%s position=0", path)


def _as_os_error(error: OSError | MemoryError) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


class ChannelJournal:
    """Keeps the states of all durable channels of a store.

    ``write`` only fills the page cache and may run on the event loop; ``sync`` and ``finish_compaction`` wait for the
    disk and belong in a thread. They may run beside ``write``, and exclude each other.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._snapshot_path = directory / "snapshot"
        self._previous_path = directory / PREVIOUS_SNAPSHOT
        self._generation = 0
        self._descriptor = -1
        self._retired: list[int] = []  # descriptors of journals before the open one, not yet synced
        self._end = 0
        self._size_before = 0  # of journals before the open one that a snapshot has not yet replaced
        self._snapshot_bytes = 0
        self._incomplete = False  # changes are missing from the journal: only a snapshot helps
        self._directory_synced = True
        self._keeps_previous = True  # the next snapshot keeps the one before it
        self._serves_snapshot = False  # the open journal has all that changed since it was begun for a snapshot to come
        self._is_unsynced = False  # the open journal has changed since a sync began
        self._snapshot_file: BinaryIO | None = None  # being written, from begin_compaction() on
        self._snapshot_records = 0
        self._disk = threading.Lock()

    @property
    def needs_compaction(self) -> bool:
        """Whether the journal is large enough, or in a bad enough state, for a new snapshot."""
        most_bytes = max(MIN_COMPACTION_BYTES, 2 * self._snapshot_bytes)
        return self._incomplete or self._size_before + self._end > most_bytes

    @property
    def is_whole(self) -> bool:
        """Whether no change is missing from the journal; while a snapshot is to make it so, that is not known yet."""
        return not self._incomplete and self._snapshot_file is None

    # ---- start

    def load(self) -> Histories:
        """Read everything back and open the journal for writing. Call it once.

        Raises:
            SideFileError: a file cannot be read or the directory cannot be written.
            FormatVersionError: a file is of a newer version.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self._directory.glob("*.tmp"):
            unfinished.unlink()
        histories: Histories = {}
        snapshot_generation = self._load_snapshot(histories)
        newest: HistoryScan | None = None
        for generation, path in find_journals(self._directory):
            if generation < snapshot_generation:
                path.unlink()
                continue
            newest = scan_history(path, KIND_JOURNAL)
            _report(path, newest)
            self._size_before += newest.end
            self._generation = generation
            for key, flags, payload in newest.records:
                if flags == FLAG_FORGOTTEN:
                    histories.pop(key, None)
                else:
                    histories.setdefault(key, []).append(payload)
        if newest is None or newest.generation != self._generation:
            self._generation = max(self._generation + (newest is not None), snapshot_generation, 1)
            self._open_journal(0)
        else:
            self._size_before -= newest.end
            self._open_journal(newest.end)
        return histories

    def _load_snapshot(self, histories: Histories) -> int:
        """Read the snapshot, or where it is damaged what the one before has; return its generation."""
        if not self._snapshot_path.exists():
            return 0
        scan = scan_history(self._snapshot_path, KIND_SNAPSHOT)
        records = scan.records
        self._snapshot_bytes = scan.end
        if not scan.is_whole_snapshot:
            logger.warning(
                "channel snapshot damaged path=%s positions=%s channels_read=%d effect=%s",
                self._snapshot_path, scan.damaged or [(scan.end, scan.end + scan.torn_bytes)], len(scan.records),
                "what is missing is taken from the snapshot before; messages may be delivered again",
            )  # fmt: skip
            if self._previous_path.exists():
                records = scan_history(self._previous_path, KIND_SNAPSHOT).records + records
            self._incomplete = True
        for key, flags, payload in records:
            if flags == 0:
                histories.setdefault(key, []).append(payload)
        return max(scan.generation, 0)

    def _open_journal(self, end: int) -> None:
        """Open the journal of the current generation and cut it to ``end`` bytes; 0 makes a new one."""
        path = self._journal_path()
        descriptor = -1
        try:
            require_in_place(path)
            self._directory.mkdir(exist_ok=True)  # somebody may have removed it, with all that is in it
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(descriptor, end)
            if end == 0:
                head = encode_file_head(KIND_JOURNAL, self._generation)
                os.pwrite(descriptor, head, 0)
                end = len(head)
        except OSError as exc:
            if descriptor >= 0:
                os.close(descriptor)
                if end == 0:
                    with contextlib.suppress(OSError):  # a start passes over it
                        path.unlink()
            raise SideFileError(path, f"cannot be opened for writing: {exc.strerror}", remedy_for(exc)) from exc
        if self._descriptor >= 0:
            self._retired.append(self._descriptor)
            self._size_before += self._end
        self._descriptor = descriptor
        self._end = end
        self._is_unsynced = True
        self._directory_synced = False

    def _journal_path(self) -> Path:
        return self._directory / f"journal.{self._generation:08d}"

    # ---- write

    def write(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Append (channel key, changes) records; they are safe once a later ``sync`` has returned.

        Raises:
            SideFileError: the disk refused. The changes are not kept: ``needs_compaction`` is True from now on.
        """
        self._append(encode_record(key, payload) for key, payload in blocks)

    def forget(self, key: bytes) -> None:
        """Record that a channel was deleted."""
        self._append([encode_record(key, b"", FLAG_FORGOTTEN)])

    def require_name(self) -> None:
        """Refuse a journal whose file somebody removed or moved: no start finds what is written to it.

        Not where all of the store is away: it comes back with the rest, which the store looks for.

        Raises:
            SideFileError: it was; ``needs_compaction`` is True from now on, and makes another.
        """
        path = self._journal_path()
        try:
            require_in_place(path)
            is_gone = not path.exists() or is_removed(path, self._descriptor)
        except OSError:  # the store is away, or may not be looked into
            return
        if is_gone:
            self.note_loss()
            raise SideFileError(
                self._journal_path(), "was removed while it is written to", "a snapshot and another journal replace it"
            )

    def note_loss(self) -> None:
        """Have a snapshot made soon: changes are missing."""
        self._incomplete, self._serves_snapshot = True, False

    def _append(self, records: Iterable[bytes]) -> None:
        at = self._end
        try:
            data = memoryview(b"".join(records))
            while data:
                written = os.pwrite(self._descriptor, data[:WRITE_BYTES], at)
                at += written
                data = data[written:]
        except (OSError, MemoryError) as error:
            exc = _as_os_error(error)
            self.note_loss()
            with contextlib.suppress(OSError):  # what is left behind the end is overwritten, or skipped as torn
                os.ftruncate(self._descriptor, self._end)
            raise SideFileError(
                self._journal_path(), f"cannot be written: {exc.strerror}",
                f"{remedy_for(exc)}: until then a crash makes messages finished meanwhile be delivered again",
            ) from error  # fmt: skip
        finally:
            self._is_unsynced = True  # only now: a sync that runs meanwhile may have missed what was written
        self._end = at

    def sync(self) -> None:
        """Wait until everything written before the call is on disk; a disk is left alone that has it already.

        Raises:
            UnsyncedError: it may not be. The journal goes on, but only a new snapshot makes it whole.
        """
        with self._disk:
            if not self._is_unsynced and not self._retired and self._directory_synced:
                return  # fdatasync of an unchanged file still empties the disk's cache
            self._is_unsynced = False
            retired, self._retired = self._retired, []
            try:
                for descriptor in (*retired, self._descriptor):
                    os.fdatasync(descriptor)
                if not self._directory_synced:
                    self._directory_synced = True
                    sync_folder(self._directory)
                    sync_folder(self._directory.parent)  # it may have been made anew
            except OSError as exc:
                self.note_loss()
                self._is_unsynced = True
                raise UnsyncedError(
                    self._journal_path(), exc.errno,
                    "check the disk: until a new snapshot is written, a power cut makes finished messages be delivered "
                    "again",
                ) from exc  # fmt: skip
            finally:
                for descriptor in retired:
                    os.close(descriptor)

    # ---- compaction

    def replace_all(self) -> None:
        """Have a new snapshot made soon, and keep none from before: some of what that says was taken back since."""
        self._incomplete, self._keeps_previous = True, False

    def begin_compaction(self) -> None:
        """Turn to a new journal and begin a new snapshot; the channels' snapshots are to be taken after this.

        Behind a snapshot that was refused the journal stays: where there is no room for one, each try made a file. Not
        behind one that is under way: read above the new one, what was noted since it began would take back attempts.
        """
        if self._snapshot_file is not None:
            self._serves_snapshot = False
        self._abandon_snapshot()
        if not self._serves_snapshot:
            self._generation += 1
            try:
                self._open_journal(0)
            except SideFileError:
                self._generation -= 1
                raise
            self._serves_snapshot = True
        try:
            file = self._snapshot_file = self._temporary_path.open("wb", buffering=WRITE_BYTES)
            file.write(encode_file_head(KIND_SNAPSHOT, self._generation))
        except (OSError, MemoryError) as exc:
            raise self.refuse_snapshot(exc) from exc
        self._snapshot_records = 0
        self._incomplete = False

    def add_to_snapshot(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Write (channel key, snapshot or part of one) records; a channel's parts in order.

        Raises:
            SideFileError: the disk refused; the old snapshot and all journals stay and count.
        """
        file = self._snapshot_file
        if file is None:
            raise SideFileError(self._temporary_path, "is not being written", "begin a new compaction")
        try:
            for key, payload in blocks:
                file.write(encode_record(key, payload))
                self._snapshot_records += 1
        except (OSError, MemoryError) as exc:
            raise self.refuse_snapshot(exc) from exc

    def finish_compaction(self, blocks: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Write what is left of the snapshot, put it in place and remove the journals it replaces.

        Raises:
            SideFileError: nothing was replaced; the old snapshot and all journals stay and count.
        """
        with self._disk:
            self.add_to_snapshot(blocks)
            file, generation = self._snapshot_file, self._generation
            assert file is not None
            try:
                file.write(encode_record(b"", struct.pack("<I", self._snapshot_records), FLAG_END))
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                file.close()
                require_in_place(self._directory)
                if self._snapshot_path.exists():
                    self._previous_path.unlink(missing_ok=True)
                    if self._keeps_previous:
                        self._previous_path.hardlink_to(self._snapshot_path)
                self._temporary_path.rename(self._snapshot_path)
                sync_folder(self._directory)
            except (OSError, MemoryError) as exc:
                raise self.refuse_snapshot(exc) from exc
            self._snapshot_file = None
            self._keeps_previous = True
            self._serves_snapshot = False
            self._snapshot_bytes = size
            self._size_before = 0
            while self._retired:
                os.close(self._retired.pop())
            self._remove_before(generation)

    def _remove_before(self, generation: int) -> None:
        """Remove the journals that a snapshot has taken the place of; a start passes over those that stay."""
        try:
            replaced = [path for old, path in find_journals(self._directory) if old < generation]
        except OSError as error:
            logger.warning(
                "old journals not looked for, tried again with the next path=%s error=%s",
                self._directory,
                error.strerror,
            )
            return
        for path in replaced:
            try:
                path.unlink()
            except OSError as error:
                logger.warning(
                    "old journal not removed, tried again with the next path=%s error=%s", path, error.strerror
                )

    @property
    def _temporary_path(self) -> Path:
        return self._directory / "snapshot.tmp"

    def _abandon_snapshot(self) -> None:
        """Close and remove a snapshot that was not finished."""
        file, self._snapshot_file = self._snapshot_file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what its buffer still holds is not wanted
                file.close()
        with contextlib.suppress(OSError):  # nobody reads it, the next one replaces it
            require_in_place(self._directory)
            self._temporary_path.unlink(missing_ok=True)

    def refuse_snapshot(self, error: OSError | MemoryError) -> SideFileError:
        """Give up the snapshot being written and ask for another one; return what to raise."""
        exc = _as_os_error(error)
        self._incomplete = True
        self._abandon_snapshot()
        return SideFileError(
            self._snapshot_path,
            f"cannot be written: {exc.strerror}",
            f"{remedy_for(exc)}; the snapshot before and the journals stay in use",
        )

    def compact(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """begin_compaction() and finish_compaction() in one, for the end.

        No try follows, so it gets a journal of its own: nothing that was noted behind a snapshot that was refused is
        read above this one.

        Raises:
            SideFileError: nothing was replaced; the old snapshot and all journals stay and count.
        """
        self._serves_snapshot = False
        self.begin_compaction()
        self.finish_compaction(blocks)

    def close(self) -> None:
        """Sync and close."""
        if self._descriptor < 0:
            return
        self._abandon_snapshot()
        try:
            self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
