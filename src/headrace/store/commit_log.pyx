"""The commit log: append batches of records, view records.

Appending encodes a batch into a staging buffer and hands it to the kernel with one pwrite per MiB and segment touched
(docs/adr/0006-write-path.md), which goes on with zeros where the page cache behind is made of large folios then; views borrow from read-only mappings of the same pages. Durability is not decided here:
the store's flusher calls fdatasync and then ``mark_durable``.

A record never spans two segments: it goes into the active one only if 8 bytes stay free behind it, otherwise a blank
record fills the rest and the next segment begins (RocketMQ's room rule).
"""

import errno
import os

from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from headrace.batch cimport PublishBatch, PublishEntry, RecordBatch, RecordView
from headrace.errors import FlushError, MessageTooLargeError, StoreFullError, UnreadableError
from headrace.format.record cimport (
    BLANK_BYTES, MAX_BODY_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, RecordTemplate,
    check_record, encode_blank, encode_record, fill_template, has_queue_entry, load_u32, measure_record, read_view,
)
from headrace.format.record import describe
from headrace.store.consume_queue cimport ConsumeQueue
from headrace.store.index cimport KeyIndex
from headrace.store.log_base cimport LogBase, VIEW_COLD, VIEW_DAMAGED, VIEW_GONE, VIEW_OK
from headrace.store.segment cimport Segment, SegmentSet

cdef extern from * nogil:
    void __builtin_prefetch(const void* at)     # of any address: one that is not mapped is passed over

cdef enum:
    KEEP_STAGING_BYTES = 1 << 20
    CHUNK_BYTES = 2 << 20               # whether the log is in memory is asked, and mended, for this much at a time
    CHUNKS_AHEAD = 4                    # how far a reader that reads on is read ahead for
    MAX_RECORD_BYTES = MAX_BODY_BYTES + MAX_PROPERTIES_BYTES + 1024
    AHEAD_BYTES = 1024                  # how far ahead of a reader memory is fetched into the processor's cache
    SMALL_AHEAD_BYTES = 4096            # and of one of small records: in the next page
    SMALL_RECORD_BYTES = 512
    LINE_BYTES = 64
    ERASE_BYTES = 4 << 10               # zeroed at a time where a refused batch stood: within a page, so whole or not
    PIECE_BYTES = 1 << 20               # encoded and written at a time: writing 2 MiB at once can cost ten times as much
    FOLIO_BYTES = 128 << 10             # of page cache that is made at once; from 256 KiB on each small write costs more
    HOT_BYTES = 64 << 20                # what this process appended last is taken to be in memory


NEVER_ZEROING = <int64_t>0x7FFFFFFFFFFFFFFF


cdef inline void _fetch_ahead(const uint8_t* at) noexcept nogil:
    """Have what lies at an address on its way from memory: who reads on mostly finds the next records there."""
    __builtin_prefetch(at)
    __builtin_prefetch(at + LINE_BYTES)
    __builtin_prefetch(at + 2 * LINE_BYTES)
    __builtin_prefetch(at + 3 * LINE_BYTES)


