"""Reading a queue at an offset that the reader chooses: what consumer groups do, with a tag filter in the scan.

Consumer groups keep no state here. A pull names its offset; the queue's entries say which records lie there, and the
log lends views of them. The tag hash of an entry decides for most messages without a look at the record, so a
subscription to a rare tag reads 20 bytes per message. Reading never waits: a record that is not in memory ends the
pass (COLD if nothing was found before it), and the store reads it ahead.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from headrace.batch cimport RecordBatch, RecordView
from headrace.broker.consumers.sql92_evaluation cimport Filter
from headrace.format.name_set cimport fill_set, free_set, is_in
from headrace.format.record cimport FIXED_BYTES, check_record, find_property, hash_tag, read_view
from headrace.store.commit_log cimport CommitLog
from headrace.store.queue_base cimport FILLER_BYTES, QueueBase, QueueEntry
from headrace.store.log_base cimport VIEW_COLD, VIEW_GONE, VIEW_OK
from headrace.store.segment cimport Segment

from enum import IntEnum


cdef enum:
    AT_ONCE = 128               # entries read at a time
    EXAMINE_FILTERED = 800      # RocketMQ's: 16,000 bytes of consume queue
    EXAMINE_MOST = 4_000        # while nothing was found, and where nothing is filtered
    ASK_MOST = 100_000          # in one call, in units of some 20 ns: what filters take, see _weight, and tags that only
                                # share the hash of a wanted one
    EXAMINE_BULK = 8_192        # by one call for a bulk reader: about a millisecond


class PullStatus(IntEnum):
    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    COLD = 9


cdef object _FOUND = PullStatus.FOUND
cdef object _NO_MATCHED_MESSAGE = PullStatus.NO_MATCHED_MESSAGE
cdef object _MESSAGE_WAS_REMOVING = PullStatus.MESSAGE_WAS_REMOVING
cdef object _OFFSET_FOUND_NULL = PullStatus.OFFSET_FOUND_NULL
cdef object _OFFSET_OVERFLOW_BADLY = PullStatus.OFFSET_OVERFLOW_BADLY
cdef object _OFFSET_OVERFLOW_ONE = PullStatus.OFFSET_OVERFLOW_ONE
cdef object _OFFSET_TOO_SMALL = PullStatus.OFFSET_TOO_SMALL
cdef object _NO_MATCHED_LOGIC_QUEUE = PullStatus.NO_MATCHED_LOGIC_QUEUE
cdef object _NO_MESSAGE_IN_QUEUE = PullStatus.NO_MESSAGE_IN_QUEUE
cdef object _COLD = PullStatus.COLD


cdef class Codes:
    def __cinit__(self):
        self.codes = NULL

    def __init__(self, codes, tags=()):
        cdef list ascending = sorted(set(codes))
        cdef Py_ssize_t i
        if self.codes != NULL:
            raise RuntimeError("codes are made once")
        self.codes = <int32_t*>malloc(max(len(ascending), 1) * sizeof(int32_t))
        if self.codes == NULL:
            raise MemoryError("cannot hold the codes of a subscription")
        for i in range(len(ascending)):
            self.codes[i] = ascending[i]
        self.count = len(ascending)
        self.tags = frozenset([tag.encode("utf-8", "surrogatepass") for tag in tags])
        fill_set(&self.names, list(self.tags))

    def __dealloc__(self):
        free(self.codes)
        free_set(&self.names)

    def __len__(self):
        return self.count

    def __contains__(self, int64_t tag_hash):
        return self.has(tag_hash)

    cdef bint has(self, int64_t tag_hash) noexcept:
        cdef int32_t wanted = <int32_t>tag_hash
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.codes[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        return low < self.count and self.codes[low] == wanted

    cdef bint has_tag_of(self, const RecordView* view) noexcept:
        """Whether the record's tag is one of ``tags``: two tags may share a hash."""
        cdef uint32_t size = 0
        cdef const uint8_t* text
        if not self.tags:
            return True
        text = find_property(view, b"TAGS\x01", 5, &size)
        return text != NULL and is_in(&self.names, text, size)

    def matches(self, bytes properties not None):
        cdef RecordView view
        cdef uint32_t size = 0
        cdef const uint8_t* text
        memset(&view, 0, sizeof(view))
        view.properties = properties
        view.properties_bytes = <uint32_t>len(properties)
        text = find_property(&view, b"TAGS\x01", 5, &size)
        return self.has(hash_tag(text, size) if text != NULL else 0) and self.has_tag_of(&view)


