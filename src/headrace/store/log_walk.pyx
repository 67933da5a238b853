# cython: nonecheck=False
# ("self" is never None; the debug build's check for it would need the GIL in the walk)
"""Walk over a commit log to check it: every record, and the consume-queue entry that should point at it.

Unlike recovery this never writes, needs no lock, and reads with pread instead of a mapping: a bad sector is then an
error to report and not a SIGBUS, and a broker may cut or remove a file meanwhile. The walk runs without the GIL and
stops only at an *event*: something that Python has to decide or to fetch. After an event the caller repairs the cause
(names the queue, fetches entries, accepts the gap) and calls ``walk`` again, which takes up the same record.
"""

import os

from libc.errno cimport errno as c_errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset
from posix.unistd cimport pread

from headrace.batch cimport RecordView
from headrace.format.arrays cimport reserve
from headrace.format.record cimport (
    BLANK_BYTES, FIXED_BYTES, PHYSICAL_OFFSET_AT, RECORD_BAD_SIZE, RECORD_BLANK, RECORD_UNWRITTEN, check_record, has_checksum,
    is_dispatched, load_i32, load_i64, load_u32, read_view, record_batch_entries, record_tag_hash, store_i64, store_u32,
    topic_of,
)
from headrace.format.record import decode
from headrace.format.sparse import has_bytes, written_end

cdef enum:
    ENTRY_BYTES = 20
    BUFFER_BYTES = 8 << 20
    MAX_RECORD_BYTES = 64 << 20    # more cannot be a record, whatever its size field says
    FIRST_WINDOW = 64               # entries fetched for a queue at first; doubled each time
    MAX_WINDOW = 4096
    PROGRESS_BYTES = 32 << 20

cdef enum:                      # why the walk stops
    _SAME = -1                  # it does not: the record has the entry that it should have
    _END = 0
    _INVALID = 1
    _NEW_QUEUE = 2
    _FETCH = 3
    _GAP = 4
    _REPEAT = 5
    _WRONG_ENTRY = 6
    _MISSING = 7
    _PROGRESS = 8
    _UNREADABLE = 9

END = _END
INVALID = _INVALID
NEW_QUEUE = _NEW_QUEUE
FETCH = _FETCH
GAP = _GAP
REPEAT = _REPEAT
WRONG_ENTRY = _WRONG_ENTRY
MISSING = _MISSING
PROGRESS = _PROGRESS
UNREADABLE = _UNREADABLE

cdef struct Track:              # one queue
    const uint8_t* topic        # in LogWalk.names
    uint32_t topic_bytes
    int32_t queue_id
    bint compare_tags
    int64_t first_offset        # queue offset of the first record met, -1 before
    int64_t next_offset         # queue offset that the next record should have
    int64_t last_position       # physical offset of the last record met, -1 before
    int64_t pending             # records above the promised offset whose entry is not written yet
    int64_t missing_first       # run of records whose entry should be there and is not
    int64_t missing_count
    uint8_t* window             # raw entries [window_first, window_first + window_entries)
    int64_t window_first
    int64_t window_entries
    int64_t window_wanted


cdef inline uint64_t _hash(const uint8_t* topic, uint32_t size, int32_t queue_id) noexcept nogil:
    """FNV-1a."""
    cdef uint64_t value = <uint64_t>0xCBF29CE484222325 ^ <uint32_t>queue_id
    cdef uint32_t i
    for i in range(size):
        value = (value ^ topic[i]) * <uint64_t>0x100000001B3
    return value ^ (value >> 29)


