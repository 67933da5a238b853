# The properties of a sent message: for modules that take sends.

from libc.stdint cimport int64_t, uint32_t

cdef struct Properties:                 # being decoded
    const char* tag
    uint32_t tag_bytes
    bint is_plain                       # this path knows what all of them ask for
    bint says_place                     # one says where the message belongs, as those of messages that are held do
    bint is_copy                        # one is of a half message that the broker made
    int64_t delay_levels                # that there are
    int64_t level                       # that it asks for
    int64_t time                        # that it names: of this day, seconds or ms from now on
    int time_unit                       # TIME_ABSOLUTE ...; 0 when it names none
    bint is_half
    const char* unique                  # its unique key
    uint32_t unique_bytes

cdef enum:
    TIME_ABSOLUTE = 1
    TIME_SECONDS = 2
    TIME_MS = 3

# Decode properties that stand for themselves to ``out``; return where they end. At most one byte more than they have.
cdef char* copy_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil

# Decode properties with JSON escapes; return where they end, or NULL for an escape that JSON does not know.
cdef char* unescape_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil

# Whether properties are UTF-8, and none of them is there twice: in others a handler brings order first.
cdef bint is_well_formed(const char* at, const char* end) except -1
