# Messages that become ready at a time: see deferred.pyx for the structure.

from libc.stdint cimport int32_t, int64_t, uint64_t
from headrace.broker.channels.channel_state cimport MessageEntry, StateWriter

cdef enum:
    LEVELS = 4

cdef struct Chunk:
    Chunk* next
    int32_t count
    int32_t capacity
    MessageEntry entries[1]     # `capacity` of them

cdef class Bucket:              # entries of one span of time, in no order
    cdef int64_t start_ms
    cdef int level
    cdef Chunk* chunks
    cdef Py_ssize_t count       # in memory
    cdef object spilled         # its spill file, or None
    cdef bint unsaved           # a snapshot in parts has not written it to its end
    cdef Chunk* save_at         # where that snapshot goes on
    cdef object save_blocks     # ... behind the last chunk: iterator over the spill file's blocks
    cdef int push(self, const MessageEntry* entry) except -1

cdef class DeferredSet:
    cdef readonly int64_t count             # everything, spilled entries included
    cdef readonly int64_t in_memory
    cdef readonly int64_t spilled           # entries in files
    cdef readonly int64_t lost_spills       # entries whose spill file could not be read back
    cdef public int64_t max_in_memory
    cdef public object spill                # SpillDirectory or None
    cdef MessageEntry* heap                 # min-heap on due_ms: every entry due before ends[0] that was loaded
    cdef Py_ssize_t heap_count
    cdef Py_ssize_t heap_capacity
    cdef list levels                        # one dict {start_ms: Bucket} per level
    cdef list opening                       # one list of buckets per level whose entries are moving down
    cdef Py_ssize_t opening_count           # buckets on those lists
    cdef Bucket recent                      # the bucket that took the last far entry
    cdef int64_t[4] ends                    # level n holds what is due in [ends[n], ends[n + 1]) by the time it comes
    cdef int64_t[4] next_start              # lowest start of a bucket of the level; INT64_MAX: none
    cdef list unsaved                       # buckets that a snapshot in parts has still to write
    cdef Py_ssize_t unsaved_heap            # ... and how many entries of the heap, the first ones
    cdef StateWriter carried                # entries that left these meanwhile
    cdef int64_t saves                      # snapshots in parts begun
    cdef bint warned
    cdef void _set_horizon(self, int64_t now_ms) noexcept
    cdef int add(self, int64_t now_ms, const MessageEntry* entry) except -1
    cdef int _place(self, const MessageEntry* entry) except -1
    cdef int _push_heap(self, const MessageEntry* entry) except -1
    cdef void _pop_heap(self) noexcept
    cdef int advance(self, int64_t now_ms, Py_ssize_t most) except -1
    cdef int _open(self, int level) except -1
    cdef Py_ssize_t _move(self, Bucket bucket, Py_ssize_t most) except -1
    cdef void _free_first(self, Bucket bucket) noexcept
    cdef bint pop_due(self, int64_t now_ms, MessageEntry* into) except -1
    cdef int64_t next_due_ms(self) noexcept
    cdef int write_all(self, StateWriter writer) except -1
    cdef int64_t begin_save(self) except -1
    cdef bint save_some(self, StateWriter writer, Py_ssize_t most) except -1
    cdef int end_save(self, int64_t number) except -1
    cdef bint is_saving(self) noexcept
    cdef int clear(self) except -1
    cdef int _spill_some(self) except -1
    cdef void trim(self) noexcept
