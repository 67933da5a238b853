"""The log of an ephemeral topic: the same records, in memory, bounded.

When a bound is reached the oldest messages go (counted): channels that fell behind lose them, channels that keep up
lose nothing. Physical offsets count bytes with bit 47 set, so a message id tells where its message lived. They begin at
a place of their own for each millisecond of twelve days: a topic that goes and comes again gives no id a second time, nor
does a restart, as long as it has taken less than 64 KiB a millisecond.

Records lie in chunks of 64 KiB; a larger record has a chunk of its own. A chunk is freed with its last record, or
with the last view that pins it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from headrace.batch cimport PublishBatch, PublishEntry, RecordBatch, RecordView
from headrace.format.record cimport (
    RecordTemplate, encode_record, fill_template, load_u32, measure_record, read_view,
)
from headrace.store.queue_base cimport FILLER_BYTES, QueueBase, QueueEntry
from headrace.store.log_base cimport LogBase, VIEW_GONE, VIEW_OK

cdef enum:
    CHUNK_SHIFT = 16
    CHUNK_BYTES = 1 << CHUNK_SHIFT

cdef int64_t MEMORY_BIT = <int64_t>1 << 47
cdef int64_t FIRST_CHUNK_MASK = (<int64_t>1 << 30) - 1


cdef class MemoryChunk:
    def __cinit__(self, int64_t first_offset, Py_ssize_t capacity):
        self.base = <uint8_t*>malloc(<size_t>capacity) if capacity >= 0 else NULL
        if self.base == NULL:
            raise MemoryError(f"cannot hold {capacity} bytes of ephemeral messages")
        self.first_offset = first_offset
        self.capacity = capacity

    def __dealloc__(self):
        free(self.base)


cdef class MemoryLog(LogBase):
    def __init__(self, int64_t max_messages, int64_t max_bytes, int64_t now_ms=0):
        self.max_messages = max(max_messages, 1)
        self.max_bytes = max_bytes
        self.end_offset = MEMORY_BIT + ((now_ms & FIRST_CHUNK_MASK) << CHUNK_SHIFT)
        self.chunks = {}
        self.queues = []

    cpdef int64_t append(self, PublishBatch batch, int64_t now_ms) except -1:
        cdef RecordTemplate template
        cdef uint32_t destination = 0xFFFFFFFF
        cdef uint32_t properties_bytes = 0
        cdef MemoryQueue queue = None
        cdef PublishEntry* entry
        cdef const uint8_t* born_v6 = NULL
        cdef uint8_t* at
        cdef Py_ssize_t i
        cdef int64_t evicted_before = self.evicted_messages
        cdef bint mine = False
        if batch.born_host_v6 is not None:
            born_v6 = batch.born_host_v6
        for i in range(batch.count):
            entry = &batch.entries[i]
            if entry.destination != destination:
                destination = entry.destination
                found = batch.queues[destination]
                mine = found is not None and (<QueueBase>found).log is self
                if mine:
                    queue = <MemoryQueue>batch.queues[destination]
                    fill_template(&template, queue.queue_id, queue.topic_bytes, <uint32_t>len(queue.topic_bytes),
                                  batch.born_host, born_v6, 0, NULL, now_ms, now_ms)
            if not mine:
                continue
            entry.record_bytes = measure_record(&template, entry, &properties_bytes)
            while queue.next_offset > queue.min_offset and (
                    queue.next_offset - queue.min_offset >= self.max_messages
                    or self.held_bytes + entry.record_bytes > self.max_bytes):
                self._evict_one(queue)
            at = self._place(entry.record_bytes, &entry.physical_offset)
            entry.queue_offset = queue.next_offset
            encode_record(at, &template, entry, entry.record_bytes, properties_bytes, entry.queue_offset,
                          entry.physical_offset)
            queue.push(entry.physical_offset, <int>entry.record_bytes, entry.tag_hash)
        return self.evicted_messages - evicted_before

    def clear(self):
        cdef MemoryQueue queue
        for queue in self.queues:
            queue.min_offset = queue.next_offset
            free(queue.ring)
            queue.ring = NULL
            queue.ring_capacity = 0
        self.chunks = {}
        self.newest = None
        self.held_bytes = 0

    cdef uint8_t* _place(self, Py_ssize_t size, int64_t* physical_offset) except NULL:
        cdef MemoryChunk chunk = self.newest
        cdef Py_ssize_t capacity
        # Chunks are found by their first 64 KiB: only the first record of one may reach beyond.
        if chunk is None or chunk.used + size > CHUNK_BYTES:
            capacity = max(<Py_ssize_t>CHUNK_BYTES, (size + CHUNK_BYTES - 1) >> CHUNK_SHIFT << CHUNK_SHIFT)
            if chunk is not None and chunk.records == 0:
                del self.chunks[chunk.first_offset >> CHUNK_SHIFT]
            chunk = MemoryChunk(self.end_offset, capacity)
            self.end_offset += capacity
            self.chunks[chunk.first_offset >> CHUNK_SHIFT] = chunk
            self.newest = chunk
        physical_offset[0] = chunk.first_offset + chunk.used
        chunk.used += size
        chunk.records += 1
        self.held_bytes += size
        return chunk.base + (physical_offset[0] - chunk.first_offset)

    cdef int _evict_one(self, MemoryQueue queue) except -1:
        cdef QueueEntry* entry = &queue.ring[queue.min_offset % queue.ring_capacity]
        cdef MemoryChunk chunk = self.chunks[entry.physical_offset >> CHUNK_SHIFT]
        chunk.records -= 1
        self.held_bytes -= entry.record_bytes
        self.evicted_messages += 1
        queue.min_offset += 1
        if chunk.records == 0 and chunk is not self.newest:
            del self.chunks[chunk.first_offset >> CHUNK_SHIFT]
        return 0

    cdef int view(self, int64_t physical_offset, uint32_t record_bytes, RecordBatch into) except -1:
        cdef MemoryChunk chunk = self.chunks.get(physical_offset >> CHUNK_SHIFT)
        cdef RecordView* view
        cdef uint8_t* at
        if chunk is None:
            return VIEW_GONE
        at = chunk.base + (physical_offset - chunk.first_offset)
        record_bytes = load_u32(at)
        view = into.add()
        read_view(at, record_bytes, view)
        into.record_bytes += record_bytes
        into.pin(chunk)
        return VIEW_OK


cdef class MemoryQueue(QueueBase):
    def __cinit__(self):
        self.ring = NULL

    def __init__(self, str topic not None, int queue_id, MemoryLog log not None):
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.log = log
        log.queues.append(self)

    def __dealloc__(self):
        free(self.ring)

    cdef int push(self, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) except -1:
        cdef QueueEntry* entry
        if self.next_offset - self.min_offset == self.ring_capacity:
            self._grow()
        entry = &self.ring[self.next_offset % self.ring_capacity]
        entry.physical_offset = physical_offset
        entry.record_bytes = record_bytes
        entry.tag_hash = tag_hash
        self.next_offset += 1
        self.visible_offset = self.next_offset
        return 0

    def _grow(self):
        cdef Py_ssize_t capacity = self.ring_capacity * 2 if self.ring_capacity else 16
        cdef QueueEntry* grown = <QueueEntry*>calloc(capacity, sizeof(QueueEntry))
        cdef int64_t offset
        if grown == NULL:
            raise MemoryError("cannot grow an ephemeral queue")
        for offset in range(self.min_offset, self.next_offset):
            grown[offset % capacity] = self.ring[offset % self.ring_capacity]
        free(self.ring)
        self.ring = grown
        self.ring_capacity = capacity

    cdef Py_ssize_t read_entries(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        cdef Py_ssize_t n = min(<int64_t>most, self.visible_offset - from_offset)
        cdef Py_ssize_t i
        for i in range(n):
            if from_offset + i < self.min_offset:
                into[i].physical_offset = 0
                into[i].tag_hash = 0
                into[i].record_bytes = FILLER_BYTES
            else:
                into[i] = self.ring[(from_offset + i) % self.ring_capacity]
        return max(n, 0)
