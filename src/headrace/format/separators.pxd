# Where properties end: they are ``name 1 value 2 name 1 value 2``, most of them a few dozen bytes long. What a call of
# memchr costs is more than the search, so the search is compiled into whoever looks for one.

cdef extern from *:
    """
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif
    /* The first byte from `at` on that is `one` or `other`; `end` when there is none. */
    static inline const char *headrace_find(const char *at, const char *end, char one, char other) {
    #ifdef __SSE2__
        const __m128i ones = _mm_set1_epi8(one), others = _mm_set1_epi8(other);
        while (end - at >= 16) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
            const int hits = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(bytes, ones), _mm_cmpeq_epi8(bytes, others)));
            if (hits) return at + __builtin_ctz((unsigned)hits);
            at += 16;
        }
    #endif
        while (at < end && *at != one && *at != other) at++;
        return at;
    }
    static inline const char *headrace_find_separator(const char *at, const char *end) {
        return headrace_find(at, end, 1, 2);
    }
    static inline const char *headrace_find_end(const char *at, const char *end) {
        return headrace_find(at, end, 2, 2);
    }
    """
    # The first 1 or 2 from ``at`` on, or ``end``.
    const char* find_separator "headrace_find_separator"(const char* at, const char* end) noexcept nogil
    # The first 2 from ``at`` on, or ``end``.
    const char* find_end "headrace_find_end"(const char* at, const char* end) noexcept nogil
