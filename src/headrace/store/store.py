"""The store of one broker: the commit log, its consume queues and their durability. ``opening`` recovers it.

Threads: everything here runs on the event loop but for fdatasync (``Flusher``) and the jobs given to the executors
(making the next segment, syncing views for a checkpoint, reading ahead). Those report through ``notify``, which the
composition root sets to the loop's call_soon_threadsafe, as ``call_soon`` to that. Without a loop both call at once.

When a flush returns (``group_commit``), its target becomes the durable offset, entries below it become visible, and
whoever waits in the gate is told. A failed fdatasync stops writes for good: the kernel may have dropped the dirty
pages, so trying again would only pretend. So do another directory in the place of the store's (``look_at_place``),
where the next segment would be made, and a removed segment: what is written to it goes with the process. What goes by
path in between is refused by ``require_in_place``.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from headrace.batch import PublishBatch
from headrace.clock import Clock
from headrace.errors import (
    FlushError,
    InvalidNameError,
    NoMemoryError,
    RemovedSegmentError,
    ReplacedFolderError,
    ReplacedStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    UnsyncedError,
    remedy_for,
)
from headrace.format.epochs import Epochs
from headrace.format.names import SCHEDULE_TOPIC, topic_directory
from headrace.format.side_file import is_removed, sync_folder
from headrace.histogram import FLUSH_BOUNDS_SECONDS, Histogram
from headrace.lock_file import release_lock, require_in_place
from headrace.log_pace import LogPace
from headrace.settings import StoreSettings
from headrace.store.boot_note import BootNote
from headrace.store.checkpoint import Checkpoints
from headrace.store.cold_reads import ColdReads
from headrace.store.commit_log import CommitLog
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.directory import Identity, StoreDirectory
from headrace.store.durable_mark import DurableMark
from headrace.store.gate import Gate
from headrace.store.group_commit import GroupCommit
from headrace.store.index_folder import IndexFolder
from headrace.store.key_query import KeyMatches, KeyQuery, KeySearch
from headrace.store.opening import Opening, RecoveryReport, find_missing, remove_unfinished_segment
from headrace.store.queue_files import QueueFiles
from headrace.store.recovery import Hole
from headrace.store.segment import Segment
from headrace.store.segment_supply import SegmentSupply, require_room
from headrace.store.zero_ahead import ZeroAhead
from headrace.threads import Threads

logger = logging.getLogger(__name__)

_WRITE_QUEUE_AT = 4096
"""Entries a queue may keep in memory before they are written behind the log."""

_MAX_NAMED_DAMAGE = 10_000
"""Damaged records that are named one by one in the log of events."""

_DURABLE_MARK_LAG_MS = 1000
_LOOK_AT_PLACE_MS = 1000
_DURABLE_MARK_LAG_BYTES = 64 << 20


def _most_open(wanted: int, share: int) -> int:
    """Return how many files of one kind may stay open: where the system allows few, a share of them at most."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if allowed == resource.RLIM_INFINITY else max(2, min(wanted, allowed // share))


@dataclass
class StoreCounters:
    """Events since the store was opened."""

    damaged_records: int = 0
    truncated_bytes: int = 0
    refused_full: int = 0
    segment_waits: int = 0
    cold_reads: int = 0
    read_errors: int = 0
    checkpoints: int = 0
    view_write_errors: int = 0
    mark_write_errors: int = 0
    zeroed_bytes: int = 0
    zero_waits: int = 0
    zero_errors: int = 0


