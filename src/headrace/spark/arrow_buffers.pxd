from libc.stdint cimport uint8_t

cdef struct Buffer:
    uint8_t* at
    size_t used
    size_t room
    size_t hint                 # what the buffer handed over before had


cdef int grow(Buffer* buffer, size_t least) except -1 nogil
cdef object hand_over(uint8_t* at, size_t size, size_t room)
cdef object take(Buffer* buffer, size_t size)
cdef void drop(Buffer* buffer) noexcept


cdef inline int reserve(Buffer* buffer, size_t more) except -1 nogil:
    """Have room for ``more`` bytes behind those that are used."""
    if buffer.used + more > buffer.room:
        grow(buffer, buffer.used + more)
    return 0
