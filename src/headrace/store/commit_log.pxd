from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from headrace.batch cimport PublishBatch, RecordBatch
from headrace.store.index cimport KeyIndex
from headrace.store.log_base cimport LogBase
from headrace.store.segment cimport Segment, SegmentSet

cdef class CommitLog(LogBase):
    cdef readonly str directory
    cdef readonly int64_t segment_bytes
    cdef readonly int64_t first_offset      # of the oldest segment
    cdef readonly int64_t end_offset        # where the next record goes
    cdef readonly int64_t durable_offset    # everything below survives a power cut
    cdef readonly int64_t trusted_offset    # records from here on were checked or written by this process
    cdef readonly SegmentSet segments       # by first_offset // segment_bytes
    cdef readonly Segment active
    cdef public uint64_t store_host         # IPv4 << 32 | port, as records carry it
    cdef public bytes store_host_v6         # 16 bytes + i32 port, wins over store_host; None without
    cdef public KeyIndex index              # gets the keys of what is appended; None: nothing does
    cdef public int64_t reserve_bytes       # kept free at the active segment's end while there is no room for another
    cdef public object provide_segment      # (first_offset) -> Segment; raises StoreFullError
    cdef public object on_cold              # (segment, position, size): read it in a thread
    cdef public object on_damaged           # (physical_offset, reason)
    cdef public object on_unreadable        # (error): the system refuses a file; see to it that readers try again
    cdef public object dirty_queues         # list of ConsumeQueue with entries in memory
    cdef list waiting_queues                # those with entries that become visible with the next flush
    cdef public int64_t zeroing_from        # a thread may write zeros from here on: nothing is written there meanwhile
    cdef public object before_zeroed        # (): returns when no thread does; called before a write that reaches there
    cdef public bint fills_folios           # whether a write goes on with zeros to the end of a large folio
    cdef public int64_t filled_offset       # up to here the page cache was filled, with records and zeros
    cdef readonly int64_t appended_records
    cdef readonly int64_t appended_bytes
    cdef int64_t reached_offset             # how far the batch that is being written may have come
    cdef uint8_t* staging
    cdef Py_ssize_t staging_capacity
    cdef Segment last_read
    cdef set warm_chunks                    # offsets of chunks that were in memory when they were looked at
    cdef int64_t warm_from, warm_end        # where the last record was found in memory: not asked again
    cdef int _reserve_staging(self, Py_ssize_t size) except -1
    cdef int _write(self, Segment segment, int64_t position, Py_ssize_t size) except -1
    cdef Py_ssize_t _zeros_behind(self, Segment segment, int64_t position) noexcept
    cdef int _roll(self) except -1
    cdef int64_t _measure(self, PublishBatch batch, int64_t now_ms) except -1
    cdef int _encode(self, PublishBatch batch, int64_t now_ms) except -1
    cdef int _undo(self, PublishBatch batch, Py_ssize_t pushed, int64_t end_offset, Segment active) except -1
    cdef bint _is_warm(self, Segment segment, int64_t position, int64_t record_bytes) except -1
    cdef bint _is_chunk_warm(self, Segment segment, int64_t position) except -1
    cdef int _read_ahead(self, Segment segment, int64_t position) except -1
    cpdef int64_t append(self, PublishBatch batch, int64_t now_ms) except -1
    cpdef Segment segment_of(self, int64_t physical_offset)
