from libc.stdint cimport int32_t, int64_t
from headrace.batch cimport RecordBatch, RecordView
from headrace.broker.consumers.sql92_evaluation cimport Filter
from headrace.format.name_set cimport NameSet
from headrace.store.queue_base cimport QueueBase

cdef class Codes:
    cdef int32_t* codes                     # ascending
    cdef Py_ssize_t count
    cdef readonly frozenset tags            # exact values of TAGS, UTF-8; empty: the codes decide alone
    cdef NameSet names                      # the same
    cdef bint has(self, int64_t tag_hash) noexcept
    cdef bint has_tag_of(self, const RecordView* view) noexcept

cdef class PullResult:
    cdef readonly object status             # PullStatus
    cdef readonly int64_t next_offset
    cdef readonly int64_t min_offset
    cdef readonly int64_t max_offset
    cdef readonly int64_t examined
    cdef readonly int64_t skipped

cpdef PullResult read_queue(QueueBase queue, int64_t from_offset, Py_ssize_t max_messages, int64_t max_bytes,
                            Codes codes, Filter matcher, RecordBatch into)
