"""Opening a store: find the end of its log, bring the queues up to it, go on above everything ever issued.

The steps of a start, in this order. Each leaves a store that the next start can read, should this one be killed:

1. The checkpoint says from where on the queues may lack entries; what their files hold is loaded.
2. ``scan_log`` checks every record from there on (and some before) and offers it to its queue.
3. What was cut off, a torn tail or half a command, is given up: the log goes on in the next segment, in a new epoch.
   So it does where a power cut may have taken messages that were shown (``boot_note``) without leaving a trace.
4. What was accepted is synced, where no flush had confirmed it written once more before, and only then noted as durable
   and shown to readers.

``Store.open`` has locked the folder before and made the parts (log, marks, checkpoints) that are filled here.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import DISK_FULL, SideFileError
from headrace.format import record
from headrace.format.epochs import Epochs
from headrace.format.layout import log_files, queue_folders
from headrace.format.names import segment_name
from headrace.format.record import BLANK_MAGIC
from headrace.format.side_file import naming, read_side_file, replacing, write_side_file
from headrace.store.commit_log import CommitLog
from headrace.store.directory import StoreDirectory
from headrace.store.recovery import MISSING_FILE, Hole, Scan, scan_log
from headrace.store.segment import Segment, punch_hole
from headrace.store.segment_supply import remove_unfinished

if TYPE_CHECKING:
    from headrace.store.store import Store

logger = logging.getLogger(__name__)

_VERIFY_BACK_BYTES = 256 << 20
"""How far before the checkpoint a start looks again at records: cheap, and it finds damage where it is likeliest."""

_BLANK_AT_ONCE_BYTES = 1 << 20

_FOLIO_BYTES = 2 << 20
"""What the kernel keeps of a file in one piece, at the most: it goes from memory as a whole."""


def find_missing(log: CommitLog, epochs: Epochs) -> list[tuple[int, int]]:
    """Return the ranges of the log that stand in no file, in order, from its beginning to the newest segment."""
    size = log.segment_bytes
    return epochs.missing([(index * size, (index + 1) * size) for index in log.segments], epochs.beginning)


@dataclass(frozen=True)
class RecoveryReport:
    """What opening the store found."""

    scan: Scan
    scanned_from: int
    was_clean: bool
    lost_bytes: int
    skipped_queue_offsets: int


def remove_unfinished_segment(log: CommitLog, directory: StoreDirectory) -> None:
    """Remove the file that a crash left while it was being allocated: shorter than a segment, never written to."""
    paths = log_files(directory.commit_log)
    if paths:
        remove_unfinished(paths[-1], log.segment_bytes)


def _blank_head(blank_bytes: int) -> bytes:
    return struct.pack(">II", blank_bytes, BLANK_MAGIC)


def _make_blank_file(path: Path, size: int) -> None:
    """Make a file of the log that is one blank record; it takes a block of the disk. Under its name it is whole."""
    with replacing(path) as file:
        file.write(_blank_head(size))
        file.truncate(size)


def _write_or_find(fd: int, content: bytes, position: int, path: str) -> int:
    """Write what a file has at a position; return how many bytes.

    A start has to do without where writing takes new blocks and the disk has none, if the file has them all the same.
    """
    try:
        return os.pwrite(fd, content, position)
    except OSError as error:
        if error.errno not in DISK_FULL or os.pread(fd, len(content), position) != content:
            raise
        logger.warning("end of the log not written once more before it counts path=%s error=%s", path, error.strerror)
        return len(content)


class Opening:
    """The opening of one store whose folder is locked.

    Attributes:
        epochs: Every epoch of the log.
        holes: The damaged ranges of the log that are known.
    """

    def __init__(self, store: Store) -> None:
        self.epochs = Epochs()
        self.holes: list[Hole] = []
        self._directory = store.directory
        self._clock = store.clock
        self._counters = store.counters
        self._queues = store.queues
        self._find_queue = store.queue
        self._log = store.log
        self._files = store.files
        self._mark = store.mark
        self._checkpoints = store.checkpoints
        self._gate = store.gate
        self._boot_note = store.boot_note
        self._gap_files: set[int] = set()  # index of each file that is all gap and left out of the log

    def recover(self, was_clean: bool, on_scanned: Callable[[int], None] | None = None) -> RecoveryReport:
        """Find the end of the log, bring the queues up to it, make both durable; return what was found.

        Args:
            was_clean: The process before this one noted a clean end.
            on_scanned: Told now and then how far the log has been checked.
        """
        log = self._log
        self.epochs = Epochs.of(
            read_side_file(self._directory.epochs, "epochs", "restore it from a backup; nothing was changed")
        )
        self._leave_out_gaps()
        self._load_holes()
        checkpoint, issued, issued_position = self._load_or_drop_queues()
        scan_from = self._verify_from(checkpoint)
        durable = max(self._mark.physical_offset, checkpoint)  # one of them may have been lost
        scan = self._scan(scan_from, durable, was_clean, on_scanned)
        end = scan.end_offset
        # What was issued lies in a segment that exists; an entry that points beyond is damaged.
        issued_position = min(issued_position, (max(log.segments, default=-1) + 1) * log.segment_bytes)
        known_end = max([durable, issued_position, end])
        is_other_boot = self._boot_note.is_of_another_boot()
        is_cut = scan.torn_offset >= 0 or known_end > end or is_other_boot
        if is_cut:
            self._require_no_exchanged_files(end)
        forgotten = sum(queue.forget_from(end) for queue in self._queues.values()) if is_cut else 0
        lost_bytes = max(0, durable - end)
        mended = sum(queue.mended_entries for queue in self._queues.values())
        if mended:
            logger.warning("consume queue entries rewritten from the log entries=%d", mended)
        skipped = self._skip_issued(issued)
        self._report(scan, lost_bytes)
        if is_other_boot:
            logger.warning("not closed before the machine was started anew, messages of level async may be lost")
        if is_cut:
            end = self._begin_epoch(end, known_end)
        if end == self.epochs.newest.first_offset:
            self._blank_gaps(end)  # the start that began this epoch may have been killed before it had
        self._fill_gaps()
        log.start_at(end, max([scan_from, *(hole.end_offset for hole in self.holes)]))
        for queue in self._queues.values():
            queue.advance_visible(end)
        self._checkpoints.offset = checkpoint
        self._sync_log(scan.end_offset, end)
        if mended or forgotten or known_end > scan.end_offset or (is_cut and skipped):
            # The files differ from the log below the old checkpoint, or have entries where fillers are to be.
            self._checkpoints.write_all(end, clean=False)
        self._leave_queues_to_checkpoint()
        log.mark_durable(end)
        self._gate.open_to(end)
        return RecoveryReport(scan, scan_from, was_clean, lost_bytes, skipped)

    def _scan(self, scan_from: int, durable: int, was_clean: bool, on_scanned: Callable[[int], None] | None) -> Scan:
        """Check the log from an offset on, and bring the queues up to what it holds."""
        log = self._log
        scan = scan_log(
            log.segments,
            scan_from,
            log.segment_bytes,
            self._find_queue,
            on_scanned,
            self.holes,
            epoch_offset=self.epochs.newest.first_offset,
            epoch_gaps=dict(self.epochs.gaps),
            durable_offset=durable,
            was_clean=was_clean,
        )
        missing = [Hole(first, end, MISSING_FILE) for first, end in find_missing(log, self.epochs) if end <= scan_from]
        scan.holes = sorted([*scan.holes, *missing], key=lambda hole: hole.first_offset)
        for queue in self._queues.values():
            queue.drop_strays(scan.holes, scan_from == log.first_offset)
        return scan

    def _load_or_drop_queues(self) -> tuple[int, dict[tuple[str, int], int], int]:
        """Load the queues; where their files do not fit the log, remove these: all are made anew from the log.

        Returns:
            Up to where in the log the queues are right, the offset behind the last issued one of each queue, and where
            in the log the records end that the files knew of.
        """
        log = self._log
        checkpoint, noted_entries = self._checkpoints.load()
        issued, entries = self._load_queues(checkpoint)
        issued_position = max([0, *(queue.issued_position for queue in self._queues.values())])
        # A queue begins later only where the log does: RocketMQ's retention, which takes the oldest files of both.
        is_headless = log.first_offset == 0 and any(queue.min_offset for queue in self._queues.values())
        if is_headless or (entries != noted_entries and checkpoint > log.first_offset):
            logger.warning(
                "consume queues rebuilt from the whole log entries=%d checkpoint_entries=%d", entries, noted_entries
            )
            checkpoint = log.first_offset
            self._checkpoints.begin_anew(issued)
            self._files.close()
            for _, _, folder in queue_folders(self._directory.consume_queues):
                shutil.rmtree(folder)
            self._queues.clear()
        return checkpoint, issued, issued_position

    def _require_no_exchanged_files(self, end: int) -> None:
        """Refuse to cut off a file that begins with a whole record of another: under its name it is part of the log.

        Raises: SideFileError.
        """
        log = self._log
        for index in [index for index in log.segments if (index + 1) * log.segment_bytes > end]:
            segment = log.segments[index]
            position = max(0, end - segment.first_offset)
            with segment.view(position, segment.size_bytes - position) as rest:
                if record.check(rest) <= 0:
                    continue
                place = record.decode(rest)["physical_offset"]
            if place != segment.first_offset + position:
                name = segment_name(place // log.segment_bytes * log.segment_bytes)
                raise SideFileError(
                    segment.path,
                    f"holds records of {name}",
                    "give the files of commitlog their names back, or move it away to go on without its messages",
                )

    def _leave_out_gaps(self) -> None:
        """Take the files behind the first of each gap out of the log: they are blank, for RocketMQ alone."""
        log, size = self._log, self._log.segment_bytes
        for before, start in self.epochs.gaps:
            indexes = [index for index in log.segments if before < index * size < start]
            log.leave_out(indexes)
            self._gap_files.update(indexes)

    def _load_holes(self) -> None:
        try:
            noted = read_side_file(self._directory.holes, "holes", "remove it")
        except SideFileError as error:
            logger.warning("list of holes damaged, it is made anew error=%s", error)
            self._write_holes()
            return
        if noted is None:
            return
        self.holes = [hole for hole in (Hole(**row) for row in noted) if not self._is_back(hole)]
        if len(self.holes) < len(noted):
            self._write_holes()

    def _is_back(self, hole: Hole) -> bool:
        """Whether files that a hole stands for were put back since: then the scan says what they hold."""
        size = self._log.segment_bytes
        numbers = range(hole.first_offset // size, -(-hole.end_offset // size))
        return hole.reason == MISSING_FILE and all(number in self._log.segments for number in numbers)

    def _write_holes(self) -> None:
        payload = [asdict(hole) for hole in self.holes]
        write_side_file(self._directory.holes, "holes", payload)

    def _skip_issued(self, issued: dict[tuple[str, int], int]) -> int:
        """Have each queue go on above what it ever issued, as far as its files and the notes know."""
        # What was cut off when the newest epoch began is not issued again; a clean end takes it out of the files.
        for ends in (self.epochs.newest.queue_ends, self._checkpoints.queue_ends):
            for key, queue_end in ends.items():
                issued[key] = max(queue_end, issued.get(key, 0))
        return sum(self._find_queue(*key).skip_to(queue_end) for key, queue_end in issued.items())

    def _load_queues(self, checkpoint: int) -> tuple[dict[tuple[str, int], int], int]:
        """Open every queue that has files; return the offsets issued per queue and the entries below the checkpoint."""
        issued: dict[tuple[str, int], int] = {}
        entries = 0
        self._directory.consume_queues.mkdir(exist_ok=True)
        for topic, queue_id, _ in queue_folders(self._directory.consume_queues):
            queue = self._find_queue(topic, queue_id)
            issued[topic, queue_id] = queue.load(checkpoint)
            entries += queue.next_offset
        return issued, entries

    def _verify_from(self, checkpoint: int) -> int:
        """Return the segment start, not long before the checkpoint, from which records are checked again."""
        first = max(self._log.first_offset, checkpoint - _VERIFY_BACK_BYTES)
        start = first // self._log.segment_bytes * self._log.segment_bytes
        if start < self._log.first_offset or start // self._log.segment_bytes not in self._log.segments:
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
        known = {hole.first_offset for hole in self.holes}
        new = [hole for hole in scan.holes if hole.first_offset not in known]
        for hole in self.holes:
            if hole.first_offset not in {found.first_offset for found in scan.holes}:
                logger.error("known hole first_offset=%d end_offset=%d", hole.first_offset, hole.end_offset)
        if new:
            self.holes += new
            self._write_holes()
        if scan.torn_offset >= 0:
            logger.warning(
                "torn tail cut off physical_offset=%d reason=%s unfinished_records=%d",
                scan.torn_offset,
                scan.torn_reason,
                scan.unfinished_records,
            )
        if lost_bytes:
            logger.error(
                "durable messages lost, the log ends below what was durable end_offset=%d durable_offset=%d bytes=%d",
                scan.end_offset,
                scan.end_offset + lost_bytes,
                lost_bytes,
            )

    def _begin_epoch(self, end: int, known_end: int) -> int:
        """Give up the rest of the segment at ``end`` and go on above everything ever issued; return where.

        The epoch is noted first: should the rest be cut short, the next start finds the note and steps over the gap.
        """
        log = self._log
        size = log.segment_bytes
        start: int = (max([*log.segments, known_end // size]) + 1) * size
        queue_ends = {key: queue.next_offset for key, queue in self._queues.items()}
        self.epochs = self.epochs.begin(start, end=end, now_ms=self._clock.now_ms(), queue_ends=queue_ends)
        write_side_file(self._directory.epochs, "epochs", self.epochs.to_payload())
        if self._boot_note.is_of_another_boot():
            self._boot_note.write()  # now: should the rest be refused, the next start begins no other epoch
        if end // size in log.segments:
            self._counters.truncated_bytes += max(0, known_end - end)
        self._leave_out_gaps()
        number = self.epochs.newest.number
        logger.warning("epoch begins epoch=%d first_physical_offset=%d previous_end_offset=%d", number, start, end)
        return start

    def _blank_gaps(self, newest: int) -> None:
        """Replace what lies in the gaps that lead to the newest epoch, in which nothing was written yet."""
        log, size = self._log, self._log.segment_bytes
        for before, start in self.epochs.gaps:
            if self.epochs.behind(before) != newest:
                continue
            segment = log.segments.get(before // size)
            if segment is not None:
                self._blank_rest(segment, before - segment.first_offset)
            for index in sorted(index for index in self._gap_files if before < index * size < start):
                self._blank_rest(Segment(log.segments.path_of(index), index * size, size), 0)

    def _fill_gaps(self) -> None:
        """Put a blank file wherever a gap has none: RocketMQ takes a log only if no file is missing in between.

        They are missing where the log was known to reach beyond its files, and in the gaps of earlier builds. Nobody
        here reads them: a disk without room is no reason not to start.
        """
        log, size = self._log, self._log.segment_bytes
        there = {*log.segments, *self._gap_files}
        for before, start in self.epochs.gaps:
            for index in range(-(-before // size), start // size):
                if index in there or not there or index < min(there):
                    continue
                try:
                    _make_blank_file(Path(log.segments.path_of(index)), size)
                except OSError as error:
                    logger.warning("gap between epochs has no file, RocketMQ cannot read this log error=%s", error)
                    return
                there.add(index)

    @staticmethod
    def _blank_rest(segment: Segment, position: int) -> None:
        """Replace a segment from ``position`` on by one blank record, and give back the room that the rest took.

        The blank record comes first and the file keeps its length: a start that is killed here leaves the next one a
        segment it can read.
        """
        size = segment.size_bytes
        head = _blank_head(size - position)
        behind = position + len(head)
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with naming(segment.path):
                os.pwrite(fd, head, position)
                for first, last in [] if punch_hole(fd, behind, size - behind) else segment.written_ranges(behind):
                    for start in range(first, last, _BLANK_AT_ONCE_BYTES):
                        zeros = bytes(min(last - start, _BLANK_AT_ONCE_BYTES))
                        if segment.read(start, len(zeros)) != zeros:
                            os.pwrite(fd, zeros, start)
                os.fsync(fd)
        finally:
            os.close(fd)

    def _sync_log(self, accepted_end: int, end: int) -> None:
        """Make what recovery accepted durable before anybody builds on it.

        What no flush has confirmed is written once more: behind a flush that failed the kernel has pages in memory that
        it takes for written, and the disk does not have.
        """
        log, mark = self._log, self._mark.physical_offset
        for index in [index for index in log.segments if (index + 1) * log.segment_bytes > mark]:
            # All that the last process may have left unsynced, not only the newest.
            segment = log.segments[index]
            with naming(segment.path):
                if mark:  # else nobody knows what is confirmed, and that may be a log of any size
                    self._write_again(segment, mark, accepted_end)
                os.fdatasync(segment.fd)
        self._mark.note(end)
        if not self._mark.is_whole:
            self._mark.note(end)  # the other slot, too

    @staticmethod
    def _write_again(segment: Segment, first_offset: int, end_offset: int) -> None:
        """Write what is in memory of a segment, in a range of the log, as if it never had been.

        Taken out of memory before, else ext4 does so to blocks that it takes for holes ever after a failed write.
        """
        position = max(first_offset - segment.first_offset, 0)
        end = min(end_offset - segment.first_offset, segment.size_bytes)
        if position >= end:
            return
        position -= position % _FOLIO_BYTES
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            segment.drop_pages()  # what is mapped stays in memory
            while position < end:
                content = os.pread(fd, min(end - position, _FOLIO_BYTES), position)
                os.posix_fadvise(fd, position, _FOLIO_BYTES, os.POSIX_FADV_DONTNEED)
                position += _write_or_find(fd, content, position, segment.path)
        finally:
            os.close(fd)

    def _leave_queues_to_checkpoint(self) -> None:
        """Let the next checkpoint write what the files lack: a start must not wait for ten thousand of them.

        And drop from memory what they have.
        """
        for queue in self._queues.values():
            if queue.tail_offset < queue.next_offset:
                queue.listed = True
                self._log.dirty_queues.append(queue)
