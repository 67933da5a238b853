# The topics that rows go to, found by name, and the hash by which they and the queues are found.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from headrace.spark.writing.arrow_columns cimport Text

cdef struct TopicSlot:
    uint8_t* name
    uint32_t name_bytes
    uint32_t queues                     # of the route, all brokers together
    uint32_t fixed                      # where rows go that do not say where
    bint is_by_key                      # ... unless they go where their unique keys say
    int32_t* by_id                      # queue id -> index in the route, -1: there is none
    uint32_t ids
    uint32_t first                      # its first destination


@cython.final
cdef class TopicTable:
    cdef TopicSlot* slots
    cdef Py_ssize_t count
    cdef int32_t last                   # found or added; -1: none was

    cdef Py_ssize_t _capacity
    cdef int32_t* _table                # open addressing: index of a slot, -1: empty
    cdef uint32_t _table_size

    # Add a topic that is not there. Arguments: as ``Resolve`` in encode.pyi, and the number of its first destination.
    cdef int add(self, bytes name, uint32_t queues, int64_t fixed, object by_id, uint32_t first) except -1
    # Return the index of a topic, -1 when it is not there.
    cdef int32_t find(self, const Text* name) noexcept nogil
    cdef int _reserve(self) except -1
    cdef void _index(self, Py_ssize_t index) noexcept


cdef inline uint64_t hash_bytes(const uint8_t* at, int64_t size) noexcept nogil:
    """FNV-1a of 64 bits, its bits then mixed so that the low ones depend on all (the finisher of MurmurHash3)."""
    cdef uint64_t value = 0xCBF29CE484222325
    cdef int64_t index
    for index in range(size):
        value = (value ^ at[index]) * <uint64_t>0x100000001B3
    value ^= value >> 33
    value *= <uint64_t>0xFF51AFD7ED558CCD
    value ^= value >> 33
    value *= <uint64_t>0xC4CEB9FE1A85EC53
    value ^= value >> 33
    return value
