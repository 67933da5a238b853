from libc.stdint cimport int64_t, uint8_t

cdef class Segment:
    cdef readonly str path
    cdef readonly int64_t first_offset      # physical offset of the first byte
    cdef readonly int64_t size_bytes
    cdef readonly int fd
    cdef readonly bint writable
    cdef uint8_t* base                      # the mapping; NULL only before __init__ is through
    cdef int64_t used_at                    # SegmentSet's clock when it was last asked for
    cpdef bint is_resident(self, int64_t position, int64_t size) except -1
    # Write data and behind it up to 1 MiB of zeros; return how many bytes, -1 with errno set where it failed.
    cdef Py_ssize_t write(self, const uint8_t* data, Py_ssize_t size, int64_t position, Py_ssize_t zeros) noexcept nogil

cdef class SegmentSet:
    cdef readonly str directory
    cdef readonly int64_t segment_bytes
    cdef readonly Py_ssize_t most_mapped
    cdef public object on_retired           # (segment): it leaves the set's maps; views may still pin it
    cdef set known                          # index of every segment the log has
    cdef dict mapped                        # index -> Segment
    cdef Segment newest                     # the active one: always mapped
    cdef int64_t clock
    cdef Segment find(self, int64_t index)
    cdef int _map(self, int64_t index, Segment segment) except -1