cdef class CommitLog(LogBase):
    def __cinit__(self):
        self.staging = NULL

    def __init__(self, str directory not None, int64_t segment_bytes, Py_ssize_t most_mapped=64):
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments = SegmentSet(directory, segment_bytes, most_mapped)
        self.dirty_queues = []
        self.waiting_queues = []
        self.warm_chunks = set()
        self.warm_from = self.warm_end = 0
        self.zeroing_from = NEVER_ZEROING

    def __dealloc__(self):
        free(self.staging)

    # -- opening and closing ----------------------------------------------------------------------------------------

    def open_segments(self):
        self.segments.load()
        if self.segments:
            self.first_offset = next(iter(self.segments)) * self.segment_bytes

    def leave_out(self, indexes):
        for index in indexes:
            self.segments.leave_out(index)
        if self.segments:
            self.first_offset = next(iter(self.segments)) * self.segment_bytes

    def start_at(self, int64_t end_offset, int64_t trusted_offset):
        self.end_offset = end_offset
        self.durable_offset = end_offset
        self.trusted_offset = trusted_offset
        cdef int64_t index = end_offset // self.segment_bytes
        known = self.segments.get(index)
        if known is None:
            self.active = self.provide_segment(index * self.segment_bytes)
        else:
            self.active = Segment(known.path, known.first_offset, self.segment_bytes, writable=True)
        self.segments[index] = self.active
        if len(self.segments) == 1:
            self.first_offset = self.active.first_offset

    def close(self):
        self.active = None
        self.last_read = None
        self.segments.clear()

    # -- appending --------------------------------------------------------------------------------------------------

    cpdef int64_t append(self, PublishBatch batch, int64_t now_ms) except -1:
        cdef int64_t total = self._measure(batch, now_ms)
        cdef int64_t old_end = self.end_offset
        if total == 0:
            return self.end_offset
        self._reserve_staging(min(total, <int64_t>MAX_RECORD_BYTES) + 2 * BLANK_BYTES)
        self._encode(batch, now_ms)
        if self.staging_capacity > KEEP_STAGING_BYTES:
            free(self.staging)
            self.staging = NULL
            self.staging_capacity = 0
        if self.index is not None:
            self.index.take(batch, old_end, self.end_offset, now_ms)
        return self.end_offset

    cdef int64_t _measure(self, PublishBatch batch, int64_t now_ms) except -1:
        """Set every durable entry's size and check the format's limits; return the sum of the sizes."""
        cdef RecordTemplate template
        cdef Py_ssize_t i
        cdef uint32_t destination = 0xFFFFFFFF
        cdef uint32_t properties_bytes = 0
        cdef PublishEntry* entry
        cdef object queue = None
        cdef bint durable = False
        cdef bint refused = False
        cdef int64_t total = 0
        template.is_born_v6 = batch.born_host_v6 is not None
        template.head_bytes = 84 + (12 if template.is_born_v6 else 0) + (12 if self.store_host_v6 is not None else 0)
        template.topic_bytes = 0
        for i in range(batch.count):
            entry = &batch.entries[i]
            if entry.destination != destination:
                destination = entry.destination
                queue = batch.queues[destination]
                durable = isinstance(queue, ConsumeQueue)
                refused = queue is None
                if durable:
                    template.topic_bytes = <uint32_t>len((<ConsumeQueue>queue).topic_bytes)
                    if template.topic_bytes > MAX_TOPIC_BYTES:
                        raise MessageTooLargeError("topic name", template.topic_bytes, MAX_TOPIC_BYTES)
            if not durable:
                entry.record_bytes = 0
                if refused:
                    entry.physical_offset = -1
                continue
            if entry.body_bytes > MAX_BODY_BYTES:
                raise MessageTooLargeError("message body", entry.body_bytes, MAX_BODY_BYTES)
            entry.record_bytes = measure_record(&template, entry, &properties_bytes)
            if properties_bytes > MAX_PROPERTIES_BYTES:
                raise MessageTooLargeError("message properties", properties_bytes, MAX_PROPERTIES_BYTES)
            if entry.record_bytes + BLANK_BYTES > self.segment_bytes:
                raise MessageTooLargeError("record", entry.record_bytes, self.segment_bytes - BLANK_BYTES)
            total += entry.record_bytes
        return total

    cdef int _encode(self, PublishBatch batch, int64_t now_ms) except -1:
        """Encode, write and index the durable entries of a measured batch."""
        cdef RecordTemplate template
        cdef Py_ssize_t i
        cdef uint32_t destination = 0xFFFFFFFF
        cdef uint32_t properties_bytes = 0
        cdef PublishEntry* entry
        cdef ConsumeQueue queue = None
        cdef const uint8_t* born_v6 = NULL
        cdef const uint8_t* store_v6 = NULL
        cdef int64_t position = self.end_offset - self.active.first_offset
        cdef int64_t room_end = self.segment_bytes - (0 if batch.uses_reserve else self.reserve_bytes)
        cdef int64_t staged_from = position
        cdef uint8_t* at = self.staging
        # To go back to if a write fails.
        cdef int64_t old_end = self.end_offset
        cdef Segment old_active = self.active
        cdef list filled = []
        cdef Py_ssize_t pushed = 0
        self.reached_offset = self.end_offset
        if batch.born_host_v6 is not None:
            born_v6 = batch.born_host_v6
        if self.store_host_v6 is not None:
            store_v6 = self.store_host_v6
        try:
            for i in range(batch.count):
                entry = &batch.entries[i]
                if entry.record_bytes == 0:
                    continue
                if entry.destination != destination:
                    destination = entry.destination
                    queue = <ConsumeQueue>batch.queues[destination]
                    fill_template(&template, queue.queue_id, queue.topic_bytes, <uint32_t>len(queue.topic_bytes),
                                  batch.born_host, born_v6, self.store_host, store_v6, now_ms, now_ms)
                    if not queue.listed:
                        queue.listed = True
                        self.dirty_queues.append(queue)
                    if queue.awaits_flush and not queue.is_waiting:
                        queue.is_waiting = True
                        self.waiting_queues.append(queue)
                if position + entry.record_bytes + BLANK_BYTES > room_end:
                    encode_blank(at, <uint32_t>(self.segment_bytes - position))
                    self._write(self.active, staged_from, at + BLANK_BYTES - self.staging)
                    filled.append(self.active)
                    self._roll()
                    position = staged_from = 0
                    room_end = self.segment_bytes - (0 if batch.uses_reserve else self.reserve_bytes)
                    at = self.staging
                if at - self.staging + entry.record_bytes > PIECE_BYTES:
                    self._write(self.active, staged_from, at - self.staging)
                    staged_from = position
                    at = self.staging
                measure_record(&template, entry, &properties_bytes)
                # What no queue lists has no offset in one; RocketMQ writes 0.
                entry.queue_offset = queue.next_offset if has_queue_entry(entry.sys_flag) else 0
                entry.physical_offset = self.active.first_offset + position
                encode_record(at, &template, entry, entry.record_bytes, properties_bytes, entry.queue_offset,
                              entry.physical_offset)
                if has_queue_entry(entry.sys_flag):
                    queue.push(entry.physical_offset, <int>entry.record_bytes,
                               now_ms + queue.delay_ms if queue.delay_ms else entry.tag_hash)
                pushed = i + 1
                at += entry.record_bytes
                position += entry.record_bytes
                self.appended_bytes += entry.record_bytes
                self.appended_records += 1
            self._write(self.active, staged_from, at - self.staging)
        except BaseException:
            written = [*filled, self.active]
            self._undo(batch, pushed, old_end, old_active)
            self._erase(written, old_end, self.reached_offset)
            raise
        self.end_offset = self.active.first_offset + position
        return 0

    cdef int _undo(self, PublishBatch batch, Py_ssize_t pushed, int64_t end_offset, Segment active) except -1:
        """Take back the queue entries of a batch whose write failed."""
        cdef Py_ssize_t i
        cdef ConsumeQueue queue
        for i in range(pushed):
            if batch.entries[i].record_bytes == 0:
                continue
            if has_queue_entry(batch.entries[i].sys_flag):
                queue = <ConsumeQueue>batch.queues[batch.entries[i].destination]
                queue.next_offset -= 1
                queue.visible_offset = min(queue.visible_offset, queue.next_offset)
            self.appended_records -= 1
            self.appended_bytes -= batch.entries[i].record_bytes
        self.end_offset = end_offset
        self.active = active
        return 0

    def _erase(self, list segments, int64_t from_offset, int64_t to_offset):
        """Zero what a refused batch may have written: the next start would take its records for published ones.

        Args:
            segments: Where it was written; by their own descriptors, for there may be no others to be had.

        Raises:
            FlushError: it is there still; what is appended now would lie in front of it.
        """
        cdef Segment segment
        cdef int64_t position, piece, at, end
        # From its end: should the rest stay, a start cuts it off as a torn tail, and finds no hole in front of records.
        for segment in reversed(segments):
            position = max(from_offset - segment.first_offset, 0)
            end = min(to_offset - segment.first_offset, self.segment_bytes)
            try:
                while position < end:
                    # In pieces: there may be no memory for the whole, and the batch be refused for that.
                    piece = at = max(position, (end - 1) // ERASE_BYTES * ERASE_BYTES)
                    while at < end:
                        at += os.pwrite(segment.fd, bytes(end - at), at)
                    end = piece
            except OSError as error:
                raise FlushError(segment.path, error.errno, "taking back a refused batch from") from error

    cdef int _reserve_staging(self, Py_ssize_t size) except -1:
        cdef uint8_t* grown
        if size <= self.staging_capacity:
            return 0
        size = (size + 65535) & ~<Py_ssize_t>65535
        grown = <uint8_t*>realloc(self.staging, size)
        if grown == NULL:
            raise MemoryError(f"cannot hold a batch of {size} bytes")
        self.staging = grown
        self.staging_capacity = size
        return 0

    cdef int _write(self, Segment segment, int64_t position, Py_ssize_t size) except -1:
        cdef Py_ssize_t done = 0
        cdef Py_ssize_t wrote, piece, zeros
        if segment.first_offset + position + size > self.zeroing_from:
            self.before_zeroed()        # else zeros could replace what is written here
        zeros = self._zeros_behind(segment, position + size)
        while done < size:
            piece = min(size - done, PIECE_BYTES)
            wrote = segment.write(self.staging + done, piece, position + done, zeros if done + piece == size else 0)
            if wrote < 0:
                if c_errno == errno.EINTR:
                    continue
                if c_errno in (errno.ENOSPC, errno.EDQUOT):
                    # Nothing of this piece is there. To zero it would take the room that it did not get.
                    raise StoreFullError(f"no room to write to {segment.path}: free space on its file system")
                self.reached_offset = segment.first_offset + position + size
                raise OSError(c_errno, os.strerror(c_errno), segment.path)
            done += wrote
            self.reached_offset = segment.first_offset + position + min(done, size)
        self.filled_offset = max(self.filled_offset, segment.first_offset + position + done)
        return 0

    cdef Py_ssize_t _zeros_behind(self, Segment segment, int64_t position) noexcept:
        """Return how many zeros to write behind what ends at a position: up to where the kernel is to begin a folio."""
        cdef int64_t end
        if not self.fills_folios or segment.first_offset + position <= self.filled_offset:
            return 0
        end = min((position + FOLIO_BYTES - 1) & ~<int64_t>(FOLIO_BYTES - 1), segment.size_bytes)
        return max(min(end, self.zeroing_from - segment.first_offset) - position, 0)

    cdef int _roll(self) except -1:
        """Make the next segment the active one."""
        cdef int64_t first_offset = self.active.first_offset + self.segment_bytes
        cdef Segment segment = self.provide_segment(first_offset)
        self.segments[first_offset // self.segment_bytes] = segment
        self.active = segment
        return 0

    def mark_durable(self, int64_t physical_offset):
        if physical_offset > self.durable_offset:
            self.durable_offset = physical_offset

    def show_durable(self):
        cdef ConsumeQueue queue
        cdef list shown = []
        cdef list waiting = []
        for queue in self.waiting_queues:
            if queue.advance_visible(self.durable_offset):
                shown.append(queue)
            if queue.visible_offset < queue.next_offset:
                waiting.append(queue)
            else:
                queue.is_waiting = False
        self.waiting_queues = waiting
        return shown

    # -- reading ----------------------------------------------------------------------------------------------------

    cpdef Segment segment_of(self, int64_t physical_offset):
        cdef Segment segment = self.last_read
        if segment is not None and segment.first_offset <= physical_offset < segment.first_offset + self.segment_bytes:
            return segment
        try:
            segment = self.segments.find(physical_offset // self.segment_bytes)
        except OSError as error:
            self.on_unreadable(error)
            raise UnreadableError(error) from error
        if segment is not None:
            self.last_read = segment
        return segment

    cdef int view(self, int64_t physical_offset, uint32_t record_bytes, RecordBatch into) except -1:
        cdef Segment segment
        cdef int64_t position, found
        cdef uint8_t* at
        cdef RecordView* view
        if physical_offset < self.first_offset:
            return VIEW_GONE
        segment = self.last_read
        if segment is None or not 0 <= physical_offset - segment.first_offset < self.segment_bytes:
            try:                            # here only, since it costs something
                segment = self.segment_of(physical_offset)
            except UnreadableError:
                return VIEW_COLD
        if segment is None or physical_offset >= self.end_offset:
            self.on_damaged(physical_offset, "the log does not reach there")
            return VIEW_DAMAGED
        position = physical_offset - segment.first_offset
        if (physical_offset < max(self.end_offset - HOT_BYTES, self.trusted_offset)
                and not (record_bytes and self.warm_from <= physical_offset
                         and physical_offset + record_bytes <= self.warm_end)
                and not self._is_warm(segment, position, record_bytes)):
            return VIEW_COLD
        at = segment.base + position
        # Also without its checksum a record proves that it begins here: a journal may name one that a power cut took.
        found = check_record(at, self.segment_bytes - position, physical_offset,
                             into.verifies or physical_offset < self.trusted_offset)
        if found <= 0 or (record_bytes != 0 and found != record_bytes):
            self.on_damaged(physical_offset, describe(found))
            return VIEW_DAMAGED
        record_bytes = <uint32_t>found
        _fetch_ahead(at + (SMALL_AHEAD_BYTES if record_bytes < SMALL_RECORD_BYTES else AHEAD_BYTES))
        view = into.add()
        read_view(at, record_bytes, view)
        into.record_bytes += record_bytes
        into.pin(segment)
        return VIEW_OK

    cdef bint _is_warm(self, Segment segment, int64_t position, int64_t record_bytes) except -1:
        """Whether the record at a position is in memory; if not, have it read.

        Who comes from the chunk before reads on, most likely: what follows is read ahead then, so that it seldom waits.
        """
        cdef int64_t first = position - position % CHUNK_BYTES
        cdef int64_t at = first
        cdef bint is_warm = True
        if not self._is_chunk_warm(segment, first):
            return False
        if record_bytes == 0 and position + 4 <= segment.size_bytes:
            record_bytes = load_u32(segment.base + position)
        record_bytes = min(max(record_bytes, 1), <int64_t>MAX_RECORD_BYTES)
        while at < min(position + record_bytes, segment.size_bytes):
            is_warm = self._is_chunk_warm(segment, at) and is_warm
            at += CHUNK_BYTES
        if segment.first_offset + first - CHUNK_BYTES in self.warm_chunks:
            self._read_ahead(segment, at)
        if is_warm:
            self.warm_from = segment.first_offset + first
            self.warm_end = segment.first_offset + min(at, segment.size_bytes)
        return is_warm

    cdef int _read_ahead(self, Segment segment, int64_t position) except -1:
        cdef int64_t end = min(position + CHUNKS_AHEAD * CHUNK_BYTES, segment.size_bytes)
        end = min(end, self.end_offset - segment.first_offset)
        while position < end:
            self._is_chunk_warm(segment, position)
            position += CHUNK_BYTES
        return 0

    cdef bint _is_chunk_warm(self, Segment segment, int64_t position) except -1:
        cdef int64_t size
        key = segment.first_offset + position
        if key in self.warm_chunks:
            return True
        # Not behind the log's end: what was read there would count as written.
        size = min(<int64_t>CHUNK_BYTES, self.end_offset - segment.first_offset - position)
        if not segment.is_resident(position, size):
            self.on_cold(segment, position, size)
            return False
        self.warm_chunks.add(key)
        return True

    def mark_warm(self, int64_t first_offset, int64_t position):
        self.warm_chunks.add(first_offset + position)

    def forget_warm(self):
        self.warm_chunks.clear()
        self.warm_from = self.warm_end = 0

    def read(self, int64_t physical_offset):
        cdef Segment segment
        cdef int64_t position, found
        if not self.first_offset <= physical_offset < self.end_offset:
            return None
        segment = self.segment_of(physical_offset)
        if segment is None:
            return None
        position = physical_offset - segment.first_offset
        found = check_record(segment.base + position, self.segment_bytes - position, physical_offset, True)
        if found <= 0:
            return None
        return segment.base[position:position + found]
