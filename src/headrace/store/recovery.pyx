"""Find the valid end of the commit log and rebuild the views behind it.

From the checkpoint on every record is checked and offered to its consume queue. Three things can be in the way:

- a *hole*: bytes that are no record, with valid records of this log behind them (a record proves itself by its own
  physical offset and its checksum). It is named and stepped over; nothing is removed.
- a *torn tail*: bytes that are no record, nothing valid behind them. The log ends there. So does one whose last record is
  without a checksum, as RocketMQ's are, behind one that has it: what lies there in place of the last bytes took it away.
- an *unfinished command*: the log ends inside the records of one MPUB. It is cut off too, so that a batch is there
  whole or not at all. Not where its beginning was durable: then all of it was, it may have been answered, and what is
  left of it stays. A hole right in front of it, of which nothing was durable, has nothing valid behind it then: it is
  torn too, and so is the command that was open where it begins.
"""

from dataclasses import dataclass, field

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from headrace.batch cimport RecordView
from headrace.format.record cimport (
    RECORD_BLANK, RECORD_UNWRITTEN, check_record, has_checksum, is_dispatched, read_view, record_batch_entries,
    record_tag_hash, topic_of,
)
from headrace.format.record import describe
from headrace.format.side_file import naming
from headrace.format.sparse import has_bytes
from headrace.store.consume_queue cimport ConsumeQueue
from headrace.store.segment cimport Segment


MISSING_FILE = "the file is missing"
LOST_CHECKSUM = "a record without the checksum that those before it have"


@dataclass(frozen=True)
class Hole:
    first_offset: int
    end_offset: int
    reason: str


@dataclass
class Scan:
    end_offset: int = 0
    records: int = 0
    holes: list = field(default_factory=list)
    torn_offset: int = -1
    torn_reason: str = ""
    unfinished_records: int = 0


cdef int64_t _gap_at_or_behind(dict epoch_gaps, int64_t offset) except -2:
    """Return where the next range begins that an epoch left out, -1 if there is none."""
    return min((start for start in epoch_gaps or () if start >= offset), default=-1)


cdef struct Command:                    # of several records, whose end was not seen yet
    int64_t start                       # -1: none is open
    int64_t left                        # records to come
    int64_t records                     # that came


