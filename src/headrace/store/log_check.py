"""Check the commit log against itself and the consume queues against the log.

The log is walked once, in order, and every record is held against the entry of its queue. Where a queue's offsets
jump, and behind its last record, its entries tell what should have been there: a damaged record is named by the entry
that still points at it.

Not damage: what a killed broker or a power cut leaves behind the durable mark (a torn tail, an unfinished command),
entries not yet written for records above the checkpoint, and everything that a living broker is writing.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.errors import CorruptRecordError
from headrace.format import findings
from headrace.format.epochs import Epochs
from headrace.format.findings import Finding
from headrace.format.layout import segment_file
from headrace.format.lost_ranges import LostRange, LostRanges
from headrace.format.names import CONTROL_TOPIC, SCHEDULE_TOPIC, segment_name
from headrace.format.queue_entry import ENTRY, FILLER_BYTES, StoredQueue
from headrace.format.record import BAD_OFFSET, UNWRITTEN, decode, describe
from headrace.store import log_walk
from headrace.store.check_report import CheckReport
from headrace.store.log_walk import LogWalk
from headrace.store.reader import CLOSED, CRASHED, OPEN, SegmentFile, StoreReader
from headrace.store.recovery import LOST_CHECKSUM
from headrace.store.segment_supply import is_unfinished

Progress = Callable[[int], None]


@dataclass(slots=True)
class InvalidRange(LostRange):
    """One whose bytes were read."""

    command_offset: int = -1
    """Where the command begins that is open in front of it."""
    command_records: int = 0


class LogCheck:
    """One pass over a store's log."""

    def __init__(
        self, reader: StoreReader, report: CheckReport, epochs: Epochs, known_holes: Mapping[int, int]
    ) -> None:
        """Prepare a pass.

        Args:
            report: Takes what is found; it has the durable mark and the checkpoint.
            known_holes: End of each hole that a start has noted, by its first offset.
        """
        self.known_holes = known_holes
        self.reader = reader
        self.report = report
        self.epochs = epochs
        self.mark = report.log.durable_mark
        self.size = reader.identity.segment_bytes
        self.walk = LogWalk(self.size, report.log.checkpoint_offset)
        self.lost = LostRanges(self.size)
        self.breaks: list[int] = [end for _, end in epochs.gaps]
        self.queues: dict[tuple[str, int], StoredQueue] = {}
        self._track_queue: list[StoredQueue] = []
        self._segments: list[SegmentFile] = []
        self._end = 0
        self._live_checked = self._behind_checked = -1
        self._is_walked = False
        # Where in the log a queue begins anew that is walked before it.
        self._numbered_anew: dict[StoredQueue, int] = {}

    # -- the log ----------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> None:
        """Check everything; progress is told the bytes of the log that are done."""
        self._segments = self.reader.segments()
        self.queues = {(queue.topic, queue.queue_id): queue for queue in self.reader.queues()}
        if self._segments:
            self._end = self._segments[0].first_offset
        self._check_segments()
        for number in range(len(self._segments)):
            if not self._walk_segment(number, lambda position: progress(number * self.size + position)):  # noqa: B023
                break
        self.walk.close()
        self._is_walked = True
        self._finish_log()
        self._finish_queues()
        self.report.damage.extend(self.lost.findings())

    def _check_segments(self) -> None:
        """Names, sizes and gaps between the files."""
        report, size = self.report, self.size
        for name in map(self.reader.name_of, self.reader.files_between_segments()):
            report.damage.append(Finding(
                kind="segment_name", file=name, message=f"{name} is not a multiple of the segment size {size}"
            ))  # fmt: skip
        expected = self.epochs.beginning
        for segment in self._segments:
            name = self.reader.name_of(segment.path)
            if segment.size_bytes != size:
                self._report_segment_size(segment, name)
            expected = self.epochs.behind(expected)
            if segment.first_offset > expected:
                report.damage.append(findings.missing_segment(expected, segment.first_offset, name))
                self.lost.add(LostRange(expected, segment.first_offset, "segment file is missing", name))
                self.breaks.append(segment.first_offset)
            expected = segment.first_offset + size
        self.breaks.sort()
        report.log.segments = len(self._segments)
        report.log.first_offset = self._segments[0].first_offset if self._segments else 0

    def _report_segment_size(self, segment: SegmentFile, name: str) -> None:
        is_last = segment is self._segments[-1]
        if is_last and self.report.state != CLOSED and is_unfinished(segment.path, self.size):
            self.report.info.append(Finding(
                kind="unfinished_segment", file=name,
                message=f"{name} was being allocated when the broker ended; the next start removes it",
            ))  # fmt: skip
            return
        if is_last and self.report.state == OPEN and self._was_made(segment):
            return
        self.report.damage.append(findings.segment_size(name, segment.size_bytes, self.size, segment.first_offset))

    def _was_made(self, segment: SegmentFile) -> bool:
        """Whether a file has its size by now, or is gone: a full disk did not take it."""
        try:
            return segment.path.stat().st_size == self.size
        except FileNotFoundError:
            return True

    def _walk_segment(self, number: int, progress: Progress) -> bool:
        """Check one segment; return False when the log ends in it."""
        segment, walk = self._segments[number], self.walk
        try:
            walk.open(str(segment.path), segment.first_offset)
        except FileNotFoundError:
            return True  # retention took it
        if self._end > segment.first_offset:
            if self._end >= segment.first_offset + self.size:
                return True  # a hole or the gap between two epochs reaches beyond it
            walk.seek(self._end - segment.first_offset)
        for before, start in self.epochs.gaps:
            if segment.first_offset <= before < segment.first_offset + self.size:
                # What a recovery cut off may still lie there if it was killed on the way.
                walk.stop_at(before - segment.first_offset)
                self._end = max(self._end, start)
        try:
            while (event := walk.walk()) != log_walk.END:
                if event == log_walk.PROGRESS:
                    progress(walk.position)
                elif event == log_walk.INVALID:
                    if not self._step_over(number):
                        return False
                elif event == log_walk.UNREADABLE:
                    self._report_unreadable(number, walk.read_errno())
                    return True
                else:
                    self._handle_queue_event(event)
        finally:
            self.report.log.checked_bytes += walk.position
        self._end = max(self._end, segment.first_offset + self.size)
        progress(self.size)
        return True

    def _step_over(self, number: int) -> bool:
        """Find where valid records go on behind an invalid place; return False when they do not."""
        segment, walk = self._segments[number], self.walk
        offset = segment.first_offset + walk.position
        if self.report.state == OPEN and offset >= self.mark and self._live_checked != offset:
            # The broker may have been writing here a moment ago: look once more.
            self._live_checked = offset
            walk.reread()
            return True
        lost = self._lost_here(segment)
        if offset in self.known_holes:
            # What lies behind it was cut off since, or not yet written to: it ends where that start found it to.
            lost.end = self._end = self.known_holes[offset]
            self._note_lost(lost)
            walk.seek(min(lost.end - segment.first_offset, self.size))
            return True
        next_position = walk.find(walk.position + 1)
        if next_position >= 0:
            lost.end = segment.first_offset + next_position
            self._note_lost(lost)
            walk.seek(next_position)
            return True
        if walk.read_errno():
            self._report_unreadable(number, walk.read_errno())
            return True
        return self._leave_segment(number, lost)

    def _lost_here(self, segment: SegmentFile) -> InvalidRange:
        """Return what is invalid from the walk's place on; where it ends is known of a misplaced record alone."""
        walk = self.walk
        offset = segment.first_offset + walk.position
        lost = InvalidRange(
            offset, 0, describe(walk.found), self.reader.name_of(segment.path), claims=walk.claims(walk.position),
            command_offset=walk.command_offset, command_records=walk.command_records,
        )  # fmt: skip
        if walk.found == BAD_OFFSET and (size := walk.is_whole_elsewhere(walk.position)):
            lost.is_misplaced, lost.end = True, offset + size
        return lost

    def _leave_segment(self, number: int, lost: LostRange) -> bool:
        """Go on behind a segment whose rest is invalid; return False where the log ends in it."""
        walk, offset = self.walk, lost.first
        behind = self._find_behind(number, offset)
        if behind is not None and self.report.state == OPEN and offset >= self.mark and self._behind_checked != offset:
            # It went on meanwhile, into the next file: what is here now is there to stay.
            self._behind_checked = offset
            walk.reread()
            return True
        if behind is not None:
            lost.end = behind
            if not self.epochs.is_gap(offset, behind):
                self._note_lost(lost)
            self._end = behind
            walk.seek(self.size)
            return True
        self._end = offset
        if lost.is_misplaced:
            self._note_lost(lost)
        self._note_exchanged(number + 1)
        self._judge_tail(number, lost)
        return False

    def _find_behind(self, number: int, offset: int) -> int | None:
        """Return the first physical offset with a whole record in the segments behind, None if there is none."""
        for segment, finder in self._look_into(number + 1):
            position = finder.find(0)
            if position >= 0:
                # An epoch begins at its segment's start even when its first record is damaged.
                starts = [start for _, start in self.epochs.gaps if offset < start <= segment.first_offset + position]
                return starts[-1] if starts else segment.first_offset + position
        return None

    def _note_exchanged(self, number: int) -> None:
        """Note files behind the end of the log that begin with a whole record of another file."""
        for segment, finder in self._look_into(number):
            if size := finder.is_whole_elsewhere(0):
                start = segment.first_offset
                self._note_lost(LostRange(
                    start, start + size, describe(BAD_OFFSET), self.reader.name_of(segment.path),
                    claims=finder.claims(0), is_misplaced=True,
                ))  # fmt: skip

    def _look_into(self, number: int) -> Iterator[tuple[SegmentFile, LogWalk]]:
        """Yield the segments from one on that are still there, each with another walk that stands at its beginning."""
        finder = LogWalk(self.size, 0)
        for segment in self._segments[number:]:
            try:
                finder.open(str(segment.path), segment.first_offset)
            except FileNotFoundError:
                continue
            yield segment, finder

    def _judge_tail(self, number: int, tail: LostRange) -> None:
        """The log ends here: cleanly, if nothing was ever written behind."""
        try:
            is_torn = self.walk.found != UNWRITTEN or self.walk.has_bytes_behind(self.walk.position)
        except OSError as error:
            self._report_unreadable(number, error.errno or errno.EIO)
            return
        if not is_torn or tail.first < self.mark or self.report.state == OPEN:
            return  # below the durable mark it is loss, which _finish_log reports
        self._report_torn(tail.file, tail.first, tail.reason)

    def _report_torn(self, name: str, offset: int, reason: str) -> None:
        self.report.add_unfinished(Finding(
            kind="torn_tail", file=name, physical_offset=offset, reason=reason,
            message=f"bytes behind the end of the log at {offset} are no record: {reason}; nothing durable is in them, "
            "the next start cuts them off",
        ))  # fmt: skip

    def _lost_before(self, end: int, promised: int) -> InvalidRange | None:
        """Return what was found invalid right in front of ``end``, if nobody was promised anything of it."""
        last = self.lost.ranges[-1] if self.lost.ranges else None
        if not isinstance(last, InvalidRange) or last.end != end or last.first < promised:
            return None
        return None if last.first in self.known_holes else last

    def _note_lost(self, lost: LostRange) -> None:
        self.lost.add(lost)
        self.breaks.append(lost.end)
        self.breaks.sort()

    def _report_unreadable(self, number: int, error: int) -> None:
        """A read failed: name it and give up the rest of the segment."""
        segment = self._segments[number]
        name = self.reader.name_of(segment.path)
        offset = segment.first_offset + self.walk.position
        end = segment.first_offset + self.size
        self.report.damage.append(Finding(
            kind="unreadable", file=name, physical_offset=offset, end_offset=end, reason=os.strerror(error),
            message=f"{name} cannot be read from physical offset {offset} on: {os.strerror(error)}",
        ))  # fmt: skip
        self._note_lost(LostRange(offset, end, os.strerror(error), name))
        self.walk.seek(self.size)
        self._end = end

    def _finish_log(self) -> None:
        """Unfinished command, durable mark, checkpoint: what the end of the log says."""
        log, walk = self.report.log, self.walk
        log.records = walk.records
        end = self._end
        promised = max(self.mark, self.report.log.checkpoint_offset, 0)
        command, records = walk.command_offset, walk.command_records
        beginning = max(promised, self.epochs.newest.first_offset)
        is_cut = walk.lost_checksum and walk.last_offset >= beginning and self.report.state == CRASHED
        if is_cut:
            end, command, records = walk.last_offset, walk.last_command, walk.last_records
            log.records -= 1
            last = next(segment for segment in self._segments if 0 <= end - segment.first_offset < self.size)
            self._report_torn(self.reader.name_of(last.path), end, LOST_CHECKSUM)
        while is_cut or (command >= promised and self.report.state != OPEN):
            is_cut = False
            if command >= promised:
                end = command
                self.report.add_unfinished(Finding(
                    kind="unfinished_command", physical_offset=end, count=records,
                    message=f"the log ends inside the command at {end}: {records} of its records were written; it was "
                    "never answered, the next start cuts it off",
                ))  # fmt: skip
            torn = self._lost_before(end, beginning)
            if torn is None:
                break
            self.lost.ranges.remove(torn)
            self._report_torn(torn.file, torn.first, torn.reason)
            end, command, records = torn.first, torn.command_offset, torn.command_records
        end = max(end, self.epochs.newest.first_offset)
        self._end = log.end_offset = end
        if self.mark > end:
            self.report.damage.append(findings.durable_loss(end, self.mark, noted_as="the durable mark"))

    # -- the queues -------------------------------------------------------------------------------------------------

    def _handle_queue_event(self, event: int) -> None:
        walk = self.walk
        if event == log_walk.NEW_QUEUE:
            self._add_queue()
            return
        queue = self._track_queue[walk.track]
        if event == log_walk.FETCH:
            count = walk.wanted_entries(walk.track)
            if queue.topic == CONTROL_TOPIC:
                # One entry at a time, so that every control record comes by here.
                count = 1
                record = walk.claims(walk.position)
                if record is not None:
                    self.report.control.append((walk.queue_offset, walk.first_offset + walk.position, record["body"]))
            walk.put_entries(walk.track, walk.queue_offset, queue.read(walk.queue_offset, count))
        elif event == log_walk.GAP:
            expected, _ = walk.totals(walk.track)
            self._explain(queue, expected, walk.queue_offset, walk.last_position(walk.track))
            walk.accept_offset(walk.track, walk.queue_offset)
        elif event == log_walk.REPEAT:
            self._judge_repeat(queue)
        elif event == log_walk.WRONG_ENTRY:
            self._judge_entry(queue)
        elif event == log_walk.MISSING:
            self._report_missing(queue, *walk.take_missing(walk.track))

    def _add_queue(self) -> None:
        walk = self.walk
        record = walk.claims(walk.position)
        if record is None:
            raise CorruptRecordError(
                "a whole record could not be read again", physical_offset=walk.first_offset + walk.position
            )
        key = (record["topic"], record["queue_id"])
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self.reader.queue(*key)
        # Entries of the delay topic hold the delivery time where others hold the tag hash.
        walk.add_queue(record["topic"].encode(), record["queue_id"], record["topic"] != SCHEDULE_TOPIC)
        self._track_queue.append(queue)
        if queue.files():
            first = queue.files()[0][0] // ENTRY.size
            self._explain(queue, first, record["queue_offset"], self.report.log.first_offset - 1)
        elif record["queue_offset"] > 0 and self.report.log.first_offset == 0:
            self._explain(queue, 0, record["queue_offset"], -1)

    def _judge_repeat(self, queue: StoredQueue) -> None:
        """An offset that was there before: RocketMQ numbered a topic anew that was deleted, if the files say so too."""
        walk = self.walk
        offset = walk.first_offset + walk.position
        points_at, size, _ = ENTRY.unpack(queue.read(walk.queue_offset, 1))
        if points_at == offset:
            walk.begin_anew(walk.track, walk.queue_offset)
            self._numbered_anew.pop(queue, None)
            return
        is_old = self._is_of_topic_anew(queue, walk.queue_offset, points_at, size) or queue in self._numbered_anew
        walk.skip_record()
        if is_old:
            return
        self.report.damage.append(findings.repeated_queue_offset(
            queue.topic, queue.queue_id, walk.queue_offset, physical_offset=offset, record_bytes=walk.record_bytes,
            file=segment_file(offset, self.size),
        ))  # fmt: skip

    def _judge_entry(self, queue: StoredQueue) -> None:
        """The entry for the record at hand is wrong: on disk, or only as it was read while a broker wrote it?"""
        walk = self.walk
        offset = walk.first_offset + walk.position
        raw = queue.read(walk.queue_offset, 1)
        if self.report.state == OPEN and raw != walk.entry(walk.track, walk.queue_offset):
            walk.put_entries(walk.track, walk.queue_offset, raw)
            return
        walk.judge_entry()
        points_at, size, _ = ENTRY.unpack(raw)
        if self._is_of_topic_anew(queue, walk.queue_offset, points_at, size):
            return
        if size == FILLER_BYTES:
            reason = "it is a filler"
        elif points_at != offset:
            reason = f"it points at {points_at}"
        elif size != walk.record_bytes:
            reason = f"it says {size} bytes"
        else:
            reason = "its tag hash is another"
        self.report.damage.append(findings.wrong_entry(
            queue.topic, queue.queue_id, walk.queue_offset, physical_offset=offset, record_bytes=walk.record_bytes,
            reason=reason, file=self._entry_file(queue, walk.queue_offset),
        ))  # fmt: skip

    def _is_of_topic_anew(self, queue: StoredQueue, queue_offset: int, points_at: int, size: int) -> bool:
        """Whether an entry is of a message further back in the log, of a topic that was deleted and numbered anew."""
        walk = self.walk
        if points_at <= walk.first_offset + walk.position or size == FILLER_BYTES:
            return False
        first = self._numbered_anew.get(queue)
        if first is None:
            raw = self.reader.record_at(points_at, size)
            made = None if raw is None else decode(raw)
            wanted = (queue.topic, queue.queue_id, queue_offset)
            if made is None or (made["topic"], made["queue_id"], made["queue_offset"]) != wanted:
                return False
            first = self._numbered_anew[queue] = points_at
        return points_at >= first

    def _report_missing(self, queue: StoredQueue, first: int, count: int) -> None:
        if count:
            file = self._entry_file(queue, first)
            self.report.damage.append(findings.missing_entries(queue.topic, queue.queue_id, first, count, file))

    def _finish_queues(self) -> None:
        """What the queues have behind their last records, and in total."""
        walk, summary = self.walk, self.report.queues
        seen: dict[tuple[str, int], int] = {}
        for index, queue in enumerate(self._track_queue):
            next_offset, pending = walk.totals(index)
            self._report_missing(queue, *walk.take_missing(index))
            summary.pending_entries += pending
            seen[queue.topic, queue.queue_id] = index
            self._explain(queue, next_offset, queue.extent()[1], walk.last_position(index))
        for key, queue in self.queues.items():
            self._check_files(queue)
            first, end = queue.extent()
            summary.entries += end - first
            self._note_given_up(queue, max(end, walk.totals(seen[key])[0] if key in seen else 0))
            self.report.note_queue_end(*key, end)
            if key not in seen and end > first:
                self._explain(queue, first, end, self.report.log.first_offset - 1)
        summary.queues = len(self.queues)
        summary.topics = len({topic for topic, _ in self.queues})

    def _note_given_up(self, queue: StoredQueue, end: int) -> None:
        """Name the offsets behind a queue's end that are not issued again: a clean end took their fillers away."""
        count = self.report.queue_ends.get((queue.topic, queue.queue_id), 0) - end
        if count > 0:
            file = self._entry_file(queue, end)
            self.report.info.append(findings.skipped_offsets(queue.topic, queue.queue_id, end, count, file))

    def _check_files(self, queue: StoredQueue) -> None:
        expected: int | None = None
        for first_byte, size in queue.files():
            name = f"{self.reader.name_of(queue.path)}/{segment_name(first_byte)}"
            if first_byte % queue.file_bytes:
                self.report.damage.append(findings.queue_file_name(queue.topic, queue.queue_id, name, queue.file_bytes))
            elif expected is not None and first_byte != expected:
                self.report.damage.append(findings.missing_queue_file(queue.topic, queue.queue_id, name))
            if size != queue.file_bytes:
                found = findings.queue_file_size(queue.topic, queue.queue_id, name, size, queue.file_bytes)
                (self.report.add_unfinished if size < queue.file_bytes else self.report.info.append)(found)
            expected = first_byte + queue.file_bytes

    def _explain(self, queue: StoredQueue, first: int, end: int, after: int) -> None:
        """Say what stood at queue offsets [first, end), which no record of the log has.

        Args:
            after: Physical offset of the queue's last record before the gap.
        """
        runs: defaultdict[str, list[list[int]]] = defaultdict(list)
        for queue_offset, physical_offset, size, _ in queue.entries(first, end):
            if size == FILLER_BYTES:
                findings.add_to_runs(runs["filler"], queue_offset)
            elif size <= 0:
                if queue not in self._numbered_anew:  # else it has not come so far yet
                    findings.add_to_runs(runs["none"], queue_offset)
            elif self.lost.name_entry(queue.topic, queue.queue_id, queue_offset, physical_offset, size):
                continue
            elif physical_offset < self.report.log.first_offset:
                continue  # retention removed its segment
            elif self._is_walked and physical_offset >= self._end:
                findings.add_to_runs(runs["beyond"], queue_offset)
            elif not self._is_of_topic_anew(queue, queue_offset, physical_offset, size):
                self._report_stray(queue, queue_offset, physical_offset, size)
        for kind, found in runs.items():
            for run_first, count in found:
                self._report_run(queue, kind, run_first, count, after)

    def _report_run(self, queue: StoredQueue, kind: str, first: int, count: int, after: int) -> None:
        where = (queue.topic, queue.queue_id, first, count, self._entry_file(queue, first))
        if kind == "filler":
            self.report.info.append(findings.skipped_offsets(*where))
        elif kind == "beyond":
            if self.report.state != OPEN:
                self.report.add_unfinished(findings.entries_beyond_log(*where))
        elif not any(after < point <= self.walk.first_offset + self.walk.position for point in self.breaks):
            self.report.damage.append(findings.missing_records(*where))

    def _report_stray(self, queue: StoredQueue, queue_offset: int, physical_offset: int, size: int) -> None:
        self.report.damage.append(findings.stray_entry(
            queue.topic, queue.queue_id, queue_offset, physical_offset=physical_offset, record_bytes=size,
            file=self._entry_file(queue, queue_offset),
        ))  # fmt: skip

    def _entry_file(self, queue: StoredQueue, queue_offset: int) -> str:
        first_byte = queue_offset * ENTRY.size // queue.file_bytes * queue.file_bytes
        return f"{self.reader.name_of(queue.path)}/{segment_name(first_byte)}"
