# cython: nonecheck=False
"""The topics that rows go to, found by name. Grows; nothing is ever taken out."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    HASH_SLOTS = 1024                   # at first, a power of two


cdef class TopicTable:
    def __cinit__(self):
        self.last = -1
        self._table_size = HASH_SLOTS
        self._table = <int32_t*>malloc(HASH_SLOTS * sizeof(int32_t))
        if self._table == NULL:
            raise MemoryError("cannot keep topics")
        memset(self._table, 255, HASH_SLOTS * sizeof(int32_t))

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.count):
            free(self.slots[index].name)
            free(self.slots[index].by_id)
        free(self.slots)
        free(self._table)

    cdef int add(self, bytes name, uint32_t queues, int64_t fixed, object by_id, uint32_t first) except -1:
        cdef TopicSlot* slot
        cdef Py_ssize_t index
        self._reserve()
        slot = &self.slots[self.count]
        slot.name = <uint8_t*>malloc(len(name) + 1)
        slot.by_id = <int32_t*>malloc((len(by_id) + 1) * sizeof(int32_t))
        if slot.name == NULL or slot.by_id == NULL:
            free(slot.name)
            free(slot.by_id)
            raise MemoryError("cannot keep a topic")
        memcpy(slot.name, PyBytes_AS_STRING(name), len(name))
        slot.name_bytes = <uint32_t>len(name)
        slot.queues = queues
        slot.is_by_key = fixed < 0
        slot.fixed = 0 if fixed < 0 else <uint32_t>fixed
        slot.ids = <uint32_t>len(by_id)
        for index in range(len(by_id)):
            slot.by_id[index] = by_id[index]
        slot.first = first
        self._index(self.count)
        self.last = <int32_t>self.count
        self.count += 1
        return 0

    cdef int32_t find(self, const Text* name) noexcept nogil:
        cdef uint32_t at
        cdef int32_t index = self.last
        if index >= 0 and self.slots[index].name_bytes == name.size:
            if memcmp(self.slots[index].name, name.at, name.size) == 0:
                return index
        at = <uint32_t>hash_bytes(name.at, name.size)
        while True:
            index = self._table[at & (self._table_size - 1)]
            if index < 0:
                return -1
            if self.slots[index].name_bytes == name.size:
                if memcmp(self.slots[index].name, name.at, name.size) == 0:
                    self.last = index
                    return index
            at += 1

    cdef int _reserve(self) except -1:
        """Make room for one more; the table stays half empty."""
        cdef Py_ssize_t index, capacity
        cdef TopicSlot* slots
        cdef int32_t* table
        if self.count == self._capacity:
            capacity = 2 * self._capacity if self._capacity else 8
            slots = <TopicSlot*>realloc(self.slots, capacity * sizeof(TopicSlot))
            if slots == NULL:
                raise MemoryError(f"cannot keep {capacity} topics")
            self.slots = slots
            self._capacity = capacity
        if 2 * (self.count + 1) > self._table_size:
            table = <int32_t*>realloc(self._table, 2 * self._table_size * sizeof(int32_t))
            if table == NULL:
                raise MemoryError(f"cannot keep {self.count + 1} topics")
            self._table = table
            self._table_size *= 2
            memset(table, 255, self._table_size * sizeof(int32_t))
            for index in range(self.count):
                self._index(index)
        return 0

    cdef void _index(self, Py_ssize_t index) noexcept:
        cdef uint32_t at = <uint32_t>hash_bytes(self.slots[index].name, self.slots[index].name_bytes)
        while self._table[at & (self._table_size - 1)] >= 0:
            at += 1
        self._table[at & (self._table_size - 1)] = <int32_t>index