cdef class PullResult:
    def __init__(self, status, int64_t next_offset, int64_t min_offset, int64_t max_offset):
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __repr__(self):
        return f"PullResult({self.status.name}, next={self.next_offset}, min={self.min_offset}, max={self.max_offset})"


cdef PullResult _outside(int64_t from_offset, int64_t min_offset, int64_t max_offset):
    """Return the answer to an offset at which nothing can be read, None when something can."""
    max_offset = max(max_offset, min_offset)    # a queue made again may begin above what readers may see yet
    if max_offset == 0:
        return PullResult(_NO_MESSAGE_IN_QUEUE, 0, min_offset, max_offset)
    if from_offset < min_offset:
        return PullResult(_OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
    if from_offset == max_offset:
        return PullResult(_OFFSET_OVERFLOW_ONE, from_offset, min_offset, max_offset)
    if from_offset > max_offset:
        return PullResult(_OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)
    return None


cpdef PullResult read_queue(QueueBase queue, int64_t from_offset, Py_ssize_t max_messages, int64_t max_bytes,
                            Codes codes, Filter matcher, RecordBatch into):
    cdef PullResult outside
    if queue is None:
        return PullResult(_NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    outside = _outside(from_offset, queue.min_offset, queue.visible_offset)
    if outside is not None:
        return outside
    return _read(queue, from_offset, queue.visible_offset, into.count, into.record_bytes, max(max_messages, 1), max_bytes,
                 codes, matcher, into, EXAMINE_MOST, EXAMINE_FILTERED)


def read_range(QueueBase queue not None, int64_t from_offset, int64_t end_offset, Py_ssize_t max_messages,
               int64_t max_bytes, Codes codes, RecordBatch into not None):
    cdef PullResult outside = _outside(from_offset, queue.min_offset, queue.visible_offset)
    if outside is not None:
        return outside
    return _read(queue, from_offset, min(end_offset, queue.visible_offset), 0, 0, max(max_messages, 1), max_bytes,
                 codes, None, into, EXAMINE_BULK, EXAMINE_BULK)


cdef inline int64_t _weight(Filter matcher, const RecordView* view) noexcept:
    """What asking a filter about a record counts for: properties are gone through once, and each step may do so again."""
    return matcher.steps * (2 + (view.properties_bytes >> 5)) + (view.properties_bytes >> 3) + 5


cdef inline bint _is_wanted(const RecordView* view, Codes codes, Filter matcher, int64_t* asked) except -1:
    """Whether a record is what its entry only may be; what the question counts for is added to ``asked``."""
    if codes is not None and not codes.has_tag_of(view):
        asked[0] += (view.properties_bytes >> 2) + 5    # as many properties as fit may stand before the tag
        return False
    if matcher is None:
        return True
    asked[0] += _weight(matcher, view)
    return matcher.passes(view)


cdef PullResult _read(QueueBase queue, int64_t from_offset, int64_t end_offset, Py_ssize_t first, int64_t first_bytes,
                      Py_ssize_t max_messages, int64_t max_bytes, Codes codes, Filter matcher, RecordBatch into,
                      int64_t most_examined, int64_t most_filtered):
    """Read from an offset inside of the queue; ``into`` has ``first`` records that are not of this answer."""
    cdef QueueEntry entries[AT_ONCE]
    cdef QueueEntry* entry
    cdef PullResult result
    cdef int64_t bytes_before
    cdef int64_t offset = from_offset
    cdef Py_ssize_t i, n
    cdef int outcome
    cdef int64_t gone = 0
    cdef int64_t asked = 0
    cdef bint is_cold = False
    cdef bint is_full = False
    cdef bint is_filtered = codes is not None or matcher is not None
    result = PullResult(None, from_offset, queue.min_offset, queue.visible_offset)
    while not is_full and offset < end_offset:
        if result.examined >= (most_filtered if is_filtered and into.count > first else most_examined):
            break
        n = min(<int64_t>AT_ONCE, end_offset - offset)
        if not is_filtered:
            n = min(n, max_messages - (into.count - first) + 1)     # the one behind them says that it is full
        try:
            n = queue.read_entries(offset, entries, n)
        except OSError as error:
            queue.log.on_unreadable(error)
            is_cold = True
            break
        if n <= 0:
            break
        for i in range(n):
            entry = &entries[i]
            if into.count - first >= max_messages:
                is_full = True
                break
            if entry.record_bytes == FILLER_BYTES:
                result.skipped += 1
                offset += 1
                continue
            if codes is not None and not codes.has(entry.tag_hash):
                offset += 1
                continue
            if into.count > first and into.record_bytes - first_bytes + entry.record_bytes > max_bytes:
                is_full = True
                break
            if asked >= ASK_MOST:
                is_full = True
                break
            bytes_before = into.record_bytes
            outcome = queue.log.view(entry.physical_offset, <uint32_t>entry.record_bytes, into)
            if outcome == VIEW_COLD:
                is_cold = is_full = True
                break
            offset += 1
            if outcome != VIEW_OK:
                result.skipped += 1
                gone += outcome == VIEW_GONE
                continue
            if is_filtered and not _is_wanted(&into.views[into.count - 1], codes, matcher, &asked):
                into.count -= 1
                into.record_bytes = bytes_before
        result.examined = offset - from_offset
    result.next_offset = offset
    if into.count > first:
        result.status = _FOUND
    elif is_cold:
        result.status = _COLD
    elif offset == from_offset:
        result.status = _OFFSET_FOUND_NULL
    elif gone:
        result.status = _MESSAGE_WAS_REMOVING
    else:
        result.status = _NO_MATCHED_MESSAGE
    return result


cdef int64_t _record_time(QueueBase queue, const QueueEntry* entry) except -2:
    """Return when the record behind an entry was stored, -1 when there is none."""
    cdef RecordBatch batch
    cdef RecordView view
    cdef CommitLog log
    cdef Segment segment
    cdef int64_t found, position
    if entry.record_bytes == FILLER_BYTES:
        return -1
    if not isinstance(queue.log, CommitLog):
        batch = RecordBatch()
        if queue.log.view(entry.physical_offset, <uint32_t>entry.record_bytes, batch) != VIEW_OK:
            return -1
        return batch.views[0].store_timestamp_ms
    # Straight from the mapping: a search looks at some twenty records and must not ask for each to be read ahead.
    log = <CommitLog>queue.log
    if not log.first_offset <= entry.physical_offset < log.end_offset:
        return -1
    segment = log.segment_of(entry.physical_offset)
    if segment is None:
        return -1
    position = entry.physical_offset - segment.first_offset
    found = check_record(segment.base + position, segment.size_bytes - position, entry.physical_offset, False)
    if found < FIXED_BYTES:
        return -1
    read_view(segment.base + position, <uint32_t>found, &view)
    return view.store_timestamp_ms


def store_time(QueueBase queue not None, int64_t queue_offset):
    cdef QueueEntry entry
    if not queue.min_offset <= queue_offset < queue.visible_offset:
        return -1
    if queue.read_or_refuse(queue_offset, &entry, 1) <= 0:
        return -1
    return _record_time(queue, &entry)


cdef int64_t _first_behind(QueueBase queue, int64_t timestamp_ms, bint is_after) except -1:
    """Return the first offset stored at or after a time, or only after it; the queue's end if there is none."""
    cdef QueueEntry entries[AT_ONCE]
    cdef int64_t low = queue.min_offset, high = max(queue.min_offset, queue.visible_offset)
    cdef int64_t found = high
    cdef int64_t middle, probe, time_ms
    cdef Py_ssize_t i, n
    while low < high:
        middle = (low + high) >> 1
        # The next message at or behind the middle that can be read: holes have no time.
        probe = middle
        time_ms = -1
        while probe < high and time_ms < 0:
            n = queue.read_or_refuse(probe, entries, 1 if probe == middle else min(<int64_t>AT_ONCE, high - probe))
            if n <= 0:
                probe = high
                break
            for i in range(n):
                time_ms = _record_time(queue, &entries[i])
                if time_ms >= 0:
                    break
                probe += 1
        if probe < high and (time_ms < timestamp_ms or (is_after and time_ms == timestamp_ms)):
            low = probe + 1
        else:
            if probe < high:
                found = probe
            high = middle
    return found


def find_offset_by_time(QueueBase queue not None, int64_t timestamp_ms, bint upper):
    cdef int64_t offset
    if max(queue.min_offset, queue.visible_offset) == 0:
        return 0
    offset = _first_behind(queue, timestamp_ms, upper)
    if not upper:
        return offset
    return offset - 1 if offset > queue.min_offset else 0
