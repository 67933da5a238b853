# What of a record becomes text in an Arrow column: strings as UTF-8, hosts and message ids. Compiled into who needs it.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from headrace.format.record cimport load_i32
from headrace.format.utf8 cimport HIGH_BITS, copy_as_utf8, copy_small
from headrace.spark.arrow_buffers cimport Buffer, reserve

cdef extern from "<arpa/inet.h>" nogil:
    enum:
        AF_INET6
    const char* inet_ntop(int family, const void* address, char* text, uint32_t room)


cdef inline int add_text(Buffer* buffer, const uint8_t* text, uint32_t size) except -1 nogil:
    reserve(buffer, size)
    if copy_small(buffer.at + buffer.used, text, size) & HIGH_BITS:
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