cdef class LogWalk:
    cdef readonly int64_t segment_bytes
    cdef readonly int64_t promised_offset
    cdef readonly int64_t records           # whole ones met
    cdef readonly int64_t position          # in the segment: of the record at hand
    cdef readonly int64_t first_offset      # of the segment
    cdef readonly int64_t found             # what check_record said, at INVALID
    cdef readonly int64_t record_bytes      # of the record at hand
    cdef readonly int64_t queue_offset
    cdef readonly Py_ssize_t track          # index of the queue at hand
    cdef readonly int64_t command_offset    # where the command begins whose end was not met; -1
    cdef readonly int64_t command_records   # how many of its records were met
    cdef readonly int64_t last_offset       # of the record that was met last, and the command that was open in front of
    cdef readonly int64_t last_command      # its end; -1
    cdef readonly int64_t last_records
    cdef readonly bint lost_checksum        # it has no checksum of the whole, and the one before it has
    cdef bint is_checked
    cdef int64_t command_left
    cdef int64_t stop                       # position where the segment ends for this walk
    cdef int64_t written_end                # behind it there are zeros
    cdef int64_t skip_entry                 # position whose entry has been judged
    cdef int64_t next_progress
    cdef int error
    cdef int fd
    cdef uint8_t* buffer
    cdef int64_t capacity
    cdef int64_t start                      # the buffer holds [start, end) of the segment
    cdef int64_t end
    cdef Track* tracks
    cdef readonly Py_ssize_t track_count
    cdef Py_ssize_t track_capacity
    cdef int32_t* slots                     # open addressing: index of a track + 1
    cdef Py_ssize_t slot_count
    cdef list names

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int64_t segment_bytes, int64_t promised_offset):
        self.segment_bytes = segment_bytes
        self.promised_offset = promised_offset
        self.names = []
        self.command_offset = self.last_offset = self.last_command = -1
        self.is_checked = True
        self.skip_entry = -1
        self.capacity = min(<int64_t>BUFFER_BYTES, segment_bytes)
        self.buffer = <uint8_t*>malloc(self.capacity)
        self.slot_count = 64
        self.slots = <int32_t*>calloc(self.slot_count, sizeof(int32_t))
        if self.buffer == NULL or self.slots == NULL:
            raise MemoryError("cannot hold the buffer of a log walk")

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.track_count):
            free(self.tracks[i].window)
        free(self.tracks)
        free(self.slots)
        free(self.buffer)
        if self.fd >= 0:
            os.close(self.fd)

    # -- the file ---------------------------------------------------------------------------------------------------

    def open(self, str path not None, int64_t first_offset):
        cdef int fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close()
        self.fd = fd
        self.first_offset = first_offset
        self.position = self.start = self.end = 0
        self.stop = self.segment_bytes
        self.written_end = min(written_end(self.fd), self.segment_bytes)
        self.skip_entry = -1
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def reread(self):
        self.start = self.end = 0
        self.written_end = min(written_end(self.fd), self.segment_bytes)

    def stop_at(self, int64_t position):
        self.stop = position

    def seek(self, int64_t position):
        self.position = position
        self.command_offset = -1
        self.command_left = 0

    cdef const uint8_t* _need(self, int64_t position, int64_t size) noexcept nogil:
        """Return where [position, position + size) of the segment is in memory; NULL with ``error`` set.

        What lies behind the end of a file that is too short reads as zeros.
        """
        cdef int64_t keep, wanted
        cdef Py_ssize_t got
        cdef uint8_t* grown
        if position >= self.start and position + size <= self.end:
            return self.buffer + (position - self.start)
        if size > self.capacity:
            grown = <uint8_t*>realloc(self.buffer, size)
            if grown == NULL:
                self.error = 12     # ENOMEM
                return NULL
            self.buffer = grown
            self.capacity = size
        if self.start <= position < self.end:
            keep = self.end - position
            memmove(self.buffer, self.buffer + (position - self.start), keep)
        else:
            keep = 0
        self.start = position
        self.end = position + keep
        wanted = min(self.capacity, self.segment_bytes - position)
        while self.end - self.start < wanted:
            got = pread(self.fd, self.buffer + (self.end - self.start), wanted - (self.end - self.start), self.end)
            if got < 0:
                if c_errno == 4:    # EINTR
                    continue
                self.error = c_errno
                self.start = self.end = 0
                return NULL
            if got == 0:
                memset(self.buffer + (self.end - self.start), 0, wanted - (self.end - self.start))
                got = wanted - (self.end - self.start)
            self.end += got
        return self.buffer

    cdef int64_t _check(self, int64_t position, int64_t offset) noexcept nogil:
        """Check the record at ``position``; ``offset`` -1 lets it lie anywhere. Sets ``error`` on a failed read."""
        cdef int64_t room = self.segment_bytes - position
        cdef const uint8_t* at
        cdef int64_t size
        if room < BLANK_BYTES:
            return RECORD_UNWRITTEN
        at = self._need(position, BLANK_BYTES)
        if at == NULL:
            return RECORD_UNWRITTEN
        size = load_u32(at)
        if size > MAX_RECORD_BYTES and size <= room and load_u32(at + 4) >> 16 == 0xDAA3:
            return RECORD_BAD_SIZE
        if FIXED_BYTES <= size <= room and load_u32(at + 4) >> 16 == 0xDAA3:
            # Its place first: a body may be full of what looks like the beginnings of large records.
            at = self._need(position, FIXED_BYTES)
            if at != NULL and (offset < 0 or load_i64(at + PHYSICAL_OFFSET_AT) == offset):
                at = self._need(position, size)
            if at == NULL:
                return RECORD_UNWRITTEN
        return check_record(at, room, offset, True)

    # -- queues -----------------------------------------------------------------------------------------------------

    def add_queue(self, bytes topic not None, int32_t queue_id, bint compare_tags=True):
        cdef Track* track
        cdef Py_ssize_t i
        reserve(<void**>&self.tracks, &self.track_capacity, self.track_count + 1, 16, sizeof(Track))
        track = &self.tracks[self.track_count]
        memset(track, 0, sizeof(Track))
        self.names.append(topic)
        track.topic = topic
        track.topic_bytes = <uint32_t>len(topic)
        track.queue_id = queue_id
        track.compare_tags = compare_tags
        track.first_offset = track.last_position = -1
        track.window_wanted = FIRST_WINDOW
        self.track_count += 1
        if self.track_count * 2 > self.slot_count:
            free(self.slots)
            self.slot_count *= 4
            self.slots = <int32_t*>calloc(self.slot_count, sizeof(int32_t))
            if self.slots == NULL:
                raise MemoryError("cannot track another queue")
            for i in range(self.track_count):
                self._place(i)
        else:
            self._place(self.track_count - 1)
        return self.track_count - 1

    cdef void _place(self, Py_ssize_t index) noexcept:
        cdef Track* track = &self.tracks[index]
        cdef uint64_t slot = _hash(track.topic, track.topic_bytes, track.queue_id) & <uint64_t>(self.slot_count - 1)
        while self.slots[slot]:
            slot = (slot + 1) & <uint64_t>(self.slot_count - 1)
        self.slots[slot] = <int32_t>(index + 1)

    cdef Py_ssize_t _track_of(self, const uint8_t* topic, uint32_t size, int32_t queue_id) noexcept nogil:
        cdef uint64_t slot = _hash(topic, size, queue_id) & <uint64_t>(self.slot_count - 1)
        cdef Track* track
        while self.slots[slot]:
            track = &self.tracks[self.slots[slot] - 1]
            if track.queue_id == queue_id and track.topic_bytes == size and memcmp(track.topic, topic, size) == 0:
                return self.slots[slot] - 1
            slot = (slot + 1) & <uint64_t>(self.slot_count - 1)
        return -1

    cdef Track* _get(self, Py_ssize_t index) except NULL:
        if not 0 <= index < self.track_count:
            raise IndexError(index)
        return &self.tracks[index]

    def wanted_entries(self, Py_ssize_t index):
        return self._get(index).window_wanted

    def put_entries(self, Py_ssize_t index, int64_t first_offset, bytes raw not None):
        cdef Track* track = self._get(index)
        cdef int64_t entries = len(raw) // ENTRY_BYTES
        cdef uint8_t* grown = <uint8_t*>realloc(track.window, max(entries, 1) * ENTRY_BYTES)
        if grown == NULL:
            raise MemoryError("cannot hold consume-queue entries")
        track.window = grown
        memcpy(grown, <const uint8_t*>raw, entries * ENTRY_BYTES)
        track.window_first = first_offset
        track.window_entries = entries
        track.window_wanted = min(track.window_wanted * 2, <int64_t>MAX_WINDOW)

    def accept_offset(self, Py_ssize_t index, int64_t queue_offset):
        self._get(index).next_offset = queue_offset

    def begin_anew(self, Py_ssize_t index, int64_t queue_offset):
        cdef Track* track = self._get(index)
        track.first_offset = track.next_offset = queue_offset
        track.missing_count = 0

    def skip_record(self):
        self.position += self.record_bytes

    def judge_entry(self):
        self.skip_entry = self.first_offset + self.position

    def take_missing(self, Py_ssize_t index):
        cdef Track* track = self._get(index)
        run = (track.missing_first, track.missing_count)
        track.missing_count = 0
        return run

    def totals(self, Py_ssize_t index):
        cdef Track* track = self._get(index)
        return track.next_offset, track.pending

    def last_position(self, Py_ssize_t index):
        return self._get(index).last_position

    def name(self, Py_ssize_t index):
        cdef Track* track = self._get(index)
        return self.names[index], track.queue_id

    def entry(self, Py_ssize_t index, int64_t queue_offset):
        """Return the raw entry in the window."""
        cdef Track* track = self._get(index)
        cdef int64_t at = queue_offset - track.window_first
        if not 0 <= at < track.window_entries:
            raise IndexError(queue_offset)
        return (<const char*>track.window + at * ENTRY_BYTES)[:ENTRY_BYTES]

    # -- walking ----------------------------------------------------------------------------------------------------

    def walk(self):
        cdef int event
        with nogil:
            event = self._walk()
        return event

    cdef int _walk(self) noexcept nogil:
        cdef int64_t found, offset
        cdef const uint8_t* record
        cdef const uint8_t* topic = NULL
        cdef uint32_t topic_bytes = 0
        cdef RecordView view
        cdef int event
        while True:
            if self.position >= self.stop:
                return _END
            offset = self.first_offset + self.position
            if offset >= self.next_progress:
                self.next_progress = offset + PROGRESS_BYTES
                return _PROGRESS
            self.error = 0
            found = self._check(self.position, offset)
            if self.error:
                return _UNREADABLE
            if found == RECORD_BLANK:
                self.position = self.segment_bytes
                return _END
            if found <= 0:
                self.found = found
                return _INVALID
            record = self._need(self.position, found)
            self.record_bytes = found
            read_view(record, <uint32_t>found, &view)
            if is_dispatched(record) and topic_of(&view, &topic, &topic_bytes):
                event = self._compare(&view, topic, topic_bytes, offset)
                if event != _SAME:
                    return event
            self._count(&view, offset)
            self.position += found

    cdef int _compare(self, const RecordView* view, const uint8_t* topic, uint32_t topic_bytes,
                      int64_t offset) noexcept nogil:
        """Hold a record against its queue; where that stops the walk, it comes here again."""
        cdef int64_t at
        cdef Track* track
        cdef int event
        self.track = self._track_of(topic, topic_bytes, <int32_t>view.queue_id)
        self.queue_offset = view.queue_offset
        if self.track < 0:
            return _NEW_QUEUE
        track = &self.tracks[self.track]
        if track.first_offset < 0:
            track.first_offset = track.next_offset = view.queue_offset
        if view.queue_offset > track.next_offset:
            return _GAP
        if view.queue_offset < track.next_offset:
            return _REPEAT
        if self.skip_entry != offset:
            at = view.queue_offset - track.window_first
            if at < 0 or at >= track.window_entries:
                return _FETCH
            event = self._compare_entry(view, track, track.window + at * ENTRY_BYTES, offset)
            if event != _SAME:
                return event
        track.next_offset += 1
        track.last_position = offset
        return _SAME

    cdef int _compare_entry(self, const RecordView* view, Track* track, const uint8_t* entry,
                            int64_t offset) noexcept nogil:
        """Hold a record against its entry. Those that lack one are counted as long as they follow each other."""
        cdef uint8_t expected[20]
        store_i64(expected, offset)
        store_u32(expected + 8, view.record_bytes)
        store_i64(expected + 12, record_tag_hash(view))
        if memcmp(entry, expected, 20 if track.compare_tags else 12) == 0:
            return _SAME
        if load_i32(entry + 8) != 0:
            return _WRONG_ENTRY
        if offset + view.record_bytes > self.promised_offset:
            track.pending += 1
        elif track.missing_count and track.missing_first + track.missing_count == view.queue_offset:
            track.missing_count += 1
        elif track.missing_count:
            return _MISSING
        else:
            track.missing_first = view.queue_offset
            track.missing_count = 1
        return _SAME

    cdef void _count(self, const RecordView* view, int64_t offset) noexcept nogil:
        """Note a record, and the command that it is part of."""
        cdef int64_t entries = record_batch_entries(view)
        if entries > 1:
            self.command_offset, self.command_left, self.command_records = offset, entries, 0
        self.lost_checksum, self.is_checked = self.is_checked and not has_checksum(view), has_checksum(view)
        self.last_offset, self.last_command, self.last_records = offset, self.command_offset, self.command_records
        if self.command_left > 0:
            self.command_left -= 1
            self.command_records += 1
        if self.command_left == 0:
            self.command_offset = -1
        self.records += 1

    def read_errno(self):
        return self.error

    def record(self, int64_t position):
        self.error = 0
        cdef int64_t found = self._check(position, self.first_offset + position)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self.claims(position) if found > 0 else found

    def find(self, int64_t position):
        cdef int64_t hit
        self.error = 0
        with nogil:
            hit = self._find(position)
        return hit

    cdef int64_t _find(self, int64_t position) noexcept nogil:
        cdef int64_t chunk
        cdef const uint8_t* base
        cdef const uint8_t* p
        cdef const uint8_t* stop
        cdef const uint8_t* hit
        cdef int64_t at = position + 4      # of the magic's first byte
        cdef int64_t candidate
        while at + 4 <= self.written_end:
            chunk = min(<int64_t>(1 << 20), self.written_end - at)
            base = self._need(at, chunk)
            if base == NULL:
                return -1
            p = base
            stop = base + chunk - 3
            hit = <const uint8_t*>memchr(p, 0xDA, stop - p)
            if hit == NULL:
                at += chunk - 3
                continue
            at += hit - base
            if hit[1] == 0xA3 and hit[2] == 0x20:
                candidate = at - 4
                if self._check(candidate, self.first_offset + candidate) > 0:
                    return candidate
            at += 1
        return -1

    def has_bytes_behind(self, int64_t position):
        return has_bytes(self.fd, position, self.written_end)

    def is_whole_elsewhere(self, int64_t position):
        cdef int64_t found = self._check(position, -1)
        if found <= 0 or load_i64(self._need(position, found) + PHYSICAL_OFFSET_AT) == self.first_offset + position:
            return 0
        return found

    def claims(self, int64_t position):
        cdef const uint8_t* at = self._need(position, BLANK_BYTES)
        cdef int64_t size
        if at == NULL:
            return None
        size = load_u32(at)
        if not FIXED_BYTES <= size <= min(self.segment_bytes - position, <int64_t>MAX_RECORD_BYTES):
            return None
        at = self._need(position, size)
        if at == NULL:
            return None
        try:
            return decode((<const char*>at)[:size])
        except ValueError:
            return None
