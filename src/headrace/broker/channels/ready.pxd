# A ring of messages that were delivered or deferred before and are ready again.

from libc.stdint cimport int64_t, uint64_t

cdef struct ReadyEntry:
    uint64_t where              # physical_offset << 16 | attempts
    uint64_t place              # queue_offset << 16 | queue_id

cdef class ReadyRing:
    cdef ReadyEntry* entries
    cdef Py_ssize_t capacity    # a power of two, or 0
    cdef Py_ssize_t head
    cdef readonly Py_ssize_t count
    cdef int64_t taken          # messages that have left it since it was made
    cdef int _resize(self, Py_ssize_t capacity) except -1
    cdef int push(self, uint64_t where, uint64_t place) except -1
    cdef ReadyEntry* at(self, Py_ssize_t index) noexcept
    cdef void pop(self) noexcept
    cdef int trim(self) except -1
    cdef void clear(self) noexcept
