"""The index files of one open store: made, filled behind the log, synced, brought up to the log, given up if damaged.

Who may add keys is decided by ``KeyIndex.is_live``. Live, appends do it on the event loop. Otherwise ``_work`` does it
in the thread ``headrace-index``: it walks the log from where the index ends, a few steps for each job, so that queries,
which run in the same thread, are never far behind; the start of a broker does not wait for it. The same walk serves
every case: a crash (what was not noted is made anew), a lost or damaged file (it and all newer ones are), a new index
for an old log, and a disk that took nothing for a while.

Invariants: entries lie in the order of the log, over all files; only the newest file is being filled; a file that is
full is finished (slots and header written, synced) by the thread, and notes wait for that.
"""

from __future__ import annotations

import errno
import logging
import os
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.clock import Clock
from headrace.format.epochs import Epochs
from headrace.format.side_file import naming
from headrace.format.side_shapes import IndexNote
from headrace.lock_file import require_in_place
from headrace.log_pace import Trouble
from headrace.settings import StoreSettings
from headrace.store.commit_log import CommitLog
from headrace.store.directory import StoreDirectory
from headrace.store.index import KeyIndex
from headrace.store.index_file import IndexFile
from headrace.store.index_note import name_of_time, note_file, write_note
from headrace.store.index_opening import COUNT_AHEAD, IndexOpening, name_damage
from headrace.threads import Threads

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1000
"""Time until the index tries again what the disk refused."""

MAX_PATIENCE_MS: Final = 60_000
"""Longest time between two times that damaged files are made anew; it begins with RETRY_MS, and doubles each time."""

_STEPS_PER_JOB: Final = 8
_MAX_UNFINISHED: Final = 2
"""Full files whose slots may wait in memory for the disk."""


@dataclass
class IndexCounters:
    """Events of the key index since the store was opened."""

    write_errors: int = 0
    damaged_files: int = 0
    queries: int = 0


