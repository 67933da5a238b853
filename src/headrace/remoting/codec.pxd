# The RocketMQ codec: see codec.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from headrace.remoting.header cimport Header
from headrace.remoting.send_intake cimport Limits, SendIntake

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

cdef class Reader:
    cdef Limits limits
    cdef readonly int64_t commands              # whole frames taken so far
    cdef readonly int64_t bytes_in
    # Input being parsed: [_at, _end) inside _source.
    cdef object _source
    cdef const char* _at
    cdef const char* _end
    # Start of a frame whose rest has not arrived. _large: _held has room for the whole frame and is read into
    # directly; otherwise it is put in front of the next read. Invariant: not _large -> _held_bytes <= SMALL_BYTES.
    cdef bytearray _held
    cdef Py_ssize_t _held_bytes
    cdef bint _large
    cdef Py_ssize_t _wanted                     # parse again only when that many bytes are there; 0 at a frame's start

    cdef object _parse(self, SendIntake intake)
    cdef int _keep(self) except -1
