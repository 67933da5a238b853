# The RocketMQ codec: see codec.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from headrace.batch cimport RecordBatch
from headrace.net.stream_input cimport StreamInput
from headrace.remoting.header cimport Header
from headrace.remoting.sending.send_intake cimport Limits, SendIntake

cdef class Command:
    cdef readonly int32_t code
    cdef readonly str language
    cdef readonly int32_t version
    cdef readonly int32_t opaque
    cdef readonly int32_t flag
    cdef readonly int serialize
    cdef readonly str remark
    cdef readonly dict ext
    cdef readonly bytes body

cdef class PullRequest:
    cdef readonly int32_t code
    cdef readonly int32_t version
    cdef readonly int32_t opaque
    cdef readonly int serialize
    cdef readonly str language
    cdef readonly bint is_oneway
    cdef readonly str consumer_group
    cdef readonly str topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t queue_offset
    cdef readonly int32_t max_messages
    cdef readonly int32_t max_message_bytes
    cdef readonly int32_t sys_flag
    cdef readonly int64_t commit_offset
    cdef readonly int64_t suspend_timeout_ms
    cdef readonly int64_t sub_version
    cdef readonly str subscription
    cdef readonly str expression_type

cdef class Reader(StreamInput):
    cdef Limits limits
    cdef Command _blank         # the next, made before a header is read

    cdef object _parse(self, SendIntake intake)
    cdef PullRequest peek_pull(self, const char** behind)
    cdef int pass_pulls(self, const char* behind, Py_ssize_t count) except -1

# One frame for each head, back to back, with its share of the records for a body: those of head i end at ends[i].
cdef bytes join_answers(list heads, const Py_ssize_t* ends, RecordBatch records)

cdef bytes encode_pull_head(PullRequest pull, int code, str remark, int64_t next_offset, int64_t min_offset,
                            int64_t max_offset)

cpdef bytes encode_pull_response(PullRequest pull, int code, str remark, int64_t next_offset, int64_t min_offset,
                                 int64_t max_offset, RecordBatch records=*)
