# What a reader needs of a queue, durable (ConsumeQueue) or in memory (MemoryQueue).

from libc.stdint cimport int32_t, int64_t

from headrace.store.log_base cimport LogBase

cdef enum:
    ENTRY_BYTES = 20            # in files and in memory: physical offset i64, record bytes i32, tag hash i64
    FILLER_BYTES = 0x7FFFFFFF   # record_bytes of a filler entry: no record stands behind it (a hole)

cdef struct QueueEntry:         # host order
    int64_t physical_offset
    int64_t tag_hash
    int32_t record_bytes

cdef class QueueBase:
    cdef readonly str topic
    cdef readonly bytes topic_bytes
    cdef readonly int32_t queue_id
    cdef readonly int64_t min_offset        # first queue_offset that can still be read
    cdef readonly int64_t next_offset       # queue_offset of the next append
    cdef readonly int64_t visible_offset    # readers may see [min_offset, visible_offset)
    cdef readonly LogBase log
    cdef public bint awaits_flush           # its topic's level is fsync: entries become visible when durable
    cdef public object owner                # whom the broker tells when entries become visible
    cdef int push(self, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) except -1
    cdef Py_ssize_t read_entries(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1
    cdef Py_ssize_t read_or_refuse(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1
