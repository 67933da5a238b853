from libc.stdint cimport int64_t, uint8_t

cdef class Segment:
    cdef readonly str path
    cdef readonly int64_t first_offset      # physical offset of the first byte
    cdef readonly int64_t size_bytes
    cdef readonly int fd
    cdef readonly bint writable
    cdef uint8_t* base                      # the mapping; NULL only before __init__ is through
    cpdef bint is_resident(self, int64_t position, int64_t size) except -1
    cpdef int64_t next_data(self, int64_t position) except -1
