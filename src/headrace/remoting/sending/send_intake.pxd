# Plain sends of one read: see send_intake.pyi for the public description.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.format.record cimport load_u16, load_u32
from headrace.remoting.header cimport Header, Span

cdef enum:
    TOPIC_SLOTS = 16
    QUEUE_SLOTS = 32
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320

cdef class Limits:
    cdef readonly int64_t max_frame_bytes
    cdef readonly str frame_setting
    cdef readonly int64_t max_message_bytes
    cdef readonly object topics
    cdef readonly bytes cluster
    cdef readonly object held_sends
    cdef readonly bint leaves_sends
    cdef int64_t delay_levels           # 0: messages that ask for one are not plain
    cdef int64_t most_half_properties
    cdef int64_t most_half_bytes
    cdef bytes cluster_property         # CLUSTER 1 name 2

cdef struct Send:
    int32_t opaque
    uint32_t first_entry
    uint32_t entries
    uint32_t destination
    uint8_t serialize
    uint8_t is_oneway
    uint32_t unique_bytes
    const char* unique                  # the unique key of a half message, NULL for any other

# What a message is held for, if not for a delay level, whose number it is then.
cdef enum:
    HOLD_NONE = 0
    HOLD_TIMED = -1
    HOLD_HALF = -2

cdef struct Hold:
    const char* topic                   # where it belongs
    uint32_t topic_bytes
    int64_t queue_id
    int64_t kind                        # what the message asks for is filled in from here on
    int64_t due_ms
    const char* unique
    uint32_t unique_bytes

cdef struct TopicSlot:                  # a topic seen lately
    uint64_t generation                 # the batch the rest belongs to
    uint32_t name_bytes
    bint exists
    int32_t[QUEUE_SLOTS] destinations   # of queue ids -1, 0, 1 ...; -1 where there is none yet
    char[128] name

cdef class SendIntake:
    cdef readonly PublishBatch batch
    cdef readonly Py_ssize_t sends
    cdef readonly Py_ssize_t halves
    cdef readonly list holds            # what each destination's messages are held for
    cdef Send* list
    cdef Py_ssize_t list_capacity
    cdef dict refusals                  # destination -> (code, remark)
    cdef list kept                      # frames that came from elsewhere than a read
    # Properties are decoded to blocks that stay where they are until clear().
    cdef char** blocks
    cdef Py_ssize_t block_count
    cdef Py_ssize_t block               # the one being filled
    cdef Py_ssize_t block_used
    # Where sends go. A generation is one batch: what it says of topics holds no longer.
    cdef uint64_t generation
    cdef TopicSlot[TOPIC_SLOTS] slots
    cdef list slot_topics               # the names as str, by slot
    cdef dict destination_of            # (topic, queue id, hold) -> index

    cdef int begin(self) except -1
    cdef char* reserve(self, Py_ssize_t size) except NULL
    cdef int find_topic(self, Limits limits, const char* topic, uint32_t topic_bytes) except -2
    cdef int64_t destination(self, int slot_index, int64_t queue_id, int64_t hold) except -2
    cdef int _forget_destinations(self) except -1
    cdef int64_t _new_destination(self, str topic, int64_t queue_id, int64_t hold) except -2
    cdef char* _put_reply(self, char* at, const Send* send, const char* host, Py_ssize_t host_chars,
                          int64_t queue_id) noexcept nogil
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef Py_ssize_t end_of(self, Py_ssize_t first, Py_ssize_t count) except -1
    cdef int add_send(self, const Send* asked, Py_ssize_t first) except -1

cdef class JointIntake(SendIntake):
    pass

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
