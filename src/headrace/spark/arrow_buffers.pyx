"""Memory of Arrow columns in the making; what a batch leaves behind is used for the next.

A batch has a few thousand pages. Fresh from the kernel they cost as much as decoding the rows that fill them, and the
C library gives memory of this size back to the kernel each time. So the buffers of a batch that is gone are kept, a few
of them, for the whole process: a Spark worker decodes one batch after the other, in one task after the other.

Invariants: a buffer is owned by its ``Buffer``, by the pyarrow buffer that it was handed over to, or lies among the
spare ones; those are touched only with the GIL.
"""

from libc.stdint cimport uint8_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

import pyarrow

cdef enum:
    FIRST_BYTES = 16384
    LEAST_KEPT_BYTES = 64 << 10     # smaller ones the C library keeps by itself
    MAX_SPARE = 64                  # two batches of many columns
    MAX_SPARE_BYTES = 48 << 20      # two batches of 16 MiB and what they have to spare

cdef struct Spare:
    uint8_t* at
    size_t room

cdef Spare _spare[MAX_SPARE]        # the one that has waited longest comes first
cdef int _spare_count = 0
cdef size_t _spare_bytes = 0


def spare_bytes():
    return _spare_bytes


cdef void _remove_spare(int place) noexcept:
    global _spare_count, _spare_bytes
    cdef int i
    _spare_bytes -= _spare[place].room
    _spare_count -= 1
    for i in range(place, _spare_count):
        _spare[i] = _spare[i + 1]


cdef void _give_back(uint8_t* at, size_t room) noexcept:
    """Keep a buffer for another one, in the place of the oldest if need be, or free it."""
    global _spare_count, _spare_bytes
    if room < LEAST_KEPT_BYTES or room > MAX_SPARE_BYTES:
        free(at)
        return
    while _spare_count == MAX_SPARE or _spare_bytes + room > MAX_SPARE_BYTES:
        free(_spare[0].at)
        _remove_spare(0)
    _spare[_spare_count].at = at
    _spare[_spare_count].room = room
    _spare_count += 1
    _spare_bytes += room


cdef int _find_spare(size_t least) noexcept:
    """Return the place of the smallest spare buffer that will do without wasting as much again, -1 if there is none."""
    cdef int i, found = -1
    for i in range(_spare_count):
        if least <= _spare[i].room <= 2 * least and (found < 0 or _spare[i].room < _spare[found].room):
            found = i
    return found


cdef int _grow_large(Buffer* buffer, size_t room) except -1 with gil:
    cdef Spare spare
    cdef void* moved
    cdef int place = _find_spare(room)
    if place < 0:
        moved = realloc(buffer.at, room)
        if moved == NULL:
            raise MemoryError("no memory for an Arrow batch")
        buffer.at = <uint8_t*>moved
        buffer.room = room
        return 0
    spare = _spare[place]
    _remove_spare(place)
    if buffer.used:
        memcpy(spare.at, buffer.at, buffer.used)
    if buffer.at != NULL:
        _give_back(buffer.at, buffer.room)
    buffer.at = spare.at
    buffer.room = spare.room
    return 0


cdef int grow(Buffer* buffer, size_t least) except -1 nogil:
    """Have room for ``least`` bytes: twice what there was, or for a first time what the buffer before had."""
    cdef size_t room = buffer.room
    cdef void* moved
    if room == 0:
        room = max(<size_t>FIRST_BYTES, buffer.hint + buffer.hint // 8)
    while room < least:
        room *= 2
    if room >= LEAST_KEPT_BYTES:
        return _grow_large(buffer, room)
    moved = realloc(buffer.at, room)
    if moved == NULL:
        with gil:
            raise MemoryError("no memory for an Arrow batch")
    buffer.at = <uint8_t*>moved
    buffer.room = room
    return 0


cdef class _Memory:
    """Owns one buffer for as long as an Arrow array uses it."""

    cdef uint8_t* at
    cdef size_t room

    def __dealloc__(self):
        if self.at != NULL:
            _give_back(self.at, self.room)


cdef object hand_over(uint8_t* at, size_t size, size_t room):
    """Return a pyarrow buffer of ``size`` bytes that owns ``at``, allocated with ``malloc``."""
    cdef _Memory memory = _Memory.__new__(_Memory)
    memory.at = at
    memory.room = room
    return pyarrow.foreign_buffer(<uintptr_t>at, size, memory)


cdef object take(Buffer* buffer, size_t size):
    """Hand a buffer over to pyarrow; another one begins, empty, and is expected to become as large."""
    cdef uint8_t* at = buffer.at
    cdef size_t room = buffer.room
    if at == NULL:
        return pyarrow.py_buffer(b"")
    cdef uint8_t* exact
    buffer.hint = size
    buffer.at = NULL
    buffer.used = 0
    buffer.room = 0
    if room >= LEAST_KEPT_BYTES and size < room // 4:
        # A batch of few rows may be kept for long: it must not hold the memory of many.
        exact = <uint8_t*>malloc(size if size else 1)
        if exact != NULL:
            memcpy(exact, at, size)
            _give_back(at, room)
            at, room = exact, size
    return hand_over(at, size, room)


cdef void drop(Buffer* buffer) noexcept:
    if buffer.at != NULL:
        _give_back(buffer.at, buffer.room)
        buffer.at = NULL
