"""Sets of keys that were seen: 128-bit fingerprints in open addressing, and the messages of a batch that are new.

A fingerprint is SipHash-2-4 with 128 bits of the key (J.-P. Aumasson, D. J. Bernstein), with a fixed secret: two keys of
a txn that meet by accident are not to be expected before 2**60 of them, and a producer that makes two meet on purpose
loses its own message. So no set keeps a key, whatever its length: a fingerprint takes 16 bytes, at most three quarters
of the slots are taken.

A set is made of 64 tables, so that growing copies one table and not all; slots are probed one after the other, and a
key that goes is followed by those that had to make way for it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from headrace.batch cimport PublishBatch, PublishEntry

FINGERPRINT_BYTES = 16

cdef enum:
    TABLES = 64
    FIRST_SLOTS = 4             # many txns have few keys
    NAME_BYTES = 9              # UNIQ_KEY and its 0x01

# Any constants do, but they stay: fingerprints are kept in the log.
cdef uint64_t SECRET_0 = 0x6865616472616365
cdef uint64_t SECRET_1 = 0x6B65792D77696E64

cdef inline uint64_t _turn(uint64_t x, int bits) noexcept nogil:
    return x << bits | x >> (64 - bits)


cdef inline void _round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = _turn(v[1], 13) ^ v[0]
    v[0] = _turn(v[0], 32)
    v[2] += v[3]
    v[3] = _turn(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _turn(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _turn(v[1], 17) ^ v[2]
    v[2] = _turn(v[2], 32)


cdef Fingerprint _hash(const uint8_t* at, size_t size, uint64_t key_0, uint64_t key_1) noexcept nogil:
    """SipHash-2-4 with 128 bits. Loads are little-endian, as are the machines we run on."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef size_t i
    cdef size_t whole = size & ~<size_t>7
    cdef Fingerprint found
    v[0] = key_0 ^ <uint64_t>0x736F6D6570736575
    v[1] = key_1 ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = key_0 ^ <uint64_t>0x6C7967656E657261
    v[3] = key_1 ^ <uint64_t>0x7465646279746573
    i = 0
    while i < whole:
        memcpy(&word, at + i, 8)
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
        i += 8
    word = <uint64_t>size << 56
    for i in range(size - whole):
        word |= <uint64_t>at[whole + i] << (8 * i)
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        _round(v)
    found.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        _round(v)
    found.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return found


cdef inline Fingerprint _fingerprint(const uint8_t* at, size_t size) noexcept nogil:
    cdef Fingerprint found = _hash(at, size, SECRET_0, SECRET_1)
    if found.low == 0 and found.high == 0:
        found.low = 1           # 0 is an empty slot
    return found


def siphash(bytes data not None, uint64_t key_0, uint64_t key_1):
    cdef Fingerprint found = _hash(<const uint8_t*>PyBytes_AS_STRING(data), len(data), key_0, key_1)
    return PyBytes_FromStringAndSize(<const char*>&found, FINGERPRINT_BYTES)


def fingerprint(bytes key not None):
    cdef Fingerprint found = _fingerprint(<const uint8_t*>PyBytes_AS_STRING(key), len(key))
    return PyBytes_FromStringAndSize(<const char*>&found, FINGERPRINT_BYTES)