cdef class _Pass:
    """One pass over the log: where it stands, and what is open there."""

    cdef object segments
    cdef int64_t segment_bytes
    cdef object find_queue
    cdef object progress
    cdef int64_t epoch_offset
    cdef dict epoch_gaps
    cdef int64_t durable_offset
    cdef dict known_ends                # of holes, by their first offset

    cdef object result
    cdef int64_t offset
    cdef int64_t records
    cdef int64_t next_gap               # where the next range begins that an epoch left out, -1: none does
    cdef ConsumeQueue queue             # of the last record that had one
    cdef Command command
    cdef dict commands_cut              # by hole: where the command begins that is open there, its records before
    cdef int64_t last_offset            # of the last record, and the command that was open in front of its end
    cdef Command last_command
    cdef bint is_checked                # whether it has a checksum, and the one before it
    cdef bint was_checked

    def __init__(self, segments, int64_t start_offset, int64_t segment_bytes, find_queue, progress, known_holes,
                 int64_t epoch_offset, dict epoch_gaps, int64_t durable_offset):
        self.segments = segments
        self.segment_bytes = segment_bytes
        self.find_queue = find_queue
        self.progress = progress
        self.epoch_offset = epoch_offset
        self.epoch_gaps = epoch_gaps
        self.durable_offset = durable_offset
        self.known_ends = {hole.first_offset: hole.end_offset for hole in known_holes}
        self.result = Scan()
        self.offset = start_offset
        self.next_gap = _gap_at_or_behind(epoch_gaps, start_offset)
        self.command.start = -1
        self.commands_cut = {}
        self.last_offset = -1
        self.last_command.start = -1
        self.is_checked = True

    cdef int run(self) except -1:
        """Go to where the log ends."""
        cdef Segment segment
        cdef int64_t position, found
        while True:
            segment = self.segments.get(self.offset // self.segment_bytes)
            if segment is None:
                if not self.go_on_at(self.behind_missing()):
                    break
                continue
            if 0 <= self.next_gap <= self.offset:
                self.next_gap = _gap_at_or_behind(self.epoch_gaps, self.offset)
                if self.next_gap == self.offset:
                    # Before anything is read: of a command that was cut off there the first records may still lie in
                    # the gap, if the start that cut it was killed.
                    self.go_on_at(self.epoch_gaps[self.offset])
                    continue
            position = self.offset - segment.first_offset
            found = check_record(segment.base + position, self.segment_bytes - position, self.offset, True)
            if found > 0:
                self.take(segment.base + position, <uint32_t>found)
            elif found == RECORD_BLANK:
                self.offset = segment.first_offset + self.segment_bytes
            elif not self.step_over(segment, found):
                # The log ends here: cleanly, if nothing at all was written behind this point.
                with naming(segment.path):
                    if found != RECORD_UNWRITTEN or has_bytes(segment.fd, position, self.segment_bytes):
                        self.note_torn(self.offset, describe(found))
                break
        self.result.records = self.records
        return 0

    cdef bint go_on_at(self, int64_t offset) except -1:
        """Go on behind a gap, unless ``offset`` is negative: a command that was open in front of it has no more records."""
        if offset < 0:
            return False
        self.offset = offset
        self.command.start = -1
        self.command.left = 0
        return True

    cdef int take(self, const uint8_t* record, uint32_t record_bytes) except -1:
        """Count a valid record, offer it to its queue and go on behind it."""
        cdef RecordView view
        cdef int64_t entries, tag_hash
        cdef const uint8_t* topic = NULL
        cdef uint32_t topic_bytes = 0
        read_view(record, record_bytes, &view)
        entries = record_batch_entries(&view)
        if entries > 1:
            self.command.start = self.offset
            self.command.left = entries
            self.command.records = 0
        self.was_checked, self.is_checked = self.is_checked, has_checksum(&view)
        self.last_offset = self.offset
        self.last_command = self.command
        if self.command.left > 0:
            self.command.left -= 1
            self.command.records += 1
            if self.command.left == 0:
                self.command.start = -1
        if is_dispatched(record) and topic_of(&view, &topic, &topic_bytes):
            if self.queue is None or not self.queue_is(topic, topic_bytes, view.queue_id):
                self.queue = self.find_queue((<const char*>topic)[:topic_bytes].decode("utf-8", "surrogateescape"),
                                             view.queue_id)
            if self.queue is not None:
                tag_hash = record_tag_hash(&view)
                if self.queue.delay_ms:
                    tag_hash = view.store_timestamp_ms + self.queue.delay_ms
                self.queue.restore(view.queue_offset, self.offset, <int>record_bytes, tag_hash)
        self.offset += record_bytes
        self.records += 1
        if self.progress is not None and self.records & 0xFFFF == 0:
            self.progress(self.offset)
        return 0

    cdef bint queue_is(self, const uint8_t* topic, uint32_t topic_bytes, int64_t queue_id) noexcept:
        """Whether the queue at hand has that name and number."""
        return (self.queue.queue_id == <int>queue_id and len(self.queue.topic_bytes) == topic_bytes
                and memcmp(<const char*>self.queue.topic_bytes, topic, topic_bytes) == 0)

    cdef int64_t behind_missing(self) except -2:
        """Return where the log goes on behind a place that no file has, -1 if it ends there; note the hole."""
        cdef int64_t gap_start, gap_end
        cdef Segment later
        for gap_start, gap_end in (self.epoch_gaps or {}).items():
            if gap_start <= self.offset < gap_end:
                return gap_end              # a later epoch began there
        for later in self.later_segments():
            if later.find_record(0) >= 0:
                self.result.holes.append(Hole(self.offset, later.first_offset, MISSING_FILE))
                return later.first_offset
            break
        # Nothing was written since the newest epoch began, or nothing at all.
        return self.epoch_offset if self.offset < self.epoch_offset else -1

    cdef bint step_over(self, Segment segment, int64_t found) except -1:
        """Go on where valid records go on behind a place that holds none, and note the hole; False if the log ends there.

        ``found`` is what ``check_record`` says of the place.
        """
        cdef int64_t position
        cdef int64_t behind = -1
        cdef Segment later
        if self.offset in self.known_ends:
            behind = self.known_ends[self.offset]
            reason = "known"
        else:
            reason = describe(found)
            position = segment.find_record(self.offset - segment.first_offset)
            if position >= 0:
                behind = segment.first_offset + position
            else:
                for later in self.later_segments():
                    position = later.find_record(0)
                    if position >= 0:
                        behind = later.first_offset + position
                        break
            if behind < 0 and self.offset < self.epoch_offset:
                behind = self.epoch_offset
        if behind < 0:
            return False
        self.result.holes.append(Hole(self.offset, behind, reason))
        self.commands_cut[self.offset] = self.command.start, self.command.records
        return self.go_on_at(behind)

    def later_segments(self):
        """Yield the segments that begin behind this place, in order; each is mapped when its turn comes."""
        for index in sorted(self.segments):
            if index * self.segment_bytes > self.offset:
                yield self.segments[index]

    cdef int note_torn(self, int64_t offset, reason) except -1:
        """Let the log end at ``offset``, where something began that is not whole."""
        self.offset = offset
        self.result.torn_offset = offset
        self.result.torn_reason = reason
        return 0

    cdef int cut(self, bint was_clean) except -1:
        """Cut off what is not whole in front of the end, as far as nobody was promised any of it."""
        cdef int64_t promised = max(self.durable_offset, self.epoch_offset)
        # Behind a clean end nothing is torn: the log is one that RocketMQ wrote last, and that is imported.
        cdef bint is_cut = (not was_clean and self.was_checked and not self.is_checked
                            and self.last_offset >= promised)
        if is_cut:
            self.note_torn(self.last_offset, LOST_CHECKSUM)
            self.result.records -= 1
            self.command = self.last_command
        while is_cut or self.command.start >= self.durable_offset:
            is_cut = False
            if self.command.start >= self.durable_offset:
                self.result.unfinished_records += self.command.records
                self.note_torn(self.command.start,
                               f"command of which only {self.command.records} records were written")
            hole = next(reversed(self.result.holes), None)
            if hole is None or not self.is_torn(hole, promised):
                break
            self.result.holes.remove(hole)
            self.note_torn(hole.first_offset, hole.reason)
            self.command.start, self.command.records = self.commands_cut[self.offset]
        self.result.end_offset = self.offset
        return 0

    cdef bint is_torn(self, hole, int64_t promised_offset) except -1:
        """Whether a hole ends where the log is cut, and nobody was promised anything of it."""
        return (hole.end_offset == self.offset and hole.first_offset >= promised_offset
                and hole.reason != MISSING_FILE and hole.first_offset not in self.known_ends)


def scan_log(segments, int64_t start_offset, int64_t segment_bytes, find_queue, progress=None, known_holes=(),
             int64_t epoch_offset=0, epoch_gaps=None, int64_t durable_offset=0, bint was_clean=False):
    scan = _Pass(segments, start_offset, segment_bytes, find_queue, progress, known_holes, epoch_offset, epoch_gaps,
                 durable_offset)
    scan.run()
    scan.cut(was_clean)
    return scan.result
