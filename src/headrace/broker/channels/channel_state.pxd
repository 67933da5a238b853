# The bytes of a channel's state: sections written by one end and read by the other.
# Layout: docs/formats/channel-journal.md, "State".

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    STATE_CHANGES = 1       # first byte of a state: what changed since the last one
    STATE_SNAPSHOT = 2      # ... or everything
    STATE_VERSION = 1       # second byte
    SECTION_POSITION = 1    # u16 queue_id | i64 floor | i64 cursor
    SECTION_WORDS = 2       # u16 queue_id | i64 page | u16 count | count * (u16 word | u64 bits)
    SECTION_FULL_PAGE = 3   # u16 queue_id | i64 page
    SECTION_ENTRIES = 4     # u32 count | count * MessageEntry
    SECTION_CUT = 5         # u16 queue_id | i64 end: what lies at or above it never was

cdef struct MessageEntry:   # one message that waits: 24 bytes in memory and in the journal, little-endian
    int64_t due_ms          # 0: ready at once
    uint64_t where          # physical_offset << 16 | attempts
    uint64_t place          # queue_offset << 16 | queue_id

cdef class StateWriter:
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef uint8_t* reserve(self, Py_ssize_t size) except NULL
    cdef int put_u8(self, uint8_t value) except -1
    cdef int put_u16(self, uint16_t value) except -1
    cdef int put_u32(self, uint32_t value) except -1
    cdef int put_i64(self, int64_t value) except -1
    cdef int put_entries(self, StateWriter entries) except -1
    cdef int append(self, const MessageEntry* entries, Py_ssize_t count) except -1
    cdef Py_ssize_t entry_count(self) noexcept
    cdef bytes finish(self)

cdef class StateReader:
    cdef object owner
    cdef const uint8_t* data
    cdef Py_ssize_t at
    cdef Py_ssize_t size
    cdef const uint8_t* take(self, Py_ssize_t size) except NULL
    cdef uint8_t take_u8(self) except? 0
    cdef uint16_t take_u16(self) except? 0
    cdef uint32_t take_u32(self) except? 0
    cdef int64_t take_i64(self) except? -1
    cdef uint64_t take_u64(self) except? 0
    cdef bint has_more(self) noexcept
