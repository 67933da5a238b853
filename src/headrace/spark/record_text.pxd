# What of a record becomes text in an Arrow column: strings as UTF-8, hosts and message ids. Compiled into who needs it.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from headrace.format.record cimport load_i32
from headrace.spark.arrow_buffers cimport Buffer, reserve

cdef extern from "<arpa/inet.h>" nogil:
    enum:
        AF_INET6
    const char* inet_ntop(int family, const void* address, char* text, uint32_t room)


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


cdef inline int add_text(Buffer* buffer, const uint8_t* text, uint32_t size) except -1 nogil:
    reserve(buffer, size)
    if copy_small(buffer.at + buffer.used, text, size) & 0x8080808080808080ULL:
        reserve(buffer, <size_t>3 * size)
        buffer.used += copy_as_utf8(buffer.at + buffer.used, text, size)
    else:
        buffer.used += size
    return 0


cdef inline uint32_t put_number(uint8_t* to, uint32_t value) noexcept nogil:
    cdef uint8_t digits[10]
    cdef uint32_t n = 0, i
    while True:
        digits[n] = <uint8_t>(48 + value % 10)
        value //= 10
        n += 1
        if value == 0:
            break
    for i in range(n):
        to[i] = digits[n - 1 - i]
    return n


cdef inline uint32_t put_host(uint8_t* to, const uint8_t* host, bint is_v6) noexcept nogil:
    """Write ``ip:port`` (``[ip]:port`` of IPv6), at most 64 characters."""
    cdef uint32_t n = 0, i
    cdef int32_t port
    cdef char text[64]
    if is_v6:
        inet_ntop(AF_INET6, host, text, 64)
        to[0] = 91
        n = 1
        i = 0
        while text[i]:
            to[n] = <uint8_t>text[i]
            n += 1
            i += 1
        to[n] = 93
        n += 1
        port = load_i32(host + 16)
    else:
        for i in range(4):
            if i:
                to[n] = 46
                n += 1
            n += put_number(to + n, host[i])
        port = load_i32(host + 4)
    to[n] = 58
    n += 1
    if port < 0:
        to[n] = 45
        return n + 1 + put_number(to + n + 1, <uint32_t>(-<int64_t>port))
    return n + put_number(to + n, <uint32_t>port)


cdef inline uint8_t hex_digit(uint8_t value) noexcept nogil:
    return 48 + value if value < 10 else 55 + value


cdef inline uint32_t put_hex(uint8_t* to, const uint8_t* raw, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        to[2 * i] = hex_digit(raw[i] >> 4)
        to[2 * i + 1] = hex_digit(raw[i] & 15)
    return 2 * size
