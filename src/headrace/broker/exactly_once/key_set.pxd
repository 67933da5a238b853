# Sets of fingerprints of keys: see key_set.pyi for the public description.

from libc.stdint cimport uint64_t

cdef struct Fingerprint:
    uint64_t low
    uint64_t high

cdef struct Table:
    Fingerprint* slots          # both 0: empty
    uint64_t capacity           # a power of two, or 0
    uint64_t count

cdef class KeySet:
    cdef Table[64] tables       # by the upper bits of a fingerprint
    cdef readonly Py_ssize_t count
    cdef Fingerprint* find(self, Fingerprint wanted) noexcept nogil
    cdef bint has(self, Fingerprint wanted) noexcept nogil
    cdef int insert(self, Fingerprint wanted) except -1
    cdef int grow(self, Table* table) except -1
    cdef int remove(self, Fingerprint wanted) noexcept
