from libc.stdint cimport int64_t, uint8_t, uint32_t
from headrace.batch cimport PublishBatch, PublishEntry
from headrace.store.queue_base cimport QueueBase, QueueEntry
from headrace.store.log_base cimport LogBase

cdef class MemoryChunk:
    cdef uint8_t* base
    cdef readonly int64_t first_offset
    cdef readonly Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef Py_ssize_t records             # not evicted yet

cdef class MemoryLog(LogBase):
    cdef readonly int64_t max_messages
    cdef readonly int64_t max_bytes
    cdef readonly int64_t held_bytes
    cdef readonly int64_t evicted_messages
    cdef int64_t end_offset
    cdef dict chunks                    # first_offset >> CHUNK_SHIFT -> MemoryChunk
    cdef MemoryChunk newest
    cdef list queues
    cpdef int64_t append(self, PublishBatch batch, int64_t now_ms) except -1
    cdef uint8_t* _place(self, Py_ssize_t size, int64_t* physical_offset) except NULL
    cdef int _evict_one(self, MemoryQueue queue) except -1

cdef class MemoryQueue(QueueBase):
    cdef QueueEntry* ring               # entry of queue_offset o is ring[o % ring_capacity]
    cdef Py_ssize_t ring_capacity