class Store:
    """An open store; ``open`` makes one."""

    def __init__(
        self, directory: StoreDirectory, settings: StoreSettings, clock: Clock, schedule_delays_ms: Sequence[int] = ()
    ) -> None:
        self.directory = directory
        self._schedule_delays_ms = tuple(schedule_delays_ms)
        self.settings = settings
        self.clock = clock
        self.counters = StoreCounters()
        self.flush_seconds = Histogram(FLUSH_BOUNDS_SECONDS)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._is_caseless = False
        self._topics_by_folder: dict[str, str] = {}  # by its name without case; only where the disk is without
        self.gate = Gate()
        self.failure: StoreError | None = None
        self.last_write_error: str = ""
        self._pace = LogPace(clock)
        self._look_at_place_ms = 0
        self.is_away = False  # the path of the store leads nowhere
        self.notify: Callable[[Callable[[], None]], object] = lambda call: call()
        self.call_soon: Callable[[Callable[[], None]], object] = lambda call: call()
        self.on_durable: Callable[[list[ConsumeQueue]], None] = lambda grown_queues: None
        self.on_warm: Callable[[], None] = lambda: None
        self.recovery: RecoveryReport
        self.log: CommitLog
        self.checkpoints: Checkpoints
        self.commits: GroupCommit
        self.index: IndexFolder
        self.store_id: str
        self._cold_reads: ColdReads
        self._supply: SegmentSupply
        self.epochs = Epochs()
        self._holes: list[Hole] = []
        self._named_damage: set[int] = set()
        self._lock_fd = -1
        self._closed = False
        self._executor = Threads("headrace-store", 2)
        self._mark_job: Future[None] | None = None
        self._mark_synced_ms = 0

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        clock: Clock,
        *,
        store_host: int = 0,
        store_host_v6: bytes | None = None,
        schedule_delays_ms: Sequence[int] = (),
        on_scanned: Callable[[int], None] | None = None,
    ) -> Store:
        """Lock, load and recover the store in ``settings.data_dir``; make it if it is new.

        Args:
            store_host: IPv4 address << 32 | port that records carry as their broker's.
            store_host_v6: 16 address bytes and an i32 port; wins over ``store_host``.
            schedule_delays_ms: Delay of each level, the first is level 1: the queues of SCHEDULE_TOPIC_XXXX note
                when their messages are due.
            on_scanned: Told now and then up to which physical offset the log has been checked.

        Raises:
            ForeignStoreError, StoreLockedError, FormatVersionError, SideFileError, StoreFullError, StoreError: each
                names the file and the remedy; nothing was overwritten.
            ValueError: ``store_host_v6`` has not 20 bytes.
        """
        if store_host_v6 is not None and len(store_host_v6) != 20:
            raise ValueError(f"store_host_v6 has {len(store_host_v6)} bytes, not 20")
        directory = StoreDirectory(Path(settings.data_dir))
        directory.require_ours()
        store = cls(directory, settings, clock, schedule_delays_ms)
        store._lock_fd = directory.acquire_lock()
        try:
            identity = store._load_or_make_identity()
            store._make_parts(identity, store_host, store_host_v6)
            store._recover(on_scanned)
        except BaseException:
            store._abandon()
            raise
        return store

    def _load_or_make_identity(self) -> Identity:
        settings = self.settings
        identity = self.directory.load_identity()
        if identity is None:
            require_room(self.directory, settings, 0, settings.segment_bytes)
            return self.directory.create_identity(
                settings.segment_bytes, settings.queue_file_bytes, self.clock.now_ms()
            )
        for what, name in (("segment size", "segment_bytes"), ("size of queue files", "queue_file_bytes")):
            kept, wanted = getattr(identity, name), getattr(settings, name)
            if kept != wanted:
                is_set = wanted != getattr(StoreSettings(), name)
                level = logging.WARNING if is_set else logging.INFO
                logger.log(level, "%s kept from the store %s=%d setting=%d", what, name, kept, wanted)
        return identity

    def _make_parts(self, identity: Identity, store_host: int, store_host_v6: bytes | None) -> None:
        """Open what the store consists of, but for the key index: that needs the recovered log."""
        self.store_id = identity.store_id
        self._is_caseless = self.directory.is_caseless
        self.files = QueueFiles(identity.queue_file_bytes, _most_open(self.settings.open_queue_files, 4))
        self.mark = DurableMark(self.directory.durable_mark)
        self.boot_note = BootNote(self.directory.boot_note)
        open_segments = _most_open(self.settings.open_segments, 16)
        self.log = CommitLog(str(self.directory.commit_log), identity.segment_bytes, open_segments)
        self.log.segments.on_retired = lambda segment: self._executor.submit(segment.drop_pages)
        self.log.store_host = store_host
        self.log.store_host_v6 = store_host_v6
        self.checkpoints = Checkpoints(self, self._executor, self._lock_fd)
        self._supply = SegmentSupply(self.log, self.directory, self._executor, self.settings, self.counters)
        self.zero_ahead = ZeroAhead(self.log, self._executor, self.counters)
        self.log.provide_segment = self._provide_segment
        self.log.on_damaged = self._name_damage
        self.commits = GroupCommit(self.log, lambda call: self.call_soon(call), self._note_flushed, self._fail)
        self._cold_reads = ColdReads(
            self.log,
            self.clock,
            self.counters,
            self._pace,
            notify=lambda call: self.notify(call),
            on_warm=lambda: self.on_warm(),
        )

    def _recover(self, on_scanned: Callable[[int], None] | None) -> None:
        """Find out what the log holds, bring everything up to it, and get ready for the first write."""
        remove_unfinished_segment(self.log, self.directory)
        self.log.open_segments()
        was_clean = not self.directory.abort.exists()
        if self.mark.is_damaged or (was_clean and len(self.log.segments) > 0 and not self.mark.is_whole):
            logger.warning("durable mark damaged, set anew from the log path=%s", self.directory.durable_mark)
        self.directory.abort.touch()
        if was_clean:  # now: without it what a power cut leaves would count as damage of a closed store
            sync_folder(self.directory.root)
        opening = Opening(self)
        self.recovery = opening.recover(was_clean, on_scanned)
        self.epochs, self._holes = opening.epochs, opening.holes
        if self._shows_unsynced:
            self.boot_note.write()
        else:
            self.boot_note.remove()
        self.commits.begin_at(self.log.durable_offset)
        self.index = IndexFolder(self.log, self.directory, self.clock, self.settings, self.epochs)
        self.index.open()
        self.log.index = self.index.keys
        self._prepare_next()

    def _abandon(self) -> None:
        """Let go of everything after a failed open; the folder stays as it was found."""
        self._shut_executors()
        if hasattr(self, "index"):
            self.index.abandon()
        if hasattr(self, "commits"):
            self.commits.close()
        if hasattr(self, "mark"):
            self.mark.close()
        if hasattr(self, "files"):
            self.files.close()
        release_lock(self._lock_fd)

    @property
    def _shows_unsynced(self) -> bool:
        """Whether any topic shows messages before they are on the disk."""
        levels = {self.settings.durability, *(self.settings.durability_of(topic) for topic in self.settings.topics)}
        return levels != {"fsync"}

    # -- queues -----------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; it is made when it does not exist."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            folder = f"{self.directory.consume_queues}/{topic_directory(topic)}/{queue_id}"
            found = ConsumeQueue(topic, queue_id, folder, self.files, self.log)
            found.awaits_flush = self.settings.durability_of(topic) == "fsync"
            if topic == SCHEDULE_TOPIC and 0 <= queue_id < len(self._schedule_delays_ms):
                found.delay_ms = self._schedule_delays_ms[queue_id]
            self.queues[topic, queue_id] = found
            if self._is_caseless:
                self._topics_by_folder.setdefault(topic.lower(), topic)
        return found

    def require_folder(self, topic: str) -> None:
        """Refuse a topic whose queues would lie in the folder of another one.

        Raises:
            InvalidNameError: it is called as that one but for upper and lower case, which the disk takes for one.
        """
        owner = self._topics_by_folder.get(topic.lower(), topic)
        if owner != topic:
            raise InvalidNameError(
                topic, f"topic {owner!r} has its folder, as upper and lower case are the same on the disk of the store"
            )

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return where a queue goes on; one that does not exist begins at 0, and is not made."""
        found = self.queues.get((topic, queue_id))
        return 0 if found is None else found.next_offset

    def go_on_above(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Have a queue go on at an offset at least: those below were issued, though the log has lost whose they were.

        To be called at each start, until the log has a message from there on.

        Returns:
            How many offsets stay unused.
        """
        skipped = queue.skip_to(queue_offset)
        if not skipped:
            return 0
        logger.warning(
            "queue goes on above messages that the log lost topic=%s queue_id=%d queue_offset=%d lost=%d",
            queue.topic, queue.queue_id, queue_offset, skipped,
        )  # fmt: skip
        queue.advance_visible(self.durable_offset)
        if not queue.listed:
            queue.listed = True
            self.log.dirty_queues.append(queue)
        return skipped

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, batch: PublishBatch) -> int:
        """Append a batch whose ``queues`` are set; return the log's new end.

        Raises:
            StoreFullError: no room; nothing was appended. The next call tries again.
            FlushError, ReplacedStoreError, StoreClosedError: the store takes no writes any more.
            StoreError: the system refused the write, or memory for it; nothing was appended. The next call tries again.
            MessageTooLargeError: an entry breaks a limit of the format.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # else one error for all would gather a traceback from each
        if self._closed:
            raise StoreClosedError("the store is closed")
        try:
            end = self.log.append(batch, self.clock.now_ms())
        except StoreFullError as error:
            self.counters.refused_full += 1
            self._note_write_error(str(error))
            raise
        except (FlushError, ReplacedStoreError) as error:
            self._fail(error)
            raise
        except StoreError as error:
            self._note_write_error(str(error))
            raise
        except OSError as error:
            self._note_write_error(str(error))
            raise StoreError(f"cannot write to the log: {error}") from error
        except MemoryError as error:
            refusal = NoMemoryError()
            self._note_write_error(str(refusal))
            raise refusal from error
        if not batch.uses_reserve:  # else publishing may be refused still
            self.last_write_error = ""
        for queue in batch.queues:
            if isinstance(queue, ConsumeQueue) and queue.next_offset - queue.written_offset >= _WRITE_QUEUE_AT:
                self.checkpoints.write_queue(queue)
        return end

    def _note_write_error(self, text: str) -> None:
        # Where only large batches are refused, small ones are taken in between.
        if not self.last_write_error and self._pace.is_due("write"):
            logger.error("write refused error=%s", text)
        self.last_write_error = text

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self.log.end_offset - self.log.durable_offset

    def _provide_segment(self, first_offset: int) -> Segment:
        segment = self._supply.take(first_offset)
        if self.log.active is not None:
            self.commits.add_rolled(self.log.active)
        self.notify(self._prepare_next)
        logger.debug("segment rolled path=%s", segment.path)
        return segment

    def _prepare_next(self) -> None:
        if not self._closed:
            self._supply.prepare()

    # -- durability -------------------------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """Everything below this physical offset survives a power cut."""
        return self.log.durable_offset

    def request_flush(self, *, is_waited_for: bool = True) -> None:
        """Have everything appended so far made durable.

        A flush as large as the last two were on average begins at once; a smaller one when the loop's turn is over,
        with what the other sockets bring in it.

        Args:
            is_waited_for: Whether the flush goes behind a running one. Where nobody waits, fewer and larger ones cost
                less.
        """
        self.commits.request(is_waited_for=is_waited_for)

    def finish_flush(self) -> None:
        """Take the flusher's result: call this when ``commits.flusher.done_read`` is readable."""
        self.commits.finish()

    def _note_flushed(self, target: int, seconds: float) -> None:
        self.flush_seconds.observe(seconds)
        flushed_bytes, is_waited_for = target - self.log.durable_offset, len(self.gate) > 0
        self._become_durable(target)
        self.zero_ahead.note_flush(flushed_bytes, is_waited_for=is_waited_for)

    def _fail(self, failure: StoreError) -> None:
        if self.failure is None:
            logger.critical("store stops taking writes error=%s", failure)
            self.failure = failure
            self.commits.end()
            self.last_write_error = str(failure)
            self.gate.fail(failure)
            self.on_durable([])

    def _become_durable(self, target: int) -> None:
        self.log.mark_durable(target)
        self._note_mark(target)
        visible = self.log.show_durable()
        self.gate.open_to(target)
        self.on_durable(visible)

    def _note_mark(self, target: int) -> None:
        """Write the mark. It tells a start how much there should be: with an older one that reports less as lost."""
        try:
            self.mark.note(target)
        except OSError as error:
            self.counters.mark_write_errors += 1
            if self._pace.is_due("mark"):
                logger.error(
                    "durable mark not written, tried again with the next flush path=%s error=%s remedy=%s",
                    error.filename, error.strerror, remedy_for(error),
                )  # fmt: skip

    def flush(self) -> None:
        """Make everything durable before returning. Blocks: for tools, tests and the end."""
        self.commits.flush()
        if self.failure is not None:
            raise self.failure

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: writing views behind the log, checkpoints. Call every ~100 ms."""
        if self._closed:
            return
        now = self.clock.monotonic_ms()
        self._cold_reads.tick(now)
        self.log.forget_warm()
        if self.failure is not None:
            return
        if now >= self._look_at_place_ms:
            self._look_at_place_ms = now + _LOOK_AT_PLACE_MS
            self.look_at_place()
            if self.is_replaced:
                return
        self._sync_mark(now)
        self.checkpoints.tick()
        self.index.tick()

    def look_at_place(self) -> None:
        """Stop taking writes for good if the path of the store leads to another directory; not while it leads nowhere.

        Then what is open goes on, and what has to be opened is tried again. But not in a segment that was removed.
        """
        self.is_away = False
        try:
            require_in_place(self.directory.commit_log)
        except ReplacedFolderError:
            self._fail(ReplacedStoreError(self.directory.root))
        except OSError as error:
            self.is_away = True
            if self._pace.is_due("place"):
                logger.error(
                    "data directory not found, looked for again path=%s error=%s remedy=put it back, or restart the "
                    "broker with --data-dir where it is now", self.directory.root, error.strerror,
                )  # fmt: skip
        if self.log.active is not None and is_removed(self.log.active.path, self.log.active.fd):
            self._fail(RemovedSegmentError(self.log.active.path, self.log.active.fd))

    @property
    def is_replaced(self) -> bool:
        """Whether another directory was found in the store's place."""
        return isinstance(self.failure, ReplacedStoreError)

    @property
    def why_elsewhere(self) -> str:
        """Why what is written is not where the next start looks for it, empty when it is."""
        if self.is_away:
            return f"data directory not found: {self.directory.root}"
        return str(self.failure) if self.is_replaced else ""

    def _sync_mark(self, now: int) -> None:
        behind = self.mark.noted_offset - self.mark.synced_offset
        if behind <= 0 or (self._mark_job is not None and not self._mark_job.done()):
            return
        if behind >= _DURABLE_MARK_LAG_BYTES or now - self._mark_synced_ms >= _DURABLE_MARK_LAG_MS:
            self._mark_synced_ms = now
            self._mark_job = self._executor.submit(self.mark.sync)
            self._mark_job.add_done_callback(self._note_mark_job)

    def _note_mark_job(self, job: Future[None]) -> None:
        error = job.exception()
        if error is None:
            return
        # The mark only tells a start how much it should find: with an older one it reports less as lost.
        self.counters.mark_write_errors += 1
        if self._pace.is_due("mark sync"):
            logger.error(
                "durable mark not synced, tried again each second path=%s error=%s", self.directory.durable_mark, error
            )

    # -- reading ----------------------------------------------------------------------------------------------------

    def find_by_key(self, query: KeyQuery) -> Future[KeyMatches]:
        """Look for messages by key, in a thread.

        Raises (in the future):
            OSError: the index or the log cannot be read.
            CancelledError: the store was closed.
        """
        if self._closed:
            raise StoreClosedError("the store is closed")
        return self.index.executor.submit(KeySearch(self.log, self.queues, self.index).find, query)

    def _shut_executors(self) -> None:
        """End the store's threads; what they were given is done, but for reads that nobody waits for any more."""
        if hasattr(self, "_cold_reads"):  # else it was not opened so far
            self._cold_reads.close()
            self.log.segments.on_retired = lambda segment: None  # the index may map some until it is closed
        self._executor.shutdown(wait=True)

    def _name_damage(self, physical_offset: int, reason: str) -> None:
        self.counters.damaged_records += 1
        if physical_offset in self._named_damage or len(self._named_damage) >= _MAX_NAMED_DAMAGE:
            return
        self._named_damage.add(physical_offset)
        logger.error("damaged record skipped physical_offset=%d reason=%s", physical_offset, reason)
        if len(self._named_damage) == _MAX_NAMED_DAMAGE:
            logger.error("more damaged records are only counted; headrace store check names them all")

    @property
    def epoch(self) -> int:
        """The number of the newest epoch."""
        return self.epochs.newest.number

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges of the log that stand in no file."""
        return find_missing(self.log, self.epochs)

    @property
    def holes(self) -> list[Hole]:
        """The damaged ranges of the log that are known."""
        return list(self._holes)

    @property
    def has_losses(self) -> bool:
        """Whether what was durable is known to be lost: in holes of the log, or at its end as this start found it."""
        return bool(self._holes or self.recovery.lost_bytes)

    def abandon(self) -> None:
        """Let go of files and threads without writing anything more, as a killed process does: for tests."""
        self._closed = True
        self._shut_executors()
        self.index.abandon()
        self._release()

    def _release(self) -> None:
        self.commits.close()
        self.mark.close()
        self.files.close()
        self._supply.close()
        self.log.close()
        release_lock(self._lock_fd)

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, write the views, note a clean end and give up the lock. Blocks."""
        if self._closed:
            return
        self.look_at_place()
        try:
            if self.failure is None:
                self.flush()
        finally:
            self._closed = True
            self.gate.fail(StoreClosedError("the store is closed"))
            self._shut_executors()
            if self.failure is None:
                self.index.close()
                self._close_cleanly()
            else:
                self.index.abandon()
            self._release()

    def _close_cleanly(self) -> None:
        if self.checkpoints.is_doubtful:
            logger.error("clean end not noted after a failed sync of the views, the next start recovers")
            return
        try:
            self.checkpoints.write_all(self.log.end_offset, clean=True)
            self.mark.sync()
            self.boot_note.remove()
            for folder in (self.directory.side, self.directory.root):
                sync_folder(folder)
            self.directory.abort.unlink(missing_ok=True)
        except (OSError, UnsyncedError) as error:
            logger.error("clean end not noted, the next start recovers error=%s", error)
