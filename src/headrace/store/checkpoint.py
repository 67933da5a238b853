"""Writing the consume queues behind the log, and the note of how far they are on disk.

A checkpoint says: every entry of a record below this physical offset is synced, and so many entries there are. A start
recovers from there, so a note that promises too much would hide messages; whenever there is doubt (a queue that could
not be written, a sync that failed) there is no new note, and the next start reads more of the log instead.

Fillers behind a queue's last record do not count: a clean end takes them out of the files, since RocketMQ would take
such a filler's size for how far into the log its queues reach, and dispatch nothing. Where such a queue goes on is in
the note of that end, until the next clean one.

Queues are written on the event loop in slices of a few milliseconds and synced in a thread. The first files of new
queues are made ahead, in a thread: with two folders each they are most of what a queue's first write takes, and of
thousands that a stop found without files it had to make them all.
"""

from __future__ import annotations

import logging
import os
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SideFileError, UnsyncedError
from headrace.format.epochs import queue_ends_row, read_queue_ends
from headrace.format.layout import ROCKETMQ_CHECKPOINT_BYTES
from headrace.format.side_file import naming, open_anew, read_side_file, write_side_file
from headrace.lock_file import require_in_place
from headrace.log_pace import Trouble
from headrace.store.consume_queue import UNSYNCED_VIEWS, ConsumeQueue
from headrace.store.segment import is_syncfs_told_of_errors, sync_file_system

if TYPE_CHECKING:
    from headrace.store.store import Store

logger = logging.getLogger(__name__)

SLICE_MS: Final = 5
"""Time that one call gives to writing queues: ten thousand with a few new entries each take a second."""

SYNC_AS_A_WHOLE: Final = 64
"""Queues from which on their file system is synced in one go: an fdatasync of each is a commit of its journal each, and
three thousand of them took a stop 20 s."""

DOUBTFUL: Final = -1
"""Queue entries of a note that nobody may go by: a start finds another number, and makes all files anew."""

MADE_AT_ONCE: Final = 500
"""Queues whose files a thread makes in one job: 30 ms, where the file system is slow at it half a second. The thread
is one of two that make the next segment, too."""


