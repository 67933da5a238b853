# Sets of names (topics, tags, keys) that are asked without the GIL. Compiled into who needs one.

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memset

cdef struct NameSet:            # open addressing; empty slots are NULL
    const uint8_t** names
    uint32_t* sizes
    uint32_t mask


cdef inline uint32_t name_hash(const uint8_t* text, uint32_t size) noexcept nogil:
    """FNV-1a."""
    cdef uint32_t h = 2166136261
    cdef uint32_t i
    for i in range(size):
        h = (h ^ text[i]) * 16777619
    return h


cdef inline bint is_in(const NameSet* names, const uint8_t* text, uint32_t size) noexcept nogil:
    cdef uint32_t at
    if names.names == NULL:
        return False
    at = name_hash(text, size) & names.mask
    while names.names[at] != NULL:
        if names.sizes[at] == size and memcmp(names.names[at], text, size) == 0:
            return True
        at = (at + 1) & names.mask
    return False


cdef inline int fill_set(NameSet* names, list texts) except -1:
    """Make the set; ``texts`` are bytes that their owner keeps."""
    cdef uint32_t room = 8
    cdef uint32_t at
    cdef bytes text
    while room < 2 * len(texts) + 2:
        room *= 2
    names.names = <const uint8_t**>PyMem_Malloc(room * sizeof(void*))
    names.sizes = <uint32_t*>PyMem_Malloc(room * sizeof(uint32_t))
    if names.names == NULL or names.sizes == NULL:
        raise MemoryError
    memset(names.names, 0, room * sizeof(void*))
    names.mask = room - 1
    for text in texts:
        at = name_hash(text, <uint32_t>len(text)) & names.mask
        while names.names[at] != NULL:
            at = (at + 1) & names.mask
        names.names[at] = text
        names.sizes[at] = <uint32_t>len(text)
    return 0


cdef inline void free_set(NameSet* names) noexcept:
    PyMem_Free(names.names)
    PyMem_Free(names.sizes)
