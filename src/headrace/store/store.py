"""The store of one broker: the commit log, its consume queues, their durability and their recovery.

Threads: everything here runs on the event loop but for fdatasync (``Flusher``) and the jobs given to ``_executor``
(making the next segment, syncing views for a checkpoint, reading ahead). Those report through ``notify``, which the
composition root sets to the loop's call_soon_threadsafe.

Group commit: ``request_flush`` starts an fdatasync unless one runs; what is appended meanwhile goes with the next one.
When a flush returns, its target becomes the durable offset, entries below it become visible, and whoever waits in the
gate is told. A failed fdatasync stops writes for good: the kernel may have dropped the dirty pages, so trying again
would only pretend.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.batch import PublishBatch
from headrace.clock import Clock
from headrace.errors import FlushError, SideFileError, StoreClosedError, StoreError, StoreFullError
from headrace.format.names import segment_name, topic_directory, topic_of_directory
from headrace.format.side_file import read_side_file, write_side_file
from headrace.histogram import FLUSH_BOUNDS_SECONDS, Histogram
from headrace.settings import StoreSettings
from headrace.store.checkpoint import Checkpoints
from headrace.store.commit_log import CommitLog
from headrace.store.consume_queue import ConsumeQueue, QueueFiles
from headrace.store.directory import FORMAT_VERSION, StoreDirectory
from headrace.store.durable_mark import DurableMark
from headrace.store.flusher import Flusher
from headrace.store.gate import Gate
from headrace.store.recovery import Hole, Scan, scan_log
from headrace.store.segment import Segment, create_segment_file, sync_directory

logger = logging.getLogger(__name__)

_WRITE_QUEUE_AT = 4096
"""Entries a queue may keep in memory before they are written behind the log."""

_VERIFY_BACK_BYTES = 256 << 20
"""How far before the checkpoint a start looks again at records: cheap, and it finds damage where it is likeliest."""

_READ_AHEAD_BYTES = 4 << 20
_BLANK_AT_ONCE_BYTES = 1 << 20

_MOST_NAMED_DAMAGE = 10_000
"""Damaged records that are named one by one in the log of events."""

_DURABLE_MARK_LAG_MS = 1000
_DURABLE_MARK_LAG_BYTES = 64 << 20


@dataclass
class StoreCounters:
    """Events since the store was opened."""

    flushes: int = 0
    damaged_records: int = 0
    truncated_bytes: int = 0
    refused_full: int = 0
    segment_waits: int = 0
    cold_reads: int = 0
    checkpoints: int = 0
    view_write_errors: int = 0


@dataclass(frozen=True)
class RecoveryReport:
    """What opening the store found."""

    scan: Scan
    scanned_from: int
    was_clean: bool
    epoch: int
    lost_bytes: int
    skipped_queue_offsets: int


class Store:
    """An open store; ``open`` makes one."""

    def __init__(self, directory: StoreDirectory, settings: StoreSettings, clock: Clock) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = clock
        self.counters = StoreCounters()
        self.flush_seconds = Histogram(FLUSH_BOUNDS_SECONDS)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.gate = Gate()
        self.failure: StoreError | None = None
        self.last_write_error: str = ""
        self.epoch = 1
        self.notify: Callable[[Callable[[], None]], object] = lambda call: call()
        self.on_durable: Callable[[list[ConsumeQueue]], None] = lambda grown_queues: None
        self.on_warm: Callable[[], None] = lambda: None
        self.recovery: RecoveryReport
        self.log: CommitLog
        self.checkpoints: Checkpoints
        self.store_id: str
        self._epochs: list[dict[str, object]] = []
        self._holes: list[Hole] = []
        self._named_damage: set[int] = set()
        self._lock_fd = -1
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-store")
        self._next_segment: Future[Segment] | None = None
        self._unsynced: list[Segment] = []
        self._flushing = 0
        self._flush_wanted = 0
        self._in_flush: list[Segment] = []
        self._last_flush_ms = 0
        self._mark_job: Future[None] | None = None
        self._mark_synced_ms = 0
        self._warming: set[tuple[int, int]] = set()

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, settings: StoreSettings, clock: Clock, *, store_host: int = 0) -> Store:
        """Lock, load and recover the store in ``settings.data_dir``; make it if it is new.

        Args:
            store_host: IPv4 address << 32 | port that records carry as their broker's.

        Raises:
            ForeignStoreError, StoreLockedError, FormatVersionError, SideFileError, StoreFullError, StoreError: each
                names the file and the remedy; nothing was overwritten.
        """
        directory = StoreDirectory(Path(settings.data_dir))
        directory.require_ours()
        store = cls(directory, settings, clock)
        store._lock_fd = directory.acquire_lock()
        try:
            store._load(store_host)
        except BaseException:
            store._abandon()
            raise
        return store

    def _load(self, store_host: int) -> None:
        identity = self.directory.load_identity()
        if identity is None:
            self._require_room(self.settings.segment_bytes)
            identity = self.directory.create_identity(
                self.settings.segment_bytes, self.settings.queue_file_bytes, self.clock.now_ms()
            )
        elif identity.segment_bytes != self.settings.segment_bytes:
            logger.warning(
                "segment size kept from the store segment_bytes=%d setting=%d",
                identity.segment_bytes,
                self.settings.segment_bytes,
            )
        self.store_id = identity.store_id
        self.files = QueueFiles(identity.queue_file_bytes, self.settings.open_queue_files)
        self.mark = DurableMark(self.directory.durable_mark)
        if self.mark.is_damaged:
            logger.warning("durable mark damaged, set anew from the log path=%s", self.directory.durable_mark)
        self.flusher = Flusher()
        self.log = CommitLog(str(self.directory.commit_log), identity.segment_bytes, self.settings.open_segments)
        self.log.segments.on_retired = lambda segment: self._executor.submit(segment.drop_pages)
        self.log.store_host = store_host
        self.checkpoints = Checkpoints(
            self.log, self.queues, self.directory, self._executor, self.clock, self.settings, self.counters
        )
        self.log.provide_segment = self._provide_segment
        self.log.on_cold = self._read_ahead
        self.log.on_damaged = self._name_damage
        self._remove_unfinished_segments()
        self.log.open_segments()
        was_clean = not self.directory.abort.exists()
        self.directory.abort.touch()
        self._load_epochs()
        self._recover(was_clean)

    def _abandon(self) -> None:
        """Let go of everything after a failed open; the folder stays as it was found."""
        self._executor.shutdown(wait=True)
        if hasattr(self, "flusher"):
            self.flusher.close()
        if hasattr(self, "mark"):
            self.mark.close()
        os.close(self._lock_fd)

    def _remove_unfinished_segments(self) -> None:
        """Remove the file that a crash left while it was being allocated: shorter than a segment, never written to."""
        paths = sorted(self.directory.commit_log.iterdir())
        if paths and paths[-1].name.isdigit() and paths[-1].stat().st_size < self.log.segment_bytes:
            with paths[-1].open("rb") as file:
                if not any(file.read(4096)):
                    logger.info("removed an unfinished segment path=%s", paths[-1])
                    paths[-1].unlink()

    def _load_epochs(self) -> None:
        try:
            self._epochs = read_side_file(
                self.directory.epochs, "epochs", FORMAT_VERSION, "restore it from a backup; nothing was changed"
            )
        except FileNotFoundError:
            self._epochs = [{"epoch": 1, "first_physical_offset": 0}]
        self.epoch = int(str(self._epochs[-1]["epoch"]))

    def _load_holes(self) -> None:
        try:
            noted = read_side_file(self.directory.holes, "holes", FORMAT_VERSION, "remove it")
        except FileNotFoundError:
            return
        except SideFileError as error:
            logger.warning("list of holes damaged, it is made anew error=%s", error)
            return
        self._holes = [Hole(**hole) for hole in noted]

    def _recover(self, was_clean: bool) -> None:
        log = self.log
        self._load_holes()
        checkpoint, noted_entries = self.checkpoints.load()
        issued, entries = self._load_queues(checkpoint)
        issued_position = max([0, *(queue.issued_position for queue in self.queues.values())])
        if entries != noted_entries and checkpoint > log.first_offset:
            logger.warning(
                "consume queues rebuilt from the whole log entries=%d checkpoint_entries=%d", entries, noted_entries
            )
            checkpoint = log.first_offset
            self.files.close()
            shutil.rmtree(self.directory.consume_queues)
            self.directory.consume_queues.mkdir()
            self.queues.clear()
        scan_from = self._verify_from(checkpoint)
        epoch_offset = int(str(self._epochs[-1]["first_physical_offset"]))
        gaps = {
            int(str(epoch["previous_end_offset"])): int(str(epoch["first_physical_offset"]))
            for epoch in self._epochs
            if "previous_end_offset" in epoch
        }
        scan = scan_log(
            log.segments,
            scan_from,
            log.segment_bytes,
            self.queue,
            None,
            self._holes,
            epoch_offset=epoch_offset,
            epoch_gaps=gaps,
        )
        end = scan.end_offset
        # What was issued lies in a segment that exists; an entry that points beyond is damaged.
        issued_position = min(issued_position, (max(log.segments, default=-1) + 1) * log.segment_bytes)
        known_end = max([self.mark.physical_offset, issued_position, end])
        is_cut = scan.torn_offset >= 0 or known_end > end
        if is_cut:
            for queue in self.queues.values():
                queue.forget_from(end)
        lost_bytes = max(0, self.mark.physical_offset - end)
        mended = sum(queue.mended_entries for queue in self.queues.values())
        if mended:
            logger.warning("consume queue entries rewritten from the log entries=%d", mended)
        skipped = self._skip_issued(issued)
        self._report(scan, lost_bytes)
        if is_cut:
            end = self._begin_epoch(end, known_end)
        log.start_at(end, max([scan_from, *(hole.end_offset for hole in self._holes)]))
        for queue in self.queues.values():
            queue.advance_visible(end)
        self.checkpoints.offset = checkpoint
        self._sync_log(end)
        if is_cut or mended or skipped:
            self.checkpoints.write_all(end, clean=False)
        else:
            self._leave_queues_to_checkpoint()
        log.mark_durable(end)
        self.gate.open_to(end)
        self.recovery = RecoveryReport(scan, scan_from, was_clean, self.epoch, lost_bytes, skipped)
        self._prepare_next()

    def _skip_issued(self, issued: dict[tuple[str, int], int]) -> int:
        """Have each queue go on above what it ever issued, as far as its files and the epochs know."""
        for name, queue_end in self._queue_ends().items():
            topic, _, queue_id = name.rpartition("/")
            issued[topic, int(queue_id)] = max(queue_end, issued.get((topic, int(queue_id)), 0))
        return sum(self.queue(*key).skip_to(queue_end) for key, queue_end in issued.items())

    def _queue_ends(self) -> dict[str, int]:
        """Return where each queue ended when the newest epoch began: what was cut off then is not issued again."""
        ends: Any = self._epochs[-1].get("queue_ends", {})
        return {str(name): int(end) for name, end in ends.items()}

    def _load_queues(self, checkpoint: int) -> tuple[dict[tuple[str, int], int], int]:
        """Open every queue that has files; return the offsets issued per queue and the entries below the checkpoint."""
        issued: dict[tuple[str, int], int] = {}
        entries = 0
        self.directory.consume_queues.mkdir(exist_ok=True)
        root = str(self.directory.consume_queues)
        for folder in sorted(os.listdir(root)):  # noqa: PTH208  # ten thousand Path objects cost a second
            for name in sorted(os.listdir(f"{root}/{folder}")):  # noqa: PTH208
                if not name.isdigit():
                    continue
                queue = self.queue(topic_of_directory(folder), int(name))
                issued[queue.topic, queue.queue_id] = queue.load(checkpoint)
                entries += queue.next_offset
        return issued, entries

    def _verify_from(self, checkpoint: int) -> int:
        """Return the segment start, not long before the checkpoint, from which records are checked again."""
        first = max(self.log.first_offset, checkpoint - _VERIFY_BACK_BYTES)
        start = first // self.log.segment_bytes * self.log.segment_bytes
        if start < self.log.first_offset or start // self.log.segment_bytes not in self.log.segments:
            return checkpoint
        return start if checkpoint - start <= 2 * _VERIFY_BACK_BYTES else checkpoint

    def _report(self, scan: Scan, lost_bytes: int) -> None:
        """Log, once each, what recovery found, and quarantine the holes."""
        for hole in scan.holes:
            logger.error(
                "hole in the log first_offset=%d end_offset=%d reason=%s",
                hole.first_offset,
                hole.end_offset,
                hole.reason,
            )
        known = {hole.first_offset for hole in self._holes}
        new = [hole for hole in scan.holes if hole.first_offset not in known]
        for hole in self._holes:
            if hole.first_offset not in {found.first_offset for found in scan.holes}:
                logger.error("known hole first_offset=%d end_offset=%d", hole.first_offset, hole.end_offset)
        if new:
            self._holes += new
            write_side_file(
                self.directory.holes,
                "holes",
                FORMAT_VERSION,
                [{"first_offset": h.first_offset, "end_offset": h.end_offset, "reason": h.reason} for h in self._holes],
            )
        if scan.torn_offset >= 0:
            logger.warning(
                "torn tail cut off physical_offset=%d reason=%s unfinished_records=%d",
                scan.torn_offset,
                scan.torn_reason,
                scan.unfinished_records,
            )
        if lost_bytes:
            logger.error(
                "durable messages lost, the log ends below its durable mark end_offset=%d durable_mark=%d bytes=%d",
                scan.end_offset,
                self.mark.physical_offset,
                lost_bytes,
            )

    def _begin_epoch(self, end: int, known_end: int) -> int:
        """Give up the rest of the segment at ``end`` and go on above everything ever issued; return where.

        The epoch is noted first: should the rest be cut short, the next start finds the note and steps over the gap.
        """
        log = self.log
        size = log.segment_bytes
        start: int = (max([*log.segments, known_end // size]) + 1) * size
        self.epoch += 1
        self._epochs.append(
            {
                "epoch": self.epoch,
                "first_physical_offset": start,
                "previous_end_offset": end,
                "began_ms": self.clock.now_ms(),
                "queue_ends": {f"{topic}/{queue_id}": q.next_offset for (topic, queue_id), q in self.queues.items()},
            }
        )
        write_side_file(self.directory.epochs, "epochs", FORMAT_VERSION, self._epochs)
        segment = log.segments.get(end // size)
        if segment is not None:
            self._blank_rest(segment, end - segment.first_offset)
            self.counters.truncated_bytes += max(0, known_end - end)
        for index in [index for index in log.segments if index * size > end]:
            Path(log.segments.pop(index).path).unlink()
        logger.warning("epoch begins epoch=%d first_physical_offset=%d previous_end_offset=%d", self.epoch, start, end)
        return start

    @staticmethod
    def _blank_rest(segment: Segment, position: int) -> None:
        """Replace a segment from ``position`` on by one blank record.

        The blank record comes first and the file keeps its length: a start that is killed here leaves the next one a
        segment it can read.
        """
        size = segment.size_bytes
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, struct.pack(">II", size - position, 0xCBD43194), position)
            start = segment.next_data(position + 8)
            while start < size:
                start = max(start, position + 8)
                count = min(segment.next_hole(start) - start, _BLANK_AT_ONCE_BYTES)
                zeros = bytes(count)
                if segment.read(start, count) != zeros:
                    os.pwrite(fd, zeros, start)
                start = segment.next_data(start + count)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _sync_log(self, end: int) -> None:
        """Make what recovery accepted durable before anybody builds on it."""
        log = self.log
        for index in [index for index in log.segments if (index + 1) * log.segment_bytes > self.mark.physical_offset]:
            # All that the last process may have left unsynced, not only the newest.
            os.fdatasync(log.segments[index].fd)
        self.mark.note(end)
        self.mark.sync()
        self._last_flush_ms = self.clock.monotonic_ms()

    def _leave_queues_to_checkpoint(self) -> None:
        """Let the next checkpoint write what the files lack: a start must not wait for ten thousand of them."""
        for queue in self.queues.values():
            if queue.written_offset < queue.next_offset:
                queue.listed = True
                self.log.dirty_queues.append(queue)

    # -- queues -----------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; it is made when it does not exist."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            folder = f"{self.directory.consume_queues}/{topic_directory(topic)}/{queue_id}"
            found = ConsumeQueue(topic, queue_id, folder, self.files, self.log)
            found.awaits_flush = self.settings.durability_of(topic) == "fsync"
            self.queues[topic, queue_id] = found
        return found

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, batch: PublishBatch) -> int:
        """Append a batch whose ``queues`` are set; return the log's new end.

        Raises:
            StoreFullError: no room; nothing was appended. The next call tries again.
            FlushError, StoreClosedError: the store takes no writes any more.
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
        except OSError as error:
            self._note_write_error(str(error))
            raise StoreError(f"cannot write to the log: {error}") from error
        self.last_write_error = ""
        for queue in batch.queues:
            if isinstance(queue, ConsumeQueue) and queue.next_offset - queue.written_offset >= _WRITE_QUEUE_AT:
                self.checkpoints.write_queue(queue)
        return end

    def _note_write_error(self, text: str) -> None:
        if not self.last_write_error:
            logger.error("write refused error=%s", text)
        self.last_write_error = text

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self.log.end_offset - self.log.durable_offset

    def _require_room(self, segment_bytes: int) -> None:
        """Refuse a new segment that would take the store above its refuse mark."""
        usage = shutil.disk_usage(self.directory.root)
        own = len(self.log.segments) * segment_bytes if hasattr(self, "log") else 0
        budget = self.settings.budget_bytes or own + usage.free
        limit = budget * self.settings.refuse_percent // 100
        if own + segment_bytes > limit:
            raise StoreFullError(
                f"no room for another segment of {segment_bytes} bytes in {self.directory.commit_log}: the store has "
                f"{own} bytes, its limit is {limit} ({self.settings.refuse_percent} % of a budget of {budget}); "
                "free space on the disk, or raise store.budget_bytes"
            )

    def _make_segment(self, first_offset: int) -> Segment:
        path = f"{self.directory.commit_log}/{segment_name(first_offset)}"
        try:
            if Path(path).exists():  # made ahead: by a process before this one, or for a batch that was refused
                sync_directory(str(self.directory.commit_log))
            else:
                self._require_room(self.log.segment_bytes)
                create_segment_file(path, self.log.segment_bytes)
        except FileExistsError:
            logger.debug("segment already there path=%s", path)
        except OSError as error:
            raise StoreFullError(f"cannot allocate {path}: {error.strerror}; free space on its file system") from error
        return Segment(path, first_offset, self.log.segment_bytes, writable=True)

    def _provide_segment(self, first_offset: int) -> Segment:
        """Return the segment that the log rolls into, made ahead where there was time."""
        prepared, self._next_segment = self._next_segment, None
        segment: Segment | None = None
        if prepared is not None:
            if not prepared.done():
                self.counters.segment_waits += 1
            try:
                segment = prepared.result()
            except StoreError:
                segment = None  # room may have been made since: try once more, here
        if segment is None or segment.first_offset != first_offset:
            segment = self._make_segment(first_offset)
        if self.log.active is not None:
            self._unsynced.append(self.log.active)
        self.notify(self._prepare_next)
        logger.debug("segment rolled path=%s", segment.path)
        return segment

    def _prepare_next(self) -> None:
        if self._next_segment is None and not self._closed and self.log.active is not None:
            first_offset = self.log.active.first_offset + self.log.segment_bytes
            self._next_segment = self._executor.submit(self._make_segment, first_offset)

    # -- durability -------------------------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """Everything below this physical offset survives a power cut."""
        return self.log.durable_offset

    def request_flush(self) -> None:
        """Have everything appended so far made durable; start at once unless a flush is running."""
        if self._flushing:
            self._flush_wanted = self.log.end_offset
        elif self.failure is None and self.log.end_offset > self.log.durable_offset and self.log.active is not None:
            self._last_flush_ms = self.clock.monotonic_ms()
            for segment in self._unsynced:
                self.flusher.request(-1, segment.fd)
            self._flushing = len(self._unsynced) + 1
            self.flusher.request(self.log.end_offset, self.log.active.fd)
            self._in_flush = [*self._unsynced, self.log.active]
            self._unsynced.clear()

    def finish_flush(self) -> None:
        """Take the flusher's result: call this when ``flusher.done_read`` is readable."""
        target, error, seconds = self.flusher.take_result()
        self._flushing -= 1
        if error:
            self._fail(FlushError(self._in_flush[0].path, error))
        # A roll asks for two flushes: when the older segment's failed, the newer one's success makes nothing durable.
        if target < 0 or self.failure is not None:
            return
        self.counters.flushes += 1
        self.flush_seconds.observe(seconds)
        self._become_durable(target)
        if self._flush_wanted > target:
            self._flush_wanted = 0
            self.request_flush()

    def _fail(self, failure: StoreError) -> None:
        if self.failure is None:
            logger.critical("store stops taking writes error=%s", failure)
            self.failure = failure
            self.last_write_error = str(failure)
            self.gate.fail(failure)
            self.on_durable([])

    def _become_durable(self, target: int) -> None:
        self.log.mark_durable(target)
        self.mark.note(target)
        visible = [queue for queue in self.log.dirty_queues if queue.advance_visible(target)]
        self.gate.open_to(target)
        self.on_durable(visible)

    def flush(self) -> None:
        """Make everything durable before returning. Blocks: for tools, tests and the end."""
        while self.failure is None and (self._flushing or self.log.end_offset > self.log.durable_offset):
            if not self._flushing:
                self.request_flush()
            self.finish_flush()
        if self.failure is not None:
            raise self.failure

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: the flush of level async, writing views behind the log, checkpoints. Call every ~100 ms."""
        if self.failure is not None or self._closed:
            return
        now = self.clock.monotonic_ms()
        if now - self._last_flush_ms >= self.settings.flush_interval_ms:
            self.request_flush()
        self._sync_mark(now)
        self.checkpoints.tick()
        self.log.forget_warm()

    def _sync_mark(self, now: int) -> None:
        behind = self.mark.noted_offset - self.mark.synced_offset
        if behind <= 0 or (self._mark_job is not None and not self._mark_job.done()):
            return
        if behind >= _DURABLE_MARK_LAG_BYTES or now - self._mark_synced_ms >= _DURABLE_MARK_LAG_MS:
            self._mark_synced_ms = now
            self._mark_job = self._executor.submit(self.mark.sync)
            self._mark_job.add_done_callback(self._note_mark_job)

    @staticmethod
    def _note_mark_job(job: Future[None]) -> None:
        error = job.exception()
        if error is not None:
            # The mark only tells a start how much it should find: with an older one it reports less as lost.
            logger.error("durable mark not synced error=%s", error)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read_ahead(self, segment: Segment, position: int) -> None:
        key = (segment.first_offset, position)
        if key in self._warming:
            return
        self._warming.add(key)
        self.counters.cold_reads += 1
        self._executor.submit(self._warm, segment, position)

    def _warm(self, segment: Segment, position: int) -> None:
        segment.touch(position, _READ_AHEAD_BYTES)
        self.notify(lambda: self._warmed(segment, position))

    def _warmed(self, segment: Segment, position: int) -> None:
        self._warming.discard((segment.first_offset, position))
        self.log.mark_warm(segment.first_offset, position)
        self.on_warm()

    def _name_damage(self, physical_offset: int, reason: str) -> None:
        self.counters.damaged_records += 1
        if physical_offset in self._named_damage or len(self._named_damage) >= _MOST_NAMED_DAMAGE:
            return
        self._named_damage.add(physical_offset)
        logger.error("damaged record skipped physical_offset=%d reason=%s", physical_offset, reason)
        if len(self._named_damage) == _MOST_NAMED_DAMAGE:
            logger.error("more damaged records are only counted; headrace store check names them all")

    @property
    def epochs(self) -> list[dict[str, object]]:
        """Every epoch of the log: its number and first physical offset, oldest first."""
        return list(self._epochs)

    @property
    def holes(self) -> list[Hole]:
        """The damaged ranges of the log that are known."""
        return list(self._holes)

    def abandon(self) -> None:
        """Let go of files and threads without writing anything more, as a killed process does: for tests."""
        self._closed = True
        self._executor.shutdown(wait=True)
        self._release()

    def _release(self) -> None:
        self.flusher.close()
        self.mark.close()
        self.files.close()
        self._next_segment = None
        self._unsynced.clear()
        self._in_flush.clear()
        self.log.close()
        os.close(self._lock_fd)

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, write the views, note a clean end and give up the lock. Blocks."""
        if self._closed:
            return
        try:
            if self.failure is None:
                self.flush()
        finally:
            self._closed = True
            self.gate.fail(StoreClosedError("the store is closed"))
            self._executor.shutdown(wait=True)
            if self.failure is None:
                self._close_cleanly()
            self._release()

    def _close_cleanly(self) -> None:
        if self.checkpoints.is_doubtful:
            logger.error("clean end not noted after a failed sync of the views, the next start recovers")
            return
        try:
            self.checkpoints.write_all(self.log.end_offset, clean=True)
            self.mark.sync()
            sync_directory(str(self.directory.side))
            self.directory.abort.unlink(missing_ok=True)
        except OSError as error:
            logger.error("clean end not noted, the next start recovers error=%s", error)
