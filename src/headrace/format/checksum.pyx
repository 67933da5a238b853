"""CRC-32, the checksum of every record.

zlib's function is not used because its speed depends on the build it comes from (0.9 to 2 GB/s where it is plain C),
and every append needs it twice: over the body for readers of the RocketMQ format, over the record for ourselves.

Two implementations of the one function, chosen once at import: folding by carry-less multiplication (V. Gopal et al.,
"Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009, with the paper's constants for
the bit-reflected IEEE polynomial) for stretches of 64 bytes and more on x86-64, and slicing by 16 tables for the rest
and for other processors. The intrinsics need a function of their own with a target attribute, which Cython cannot
spell; the verbatim block holds just that function.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define HEADRACE_CLMUL 1
    static int headrace_has_clmul(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    /* `size` is a multiple of 16, at least 64; `crc` is inverted, as inside the usual loop. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t headrace_crc32_clmul(uint32_t crc, const uint8_t *data, size_t size) {
        const __m128i k1k2 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i k3k4 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low32 = _mm_setr_epi32(~0, 0, ~0, 0);
        const __m128i *p = (const __m128i *)data;
        __m128i a = _mm_xor_si128(_mm_loadu_si128(p), _mm_cvtsi32_si128((int)crc));
        __m128i b = _mm_loadu_si128(p + 1), c = _mm_loadu_si128(p + 2), d = _mm_loadu_si128(p + 3);
        __m128i t;
        p += 4; size -= 64;
    #define FOLD(x, k, next) \\
        t = _mm_clmulepi64_si128(x, k, 0x00); \\
        x = _mm_clmulepi64_si128(x, k, 0x11); \\
        x = _mm_xor_si128(_mm_xor_si128(x, t), next);
        while (size >= 64) {
            FOLD(a, k1k2, _mm_loadu_si128(p)) FOLD(b, k1k2, _mm_loadu_si128(p + 1))
            FOLD(c, k1k2, _mm_loadu_si128(p + 2)) FOLD(d, k1k2, _mm_loadu_si128(p + 3))
            p += 4; size -= 64;
        }
        FOLD(a, k3k4, b) FOLD(a, k3k4, c) FOLD(a, k3k4, d)
        while (size >= 16) { FOLD(a, k3k4, _mm_loadu_si128(p)) p++; size -= 16; }
    #undef FOLD
        /* 128 -> 96 -> 64 bits, then Barrett reduction */
        t = _mm_clmulepi64_si128(a, k3k4, 0x10);
        a = _mm_xor_si128(_mm_srli_si128(a, 8), t);
        t = _mm_srli_si128(a, 4);
        a = _mm_clmulepi64_si128(_mm_and_si128(a, low32), k5, 0x00);
        a = _mm_xor_si128(a, t);
        t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), poly, 0x10);
        t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), poly, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    }
    #else
    #define HEADRACE_CLMUL 0
    static int headrace_has_clmul(void) { return 0; }
    static uint32_t headrace_crc32_clmul(uint32_t crc, const uint8_t *data, size_t size) { return crc; }
    #endif
    """
    int headrace_has_clmul() noexcept nogil
    uint32_t headrace_crc32_clmul(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil

cdef uint32_t TABLE[16][256]
cdef bint HAS_CLMUL = headrace_has_clmul()


cdef void _fill_tables() noexcept:
    cdef uint32_t value
    cdef int i, j
    for i in range(256):
        value = i
        for j in range(8):
            value = (value >> 1) ^ (<uint32_t>0xEDB88320 if value & 1 else 0)
        TABLE[0][i] = value
    for i in range(256):
        for j in range(1, 16):
            value = TABLE[j - 1][i]
            TABLE[j][i] = (value >> 8) ^ TABLE[0][value & 0xFF]


_fill_tables()


cdef uint32_t _crc32_table(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil:
    cdef uint32_t words[4]
    while size >= 16:
        memcpy(words, data, 16)     # little-endian hosts only: setup and node refuse others
        words[0] ^= crc
        crc = (TABLE[15][words[0] & 0xFF] ^ TABLE[14][(words[0] >> 8) & 0xFF]
               ^ TABLE[13][(words[0] >> 16) & 0xFF] ^ TABLE[12][words[0] >> 24]
               ^ TABLE[11][words[1] & 0xFF] ^ TABLE[10][(words[1] >> 8) & 0xFF]
               ^ TABLE[9][(words[1] >> 16) & 0xFF] ^ TABLE[8][words[1] >> 24]
               ^ TABLE[7][words[2] & 0xFF] ^ TABLE[6][(words[2] >> 8) & 0xFF]
               ^ TABLE[5][(words[2] >> 16) & 0xFF] ^ TABLE[4][words[2] >> 24]
               ^ TABLE[3][words[3] & 0xFF] ^ TABLE[2][(words[3] >> 8) & 0xFF]
               ^ TABLE[1][(words[3] >> 16) & 0xFF] ^ TABLE[0][words[3] >> 24])
        data += 16
        size -= 16
    # Most records end in a rest of 1 to 15 bytes: a byte at a time it would cost more than all the rest.
    if size >= 8:
        memcpy(words, data, 8)
        words[0] ^= crc
        crc = (TABLE[7][words[0] & 0xFF] ^ TABLE[6][(words[0] >> 8) & 0xFF]
               ^ TABLE[5][(words[0] >> 16) & 0xFF] ^ TABLE[4][words[0] >> 24]
               ^ TABLE[3][words[1] & 0xFF] ^ TABLE[2][(words[1] >> 8) & 0xFF]
               ^ TABLE[1][(words[1] >> 16) & 0xFF] ^ TABLE[0][words[1] >> 24])
        data += 8
        size -= 8
    if size >= 4:
        memcpy(words, data, 4)
        words[0] ^= crc
        crc = (TABLE[3][words[0] & 0xFF] ^ TABLE[2][(words[0] >> 8) & 0xFF]
               ^ TABLE[1][(words[0] >> 16) & 0xFF] ^ TABLE[0][words[0] >> 24])
        data += 4
        size -= 4
    while size:
        crc = (crc >> 8) ^ TABLE[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return crc


cdef uint32_t crc32(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t folded
    crc = ~crc
    if HAS_CLMUL and size >= 64:
        folded = size & ~<size_t>15
        crc = headrace_crc32_clmul(crc, data, folded)
        data += folded
        size -= folded
    return ~_crc32_table(crc, data, size)


def checksum(const uint8_t[::1] data not None, uint32_t start=0):
    if data.shape[0] == 0:
        return start
    return crc32(start, &data[0], data.shape[0])


def checksum_by_table(const uint8_t[::1] data not None, uint32_t start=0):
    """The table implementation alone, so that tests cover it on every processor."""
    if data.shape[0] == 0:
        return start
    return ~_crc32_table(~start, &data[0], data.shape[0]) & 0xFFFFFFFF


def implementation():
    return "clmul" if HAS_CLMUL else "table"
