# Headers of frames as spans of the bytes they came in: header.pyx says how it works.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif
    /* Sixteen bytes at a time where the processor can, else and for the rest eight; the lowest set bit of each test is exact, so the first hit is (little-endian processors:
       the only ones the package is built for). */
    #define HEADRACE_ONES 0x0101010101010101ULL
    #define HEADRACE_HIGH 0x8080808080808080ULL
    static inline uint64_t headrace_equal(uint64_t x, unsigned char byte) {
        x ^= HEADRACE_ONES * byte;
        return (x - HEADRACE_ONES) & ~x & HEADRACE_HIGH;
    }
    static inline const char *headrace_string_stop(const char *at, const char *end) {
    #ifdef __SSE2__
        while (end - at >= 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)at);
            __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\\\')));
            /* min(x, 0x1f) == x: a control character */
            hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(0x1f)), x));
            int mask = _mm_movemask_epi8(hit);
            if (mask) return at + __builtin_ctz(mask);
            at += 16;
        }
    #endif
        while (end - at >= 8) {
            uint64_t x, hit;
            memcpy(&x, at, 8);
            hit = headrace_equal(x, '"') | headrace_equal(x, '\\\\')
                | ((x - HEADRACE_ONES * 0x20) & ~x & HEADRACE_HIGH);
            if (hit) return at + (__builtin_ctzll(hit) >> 3);
            at += 8;
        }
        while (at < end && *at != '"' && *at != '\\\\' && (unsigned char)*at >= 0x20) at++;
        return at;
    }
    static inline const char *headrace_copy_plain(const char *at, const char *end, char **out) {
        char *to = *out;
    #ifdef __SSE2__
        while (end - at >= 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)at);
            int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_set1_epi8('\\\\')));
            _mm_storeu_si128((__m128i *)to, x);
            if (mask) {
                *out = to + __builtin_ctz(mask);
                return at + __builtin_ctz(mask);
            }
            at += 16;
            to += 16;
        }
    #endif
        while (end - at >= 8) {
            uint64_t x, hit;
            memcpy(&x, at, 8);
            memcpy(to, &x, 8);
            hit = headrace_equal(x, '\\\\');
            if (hit) {
                hit = __builtin_ctzll(hit) >> 3;
                *out = to + hit;
                return at + hit;
            }
            at += 8;
            to += 8;
        }
        while (at < end && *at != '\\\\') *to++ = *at++;
        *out = to;
        return at;
    }
    """
    # The first quote, backslash or control character, or the end.
    const char* string_stop "headrace_string_stop"(const char* at, const char* end) noexcept nogil
    # Copy up to the first backslash, or the end; up to 15 bytes behind the copy are written too.
    const char* copy_plain "headrace_copy_plain"(const char* at, const char* end, char** out) noexcept nogil

cdef enum:
    SERIALIZE_JSON = 0
    SERIALIZE_BINARY = 1
    SERIALIZE_SMARTGO = 2       # JSON in SmartGo's spelling; JSON on the wire
    FLAG_RESPONSE = 1
    FLAG_ONEWAY = 2
    MAX_FIELDS = 1024           # ext fields of one header

cdef enum:                      # how a Span is spelled
    SPAN_ABSENT = 0
    SPAN_PLAIN = 1              # its bytes are its text
    SPAN_ESCAPED = 2            # has JSON escapes

cdef struct Span:
    const char* at
    uint32_t size
    uint32_t kind

cdef struct Field:
    Span name
    Span value

cdef struct Header:
    int32_t code
    int32_t version
    int32_t opaque
    int32_t flag
    int32_t language            # number, or -1 when there is a name
    uint32_t serialize
    Span language_name
    Span remark
    uint32_t field_count
    Field[MAX_FIELDS] fields

# Fill the header; return NULL, or what is wrong with it.
cdef const char* parse_json(const char* at, const char* end, Header* header) noexcept nogil
cdef const char* parse_binary(const char* at, const char* end, Header* header) noexcept nogil
# Decode the escape at ``at`` (a backslash) to ``out``; return where the text goes on, NULL when it is none.
cdef const char* unescape(const char* at, const char* end, char** out) noexcept nogil
cdef str text_of(const Span* span)
cdef bytes encode_frame(int serialize, int code, int flag, int32_t opaque, str remark, object ext, bytes body)
cdef inline bint is_named(const Span* span, const char* name, uint32_t size) noexcept nogil:
    return span.size == size and span.kind == SPAN_PLAIN and _memcmp(span.at, name, size) == 0

cdef extern from "string.h" nogil:
    int _memcmp "memcmp"(const void* a, const void* b, size_t size) noexcept

# Read a signed number that is the whole span; False when it is none or beyond 64 bits.
cdef inline bint load_number(const Span* span, int64_t* value) noexcept nogil:
    cdef const char* at = span.at
    cdef const char* end = span.at + span.size
    cdef uint64_t result = 0
    cdef uint64_t most = <uint64_t>0x7FFFFFFFFFFFFFFF
    cdef uint32_t digit
    cdef bint negative = False
    if span.kind != SPAN_PLAIN:
        return False
    if at < end and at[0] == c"-":
        negative = True
        most += 1
        at += 1
    if at == end or end - at > 19:
        return False
    while at < end:
        digit = <uint32_t>(<uint8_t>at[0]) - 48
        if digit > 9:
            return False
        result = result * 10 + digit
        at += 1
    if result > most:
        return False
    value[0] = <int64_t>(0 - result) if negative else <int64_t>result
    return True

# Write bytes, or a number in decimal digits (20 bytes at most); return where the text goes on.
cdef inline char* put_bytes(char* at, const char* text, size_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size

cdef inline char* put_number(char* at, int64_t value) noexcept nogil:
    cdef char[20] digits
    cdef int count = 0
    cdef uint64_t rest
    if value < 0:
        at[0] = c"-"
        at += 1
        rest = 0 - <uint64_t>value
    else:
        rest = <uint64_t>value
    while True:
        digits[19 - count] = <char>(48 + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    return put_bytes(at, digits + 20 - count, count)
