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


cdef int64_t _behind_missing(segments, int64_t offset, int64_t segment_bytes, int64_t epoch_offset, dict epoch_gaps,
                             list holes) except -2:
    """Return where the log goes on behind a place that no file has, -1 if it ends there; what is missing is a hole."""
    cdef int64_t gap_start, gap_end
    cdef Segment later
    for gap_start, gap_end in (epoch_gaps or {}).items():
        if gap_start <= offset < gap_end:
            return gap_end                  # a later epoch began there
    following = min((index for index in segments if index * segment_bytes > offset), default=None)
    if following is not None:
        later = segments[following]
        if later.find_record(0) >= 0:
            holes.append(Hole(offset, later.first_offset, MISSING_FILE))
            return later.first_offset
    # Nothing was written since the newest epoch began, or nothing at all.
    return epoch_offset if offset < epoch_offset else -1


cdef int64_t _behind_invalid(segments, Segment segment, int64_t offset, int64_t found, int64_t segment_bytes,
                             dict known_ends, int64_t epoch_offset, list holes) except -2:
    """Return where valid records go on behind a place that holds none, -1 if the log ends there; note the hole.

    Args:
        found: What ``check_record`` says of the place.
        known_ends: End of each hole that is known, by its first offset.
    """
    cdef int64_t position
    cdef int64_t behind = -1
    cdef Segment later
    if offset in known_ends:
        holes.append(Hole(offset, known_ends[offset], "known"))
        return known_ends[offset]
    position = segment.find_record(offset - segment.first_offset)
    if position >= 0:
        behind = segment.first_offset + position
    else:
        for index in sorted(index for index in segments if index * segment_bytes > offset):
            later = segments[index]
            position = later.find_record(0)
            if position >= 0:
                behind = later.first_offset + position
                break
    if behind < 0 and offset < epoch_offset:
        behind = epoch_offset
    if behind >= 0:
        holes.append(Hole(offset, behind, describe(found)))
    return behind


def scan_log(segments, int64_t start_offset, int64_t segment_bytes, find_queue, progress=None, known_holes=(),
             int64_t epoch_offset=0, epoch_gaps=None, int64_t durable_offset=0, bint was_clean=False):
    result = Scan(end_offset=start_offset)
    cdef int64_t offset = start_offset
    cdef int64_t position, found, next_offset
    cdef int64_t entries
    cdef int64_t tag_hash
    cdef int64_t command_start = -1         # where the command begins whose end was not seen yet
    cdef int64_t command_left = 0
    cdef int64_t command_records = 0
    cdef int64_t last_offset = -1           # of the last record, and the command that was open in front of its end
    cdef int64_t last_start = -1
    cdef int64_t last_records = 0
    cdef bint is_checked = True             # whether it has a checksum, and the one before it
    cdef bint was_checked = False
    cdef bint is_cut = False
    cdef RecordView view
    cdef ConsumeQueue queue = None
    cdef const uint8_t* topic = NULL
    cdef uint32_t topic_bytes = 0
    cdef Segment segment
    cdef int64_t records = 0
    cdef int64_t next_gap = _gap_at_or_behind(epoch_gaps, start_offset)
    cdef dict known_ends = {hole.first_offset: hole.end_offset for hole in known_holes}
    cdef dict commands_cut = {}             # by hole: where the command begins that is open there, its records before
    while True:
        segment = segments.get(offset // segment_bytes)
        if segment is None:
            next_offset = _behind_missing(segments, offset, segment_bytes, epoch_offset, epoch_gaps, result.holes)
            if next_offset < 0:
                break
            offset = next_offset
            command_start, command_left = -1, 0
            continue
        if 0 <= next_gap <= offset:
            next_gap = _gap_at_or_behind(epoch_gaps, offset)
            if offset == next_gap:
                # Before anything is read: of a command that was cut off there the first records may still lie in the
                # gap, if the start that cut it was killed.
                offset = epoch_gaps[offset]
                command_start, command_left = -1, 0
                continue
        position = offset - segment.first_offset
        found = check_record(segment.base + position, segment_bytes - position, offset, True)
        if found > 0:
            read_view(segment.base + position, <uint32_t>found, &view)
            entries = record_batch_entries(&view)
            if entries > 1:
                command_start, command_left, command_records = offset, entries, 0
            was_checked, is_checked = is_checked, has_checksum(&view)
            last_offset, last_start, last_records = offset, command_start, command_records
            if command_left > 0:
                command_left -= 1
                command_records += 1
                if command_left == 0:
                    command_start = -1
            if is_dispatched(segment.base + position) and topic_of(&view, &topic, &topic_bytes):
                if queue is None or queue.queue_id != <int>view.queue_id or len(queue.topic_bytes) != topic_bytes or \
                        memcmp(<const char*>queue.topic_bytes, topic, topic_bytes) != 0:
                    queue = find_queue((<const char*>topic)[:topic_bytes].decode("utf-8", "surrogateescape"),
                                       view.queue_id)
                if queue is not None:
                    tag_hash = view.store_timestamp_ms + queue.delay_ms if queue.delay_ms else record_tag_hash(&view)
                    queue.restore(view.queue_offset, offset, <int>found, tag_hash)
            offset += found
            records += 1
            if progress is not None and records & 0xFFFF == 0:
                progress(offset)
            continue
        if found == RECORD_BLANK:
            offset = segment.first_offset + segment_bytes
            continue
        next_offset = _behind_invalid(segments, segment, offset, found, segment_bytes, known_ends, epoch_offset,
                                      result.holes)
        if next_offset >= 0:
            commands_cut[offset] = command_start, command_records
            offset = next_offset
            command_start, command_left = -1, 0
            continue
        # The log ends here: cleanly, if nothing at all was written behind this point.
        with naming(segment.path):
            is_torn = found != RECORD_UNWRITTEN or has_bytes(segment.fd, position, segment_bytes)
        if is_torn:
            result.torn_offset = offset
            result.torn_reason = describe(found)
        break
    result.records = records
    # Behind a clean end nothing is torn: the log is one that RocketMQ wrote last, and that is imported.
    if not was_clean and was_checked and not is_checked and last_offset >= max(durable_offset, epoch_offset):
        is_cut = True
        result.torn_offset = offset = last_offset
        result.torn_reason = LOST_CHECKSUM
        result.records -= 1
        command_start, command_records = last_start, last_records
    while is_cut or command_start >= durable_offset:
        is_cut = False
        if command_start >= durable_offset:
            result.unfinished_records += command_records
            result.torn_offset = offset = command_start
            result.torn_reason = f"command of which only {command_records} records were written"
        hole = next(reversed(result.holes), None)
        if hole is None or not _is_torn(hole, offset, max(durable_offset, epoch_offset), known_ends):
            break
        result.holes.remove(hole)
        result.torn_offset = offset = hole.first_offset
        result.torn_reason = hole.reason
        command_start, command_records = commands_cut[offset]
    result.end_offset = offset
    return result


cdef bint _is_torn(hole, int64_t end_offset, int64_t promised_offset, dict known_ends) except -1:
    """Whether a hole ends where the log is cut, and nobody was promised anything of it."""
    return (hole.end_offset == end_offset and hole.first_offset >= promised_offset
            and hole.reason != MISSING_FILE and hole.first_offset not in known_ends)
