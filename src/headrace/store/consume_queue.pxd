from libc.stdint cimport int32_t, int64_t, uint8_t

from headrace.store.queue_base cimport QueueBase, QueueEntry

cdef class FileEntries:
    cdef bytes raw                          # of the files: what is compared next
    cdef int64_t first_found                # queue_offset of the first entry that a record was found for
    cdef int64_t end_found                  # behind the last one
    cdef list without_record                # ranges in between that no record was found for

cdef class ConsumeQueue(QueueBase):
    cdef readonly str directory             # where its files are
    cdef int64_t first_offset               # queue_offset of the first entry of its files, hidden or not
    cdef object files                       # QueueFiles: the bounded pool of open files
    cdef public int64_t delay_ms            # > 0 in a queue of a delay level: tag hash = store time + this
    cdef public bint listed                 # on the log's list of queues with entries in memory
    cdef bint is_waiting                    # on the log's list of queues with entries that become visible by a flush
    cdef uint8_t* tail                      # raw 20-byte entries [tail_offset, next_offset)
    cdef Py_ssize_t tail_capacity           # in entries
    cdef readonly int64_t tail_offset       # entries from here on are in memory
    cdef readonly int64_t written_offset    # entries below are in the files
    cdef readonly int64_t issued_position   # where the records end that the files knew of at load()
    cdef int64_t filled_from                # the newest run of fillers: queue_offsets [filled_from, filled_to)
    cdef int64_t filled_to
    cdef int64_t last_end                   # where the record of the newest entry ends; 0: nothing was pushed
    cdef readonly int64_t mended_entries    # entries of the files that recovery found wrong and rewrote
    cdef readonly bint is_numbered_anew     # recovery found it numbered from 0 again in the log
    cdef int64_t restored_end               # behind the entry that was restored last, 0 before the first
    cdef int64_t stepped_back_to            # queue_offset of a record behind it in the log that has a lower one
    cdef QueueEntry stepped_back            # its entry; record_bytes 0: none
    cdef int64_t loaded_offset              # entries below were in the files at load() and are compared with the log
    cdef FileEntries compared               # what recovery knows of these, None before and after
    cdef int64_t read_offset                # first entry of compared.raw
    cdef bytes block                        # of the files, BLOCK_ENTRIES from block_offset on: what is read next
    cdef int64_t block_offset
    cdef bint is_named                      # that entries are missing was logged
    cdef readonly set dirty_files           # first bytes of files written since the last sync
    cdef Py_ssize_t _read_files(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1
    cdef int _reserve(self, Py_ssize_t entries) except -1
    cdef int _load(self, int64_t queue_offset, QueueEntry* into) except -1
    cdef int _restore(self, int64_t queue_offset, int64_t physical_offset, int32_t record_bytes,
                      int64_t tag_hash) except -1
    cdef int _begin_anew(self) except -1
    cpdef int64_t advance_visible(self, int64_t durable_offset) except -1
    cpdef int64_t write_out(self) except -1
