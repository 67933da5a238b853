# Properties of the record at hand: those that some column or filter wants, and, for a map, all of them. A record may hold
# thousands, so beyond a few the names are in buckets. Nothing is copied: names and values point into the record.

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memcmp

from headrace.batch cimport RecordView
from headrace.format.separators cimport find_end, find_separator
from headrace.format.name_set cimport name_hash

cdef enum:
    FIRST_PAIRS = 64
    FEW_PAIRS = 16
    FEW_WANTED = 8
    BUCKETS = 256

cdef struct Wanted:
    const uint8_t* name
    uint32_t name_bytes
    const uint8_t* value        # NULL: the record has none
    uint32_t value_bytes
    int32_t next                # of the same bucket

cdef struct Pair:
    const uint8_t* name
    const uint8_t* value
    uint32_t name_bytes
    uint32_t value_bytes
    int32_t next                # of the same bucket

cdef struct Properties:
    Wanted* wanted
    int wanted_count
    int32_t* wanted_buckets     # NULL: they are few, or index_wanted was not called
    bint needs_pairs
    Pair* pairs
    uint32_t pair_room
    uint32_t pair_count
    bint is_bucketed
    int32_t buckets[BUCKETS]


cdef inline int index_wanted(Properties* found) except -1:
    """Put the wanted names into buckets, if they are many; ``free_wanted`` gives these back."""
    cdef int i
    cdef uint32_t bucket
    if found.wanted_count <= FEW_WANTED:
        return 0
    found.wanted_buckets = <int32_t*>PyMem_Malloc(BUCKETS * sizeof(int32_t))
    if found.wanted_buckets == NULL:
        raise MemoryError
    for i in range(BUCKETS):
        found.wanted_buckets[i] = -1
    for i in range(found.wanted_count):
        bucket = name_hash(found.wanted[i].name, found.wanted[i].name_bytes) % BUCKETS
        found.wanted[i].next = found.wanted_buckets[bucket]
        found.wanted_buckets[bucket] = i
    return 0


cdef inline void free_wanted(Properties* found) noexcept:
    PyMem_Free(found.wanted)
    PyMem_Free(found.wanted_buckets)


cdef inline int find_properties(Properties* found, const RecordView* view) except -1 nogil:
    """Find the wanted properties and, where they are needed, all pairs; of a name that is there twice the last value."""
    cdef const char* p = view.properties
    cdef const char* end = p + view.properties_bytes
    cdef const char* stop
    cdef const char* middle
    cdef uint32_t name_bytes, value_bytes
    cdef int i
    for i in range(found.wanted_count):
        found.wanted[i].value = NULL
    found.pair_count = 0
    found.is_bucketed = False
    while p < end:
        middle = find_separator(p, end)
        stop = middle if middle == end or middle[0] == 2 else find_end(middle, end)
        if middle > p and middle + 1 < stop:
            name_bytes = <uint32_t>(middle - p)
            value_bytes = <uint32_t>(stop - middle - 1)
            i = 0
            if found.wanted_buckets != NULL:
                i = found.wanted_buckets[name_hash(<const uint8_t*>p, name_bytes) % BUCKETS]
            while 0 <= i < found.wanted_count:
                if found.wanted[i].name_bytes == name_bytes and memcmp(found.wanted[i].name, p, name_bytes) == 0:
                    found.wanted[i].value = <const uint8_t*>middle + 1
                    found.wanted[i].value_bytes = value_bytes
                i = i + 1 if found.wanted_buckets == NULL else found.wanted[i].next
            if found.needs_pairs and not is_hidden(<const uint8_t*>p, name_bytes):
                put_pair(found, <const uint8_t*>p, name_bytes, <const uint8_t*>middle + 1, value_bytes)
        p = stop + 1
    return 0


cdef inline bint is_hidden(const uint8_t* name, uint32_t size) noexcept nogil:
    """Properties that only say how the log is kept: the checksum, and how many records one command had."""
    if size == 8:
        return memcmp(name, b"__CRC32#", 8) == 0 or memcmp(name, b"__BATCH#", 8) == 0
    return False


cdef inline int put_pair(Properties* found, const uint8_t* name, uint32_t name_bytes, const uint8_t* value,
                         uint32_t value_bytes) except -1 nogil:
    """Add a pair, or replace the value of its name."""
    cdef uint32_t bucket = 0
    cdef void* moved
    cdef Pair* pair
    if not found.is_bucketed and found.pair_count >= FEW_PAIRS:
        fill_buckets(found)
    if found.is_bucketed:
        bucket = name_hash(name, name_bytes) % BUCKETS
    pair = pair_of(found, name, name_bytes, bucket)
    if pair == NULL:
        if found.pair_count == found.pair_room:
            moved = realloc(found.pairs, (found.pair_room * 2 if found.pair_room else FIRST_PAIRS) * sizeof(Pair))
            if moved == NULL:
                with gil:
                    raise MemoryError("no memory for the properties of a record")
            found.pair_room = found.pair_room * 2 if found.pair_room else FIRST_PAIRS
            found.pairs = <Pair*>moved
        pair = &found.pairs[found.pair_count]
        pair.name = name
        pair.name_bytes = name_bytes
        if found.is_bucketed:
            pair.next = found.buckets[bucket]
            found.buckets[bucket] = <int32_t>found.pair_count
        found.pair_count += 1
    pair.value = value
    pair.value_bytes = value_bytes
    return 0


cdef inline Pair* pair_of(Properties* found, const uint8_t* name, uint32_t name_bytes, uint32_t bucket) noexcept nogil:
    """Return the pair of that name, NULL where there is none; ``bucket`` counts only once there are some."""
    cdef int32_t at
    cdef Pair* pair
    if found.is_bucketed:
        at = found.buckets[bucket]
        while at >= 0:
            pair = &found.pairs[at]
            if pair.name_bytes == name_bytes and memcmp(pair.name, name, name_bytes) == 0:
                return pair
            at = pair.next
        return NULL
    for at in range(<int32_t>found.pair_count):
        pair = &found.pairs[at]
        if pair.name_bytes == name_bytes and memcmp(pair.name, name, name_bytes) == 0:
            return pair
    return NULL


cdef inline void fill_buckets(Properties* found) noexcept nogil:
    """Put the pairs so far into buckets."""
    cdef uint32_t i, bucket
    for i in range(<uint32_t>BUCKETS):
        found.buckets[i] = -1
    for i in range(found.pair_count):
        bucket = name_hash(found.pairs[i].name, found.pairs[i].name_bytes) % BUCKETS
        found.pairs[i].next = found.buckets[bucket]
        found.buckets[bucket] = <int32_t>i
    found.is_bucketed = True
