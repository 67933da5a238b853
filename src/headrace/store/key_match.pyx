"""Which records of the log have a key: what ``key_query`` holds each candidate of the index against.

Many at a time and without the GIL: a key may be that of thousands of messages whose records have to come from disk, and
whoever asks for it is not to hold up the broker. Records are read with pread, so that a damaged disk is an error, and a
segment that leaves the maps meanwhile none.

A candidate is looked at for the bytes of its key first: most lack them where the unique key that is asked for is among
the KEYS of many, and that takes a tenth of what a checksum does.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp
from posix.unistd cimport pread

from headrace.batch cimport RecordView
from headrace.format.record cimport (
    BLANK_BYTES,
    SYS_FLAG_PREPARED,
    check_record,
    load_u32,
    read_view,
    topic_of,
)
from headrace.format.separators cimport find_end, find_separator
from headrace.store.segment cimport Segment

import os

cdef extern from "<string.h>" nogil:
    const void* memmem(const void* text, size_t size, const void* part, size_t part_bytes)

cdef enum:
    FIRST_READ_BYTES = 4096     # most records are shorter: one read each
    MAX_RECORD_BYTES = 5 << 20
    MAX_AT_ONCE = 64

cdef struct Candidate:
    int fd
    int64_t position            # in its segment
    int64_t physical_offset
    bint is_match
    bint is_prepared
    int32_t queue_id
    int64_t queue_offset


cdef class KeyMatcher:
    cdef list _texts                # that the pointers below point into
    cdef const char* _topic
    cdef const char* _key
    cdef const char* _mark          # what stands in a record that has the key
    cdef size_t _topic_bytes
    cdef size_t _key_bytes
    cdef size_t _mark_bytes
    cdef int64_t _begin_ms
    cdef int64_t _end_ms
    cdef bint _unique
    cdef uint8_t* _record           # the one at hand
    cdef size_t _room

    def __init__(self, bytes topic not None, bytes key not None, int64_t begin_ms, int64_t end_ms, *, bint unique=False):
        cdef bytes mark = b"UNIQ_KEY\x01" + key if unique else key
        self._texts = [topic, key, mark]
        self._topic, self._topic_bytes = topic, len(topic)
        self._key, self._key_bytes = key, len(key)
        self._mark, self._mark_bytes = mark, len(mark)
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._unique = unique

    def __dealloc__(self):
        free(self._record)

    def match(self, list candidates not None):
        cdef Py_ssize_t count = len(candidates)
        cdef Py_ssize_t i
        cdef Segment segment
        cdef Candidate* at
        cdef Candidate* rows
        cdef int failure = 0
        if count > MAX_AT_ONCE:
            raise ValueError(f"{count} candidates, at most {MAX_AT_ONCE} are looked at in one call")
        rows = <Candidate*>PyMem_Malloc((count + 1) * sizeof(Candidate))
        if rows == NULL:
            raise MemoryError
        try:
            for i in range(count):
                segment, offset = candidates[i]
                at = &rows[i]
                at.fd = segment.fd
                at.physical_offset = offset
                at.position = at.physical_offset - segment.first_offset
            with nogil:
                for i in range(count):
                    failure = self._look_at(&rows[i])
                    if failure:
                        break
            if failure:
                raise OSError(failure, os.strerror(failure), candidates[i][0].path)
            return [
                (rows[i].physical_offset, rows[i].queue_id, rows[i].queue_offset, bool(rows[i].is_prepared))
                for i in range(count) if rows[i].is_match
            ]
        finally:
            PyMem_Free(rows)

    cdef int _look_at(self, Candidate* at) except -1 nogil:
        """Find out whether a candidate is a match; return errno where its record cannot be read."""
        cdef Py_ssize_t got, more
        cdef uint32_t size
        cdef RecordView view
        cdef const uint8_t* topic = NULL
        cdef uint32_t topic_bytes = 0
        at.is_match = False
        self._reserve(FIRST_READ_BYTES)
        got = pread(at.fd, self._record, FIRST_READ_BYTES, at.position)
        if got < 0:
            return errno
        size = load_u32(self._record) if got >= 4 else 0
        if got < size <= <uint32_t>MAX_RECORD_BYTES:
            self._reserve(size)
            more = pread(at.fd, self._record + got, size - got, at.position + got)
            if more < 0:
                return errno
            got += more
        if got < size or size < BLANK_BYTES or memmem(self._record, size, self._mark, self._mark_bytes) == NULL:
            return 0
        if check_record(self._record, size, at.physical_offset, True) != size:
            return 0
        read_view(self._record, size, &view)
        topic_of(&view, &topic, &topic_bytes)
        if topic_bytes != self._topic_bytes or memcmp(topic, self._topic, topic_bytes) != 0:
            return 0
        if not self._unique and not self._begin_ms <= view.store_timestamp_ms <= self._end_ms:
            return 0
        if not self._has_key(view.properties, view.properties + view.properties_bytes):
            return 0
        at.is_match = True
        at.is_prepared = load_u32(self._record + 36) & SYS_FLAG_PREPARED != 0
        at.queue_id = <int32_t>view.queue_id
        at.queue_offset = view.queue_offset
        return 0

    cdef int _reserve(self, size_t size) except -1 nogil:
        cdef void* moved
        if size > self._room:
            moved = realloc(self._record, size)
            if moved == NULL:
                with gil:
                    raise MemoryError(f"no memory for a record of {size} bytes")
            self._record = <uint8_t*>moved
            self._room = size
        return 0

    cdef bint _has_key(self, const char* p, const char* end) noexcept nogil:
        """Whether the key is the UNIQ_KEY or one of the KEYS; of a property that is there twice the last one counts."""
        cdef const char* middle
        cdef const char* stop
        cdef bint is_unique = False
        cdef bint is_listed = False
        while p < end:
            middle = find_separator(p, end)
            stop = middle if middle == end or middle[0] == 2 else find_end(middle, end)
            if middle + 1 < stop:
                if middle - p == 8 and memcmp(p, b"UNIQ_KEY", 8) == 0:
                    is_unique = self._is_key(middle + 1, stop)
                elif middle - p == 4 and memcmp(p, b"KEYS", 4) == 0:
                    is_listed = self._is_one_of(middle + 1, stop)
            p = stop + 1
        return is_unique or (is_listed and not self._unique)

    cdef bint _is_key(self, const char* p, const char* end) noexcept nogil:
        return <size_t>(end - p) == self._key_bytes and memcmp(p, self._key, self._key_bytes) == 0

    cdef bint _is_one_of(self, const char* p, const char* end) noexcept nogil:
        """Whether the key is one of the texts between spaces."""
        cdef const char* stop
        while p < end:
            stop = <const char*>memchr(p, 32, end - p)
            if stop == NULL:
                stop = end
            if self._is_key(p, stop):
                return True
            p = stop + 1
        return False
