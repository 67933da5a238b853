# Plain sends to append and to answer: see send_intake.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from headrace.batch cimport PublishBatch
from headrace.remoting.sending.send_replies cimport Send

cdef enum:
    BLOCK_BYTES = 65536                 # of properties, in one piece
    TOPIC_SLOTS = 16
    QUEUE_SLOTS = 32

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

# What a message is held for, if not for a delay level, whose number it is then.
cdef enum:
    HOLD_NONE = 0
    HOLD_TIMED = -1
    HOLD_HALF = -2

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
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef Py_ssize_t end_of(self, Py_ssize_t first, Py_ssize_t count) except -1
    cdef int add_send(self, const Send* asked, Py_ssize_t first) except -1

cdef class JointIntake(SendIntake):
    pass
