# The NSQ V2 codec: see codec.pyi for the public description.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from headrace.batch cimport RecordBatch
from headrace.net.stream_input cimport StreamInput
from headrace.nsq.intake cimport Intake
from headrace.nsq.words cimport Word

cdef class Limits:
    cdef readonly int64_t max_message_bytes
    cdef readonly int64_t max_body_bytes
    cdef readonly int64_t max_rdy_count
    cdef readonly int64_t max_req_timeout_ms

cdef class Reader(StreamInput):
    cdef Limits limits
    cdef public uint32_t allowed                # bit per command: may be parsed in this state
    cdef public uint32_t ignored                # bit per command: swallowed in this state
    cdef public bint heartbeats_off             # SUB is refused then
    cdef readonly bint magic_seen
    # What is known of the command that is cut off, so that nothing is looked at twice; all 0 at a command's start.
    cdef Py_ssize_t _expected                   # bytes of the whole command as far as announced
    cdef Py_ssize_t _scanned                    # bytes without a line end
    cdef Py_ssize_t _walked                     # MPUB: bytes checked
    cdef Py_ssize_t _walked_messages            # MPUB: messages checked
    # The topic of the last publish: its name as "topic\n" and its place in the current batch (-1: not yet in it).
    cdef char[65] _topic_line
    cdef Py_ssize_t _topic_line_bytes
    cdef str _topic
    cdef Py_ssize_t _topic_index
    cdef dict _topic_indexes

    cdef char[16] _ready_line                   # RDY as it was taken last: "RDY n\n"
    cdef Py_ssize_t _ready_line_bytes

    cdef bint holds_only_pubs(self, bytearray memory, Py_ssize_t length) noexcept
    cdef bint holds_only_finishes(self, bytearray memory, Py_ssize_t length) noexcept
    cdef bint _begins_with_ready(self, const char* at, Py_ssize_t left) noexcept
    cdef int _consume(self, Py_ssize_t length) noexcept
    cdef object _parse(self, Intake run, int64_t now_ms)
    cdef object _parse_line(self, Intake run, int64_t now_ms)
    cdef object _parse_publish(
        self, Intake run, int command, const Word* params, Py_ssize_t count, Py_ssize_t head, int64_t now_ms
    )
    cdef object _parse_settle(self, Intake run, int command, const Word* params, Py_ssize_t count, Py_ssize_t head)
    cdef object _parse_rare(self, int command, const Word* params, Py_ssize_t count, Py_ssize_t head)
    cdef int _choose_topic(self, Intake run, const char* name, Py_ssize_t length) except -1
    cdef int _place_topic(self, Intake run) except -1
    cdef Py_ssize_t _body_end(self, int command, Py_ssize_t head) except -2
    cdef int64_t _body_bytes(self, int command, Py_ssize_t head) except -2
    cdef int _add_message(self, Intake run, int command, Py_ssize_t head, Py_ssize_t end, int64_t due_ms) except -1
    cdef int _parse_mpub(self, Intake run, const char* name, Py_ssize_t name_bytes, Py_ssize_t head) except -1
    cdef int64_t _walk_mpub(self, Py_ssize_t head) except -1
    cdef int _add_settle(self, Intake run, int command, uint64_t message_id, int64_t delay_ms) except -1

cpdef bytes encode_messages(RecordBatch batch, uint32_t node_id)
