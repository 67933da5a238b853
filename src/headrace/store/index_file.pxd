# One file of the key index, in RocketMQ's layout: docs/formats/index-file.md.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef struct KeyRef:             # one key of one record, on its way into a file
    int64_t physical_offset
    int64_t store_ms
    uint32_t key_hash
    uint32_t slot

cdef class IndexFile:
    cdef readonly str path
    cdef readonly int32_t slot_count
    cdef readonly int32_t capacity          # entries the file has room for; number 0 is never used
    cdef readonly int32_t count             # number of the next entry
    cdef readonly int32_t written_count     # entries below are in the file
    cdef readonly int32_t slots_count       # the file's slots are as of this count; 1: nothing is known of them
    cdef readonly int32_t used_slots
    cdef readonly int64_t begin_ms          # store time and physical offset of the first entry, of the newest one
    cdef readonly int64_t end_ms
    cdef readonly int64_t begin_offset
    cdef readonly int64_t end_offset
    cdef readonly bint is_unsynced          # a sync failed: nobody knows what of the file is on disk, for good
    cdef int fd                             # -1: opened when it is read next
    cdef uint32_t* slots                    # big-endian as in the file; NULL: they are in the file only
    cdef bint has_stale_slots               # the file's slots may hold what memory does not: all are to be written
    cdef uint8_t* tail                      # raw entries [written_count, count)
    cdef Py_ssize_t tail_capacity           # in entries
    cdef int _reserve(self, Py_ssize_t entries) except -1
    cdef int _open(self) except -1
    cdef int _make_slots(self) except -1
    cdef int put(self, KeyRef* refs, Py_ssize_t count) except -1
    cdef int64_t _entry_at(self, int64_t number) noexcept nogil
    cdef bytes _read(self, int32_t number, Py_ssize_t entries)
    cdef int _load_slots(self) except -1
    cdef bint _read_slots(self) except -1
    cdef int _link_entries(self, int32_t number) except -1
