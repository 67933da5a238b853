"""CRC-32, the checksum of every record.

zlib's function is not used because its speed depends on the build it comes from (0.9 to 2 GB/s where it is plain C),
and every append needs it twice: over the body for readers of the RocketMQ format, over the record for ourselves.

Two implementations of the one function, chosen once at import: folding by carry-less multiplication (V. Gopal et al.,
"Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009, with the paper's constants for
the bit-reflected IEEE polynomial) for 16 bytes and more on x86-64, and slicing by 16 tables for less and for other
processors. The intrinsics need a function of their own with a target attribute, which Cython cannot spell; the verbatim
block holds just that function.
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
    /* [n]: what moves a block 16 n bytes towards the end of the data: x^(128 n - 32) and x^(128 n + 32), reflected. */
    static const uint64_t headrace_powers[7][2] = {
        {0, 0}, {0x01751997d0, 0x00ccaa009e}, {0x00f1da05aa, 0x015a546366}, {0x003db1ecdc, 0x0174359406},
        {0x0154442bd4, 0x01c6e41596}, {0x01c7569e54, 0x00ae0b5394}, {0x00df068dc2, 0x018cb44e58}};
    /* Shuffles: the 16 bytes from [16 + n] on move lanes n bytes down, those from [n] on 16 - n bytes up; else zeros. */
    static const uint8_t headrace_lanes[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
    #define HEADRACE_LOAD(at) _mm_loadu_si128((const __m128i *)(at))
    __attribute__((target("pclmul,sse4.1")))
    static inline __m128i headrace_move(__m128i block, size_t blocks) {
        const __m128i power = HEADRACE_LOAD(headrace_powers[blocks]);
        return _mm_xor_si128(_mm_clmulepi64_si128(block, power, 0x00), _mm_clmulepi64_si128(block, power, 0x11));
    }
    /* `size` is at least 16; `crc` is inverted, as inside the usual loop. A multiplication takes several times as long as
       the wait until the next may begin: whatever can be moved to the end at once is. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t headrace_crc32_clmul(uint32_t crc, const uint8_t *data, size_t size) {
        const __m128i k3k4 = HEADRACE_LOAD(headrace_powers[1]);
        const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low32 = _mm_setr_epi32(~0, 0, ~0, 0);
        const __m128i before = _mm_cvtsi32_si128((int)crc);
        const size_t odd = size & 15;
        __m128i a = _mm_xor_si128(HEADRACE_LOAD(data), before), t;
        const uint8_t *p = data + 16;
        if (odd) {
            /* The first block takes the odd bytes, behind zeros; what of the checksum lies beyond them goes on. */
            const __m128i down = HEADRACE_LOAD(headrace_lanes + 16 + odd), up = HEADRACE_LOAD(headrace_lanes + odd);
            t = _mm_xor_si128(HEADRACE_LOAD(data + odd), _mm_shuffle_epi8(before, down));
            a = _mm_xor_si128(headrace_move(_mm_shuffle_epi8(a, up), 1), t);
            p += odd;
        }
        size = (size >> 4) - 1;             /* whole blocks behind a */
        if (size >= 3) {
            __m128i b = HEADRACE_LOAD(p), c = HEADRACE_LOAD(p + 16), d = HEADRACE_LOAD(p + 32);
            p += 48; size -= 3;
            while (size >= 4) {
                a = _mm_xor_si128(headrace_move(a, 4), HEADRACE_LOAD(p));
                b = _mm_xor_si128(headrace_move(b, 4), HEADRACE_LOAD(p + 16));
                c = _mm_xor_si128(headrace_move(c, 4), HEADRACE_LOAD(p + 32));
                d = _mm_xor_si128(headrace_move(d, 4), HEADRACE_LOAD(p + 48));
                p += 64; size -= 4;
            }
            a = _mm_xor_si128(headrace_move(a, size + 3), headrace_move(b, size + 2));
            c = _mm_xor_si128(headrace_move(c, size + 1), size ? headrace_move(d, size) : d);
            a = _mm_xor_si128(a, c);
        } else if (size) {
            a = headrace_move(a, size);
        }
        while (size > 1) { size--; a = _mm_xor_si128(a, headrace_move(HEADRACE_LOAD(p), size)); p += 16; }
        if (size) a = _mm_xor_si128(a, HEADRACE_LOAD(p));
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
    if HAS_CLMUL and size >= 16:
        return ~headrace_crc32_clmul(~crc, data, size)
    return ~_crc32_table(~crc, data, size)


def checksum(const uint8_t[::1] data not None, uint32_t start=0):
    if data.shape[0] == 0:
        return start
    return crc32(start, &data[0], data.shape[0])


def checksum_by_table(const uint8_t[::1] data not None, uint32_t start=0):
    if data.shape[0] == 0:
        return start
    return ~_crc32_table(~start, &data[0], data.shape[0]) & 0xFFFFFFFF


def implementation():
    return "clmul" if HAS_CLMUL else "table"
