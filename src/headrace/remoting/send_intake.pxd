# Plain sends of one read: see send_intake.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.remoting.header cimport Header, Span

cdef enum:
    TOPIC_SLOTS = 16
    QUEUE_SLOTS = 32
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320

cdef class Limits:
    cdef readonly int64_t max_frame_bytes
    cdef readonly int64_t max_message_bytes
    cdef readonly object topics
    cdef readonly bytes cluster
    cdef bytes cluster_property         # CLUSTER 1 name 2

cdef struct Send:
    int32_t opaque
    uint32_t first_entry
    uint32_t entries
    uint32_t destination
    uint8_t serialize
    uint8_t is_oneway

cdef struct TopicSlot:                  # a topic seen lately
    uint64_t generation                 # the batch the rest belongs to
    uint32_t name_bytes
    bint exists
    int32_t[QUEUE_SLOTS] destinations   # of queue ids -1, 0, 1 ...; -1 where there is none yet
    char[128] name

cdef class SendIntake:
    cdef readonly PublishBatch batch
    cdef readonly Py_ssize_t sends
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
    cdef dict destination_of            # (topic, queue id) -> index

    cdef int begin(self) except -1
    cdef char* reserve(self, Py_ssize_t size) except NULL
    cdef int64_t place(self, Limits limits, const char* topic, uint32_t topic_bytes, int64_t queue_id) except -2
    cdef int64_t _new_destination(self, str topic, int64_t queue_id) except -2
    cdef char* _put_reply(self, char* at, const Send* send, const char* host, Py_ssize_t host_chars,
                          int64_t queue_id) noexcept nogil
    cdef int add_send(self, const Header* header, uint32_t destination, Py_ssize_t first) except -1

# Take a send if it is plain: 1 when it is in ``intake``, 0 when it is to be handed out as a command.
cdef int take_send(SendIntake intake, Limits limits, const Header* header, const char* body, Py_ssize_t body_bytes,
                   object owner) except -1

# Add one message with its own properties (NULL: none) and those of the header (NULL: none); 0 when it is not plain.
cdef int take_message(SendIntake intake, Limits limits, const PublishEntry* common, const char* own,
                      Py_ssize_t own_bytes, const Span* properties) except -1
