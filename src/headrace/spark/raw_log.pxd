# Where records are in raw log. It describes itself: a record is where the magic, the record's own physical offset and its
# lengths agree. That test alone decides, with and without checksums, so that splits of any size see the same records.

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr

from headrace.format.record cimport FIXED_BYTES, PHYSICAL_OFFSET_AT, check_record, load_i64, load_u32

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    MAGIC_BLANK = 0xCBD43194
    CHECKED_HEAD_BYTES = 36     # with these a record's size, magic and own physical offset can be judged
    # No broker stores more (docs/limits.md): a size above it is damage, and nobody gathers half a file for its end.
    MAX_RECORD_BYTES = 65 << 20

cdef enum:                      # what judge says besides a record's size; below J_BLANK: J_BLANK - size of the blank
    J_BAD = 0
    J_SHORT = -1
    J_BLANK = -2


cdef inline int64_t judge(const uint8_t* at, int64_t room, int64_t physical_offset, int64_t segment_end) noexcept nogil:
    """Say what begins at ``at``, where ``room`` bytes of the log are known.

    Args:
        segment_end: Physical offset of the end of this file of the log: bounds records, ends blanks; 0 if not known.
    """
    cdef uint32_t size, magic
    cdef int64_t left = segment_end - physical_offset
    cdef int64_t found
    if room < 8:
        return J_BAD if segment_end and left < 8 else J_SHORT
    size = load_u32(at)
    magic = load_u32(at + 4)
    if magic == <uint32_t>MAGIC_BLANK:
        if size < 8 or (segment_end and size != left):
            return J_BAD
        return J_BLANK - <int64_t>size
    if magic != <uint32_t>MAGIC_V1 and magic != <uint32_t>MAGIC_V2:
        return J_BAD
    if size < FIXED_BYTES or size > <uint32_t>MAX_RECORD_BYTES or (segment_end and size > left):
        return J_BAD
    if room < CHECKED_HEAD_BYTES:
        return J_SHORT
    if load_i64(at + PHYSICAL_OFFSET_AT) != physical_offset:
        return J_BAD
    if size > room:
        return J_SHORT
    found = check_record(at, room, physical_offset, False)
    return found if found > 0 else J_BAD


cdef inline int64_t search(const uint8_t* base, int64_t at, int64_t size, int64_t base_offset, int64_t end,
                            int64_t segment_end) noexcept nogil:
    """Return the first position from ``at`` on where a record begins, or may begin behind what is known."""
    cdef const uint8_t* hit
    cdef int64_t position, found
    cdef int64_t stop = size if base_offset + size < end else end - base_offset
    while at + 8 <= size and at < stop:
        # The magic's first byte is four bytes into the record. A blank is passed over: a record follows, or nothing.
        hit = <const uint8_t*>memchr(base + at + 4, 0xDA, size - at - 4)
        position = size if hit == NULL else hit - base - 4
        if position >= stop or position + 8 > size:
            break
        if hit[1] == 0xA3 and hit[2] == 0x20:
            found = judge(base + position, size - position, base_offset + position, segment_end)
            if found > 0 or found == J_SHORT:
                return position
        at = position + 1
    # The last seven bytes may begin a magic that is not known yet.
    position = size - 7
    if position < at:
        position = at
    return position if position < stop else stop