class Checkpoints:
    """The checkpoints of one open store.

    Attributes:
        offset: Physical offset of the newest one.
        queue_ends: Where queues go on that the last clean end took fillers from, or whose files were made anew.
    """

    def __init__(self, store: Store, executor: ThreadPoolExecutor, lock_fd: int) -> None:
        """Take a store whose log and files of queues are there.

        Args:
            lock_fd: Open since before anything was written: it is told of whatever could not be.
        """
        self.offset = 0
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.job: Future[None] | None = None
        self._log = store.log
        self._queues = store.queues
        self._directory = store.directory
        self._files = store.files
        self._executor = executor
        self._clock = store.clock
        self._settings = store.settings
        self._counters = store.counters
        self._lock_fd = lock_fd
        self._began_ms = store.clock.monotonic_ms()
        self._target = 0
        self._making: Future[None] | None = None
        self._looked_at = 0  # those before it on the log's list of dirty queues have a file, or their job did
        self._to_write: list[ConsumeQueue] = []  # from the last on; empty: no checkpoint is being prepared
        self._errors_before = 0
        self._queue_trouble = Trouble(logger)
        self._note_trouble = Trouble(logger)
        self.is_doubtful = False  # a queue could not be synced: nobody knows what of it is on disk

    # -- reading ----------------------------------------------------------------------------------------------------

    def load(self) -> tuple[int, int]:
        """Return (physical offset, total queue entries) of the checkpoint; (first offset, 0) to start from there."""
        log = self._log
        beginning = (log.first_offset, 0)
        try:
            noted = read_side_file(self._directory.checkpoint, "checkpoint", "remove it")
        except SideFileError as error:
            logger.warning("checkpoint damaged, the whole log is scanned error=%s", error)
            return beginning
        if noted is None:
            return beginning
        self.queue_ends = read_queue_ends(noted)
        offset = int(noted["physical_offset"])
        if offset // log.segment_bytes not in log.segments:
            logger.warning("checkpoint points outside the log, the whole log is scanned physical_offset=%d", offset)
            return beginning
        return offset, int(noted["queue_entries"])

    # -- writing ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Go on with a checkpoint that is being prepared, or begin one that is due."""
        if self._to_write:
            self._write_some()
        durable = self._log.durable_offset
        appended = durable - max(self.offset, self._target)  # since the last one began, which may have failed
        due = self._clock.monotonic_ms() - self._began_ms >= self._settings.checkpoint_interval_ms
        if durable > self.offset and (due or appended >= self._settings.checkpoint_bytes):
            self.start()
        self._make_some()

    def _make_some(self) -> None:
        """Have a thread make the files of some new queues; where that fails, whoever writes the queue names it."""
        if self._making is not None and not self._making.done():
            return
        looked_at = self._log.dirty_queues[self._looked_at : self._looked_at + MADE_AT_ONCE]
        self._looked_at += len(looked_at)
        new = [queue.directory for queue in looked_at if queue.written_offset == 0 < queue.next_offset]
        if new:
            self._making = self._executor.submit(self._make, new)

    def _make(self, directories: list[str]) -> None:
        require_in_place(self._directory.consume_queues)
        self._files.make_first(directories)

    def start(self) -> None:
        """Begin to write the queues behind the log; the note follows when all are written and synced."""
        is_running = self.job is not None and not self.job.done()
        if is_running or self._to_write or self.is_doubtful:
            return
        self._began_ms = self._clock.monotonic_ms()
        self._target = self._log.durable_offset
        self._errors_before = self._counters.view_write_errors
        self._to_write = list(self._log.dirty_queues)
        self._write_some()

    def write_queue(self, queue: ConsumeQueue) -> None:
        """Write a queue's tail behind the log; what cannot be written stays in memory, and the log has it too."""
        try:
            queue.write_out()
        except OSError as error:
            self._counters.view_write_errors += 1
            self._queue_trouble.note(
                "consume queue not written, tried again path=%s error=%s", queue.directory, error.strerror
            )

    def _write_some(self) -> None:
        """Write some of the queues that a checkpoint needs; behind the last, have a thread sync them and note it."""
        until = self._clock.monotonic_ms() + SLICE_MS
        while self._to_write:
            self.write_queue(self._to_write.pop())
            if self._to_write and self._clock.monotonic_ms() >= until:
                return
        self._unlist_queues()
        target = self._target
        try:
            if any(queue.written_offset < queue.count_below(target) for queue in self._log.dirty_queues):
                return  # one could not be written (full disk): the note would promise too much
            entries = sum(queue.count_below(target) for queue in self._queues.values())
        except OSError as error:  # what was written a while ago cannot be read back
            self._queue_trouble.note(
                "consume queue not read, tried again path=%s error=%s", error.filename, error.strerror
            )
            return
        if self._counters.view_write_errors == self._errors_before:
            self._queue_trouble.end()
        touched = [queue for queue in self._queues.values() if queue.dirty_files]
        self.job = self._executor.submit(self._sync, touched, target, entries)
        self.job.add_done_callback(self._note_end)

    def _unlist_queues(self) -> None:
        """Keep on the list only the queues with entries in memory: to be written, to be shown, or to be dropped."""
        left = []
        for queue in self._log.dirty_queues:
            if queue.tail_offset < queue.next_offset:
                left.append(queue)
            else:
                queue.listed = False
        self._log.dirty_queues = left
        self._looked_at = 0

    def _sync(self, touched: list[ConsumeQueue], target: int, entries: int) -> None:
        require_in_place(self._directory.consume_queues)  # a queue whose file is missing counts as removed
        self._sync_queues(touched)
        self._note(target, entries, clean=False)

    def _sync_queues(self, queues: list[ConsumeQueue]) -> None:
        """Sync queues that were written to. Raises: as ``_sync_files``; ``is_doubtful`` is then noted on disk, too."""
        try:
            self._sync_files(queues)
        except UnsyncedError:
            self.is_doubtful = True
            self._note_doubt()
            raise

    def _note_doubt(self) -> None:
        """Have the next start make the files of the queues anew, and other ones.

        In these the kernel takes for written what the disk has not, and ext4 does so for good: it writes to blocks that
        count as holes, so that entries which are written once more are gone when they leave memory.
        """
        try:
            self._note(self._log.first_offset + 1, DOUBTFUL, clean=False)
        except OSError as error:
            logger.error(
                "doubt about the consume queues not noted error=%s remedy=stop the broker and remove %s: the next "
                "start makes it anew from the log", error, self._directory.consume_queues,
            )  # fmt: skip

    def _sync_files(self, queues: list[ConsumeQueue]) -> None:
        """Sync queues that were written to; from SYNC_AS_A_WHOLE on, not each by itself.

        Raises:
            UnsyncedError: nobody knows what of them is on disk.
            OSError: one could not be opened; what was not synced is tried again with the next checkpoint.
        """
        if len(queues) < SYNC_AS_A_WHOLE or not self._is_told_of_errors():
            for queue in queues:
                queue.sync()
            return
        for queue in queues:
            queue.forget_dirty()
        try:
            sync_file_system(self._lock_fd)
        except OSError as error:
            raise UnsyncedError(self._directory.consume_queues, error.errno, UNSYNCED_VIEWS) from error

    def _is_told_of_errors(self) -> bool:
        """Whether a sync of the queues' whole file system says what it could not write: from Linux 5.8 on."""
        release = tuple(int(part) for part in os.uname().release.split(".", 2)[:2] if part.isdigit())
        queues = self._directory.consume_queues
        is_there = os.fstat(self._lock_fd).st_dev == queues.stat().st_dev
        return release >= (5, 8) and is_there and is_syncfs_told_of_errors(str(queues))

    def _note_end(self, job: Future[None]) -> None:
        error = job.exception()
        if error is None:
            self._note_trouble.end()
            self._counters.checkpoints += 1
            return
        if self.is_doubtful:
            logger.error("checkpoint failed error=%s", error)
            logger.error("no more checkpoints until the next start")
        else:
            self._note_trouble.note("checkpoint failed, tried again error=%s", error)
        self._counters.view_write_errors += 1

    def write_all(self, end_offset: int, *, clean: bool) -> None:
        """Write and sync every queue and note ``end_offset``, the log's end. Blocks: for start and end.

        Raises:
            OSError, UnsyncedError: a file could not be written or synced; the old note counts.
        """
        for queue in self._queues.values():
            queue.write_out()
        self._sync_queues([queue for queue in self._queues.values() if queue.dirty_files])
        if clean:
            filled = {key: queue for key, queue in self._queues.items() if queue.records_end < queue.next_offset}
            self.queue_ends = {key: queue.next_offset for key, queue in filled.items()}
        self._note(end_offset, sum(queue.records_end for queue in self._queues.values()), clean=clean)
        if clean:
            for queue in filled.values():
                queue.drop_last_fillers()
            self._sync_queues([queue for queue in filled.values() if queue.dirty_files])

    def begin_anew(self, issued: dict[tuple[str, int], int]) -> None:
        """Note that nothing of the queues is on the disk, before their files are removed to be made anew. Blocks.

        Args:
            issued: Offset behind the last issued one of each queue, as far as its files know: the note keeps it, since
                a start that is killed behind the removal leaves nothing else that does.

        Raises:
            OSError: it could not be written; the old note counts.
        """
        for key, queue_end in issued.items():
            self.queue_ends[key] = max(queue_end, self.queue_ends.get(key, 0))
        self._note(self._log.first_offset, 0, clean=False)

    def _note(self, target: int, entries: int, *, clean: bool) -> None:
        now = self._clock.now_ms()
        payload: dict[str, Any] = {
            "physical_offset": target, "queue_entries": entries, "clean": clean, "written_ms": now,
        }  # fmt: skip
        if self.queue_ends:
            payload["queue_ends"] = queue_ends_row(self.queue_ends)
        write_side_file(self._directory.checkpoint, "checkpoint", payload)
        # RocketMQ's own checkpoint: three store timestamps (log, queues, index) in a file of one page. Replaced, for
        # what is in its place may be no file: a fifo waits for a reader. Nobody reads it but behind a clean end.
        path = self._directory.rocketmq_checkpoint
        beside = path.with_name(path.name + ".new")
        with naming(beside), open_anew(beside) as file:
            file.write(struct.pack(">qqq", now, now, now).ljust(ROCKETMQ_CHECKPOINT_BYTES, b"\0"))
            if clean:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        self.offset = target
