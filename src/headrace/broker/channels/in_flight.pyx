"""InFlightTable: messages that were delivered and not yet settled.

A slab of structs with a free list; an open-addressing hash (linear probing, backward-shift deletion, at most half
full) finds an entry by its physical offset, which is what a message id holds. Each Subscription owns a doubly linked
list through the slab, ordered by deadline: its msg_timeout is constant, so a delivery belongs at the tail, and a TOUCH
moves to the tail. The cap on a TOUCH (delivery + max_msg_timeout) can call for a place before the tail; the walk back
is bounded by the subscription's in-flight window, and a message that has reached its cap does not move again.

Rejected: a binary heap over all in-flight messages as in nsqd (log n per delivery and per FIN; here both are O(1)).
"""

from libc.stdlib cimport free, malloc

from headrace.format.arrays cimport reserve


cdef inline uint64_t _home(OffsetMap offsets, int64_t key) noexcept:
    """Return the cell at which the search for a key begins."""
    return (<uint64_t>key * <uint64_t>0x9E3779B97F4A7C15) >> offsets.shift


cdef inline uint64_t _find_cell(OffsetMap offsets, int64_t key) noexcept:
    """Return the cell that has a key, or the empty one in which it belongs."""
    cdef uint64_t at = _home(offsets, key)
    while offsets.cells[at].value >= 0 and offsets.cells[at].key != key:
        at = (at + 1) & offsets.mask
    return at


cdef class OffsetMap:
    def __dealloc__(self):
        free(self.cells)

    def __setitem__(self, int64_t key, int64_t value):
        self.put(key, value)

    def __getitem__(self, int64_t key):
        cdef int64_t value = self.find(key)
        if value < 0:
            raise KeyError(key)
        return value

    def __delitem__(self, int64_t key):
        if not self.discard(key):
            raise KeyError(key)

    cdef int _grow(self) except -1:
        cdef OffsetCell* old = self.cells
        cdef uint64_t old_cells = self.mask + 1 if old != NULL else 0
        cdef uint64_t cells = old_cells * 2 if old_cells else 64
        cdef uint64_t i, at
        cdef OffsetCell* grown = <OffsetCell*>malloc(cells * sizeof(OffsetCell))
        if grown == NULL:
            raise MemoryError(f"cannot grow an offset map to {cells} cells")
        for i in range(cells):
            grown[i].value = -1
        self.cells = grown
        self.mask = cells - 1
        self.shift = 64
        while cells > 1:
            self.shift -= 1
            cells >>= 1
        for i in range(old_cells):
            if old[i].value >= 0:
                at = _home(self, old[i].key)
                while grown[at].value >= 0:
                    at = (at + 1) & self.mask
                grown[at] = old[i]
        free(old)
        return 0

    cdef int put(self, int64_t key, int64_t value) except -1:
        """Set ``key`` to ``value`` >= 0."""
        cdef uint64_t at
        if self.cells == NULL or <uint64_t>self.count * 2 > self.mask:
            self._grow()
        at = _find_cell(self, key)
        if self.cells[at].value < 0:
            self.count += 1
        self.cells[at].key = key
        self.cells[at].value = value
        return 0

    cdef int64_t find(self, int64_t key) noexcept:
        return -1 if self.count == 0 else self.cells[_find_cell(self, key)].value

    cdef bint discard(self, int64_t key) noexcept:
        cdef uint64_t at, hole, home
        if self.count == 0:
            return False
        at = _find_cell(self, key)
        if self.cells[at].value < 0:
            return False
        self.count -= 1
        hole = at
        while True:
            at = (at + 1) & self.mask
            if self.cells[at].value < 0:
                break
            home = _home(self, self.cells[at].key)
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):      # the probe from home passes the hole
                self.cells[hole] = self.cells[at]
                hole = at
        self.cells[hole].value = -1
        return True

    cdef void clear(self) noexcept:
        free(self.cells)
        self.cells = NULL
        self.mask = 0
        self.count = 0


cdef class InFlightTable:
    def __cinit__(self):
        self.free_head = -1
        self.by_offset = OffsetMap()

    def __dealloc__(self):
        free(self.entries)

    @property
    def memory_bytes(self):
        cdef Py_ssize_t cells = self.by_offset.mask + 1 if self.by_offset.cells != NULL else 0
        return self.capacity * sizeof(InFlight) + cells * sizeof(OffsetCell)

    cdef int32_t add(self, DeadlineList* waiting, int64_t physical_offset, int64_t deadline_ms) except -1:
        """Register a delivery; the caller fills in the fields that are not links, key or deadline."""
        cdef int32_t slot = self.free_head
        if slot < 0:
            reserve(<void**>&self.entries, &self.capacity, self.used + 1, 32, sizeof(InFlight))
        self.by_offset.put(physical_offset, slot if slot >= 0 else self.used)
        if slot >= 0:
            self.free_head = self.entries[slot].next
        else:
            slot = self.used
            self.used += 1
        self.entries[slot].physical_offset = physical_offset
        self._link(waiting, slot, deadline_ms)
        self.count += 1
        return slot

    cdef int32_t find(self, int64_t physical_offset) noexcept:
        return <int32_t>self.by_offset.find(physical_offset)

    cdef void remove(self, DeadlineList* waiting, int32_t slot) noexcept:
        """Forget an entry."""
        self._unlink(waiting, slot)
        self.by_offset.discard(self.entries[slot].physical_offset)
        self.entries[slot].next = self.free_head
        self.free_head = slot
        self.count -= 1

    cdef void move(self, DeadlineList* waiting, int32_t slot, int64_t deadline_ms) noexcept:
        """Give an entry another deadline."""
        if self.entries[slot].deadline_ms != deadline_ms:
            self._unlink(waiting, slot)
            self._link(waiting, slot, deadline_ms)

    cdef void _link(self, DeadlineList* waiting, int32_t slot, int64_t deadline_ms) noexcept:
        cdef int32_t before = waiting.tail
        cdef int32_t after = -1
        while before >= 0 and self.entries[before].deadline_ms > deadline_ms:
            after = before
            before = self.entries[before].previous
        self.entries[slot].deadline_ms = deadline_ms
        self.entries[slot].previous = before
        self.entries[slot].next = after
        if before >= 0:
            self.entries[before].next = slot
        else:
            waiting.head = slot
        if after >= 0:
            self.entries[after].previous = slot
        else:
            waiting.tail = slot
        waiting.count += 1

    cdef void _unlink(self, DeadlineList* waiting, int32_t slot) noexcept:
        cdef int32_t before = self.entries[slot].previous
        cdef int32_t after = self.entries[slot].next
        if before >= 0:
            self.entries[before].next = after
        else:
            waiting.head = after
        if after >= 0:
            self.entries[after].previous = before
        else:
            waiting.tail = before
        waiting.count -= 1

    cdef void clear(self) noexcept:
        """Forget everything and free the memory; the caller resets the deadline lists."""
        free(self.entries)
        self.entries = NULL
        self.capacity = self.used = self.count = 0
        self.free_head = -1
        self.by_offset.clear()
