# Text of records as UTF-8, whatever bytes they hold. Compiled into who needs it.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #define HEADRACE_HIGH_BITS 0x8080808080808080ULL
    """
    const uint64_t HIGH_BITS "HEADRACE_HIGH_BITS"       # of eight bytes: with none of them they are ASCII


cdef inline uint64_t copy_small(uint8_t* to, const uint8_t* text, uint32_t size) noexcept nogil:
    """Copy ``text``; return all its bytes or'ed together, whatever their places in the eight of the result.

    For the short texts that records are full of it takes half as long as two calls of the C library. Whole words are
    copied, the last one over part of the one before; nothing beyond ``size`` is read or written.
    """
    cdef uint64_t word, every = 0
    cdef uint32_t half, i = 0
    if size >= 8:
        while i + 8 <= size:
            memcpy(&word, text + i, 8)
            memcpy(to + i, &word, 8)
            every |= word
            i += 8
        memcpy(&word, text + size - 8, 8)
        memcpy(to + size - 8, &word, 8)
        return every | word
    if size >= 4:
        memcpy(&half, text, 4)
        memcpy(to, &half, 4)
        every = half
        memcpy(&half, text + size - 4, 4)
        memcpy(to + size - 4, &half, 4)
        return every | half
    for i in range(size):
        to[i] = text[i]
        every |= text[i]
    return every


cdef inline size_t copy_as_utf8(uint8_t* to, const uint8_t* text, uint32_t size) noexcept nogil:
    """Copy ``text`` and put U+FFFD for each maximal ill-formed piece; ``to`` has room for three times as much."""
    cdef uint8_t* out = to
    cdef uint32_t i = 0, more, k
    cdef uint8_t c, low, high
    while i < size:
        c = text[i]
        if c < 0x80:
            out[0] = c
            out += 1
            i += 1
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        else:
            more = 0
        k = 0
        while k < more and i + 1 + k < size and low <= text[i + 1 + k] <= high:
            low = 0x80
            high = 0xBF
            k += 1
        if more and k == more:
            memcpy(out, text + i, more + 1)
            out += more + 1
        else:
            out[0] = 0xEF
            out[1] = 0xBF
            out[2] = 0xBD
            out += 3
        i += 1 + k
    return out - to


cdef inline bint is_ascii(const uint8_t* text, uint32_t size) noexcept nogil:
    cdef uint64_t word, every = 0
    cdef uint32_t i = 0
    while i + 8 <= size:
        memcpy(&word, text + i, 8)
        every |= word
        i += 8
    while i < size:
        every |= text[i]
        i += 1
    return every & HIGH_BITS == 0
