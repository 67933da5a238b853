"""The properties of a message as its producer sent them: decoded, and what they ask for noted.

The client's properties are kept without those that are none of its business (WAIT, CLUSTER, ``__BATCH#``, ``__CRC32#``,
TIMER_OUT_MS), each ended by its separator. Of several TAGS the last counts.

Ref: remoting.md 2.7, 4.3.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from headrace.format.separators cimport find_end, find_separator
from headrace.remoting.header cimport copy_plain, put_number, unescape

ctypedef const char* TextPointer

cdef enum:
    MAX_LEVEL_DIGITS = 9
    MAX_TIME_DIGITS = 15
    MAX_NAMES = 64                      # of properties of a message that is held


cdef int64_t _digits(const char* at, Py_ssize_t size, Py_ssize_t most) noexcept nogil:
    """Return a number written in up to ``most`` digits, -1 when it is none."""
    cdef int64_t value = 0
    cdef Py_ssize_t index
    if size > most:
        return -1
    for index in range(size):
        if not c"0" <= at[index] <= c"9":
            return -1
        value = value * 10 + (at[index] - c"0")
    return value


cdef char* _end_delay(char* value, char* out, Properties* state) noexcept nogil:
    """Note the level that a message asks for, and write it as one that there is; return where it ends."""
    cdef int64_t level = _digits(value, out - value, MAX_LEVEL_DIGITS)
    cdef Py_ssize_t index
    if level == 0:
        return out
    if level < 0:
        for index in range(out - value):
            if value[index] != c"0":
                state.is_plain = False
        return out
    if state.delay_levels == 0 or state.level:
        state.is_plain = False
        return out
    state.level = min(level, state.delay_levels)
    return put_number(value, state.level)


cdef int _end_time(const char* value, const char* out, int unit, Properties* state) noexcept nogil:
    """Note the time that a message names."""
    state.time = _digits(value, out - value, MAX_TIME_DIGITS)
    if state.time < 0 or state.time_unit:
        state.is_plain = False
    state.time_unit = unit
    return 0


cdef int _end_half(const char* value, const char* out, Properties* state) noexcept nogil:
    """Note that a message is a half one; what is not spelled as clients do is not for this path."""
    if out - value == 4 and memcmp(value, <const char*>b"true", 4) == 0 and not state.is_half:
        state.is_half = True
    elif out - value != 5 or memcmp(value, <const char*>b"false", 5) != 0 or state.is_half:
        state.is_plain = False
    return 0


cdef char* _end_property(char* name, char* value, char* out, Properties* state) noexcept nogil:
    """End the property ``name`` 1 ``value`` that was written up to ``out``; return where the next one is written."""
    cdef Py_ssize_t size = value - 1 - name
    if size <= 0 or value == out:
        return name                     # readers drop it too
    if size == 4:
        if memcmp(name, <const char*>b"TAGS", 4) == 0:
            state.tag = value
            state.tag_bytes = <uint32_t>(out - value)
        elif memcmp(name, <const char*>b"WAIT", 4) == 0:
            return name
    elif size == 5:
        if memcmp(name, <const char*>b"DELAY", 5) == 0:
            out = _end_delay(value, out, state)
    elif size == 7:
        if memcmp(name, <const char*>b"CLUSTER", 7) == 0:
            return name
    elif size == 8:
        if memcmp(name, <const char*>b"UNIQ_KEY", 8) == 0:
            state.unique = value
            state.unique_bytes = <uint32_t>(out - value)
        elif memcmp(name, <const char*>b"TRAN_MSG", 8) == 0:
            _end_half(value, out, state)
        elif memcmp(name, <const char*>b"REAL_QID", 8) == 0:
            state.says_place = True
        elif memcmp(name, <const char*>b"__BATCH#", 8) == 0 or memcmp(name, <const char*>b"__CRC32#", 8) == 0:
            return name
    elif size == 10:
        if memcmp(name, <const char*>b"REAL_TOPIC", 10) == 0:
            state.says_place = True
    elif size == 12:
        if memcmp(name, <const char*>b"TIMER_OUT_MS", 12) == 0:
            return name
    elif size == 14:
        if memcmp(name, <const char*>b"TIMER_DELAY_MS", 14) == 0:
            _end_time(value, out, TIME_MS, state)
    elif size == 15:
        if memcmp(name, <const char*>b"TIMER_DELAY_SEC", 15) == 0:
            _end_time(value, out, TIME_SECONDS, state)
    elif size == 16:
        if memcmp(name, <const char*>b"TIMER_DELIVER_MS", 16) == 0:
            _end_time(value, out, TIME_ABSOLUTE, state)
            return name                 # the record gets it from the time that the entry has
    elif size == 17:
        if memcmp(name, <const char*>b"TIMER_DEL_UNIQKEY", 17) == 0:
            state.is_plain = False      # it is refused
    elif size == 23:
        if memcmp(name, <const char*>b"TRANSACTION_CHECK_TIMES", 23) == 0:
            state.is_copy = True
    elif size == 26:
        if memcmp(name, <const char*>b"TRAN_PREPARED_QUEUE_OFFSET", 26) == 0:
            state.is_copy = True
    elif size == 30:
        if memcmp(name, <const char*>b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30) == 0:
            state.is_copy = True        # its time is the broker's to read
    out[0] = 2
    return out + 1


cdef char* copy_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil:
    cdef const char* stop
    cdef const char* separator
    while at < end:
        separator = find_separator(at, end)
        stop = separator
        if separator < end and separator[0] == 1:
            stop = find_end(separator, end)
            memcpy(out, at, stop - at)
            out = _end_property(out, out + (separator - at) + 1, out + (stop - at), state)
        at = stop + 1
    return out


cdef char* unescape_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil:
    cdef char* name = out
    cdef char* value = NULL
    while at < end:
        at = copy_plain(at, end, &out)
        if at >= end:
            break
        # 1 and 2 have no other spelling.
        if end - at >= 6 and memcmp(at, <const char*>b"\\u000", 5) == 0 and (at[5] == c"1" or at[5] == c"2"):
            if at[5] == c"1":
                out[0] = 1
                out += 1
                if value == NULL:
                    value = out
            else:
                out = _end_property(name, value, out, state) if value != NULL else name
                name = out
                value = NULL
            at += 6
            continue
        at = unescape(at, end, &out)
        if at == NULL:
            return NULL
    return _end_property(name, value, out, state) if value != NULL else name


cdef bint is_well_formed(const char* at, const char* end) except -1:
    cdef TextPointer[MAX_NAMES] names
    cdef Py_ssize_t[MAX_NAMES] sizes
    cdef const char* stop
    cdef Py_ssize_t size
    cdef int count = 0
    cdef int index
    try:
        PyUnicode_DecodeUTF8(at, end - at, NULL)
    except UnicodeDecodeError:
        return False
    while at < end:
        if count == MAX_NAMES:
            return False
        stop = <const char*>memchr(at, 2, end - at)     # every one of them is ended
        size = <const char*>memchr(at, 1, stop - at) - at
        for index in range(count):
            if sizes[index] == size and memcmp(names[index], at, size) == 0:
                return False
        names[count] = at
        sizes[count] = size
        count += 1
        at = stop + 1
    return True