cdef class KeySet:
    def __cinit__(self):
        cdef int i
        for i in range(TABLES):
            self.tables[i].slots = NULL
            self.tables[i].capacity = 0
            self.tables[i].count = 0

    def __dealloc__(self):
        cdef int i
        for i in range(TABLES):
            free(self.tables[i].slots)

    def __len__(self):
        return self.count

    @property
    def memory_bytes(self):
        cdef int i
        cdef uint64_t slots = 0
        for i in range(TABLES):
            slots += self.tables[i].capacity
        return slots * sizeof(Fingerprint)

    cdef Fingerprint* find(self, Fingerprint wanted) noexcept nogil:
        """Return the slot that has a fingerprint, or the empty one where it would go; NULL while there is no table."""
        cdef Table* table = &self.tables[wanted.high >> 58]
        cdef uint64_t mask = table.capacity - 1
        cdef uint64_t at
        cdef Fingerprint* slot
        if table.capacity == 0:
            return NULL
        at = wanted.low & mask
        while True:
            slot = &table.slots[at]
            if (slot.low == wanted.low and slot.high == wanted.high) or (slot.low == 0 and slot.high == 0):
                return slot
            at = (at + 1) & mask

    cdef bint has(self, Fingerprint wanted) noexcept nogil:
        cdef Fingerprint* slot = self.find(wanted)
        return slot != NULL and (slot.low != 0 or slot.high != 0)

    cdef int insert(self, Fingerprint wanted) except -1:
        """Add a fingerprint; 0 when it is there."""
        cdef Table* table = &self.tables[wanted.high >> 58]
        cdef Fingerprint* slot = self.find(wanted)
        if slot != NULL and (slot.low != 0 or slot.high != 0):
            return 0
        if 4 * (table.count + 1) > 3 * table.capacity:
            self.grow(table)
            slot = self.find(wanted)
        slot[0] = wanted
        table.count += 1
        self.count += 1
        return 1

    cdef int grow(self, Table* table) except -1:
        cdef uint64_t i, at
        cdef uint64_t capacity = 2 * table.capacity if table.capacity else FIRST_SLOTS
        cdef Fingerprint* slots = <Fingerprint*>calloc(capacity, sizeof(Fingerprint))
        if slots == NULL:
            raise MemoryError(f"cannot grow a set of {self.count} keys")
        for i in range(table.capacity):
            if table.slots[i].low != 0 or table.slots[i].high != 0:
                at = table.slots[i].low & (capacity - 1)
                while slots[at].low != 0 or slots[at].high != 0:
                    at = (at + 1) & (capacity - 1)
                slots[at] = table.slots[i]
        free(table.slots)
        table.slots = slots
        table.capacity = capacity
        return 0

    cdef int remove(self, Fingerprint wanted) noexcept:
        """Remove a fingerprint, and close the gap that it leaves among those probed after it."""
        cdef Table* table = &self.tables[wanted.high >> 58]
        cdef Fingerprint* slot = self.find(wanted)
        cdef uint64_t mask = table.capacity - 1
        cdef uint64_t gap, at, home
        if slot == NULL or (slot.low == 0 and slot.high == 0):
            return 0
        gap = <uint64_t>(slot - table.slots)
        at = gap
        while True:
            at = (at + 1) & mask
            if table.slots[at].low == 0 and table.slots[at].high == 0:
                break
            home = table.slots[at].low & mask
            # It may move to the gap if that lies between its home and where it is.
            if ((at - home) & mask) >= ((at - gap) & mask):
                table.slots[gap] = table.slots[at]
                gap = at
        table.slots[gap].low = 0
        table.slots[gap].high = 0
        table.count -= 1
        self.count -= 1
        return 1

    def __contains__(self, bytes one not None):
        cdef Fingerprint wanted
        if len(one) != FINGERPRINT_BYTES:
            raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(one)}")
        memcpy(&wanted, PyBytes_AS_STRING(one), FINGERPRINT_BYTES)
        return self.has(wanted)

    def add(self, bytes fingerprints not None):
        cdef const char* at = PyBytes_AS_STRING(fingerprints)
        cdef Py_ssize_t i
        cdef Py_ssize_t added = 0
        cdef Fingerprint one
        if len(fingerprints) % FINGERPRINT_BYTES:
            raise ValueError(f"{len(fingerprints)} bytes are no fingerprints")
        for i in range(len(fingerprints) // FINGERPRINT_BYTES):
            memcpy(&one, at + i * sizeof(Fingerprint), sizeof(Fingerprint))
            if one.low != 0 or one.high != 0:
                added += self.insert(one)
        return added

    def discard(self, bytes fingerprints not None):
        cdef const char* at = PyBytes_AS_STRING(fingerprints)
        cdef Py_ssize_t i
        cdef Fingerprint one
        if len(fingerprints) % FINGERPRINT_BYTES:
            raise ValueError(f"{len(fingerprints)} bytes are no fingerprints")
        for i in range(len(fingerprints) // FINGERPRINT_BYTES):
            memcpy(&one, at + i * sizeof(Fingerprint), sizeof(Fingerprint))
            self.remove(one)


cdef const uint8_t* _key_of(const PublishEntry* entry, size_t* size) noexcept nogil:
    """Return the value of the first UNIQ_KEY, or NULL."""
    cdef const uint8_t* at = <const uint8_t*>entry.properties
    cdef const uint8_t* end = at + entry.properties_bytes
    cdef const uint8_t* stop
    while at + NAME_BYTES < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > NAME_BYTES and memcmp(at, <const char*>b"UNIQ_KEY\x01", NAME_BYTES) == 0:
            size[0] = <size_t>(stop - at - NAME_BYTES)
            return at + NAME_BYTES
        at = stop + 1
    return NULL


def select_new(PublishBatch batch not None, Py_ssize_t first, KeySet into not None, tuple others not None):
    cdef Py_ssize_t i
    cdef Py_ssize_t kept = first
    cdef Py_ssize_t rows = batch.count - first
    cdef PublishEntry* entry
    cdef const uint8_t* key
    cdef size_t size = 0
    cdef KeySet other
    cdef bint is_new
    cdef Fingerprint one
    cdef Fingerprint* found
    if rows <= 0:
        return b""
    found = <Fingerprint*>malloc(rows * sizeof(Fingerprint))
    if found == NULL:
        raise MemoryError(f"cannot compare {rows} keys")
    try:
        for i in range(rows):
            entry = &batch.entries[first + i]
            key = _key_of(entry, &size)
            if key == NULL:
                raise KeyError(i)
            found[i] = _fingerprint(key, size)
        try:
            for i in range(rows):
                one = found[i]
                is_new = True
                for other in others:
                    if other.has(one):
                        is_new = False
                        break
                entry = &batch.entries[first + i]
                if is_new and into.insert(one):
                    found[kept - first] = one
                    batch.entries[kept] = entry[0]
                    kept += 1
                else:
                    batch.body_bytes -= entry.body_bytes
            batch.count = kept
            return PyBytes_FromStringAndSize(<const char*>found, (kept - first) * sizeof(Fingerprint))
        except MemoryError:
            for i in range(kept - first):
                into.remove(found[i])
            raise
    finally:
        free(found)
