# Taking plain sends: for the codec, which finds them, and for SEND_SEQUENCED, whose rows are stored the same way.

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from headrace.batch cimport PublishEntry
from headrace.format.record cimport load_u16, load_u32
from headrace.remoting.header cimport Header, Span
from headrace.remoting.sending.send_intake cimport Limits, SendIntake

cdef enum:
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320

cdef struct Hold:
    const char* topic                   # where it belongs
    uint32_t topic_bytes
    int64_t queue_id
    int64_t kind                        # what the message asks for is filled in from here on
    int64_t due_ms
    const char* unique
    uint32_t unique_bytes

# Take a send if it is plain: 1 when it is in ``intake``, 0 when it is to be handed out as a command. Python may be asked
# what the message may wait for, and another thread parse meanwhile: the header has to be read again then.
cdef bint is_proof(const Span* name) noexcept nogil    # whether a field says who signs a request, and how
cdef int take_send(SendIntake intake, Limits limits, const Header* header, const char* body, Py_ssize_t body_bytes,
                   object owner) except -1

# Fill in flag and body of the message of a batch encoding at ``at``; its properties begin two bytes behind the body. Return
# what is wrong with it, NULL: nothing.
# Layout: total i32 | magic i32 | crc i32 | flag i32 | length i32, body | length i16, properties.
cdef inline const char* read_part(const char* at, const char* end, PublishEntry* part,
                                  Py_ssize_t* properties_bytes) noexcept nogil:
    cdef int64_t size, own_bytes
    cdef int64_t room = end - at - 22           # beside what is there of a message with nothing variable
    if room < 0:
        return b"is cut short"
    size = <int32_t>load_u32(at + 16)
    if not 0 <= size <= room:
        return b"has a body length that does not fit"
    own_bytes = <int16_t>load_u16(at + 20 + size)
    if not 0 <= own_bytes <= room - size or <int32_t>load_u32(at) != 22 + size + own_bytes:
        return b"has lengths that do not add up"
    part.flag = load_u32(at + 12)
    part.body = at + 20
    part.body_bytes = <uint32_t>size
    properties_bytes[0] = own_bytes
    return NULL

# Add one message with its own properties (NULL: none) and those of the header (NULL: none); 0 when it is not plain.
# ``hold`` says where it belongs and is told what it asks for; NULL where a message may ask for nothing.
cdef int take_message(SendIntake intake, Limits limits, const PublishEntry* common, const char* own,
                      Py_ssize_t own_bytes, const Span* properties, Hold* hold) except -1