class IndexFolder:
    """The key index of one open store.

    Attributes:
        keys: What is indexed, and the file that is being filled.
        counters: Events since the store was opened.
        executor: The thread in which everything runs that may block.
    """

    def __init__(
        self, log: CommitLog, directory: StoreDirectory, clock: Clock, settings: StoreSettings, epochs: Epochs
    ) -> None:
        """Prepare; ``open`` reads what is there.

        Args:
            epochs: What they left out of the log is passed over.
        """
        self.counters = IndexCounters()
        self.keys = KeyIndex(self._provide_file, self._note_error)
        self.executor = Threads("headrace-index")
        self.slot_count = settings.index_slots
        self.capacity = settings.index_entries
        self._log = log
        self._directory = directory
        self._folder = directory.index
        self._clock = clock
        self._settings = settings
        self._epochs = epochs
        self._files: list[IndexFile] = []
        self._newest_name = ""
        self._damaged: dict[IndexFile, str] = {}  # with what is wrong with them
        self._patience_ms = 0
        self._give_up_at_ms = 0  # not before: where the disk cannot read what is made, that would never end
        self._loading: tuple[IndexFile | None, int, int] | None = None
        self._job: Future[None] | None = None  # a note or files to finish
        self._is_working = False  # the thread adds keys, or is going to
        self._mark: IndexNote | None = None
        self._noted_offset = 0
        self._noted_keys = 0
        self._marked_ms = clock.monotonic_ms()
        self._retry_at_ms = 0
        self._trouble = Trouble(logger)
        self._is_doubtful = False  # a sync failed: nobody knows what of the files is on disk
        self._closing = False

    # -- what others see --------------------------------------------------------------------------------------------

    @property
    def files(self) -> list[IndexFile]:
        """The files that can be searched, oldest first."""
        return [file for file in self._files if self._loading is None or file is not self._loading[0]]

    @property
    def covered_offset(self) -> int:
        """The keys of every record below this physical offset can be found."""
        loading = self._loading
        if loading is None:
            return self.keys.indexed_offset
        return loading[0].begin_offset if loading[0] is not None else loading[1]

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return max(0, self._log.end_offset - self.covered_offset)

    @property
    def last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record with a key; zeros when there is none."""
        files = self._files
        return (files[-1].end_ms, files[-1].end_offset) if files else (0, 0)

    @property
    def _unfinished(self) -> list[IndexFile]:
        """Full files whose slots are still in memory only."""
        active = self.keys.active
        return [file for file in self._files if file.has_slots and file is not active]

    def report_damage(self, file: IndexFile, reason: str) -> None:
        """Have a file that was found damaged, and all newer ones, made anew: from any thread."""
        self._damaged.setdefault(file, reason)

    def wait_live(self, timeout_s: float = 60.0) -> None:
        """Wait until the whole log is indexed. Blocks: for tests and tools.

        Raises:
            OSError: the disk does not take the index.
        """
        while not self.keys.is_live:
            self._start_work()
            self.executor.submit(int).result(timeout_s)
            if self._retry_at_ms:
                raise OSError(errno.EIO, "the key index cannot be written", str(self._folder))

    # -- opening ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take up the files that count, and begin to index what is missing.

        Raises:
            FormatVersionError: the index is of a newer version.
        """
        opened = IndexOpening(self._log, self._directory, self._settings, self._epochs)
        opened.run()
        self.slot_count, self.capacity = opened.slot_count, opened.capacity
        self.counters.damaged_files += opened.damaged_files
        self._files = opened.files
        self._newest_name = opened.newest_name
        self._noted_offset = opened.noted_offset
        self._loading = opened.active, opened.offset, opened.ahead
        self._start_work()

    # -- bringing the index up to the log ---------------------------------------------------------------------------

    def _start_work(self) -> None:
        """Have the thread go on, unless it is at it."""
        if not self._is_working and not self._closing:
            self._retry_at_ms = 0
            self._is_working = True
            self.executor.submit(self._work)

    def _work(self) -> None:
        """Go some steps towards the end of the log, and again. In the thread; nobody else adds keys meanwhile."""
        try:
            goes_on = self._go_steps()
        except (OSError, MemoryError) as error:
            self._note_error(error)
            self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
            goes_on = False
        except Exception:
            logger.exception("building the key index failed by a bug")
            self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
            goes_on = False
        self._is_working = False
        if goes_on:
            with suppress(RuntimeError):  # the executor was shut down meanwhile
                self._start_work()

    def _go_steps(self) -> bool:
        """Return whether there is more to do."""
        self._load()
        if self.keys.active is not None and self.keys.active.has_slots:
            self.keys.active.write_out()  # before it may grow again
        for _ in range(_STEPS_PER_JOB):
            if self._closing or self.keys.go_live(self._log.end_offset):
                return False
            self._step()
        if self.keys.indexed_offset - self._noted_offset >= self._settings.checkpoint_bytes:
            self._note_progress()
        return True

    def _load(self) -> None:
        if self._loading is None:
            return
        active, offset, ahead = self._loading
        newest = self._files[-1] if self._files else None
        try:
            if ahead == COUNT_AHEAD:
                ahead = self._count_ahead(offset)
            if active is not None and not active.has_slots:
                active.load_slots()
        except OSError as error:
            if error.errno == errno.EIO and newest is not None:
                self._lose([newest], str(error.strerror))
                self._files = self._files[:-1]
                self._loading = None, newest.begin_offset, COUNT_AHEAD
            raise
        self.keys.start_at(active, offset, ahead)
        self._noted_keys = self.keys.added_keys
        self._loading = None

    def _count_ahead(self, offset: int) -> int:
        """Return how many keys the files have of the record that the lost file behind them began with."""
        ahead = 0
        for file in reversed(self._files):
            count = file.count_at_end(offset)
            ahead += count
            if count < file.count - 1:
                break
        return ahead

    def _step(self) -> None:
        """Index the next piece of the log, or pass over what is no record."""
        log, offset = self._log, self.keys.indexed_offset
        end = log.end_offset
        behind = self._epochs.behind(offset)
        if behind > offset:
            self.keys.skip_to(min(behind, end))
            return
        end = min([end, *(start for start, _ in self._epochs.gaps if start > offset)])
        index = offset // log.segment_bytes
        segment = log.segments.get(index)
        if segment is None:
            following = min((number for number in log.segments if number > index), default=None)
            self.keys.skip_to(end if following is None else min(end, following * log.segment_bytes))
            return
        segment_end = segment.first_offset + log.segment_bytes
        found = self.keys.index_some(segment, min(end, segment_end))
        if found <= 0:
            # A hole: recovery named it, here it is only stepped over.
            position = segment.find_record(self.keys.indexed_offset - segment.first_offset + 1)
            self.keys.skip_to(min(end, segment_end if position < 0 else segment.first_offset + position))

    def _note_progress(self) -> None:
        """Note how far the index is while it is not live; what the log may still lose is not noted."""
        if self.keys.active is not None:
            self.keys.active.write_out()
        if self.keys.indexed_offset <= self._log.durable_offset and not self._unfinished and not self._is_doubtful:
            self._sync(self._note())

    # -- files ------------------------------------------------------------------------------------------------------

    def _provide_file(self, first_ms: int) -> IndexFile:
        """Make the next file; the one before is full."""
        full = self.keys.active
        if full is not None and full.has_slots:
            if not self.keys.is_live:
                self._finish([*self._unfinished, full])
            if len(self._unfinished) >= _MAX_UNFINISHED:
                raise OSError(errno.EAGAIN, "full index files wait for the disk", full.path)
            if self.keys.is_live:
                self.executor.submit(self._finish, [full])
        require_in_place(self._folder)
        self._folder.mkdir(exist_ok=True)
        # A name never comes again: until the next note a start would take this file for a lost one of that name.
        self._newest_name = name_of_time(self._clock.now_ms(), self._newest_name)
        path = self._folder / self._newest_name
        made = IndexFile.create(str(path), self.slot_count, self.capacity)
        self._files = [*self._files, made]
        logger.info("index file made path=%s first_store_timestamp_ms=%d", path, first_ms)
        return made

    def _finish(self, files: list[IndexFile]) -> None:
        """Write and sync files that are full, and give back their memory. In the thread."""
        for file in files:
            if not file.has_slots:
                continue  # done meanwhile
            try:
                file.finish()
            except OSError as error:
                self._doubt_unsynced()
                self._note_error(error)
                self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
                return
            file.drop_slots()
            file.release()

    def _note_error(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            return  # nothing was refused: the index goes on where it is when the thread has caught up
        self.counters.write_errors += 1
        self._trouble.note("key index not written, tried again error=%s", error)

    def _drop_old(self) -> None:
        """Remove files of which the log has no record any more; the newest stays."""
        while len(self._files) > 1 and self._files[0].end_offset < self._log.first_offset:
            oldest = self._files[0]
            if oldest in self._unfinished:
                return
            self._files = self._files[1:]
            self.executor.submit(_remove, Path(oldest.path))
            logger.info("index file removed, its records are gone path=%s", oldest.path)

    def _give_up_damaged(self) -> None:
        """Go on before the oldest damaged file, without it and all newer ones."""
        self.keys.stop_live()
        if self._is_working:
            return  # the thread is adding keys; later
        damaged, self._damaged = self._damaged, {}
        first = next((number for number, file in enumerate(self._files) if file in damaged), None)
        if first is None:
            return
        given_up, self._files = self._files[first:], self._files[:first]
        self._mark = None
        self._wait_longer()
        self._lose(given_up, damaged[given_up[0]])
        self._loading = None, given_up[0].begin_offset, COUNT_AHEAD
        self._start_work()

    def _wait_longer(self) -> None:
        """Put off the next time: the longer, the sooner it comes behind this one."""
        now = self._clock.monotonic_ms()
        is_again = now < self._give_up_at_ms + MAX_PATIENCE_MS
        self._patience_ms = min(self._patience_ms * 2, MAX_PATIENCE_MS) if is_again and self._patience_ms else RETRY_MS
        self._give_up_at_ms = now + self._patience_ms

    def _lose(self, files: list[IndexFile], reason: str) -> None:
        for file in files:
            self.counters.damaged_files += 1
            name_damage(Path(file.path), reason)
            self.executor.submit(_remove, Path(file.path))

    # -- syncing ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: catching up again, notes, files to remove. On the loop, about every 100 ms."""
        now = self._clock.monotonic_ms()
        if self._damaged and now >= self._give_up_at_ms:
            self._give_up_damaged()
        self._drop_old()
        is_idle = self._job is None or self._job.done()
        if not is_idle or self._is_working or now < self._retry_at_ms:
            return
        if not self.keys.is_live:
            self._start_work()
        elif self._unfinished:
            self._retry_at_ms = 0
            self._job = self.executor.submit(self._finish, self._unfinished)
        else:
            self._note_when_due(now)

    def _note_when_due(self, now: int) -> None:
        if self._is_doubtful or self._damaged:
            return
        if self._mark is None and self._is_note_due(now):
            try:
                if self.keys.active is not None:
                    self.keys.active.write_out()
            except OSError as error:
                self._note_error(error)
                self._retry_at_ms = now + RETRY_MS
                return
            self._marked_ms = now
            self._mark = self._note()
        # What the log may still lose is not noted.
        if self._mark is not None and self._mark.physical_offset <= self._log.durable_offset:
            mark, self._mark = self._mark, None
            self._job = self.executor.submit(self._sync_marked, mark)

    def _is_note_due(self, now: int) -> bool:
        behind = self.keys.indexed_offset - self._noted_offset
        if behind >= self._settings.checkpoint_bytes:
            return True
        # Without new keys a start only has to walk a little more of the log.
        has_keys = self.keys.added_keys != self._noted_keys
        return has_keys and now - self._marked_ms >= self._settings.checkpoint_interval_ms

    def _note(self) -> IndexNote:
        return self._note_of(self._files, self.keys.indexed_offset, self.keys.keys_ahead)

    def _note_of(self, files: list[IndexFile], physical_offset: int, keys_ahead: int) -> IndexNote:
        return IndexNote(
            slot_count=self.slot_count,
            capacity=self.capacity,
            physical_offset=physical_offset,
            keys_ahead=keys_ahead,
            files=[note_file(file) for file in files],
        )

    def _sync_marked(self, note: IndexNote) -> None:
        try:
            self._sync(note)
        except OSError as error:
            self._note_error(error)
            self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
        else:
            self._trouble.end()

    def _sync(self, note: IndexNote) -> None:
        """Make durable what a note counts, then the note. In the thread.

        What cannot be written or opened is tried again; of what could not be synced nobody knows what is on the disk.
        """
        newest = note.files[-1].name if note.files else ""
        for file in self._files:
            if Path(file.path).name == newest:
                file.write_header()
                folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    file.sync()
                    with naming(self._folder):
                        os.fsync(folder)
                except OSError:
                    self._doubt(file)
                    raise
                finally:
                    os.close(folder)
                if not file.has_slots:
                    file.release()  # it was finished since the note was made
        write_note(note, self._directory.index_note)
        self._noted_offset = note.physical_offset
        self._noted_keys = self.keys.added_keys

    def _doubt_unsynced(self) -> None:
        file = next((file for file in self._files if file.is_unsynced), None)
        if file is not None:
            self._doubt(file)

    def _doubt(self, file: IndexFile) -> None:
        """Note no more of a file that could not be synced, and of newer ones: the next start makes others from the log.

        In this one the kernel takes for written what the disk has not, and ext4 does so for good, whatever is written
        and synced later.
        """
        if self._is_doubtful:
            return
        self._is_doubtful = True
        logger.error("no more notes of the key index until the next start, which makes it anew path=%s", file.path)
        sound = self._files[: self._files.index(file)]
        note = self._note_of(sound, file.begin_offset, COUNT_AHEAD)
        try:
            write_note(note, self._directory.index_note)
        except OSError as error:
            logger.error(
                "doubt about the key index not noted error=%s remedy=stop the broker and remove %s: the next start "
                "makes it anew from the log", error, file.path,
            )  # fmt: skip

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish every file, so that RocketMQ can read them, and note it. The log is durable. Blocks."""
        self._stop()
        try:
            self._write_last()
        except OSError as error:
            self._doubt_unsynced()
            self._note_error(error)
        finally:
            self._let_go()

    def _write_last(self) -> None:
        if self._is_doubtful or self._loading is not None or self._damaged:
            return  # the note from before says what counts
        self._finish(self._unfinished)
        if self.keys.active is not None and self.keys.active.has_slots:
            self.keys.active.finish()
        if not self._unfinished:
            self._sync(self._note())

    def abandon(self) -> None:
        """Stop without writing anything more."""
        self._stop()
        self._let_go()

    def _let_go(self) -> None:
        """Give back files and memory now: whoever closed the store may remove its folder, and keep this object."""
        for file in self._files:
            file.drop_slots()
            file.release()

    def _stop(self) -> None:
        self._closing = True
        self.keys.stop_live()
        self.executor.shutdown(wait=True, cancel_futures=True)


def _remove(path: Path) -> None:
    try:
        require_in_place(path)
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("index file not removed, the next start does it path=%s error=%s", path, error)
