"""ReadyRing: messages that were requeued, timed out or came due, in the order in which they did. 16 bytes each."""

from libc.stdlib cimport free, malloc


cdef class ReadyRing:
    def __dealloc__(self):
        free(self.entries)

    cdef int _resize(self, Py_ssize_t capacity) except -1:
        cdef Py_ssize_t i
        cdef ReadyEntry* entries = <ReadyEntry*>malloc(capacity * sizeof(ReadyEntry))
        if entries == NULL:
            raise MemoryError(f"cannot hold {capacity} ready messages")
        for i in range(self.count):
            entries[i] = self.entries[(self.head + i) & (self.capacity - 1)]
        free(self.entries)
        self.entries = entries
        self.capacity = capacity
        self.head = 0
        return 0

    cdef int push(self, uint64_t where, uint64_t place) except -1:
        cdef ReadyEntry* entry
        if self.count == self.capacity:
            self._resize(max(self.capacity * 2, 16))
        entry = &self.entries[(self.head + self.count) & (self.capacity - 1)]
        entry.where = where
        entry.place = place
        self.count += 1
        return 0

    cdef ReadyEntry* at(self, Py_ssize_t index) noexcept:
        return &self.entries[(self.head + index) & (self.capacity - 1)]

    cdef void pop(self) noexcept:
        self.head = (self.head + 1) & (self.capacity - 1)
        self.count -= 1
        self.taken += 1

    cdef int trim(self) except -1:
        """Give back memory that is mostly unused."""
        if self.count == 0:
            self.clear()
        elif self.capacity > 64 and self.count * 4 < self.capacity:
            self._resize(self.capacity >> 1)
        return 0

    cdef void clear(self) noexcept:
        free(self.entries)
        self.entries = NULL
        self.taken += self.count
        self.capacity = self.head = self.count = 0
