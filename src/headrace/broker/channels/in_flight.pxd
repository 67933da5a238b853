# Messages that were delivered and not yet settled: see in_flight.pyx for the structure.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef struct InFlight:
    int64_t physical_offset
    int64_t queue_offset
    int64_t deadline_ms         # monotonic
    int64_t delivered_ms        # monotonic
    void* owner                 # the Subscription, borrowed: the channel keeps it while its list is not empty
    int32_t previous            # neighbours in the owner's deadline list, or -1; next is also the free list's link
    int32_t next
    uint16_t attempts           # this delivery included
    uint16_t queue_id

cdef struct DeadlineList:       # one per Subscription, ordered by deadline
    int32_t head
    int32_t tail
    int32_t count

cdef struct OffsetCell:
    int64_t key
    int64_t value               # -1: the cell is empty

cdef class OffsetMap:
    cdef OffsetCell* cells
    cdef uint64_t mask
    cdef int shift
    cdef readonly Py_ssize_t count
    cdef int _grow(self) except -1
    cdef int put(self, int64_t key, int64_t value) except -1
    cdef int64_t find(self, int64_t key) noexcept
    cdef bint discard(self, int64_t key) noexcept
    cdef void clear(self) noexcept

cdef class InFlightTable:
    cdef InFlight* entries
    cdef Py_ssize_t capacity
    cdef int32_t used           # entries[used:] were never taken
    cdef int32_t free_head
    cdef readonly int32_t count
    cdef OffsetMap by_offset
    cdef int32_t add(self, DeadlineList* waiting, int64_t physical_offset, int64_t deadline_ms) except -1
    cdef int32_t find(self, int64_t physical_offset) noexcept
    cdef void remove(self, DeadlineList* waiting, int32_t slot) noexcept
    cdef void move(self, DeadlineList* waiting, int32_t slot, int64_t deadline_ms) noexcept
    cdef void _link(self, DeadlineList* waiting, int32_t slot, int64_t deadline_ms) noexcept
    cdef void _unlink(self, DeadlineList* waiting, int32_t slot) noexcept
    cdef void clear(self) noexcept
