"""PublishBatch, RecordBatch and SettleBatch: the currency between layers.

Codecs fill a PublishBatch from a receive buffer and the store appends it; the store and the channels fill a
RecordBatch from mapped segments and a codec encodes it. Neither side knows the other. Arrays grow by doubling and
are reused from read to read, so the steady state allocates nothing.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset


cdef void* _grow(void* array, Py_ssize_t* capacity, size_t item_bytes) except NULL:
    cdef Py_ssize_t wanted = capacity[0] * 2 if capacity[0] else 64
    cdef void* grown = realloc(array, wanted * item_bytes)
    if grown == NULL:
        raise MemoryError(f"cannot grow a batch to {wanted} entries")
    capacity[0] = wanted
    return grown


cdef PublishEntry NOTHING_SAID
memset(&NOTHING_SAID, 0, sizeof(PublishEntry))


cdef class PublishBatch:
    def __cinit__(self):
        self.entries = NULL
        self.destinations = []
        self.queues = []

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    cdef PublishEntry* add(self) except NULL:
        return self.add_like(&NOTHING_SAID)     # memset is compiled to an instruction that takes longer to begin

    cdef PublishEntry* add_like(self, const PublishEntry* other) except NULL:
        if self.count == self.capacity:
            self.entries = <PublishEntry*>_grow(self.entries, &self.capacity, sizeof(PublishEntry))
        cdef PublishEntry* entry = &self.entries[self.count]
        entry[0] = other[0]
        self.count += 1
        return entry

    def append(self, bytes body not None, uint32_t destination=0, *, bytes properties=None, int64_t tag_hash=0,
               int64_t deliver_at_ms=0, uint32_t command_entries=1, int64_t born_ms=0, uint32_t flag=0,
               uint32_t sys_flag=0, int32_t reconsume_times=0, int64_t prepared_offset=0, uint64_t born_host=0,
               bytes born_v6=None):
        if born_v6 is not None and len(born_v6) != 20:
            raise ValueError(f"born_v6 has {len(born_v6)} bytes, not 20")
        cdef PublishEntry* entry = self.add()
        if self.owner is None:
            self.owner = []
        self.owner.append((body, properties, born_v6))
        entry.body = body
        entry.body_bytes = <uint32_t>len(body)
        if properties is not None:
            entry.properties = properties
            entry.properties_bytes = <uint32_t>len(properties)
        entry.destination = destination
        entry.tag_hash = tag_hash
        entry.deliver_at_ms = deliver_at_ms
        entry.command_entries = command_entries
        entry.born_ms = born_ms
        entry.flag = flag
        entry.sys_flag = sys_flag
        entry.reconsume_times = reconsume_times
        entry.prepared_offset = prepared_offset
        entry.born_host = born_host
        if born_v6 is not None:
            entry.born_v6 = born_v6
        self.body_bytes += entry.body_bytes

    def placed(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        cdef PublishEntry* entry = &self.entries[index]
        return entry.physical_offset, entry.queue_offset, entry.record_bytes

    def totals(self):
        cdef Py_ssize_t i
        cdef Py_ssize_t destinations = len(self.destinations)
        cdef int64_t* sums
        if destinations == 1:
            return [(self.count, self.body_bytes)]
        if self._totals is not None and self._totalled == self.count and len(self._totals) == destinations:
            return self._totals     # asked by whoever appends, and by whoever counts
        sums = <int64_t*>calloc(2 * destinations + 1, sizeof(int64_t))
        if sums == NULL:
            raise MemoryError(f"cannot add up {destinations} destinations")
        try:
            for i in range(self.count):
                if self.entries[i].destination >= <size_t>destinations:
                    raise IndexError(f"entry {i} is for destination {self.entries[i].destination} of {destinations}")
                sums[2 * self.entries[i].destination] += 1
                sums[2 * self.entries[i].destination + 1] += self.entries[i].body_bytes
            self._totals = [(sums[2 * i], sums[2 * i + 1]) for i in range(destinations)]
            self._totalled = self.count
            return self._totals
        finally:
            free(sums)

    def delayed(self):
        cdef Py_ssize_t i
        cdef list found = []
        for i in range(self.count):
            if self.entries[i].deliver_at_ms > 0 and self.entries[i].physical_offset >= 0:
                found.append((self.entries[i].destination, self.entries[i].queue_offset,
                              self.entries[i].physical_offset, self.entries[i].deliver_at_ms))
        return found

    cpdef void clear(self):
        self.count = 0
        self.body_bytes = 0
        self.owner = None
        self._totals = None
        if self.destinations:
            self.destinations = []
            self.queues = []


cdef class CopiedBatch(PublishBatch):
    def __init__(self, Py_ssize_t memory_bytes):
        self._memory = PyByteArray_FromStringAndSize(NULL, memory_bytes)

    cdef bint has_bytes(self, Py_ssize_t length) noexcept:
        """Return whether copies of ``length`` bytes fit."""
        return length <= len(self._memory) - self._used

    cdef bint has_room(self, PublishBatch source) noexcept:
        """Return whether copies of every entry fit."""
        cdef Py_ssize_t index
        cdef Py_ssize_t needed = source.body_bytes + 20 * source.count
        for index in range(source.count):
            needed += source.entries[index].properties_bytes
        return self.has_bytes(needed)

    def take(self, PublishBatch source not None, list places not None):
        cdef Py_ssize_t index
        cdef PublishEntry* entry
        cdef PublishEntry* own
        if not self.has_room(source):
            return False
        for index in range(source.count):
            entry = &source.entries[index]
            own = self.add_like(entry)
            own.destination = places[entry.destination]
            own.body = self._copy(entry.body, entry.body_bytes)
            if entry.properties != NULL:
                own.properties = self._copy(entry.properties, entry.properties_bytes)
            if entry.born_v6 != NULL:
                own.born_v6 = self._copy(entry.born_v6, 20)
            elif entry.born_host == 0:
                own.born_host = source.born_host
                if source.born_host_v6 is not None:
                    own.born_v6 = self._copy(source.born_host_v6, 20)
        self.body_bytes += source.body_bytes
        return True

    cdef char* _copy(self, const char* data, Py_ssize_t length) noexcept:
        cdef char* place = PyByteArray_AS_STRING(self._memory) + self._used
        memcpy(place, data, length)
        self._used += length
        return place

    def part(self, Py_ssize_t first, Py_ssize_t count):
        if not 0 <= first < first + count <= self.count:
            raise IndexError(f"entries {first} to {first + count} of {self.count}")
        cdef PublishBatch batch = PublishBatch()
        cdef PublishEntry* entry
        cdef Py_ssize_t index
        batch.destinations = [self.destinations[self.entries[first].destination]]
        batch.owner = self
        for index in range(first, first + count):
            entry = batch.add_like(&self.entries[index])
            entry.destination = 0
            batch.body_bytes += entry.body_bytes
        return batch

    cpdef void clear(self):
        PublishBatch.clear(self)
        self._used = 0


cdef class RecordBatch:
    def __cinit__(self, *, bint verifies=False):
        self.views = NULL
        self.pins = []
        self.verifies = verifies

    def __dealloc__(self):
        free(self.views)

    def __len__(self):
        return self.count

    cdef RecordView* add(self) except NULL:
        if self.count == self.capacity:
            self.views = <RecordView*>_grow(self.views, &self.capacity, sizeof(RecordView))
        cdef RecordView* view = &self.views[self.count]
        memset(view, 0, sizeof(RecordView))
        self.count += 1
        return view

    cdef int pin(self, object segment) except -1:
        if segment is not self.last_pin:
            self.pins.append(segment)
            self.last_pin = segment
        return 0

    def body(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.views[index].body[:self.views[index].body_bytes]

    def record(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.views[index].record[:self.views[index].record_bytes]

    def position(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        cdef RecordView* view = &self.views[index]
        return view.queue_id, view.queue_offset, view.physical_offset, view.attempts

    cpdef void clear(self):
        self.count = 0
        self.record_bytes = 0
        if self.last_pin is not None:
            self.pins.clear()
            self.last_pin = None


cdef class SettleBatch:
    def __cinit__(self):
        self.entries = NULL

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    cdef SettleEntry* add(self) except NULL:
        if self.count == self.capacity:
            self.entries = <SettleEntry*>_grow(self.entries, &self.capacity, sizeof(SettleEntry))
        cdef SettleEntry* entry = &self.entries[self.count]
        memset(entry, 0, sizeof(SettleEntry))
        self.count += 1
        return entry

    def append(self, int32_t kind, uint64_t message_id, int64_t delay_ms=0):
        cdef SettleEntry* entry = self.add()
        entry.kind = kind
        entry.message_id = message_id
        entry.delay_ms = delay_ms

    def result(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        cdef SettleEntry* entry = &self.entries[index]
        return entry.kind, entry.message_id, entry.result

    cpdef void clear(self):
        self.count = 0
