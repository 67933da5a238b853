"""StateWriter and StateReader: the bytes of a channel's state.

All fields are little-endian, as both supported architectures are; a state never leaves the broker that wrote it. A
reader that runs past the end raises ``ValueError``: the journal's checksum has already vouched for the bytes, so this
means a state of another version or a bug.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy

from headrace.format.arrays cimport reserve


cdef class StateWriter:
    """A growing byte buffer."""

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t* reserve(self, Py_ssize_t size) except NULL:
        """Make room for ``size`` more bytes and count them as written."""
        reserve(<void**>&self.data, &self.capacity, self.size + size, 256, 1)
        cdef uint8_t* at = self.data + self.size
        self.size += size
        return at

    cdef int put_u8(self, uint8_t value) except -1:
        self.reserve(1)[0] = value
        return 0

    cdef int put_u16(self, uint16_t value) except -1:
        memcpy(self.reserve(2), &value, 2)
        return 0

    cdef int put_u32(self, uint32_t value) except -1:
        memcpy(self.reserve(4), &value, 4)
        return 0

    cdef int put_i64(self, int64_t value) except -1:
        memcpy(self.reserve(8), &value, 8)
        return 0

    cdef int put_entries(self, StateWriter entries) except -1:
        """Write the section that has the entries of another buffer, which holds nothing else; none without any."""
        if entries.size:
            self.put_u8(SECTION_ENTRIES)
            self.put_u32(<uint32_t>entries.entry_count())
            memcpy(self.reserve(entries.size), entries.data, entries.size)
        return 0

    cdef int append(self, const MessageEntry* entries, Py_ssize_t count) except -1:
        if count == 0:
            return 0
        memcpy(self.reserve(count * sizeof(MessageEntry)), entries, count * sizeof(MessageEntry))
        return 0

    cdef Py_ssize_t entry_count(self) noexcept:
        return self.size // <Py_ssize_t>sizeof(MessageEntry)

    cdef bytes finish(self):
        return PyBytes_FromStringAndSize(<char*>self.data, self.size)


cdef class StateReader:
    """Takes fields off the front of a state."""

    def __init__(self, bytes state not None):
        self.owner = state
        self.data = <const uint8_t*>PyBytes_AS_STRING(state)
        self.size = len(state)

    cdef const uint8_t* take(self, Py_ssize_t size) except NULL:
        if size < 0 or self.size - self.at < size:
            raise ValueError(f"channel state ends at byte {self.size}, {size} more wanted at {self.at}")
        self.at += size
        return self.data + self.at - size

    cdef uint8_t take_u8(self) except? 0:
        return self.take(1)[0]

    cdef uint16_t take_u16(self) except? 0:
        cdef uint16_t value
        memcpy(&value, self.take(2), 2)
        return value

    cdef uint32_t take_u32(self) except? 0:
        cdef uint32_t value
        memcpy(&value, self.take(4), 4)
        return value

    cdef int64_t take_i64(self) except? -1:
        cdef int64_t value
        memcpy(&value, self.take(8), 8)
        return value

    cdef uint64_t take_u64(self) except? 0:
        cdef uint64_t value
        memcpy(&value, self.take(8), 8)
        return value

    cdef bint has_more(self) noexcept:
        return self.at < self.size
