# What a reader needs of a log, durable (CommitLog) or in memory (MemoryLog).

from libc.stdint cimport int64_t, uint32_t
from headrace.batch cimport RecordBatch

cdef enum:
    VIEW_OK = 0
    VIEW_DAMAGED = 1    # named, counted and logged by the log; the caller skips the record
    VIEW_COLD = 2       # not in memory: the log reads ahead in a thread and calls back; the caller stops here
    VIEW_GONE = 3       # removed by retention or eviction

cdef class LogBase:
    cdef int view(self, int64_t physical_offset, uint32_t record_bytes, RecordBatch into) except -1
