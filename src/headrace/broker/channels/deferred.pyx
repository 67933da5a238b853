"""DeferredSet: messages that become ready at a time (REQ with a delay, DPUB).

What is due within about eight seconds is a binary heap. What is later waits unsorted in buckets of 4 s, 4.4 min,
4.7 h and 12 days (a hierarchical timer wheel over dicts, so an empty span costs nothing); shortly before a bucket's
time its entries move down a level, a bounded number per call. Entries are 24 bytes and live in chunks of at most
4 KiB, so a million of them cost little more than 24 MB, and none costs anything.

Beyond ``max_in_memory`` entries the fullest bucket goes to a file (see spill.py) and is read back when its time comes.
The heap and buckets being opened are never spilled: the bound can be passed by what is due within seconds.

Invariant: ends[0] <= ends[1] <= ... and they fall only with a clock that is set back; every entry due before ends[0] is
in the heap or on its way there (``opening``), so entries come out in order of time unless the caller lags behind.

Rejected: one heap for everything (log n per entry with a cache miss per level, and no part of it can be put away).
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from headrace.format.arrays cimport reserve

import logging

logger = logging.getLogger(__name__)

cdef int* SHIFT = [12, 18, 24, 30]
cdef int64_t* LEAD_MS = [4_096, 32_768, 300_000, 3_600_000]

cdef enum:
    CHUNK_ENTRIES = 169         # 4 KiB with the chunk's head
    FIRST_CHUNK_ENTRIES = 4
    SPILL_ENTRIES = 65_536      # at most, per write
    SET_BACK_MS = 60_000        # ends further away than this are of a clock that was ahead
    MOVES_PER_ENTRY = 8         # a move between levels costs about an eighth of a delivery to the ready list


cdef class Bucket:
    def __dealloc__(self):
        cdef Chunk* chunk
        while self.chunks != NULL:
            chunk = self.chunks
            self.chunks = chunk.next
            free(chunk)

    cdef int push(self, const MessageEntry* entry) except -1:
        cdef Chunk* chunk = self.chunks
        cdef int32_t capacity
        if chunk == NULL or chunk.count == chunk.capacity:
            capacity = FIRST_CHUNK_ENTRIES if chunk == NULL else min(chunk.capacity * 2, CHUNK_ENTRIES)
            chunk = <Chunk*>malloc(sizeof(Chunk) + (capacity - 1) * sizeof(MessageEntry))
            if chunk == NULL:
                raise MemoryError("cannot allocate a chunk of deferred messages")
            chunk.next = self.chunks
            chunk.count = 0
            chunk.capacity = capacity
            self.chunks = chunk
        chunk.entries[chunk.count] = entry[0]
        chunk.count += 1
        self.count += 1
        return 0


cdef class DeferredSet:
    def __cinit__(self, int64_t max_in_memory=INT64_MAX, spill=None):
        self.max_in_memory = max_in_memory
        self.spill = spill
        self._reset()

    def __dealloc__(self):
        free(self.heap)

    def _reset(self):
        self.levels = [{} for _ in range(LEVELS)]
        self.opening = [[] for _ in range(LEVELS)]
        self.opening_count = 0
        self.recent = None
        self.unsaved = []
        self.unsaved_heap = 0
        self.carried = StateWriter()
        for level in range(LEVELS):
            self.ends[level] = 0
            self.next_start[level] = INT64_MAX

    def _buckets(self):
        """Return all buckets, also those whose entries are moving down."""
        return [bucket for buckets in [level.values() for level in self.levels] + self.opening for bucket in buckets]

    def defer(self, int64_t now_ms, int64_t due_ms, uint64_t physical_offset, int attempts, uint64_t queue_offset,
              int queue_id):
        cdef MessageEntry entry
        entry.due_ms = due_ms
        entry.where = physical_offset << 16 | attempts
        entry.place = queue_offset << 16 | queue_id
        self.add(now_ms, &entry)

    def take_due(self, int64_t now_ms, Py_ssize_t most):
        cdef MessageEntry entry
        taken = []
        self.advance(now_ms, most)
        while len(taken) < most and self.pop_due(now_ms, &entry):
            taken.append((entry.due_ms, entry.where >> 16, entry.where & 0xFFFF, entry.place >> 16,
                          entry.place & 0xFFFF))
        return taken

    def wake_ms(self):
        return self.next_due_ms()

    @property
    def memory_bytes(self):
        cdef Bucket bucket
        cdef Chunk* chunk
        cdef int64_t total = self.heap_capacity * sizeof(MessageEntry)
        for bucket in self._buckets():
            total += 150        # the object, its dict slot and its key
            chunk = bucket.chunks
            while chunk != NULL:
                total += sizeof(Chunk) + (chunk.capacity - 1) * sizeof(MessageEntry)
                chunk = chunk.next
        return total

    # ---- in

    cdef void _set_horizon(self, int64_t now_ms) noexcept:
        cdef int level
        cdef int64_t end
        cdef bint is_set_back = self.ends[0] - now_ms > SET_BACK_MS
        for level in range(LEVELS):
            end = (((now_ms + LEAD_MS[level]) >> SHIFT[level]) + 1) << SHIFT[level]
            if end > self.ends[level] or is_set_back:
                self.ends[level] = end

    cdef int add(self, int64_t now_ms, const MessageEntry* entry) except -1:
        """Hold one message back until ``entry.due_ms``."""
        cdef int level
        if self.count == 0:
            for level in range(LEVELS):
                self.ends[level] = 0
            self._set_horizon(now_ms)
        elif self.ends[0] - now_ms > SET_BACK_MS:
            self._set_horizon(now_ms)       # else the heap would take all that is due before the clock is there again
        self._place(entry)
        self.count += 1
        self.in_memory += 1
        if self.in_memory > self.max_in_memory:
            self._spill_some()
        return 0

    cdef int _place(self, const MessageEntry* entry) except -1:
        cdef int level = 0
        cdef int64_t start
        cdef Bucket bucket
        if entry.due_ms < self.ends[0]:
            return self._push_heap(entry)
        while level < LEVELS - 1 and entry.due_ms >= self.ends[level + 1]:
            level += 1
        start = entry.due_ms >> SHIFT[level] << SHIFT[level]
        bucket = self.recent
        if bucket is None or bucket.start_ms != start or bucket.level != level:
            bucket = (<dict>self.levels[level]).get(start)
            if bucket is None:
                bucket = Bucket.__new__(Bucket)
                bucket.start_ms = start
                bucket.level = level
                self.levels[level][start] = bucket
                self.next_start[level] = min(self.next_start[level], start)
            self.recent = bucket
        return bucket.push(entry)

    cdef int _push_heap(self, const MessageEntry* entry) except -1:
        cdef Py_ssize_t at = self.heap_count
        cdef Py_ssize_t parent
        reserve(<void**>&self.heap, &self.heap_capacity, at + 1, 8, sizeof(MessageEntry))
        self.heap_count += 1
        while at:
            parent = (at - 1) >> 1
            if self.heap[parent].due_ms <= entry.due_ms:
                break
            if parent < self.unsaved_heap <= at:
                self.carried.append(&self.heap[parent], 1)
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = entry[0]
        return 0

    cdef void _pop_heap(self) noexcept:
        cdef MessageEntry last
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t child = 1
        self.heap_count -= 1
        last = self.heap[self.heap_count]
        while child < self.heap_count:
            if child + 1 < self.heap_count and self.heap[child + 1].due_ms < self.heap[child].due_ms:
                child += 1
            if last.due_ms <= self.heap[child].due_ms:
                break
            self.heap[at] = self.heap[child]
            at = child
            child = at * 2 + 1
        self.heap[at] = last

    # ---- out

    cdef int advance(self, int64_t now_ms, Py_ssize_t most) except -1:
        """Move what has come near towards the heap: at most about ``most`` deliveries' worth of work."""
        cdef int level
        cdef Py_ssize_t budget = most * MOVES_PER_ENTRY
        cdef list buckets
        if self.count == 0:
            return 0
        self._set_horizon(now_ms)
        for level in range(LEVELS):
            if self.next_start[level] < self.ends[level]:
                self._open(level)
        if self.opening_count == 0:
            return 0
        for level in range(LEVELS):         # the nearest first
            buckets = <list>self.opening[level]
            while buckets and budget > 0:
                budget -= self._move(<Bucket>buckets[0], budget)
                if (<Bucket>buckets[0]).count == 0 and (<Bucket>buckets[0]).spilled is None:
                    (<Bucket>buckets.pop(0)).unsaved = False        # what it had was carried
                    self.opening_count -= 1
        return 0

    cdef int _open(self, int level) except -1:
        """Take the buckets of a level whose time has come off the level."""
        cdef dict buckets = <dict>self.levels[level]
        for start in sorted(buckets):
            if start >= self.ends[level]:
                break
            self.opening[level].append(buckets.pop(start))
            self.opening_count += 1
        self.recent = None
        self.next_start[level] = min(buckets) if buckets else INT64_MAX
        return 0

    cdef Py_ssize_t _move(self, Bucket bucket, Py_ssize_t most) except -1:
        """Move up to ``most`` entries of an opened bucket to the levels below; return how many."""
        cdef Chunk* chunk = bucket.chunks
        cdef Py_ssize_t moved = 0
        cdef Py_ssize_t i, count
        cdef bytes block
        cdef MessageEntry entry
        while chunk != NULL and moved < most:
            while chunk.count and moved < most:
                self._place(&chunk.entries[chunk.count - 1])
                if bucket.unsaved:
                    self.carried.append(&chunk.entries[chunk.count - 1], 1)
                chunk.count -= 1
                bucket.count -= 1
                moved += 1
            if chunk.count == 0:
                self._free_first(bucket)
                chunk = bucket.chunks
        while bucket.spilled is not None and moved < most:
            block = bucket.spilled.read_block()
            if block is None:
                count = bucket.spilled.missing      # what a damaged file could not give back
                self.count -= count
                self.spilled -= count
                self.lost_spills += count
                bucket.spilled.remove()
                bucket.spilled = None
                break
            count = len(block) // <Py_ssize_t>sizeof(MessageEntry)
            for i in range(count):
                memcpy(&entry, PyBytes_AS_STRING(block) + i * sizeof(MessageEntry), sizeof(MessageEntry))
                self._place(&entry)
                if bucket.unsaved:
                    self.carried.append(&entry, 1)
            self.spilled -= count
            self.in_memory += count
            moved += count
        return moved + 1

    cdef bint pop_due(self, int64_t now_ms, MessageEntry* into) except -1:
        """Take the earliest entry if it is due."""
        if self.heap_count == 0 or self.heap[0].due_ms > now_ms:
            return False
        into[0] = self.heap[0]
        if self.unsaved_heap:
            self.carried.append(into, 1)
        self._pop_heap()
        self.unsaved_heap = min(self.unsaved_heap, self.heap_count)
        self.count -= 1
        self.in_memory -= 1
        return True

    cdef int64_t next_due_ms(self) noexcept:
        """When there is next something to do (an entry to pop, a bucket to open), or -1."""
        cdef int level
        cdef int64_t next_ms = INT64_MAX
        if self.count == 0:
            return -1
        if self.opening_count:
            return 0
        if self.heap_count:
            next_ms = self.heap[0].due_ms
        for level in range(LEVELS):
            if self.next_start[level] != INT64_MAX:
                next_ms = min(next_ms, self.next_start[level] - LEAD_MS[level])
        return max(next_ms, 0)

    # ---- the whole

    cdef int write_all(self, StateWriter writer) except -1:
        """Append every entry, those in files included."""
        cdef Bucket bucket
        cdef Chunk* chunk
        cdef bytes block
        writer.append(self.heap, self.heap_count)
        for bucket in self._buckets():
            chunk = bucket.chunks
            while chunk != NULL:
                writer.append(chunk.entries, chunk.count)
                chunk = chunk.next
            if bucket.spilled is not None:
                for block in bucket.spilled.peek_blocks():
                    writer.append(<MessageEntry*>PyBytes_AS_STRING(block),
                                  len(block) // <Py_ssize_t>sizeof(MessageEntry))
        return 0

    cdef int64_t begin_save(self) except -1:
        """Begin to write every entry in parts, by save_some(); return the number to end it with.

        The set may change between the parts. An entry that moves out of what is not yet written, a bucket or the front
        of the heap, is carried along to the next part; new entries are the caller's to note. Entries may be written
        twice.
        """
        cdef Bucket bucket
        self.unsaved = self._buckets()
        self.unsaved_heap = self.heap_count
        self.carried = StateWriter()
        self.saves += 1
        for bucket in self.unsaved:
            bucket.unsaved = True
            bucket.save_at = bucket.chunks
            bucket.save_blocks = None
        return self.saves

    cdef int end_save(self, int64_t number) except -1:
        """Carry nothing along any more, unless another save was begun since."""
        cdef Bucket bucket
        if number != self.saves:
            return 0
        for bucket in self.unsaved:
            bucket.unsaved = False
            bucket.save_blocks = None
        self.unsaved = []
        self.unsaved_heap = 0
        self.carried = StateWriter()
        return 0

    cdef bint is_saving(self) noexcept:
        return self.unsaved_heap > 0 or len(self.unsaved) > 0

    cdef bint save_some(self, StateWriter writer, Py_ssize_t most) except -1:
        """Append about ``most`` more entries; False when there are no more."""
        cdef Bucket bucket
        cdef bytes block
        cdef Py_ssize_t written = min(self.unsaved_heap, most)
        writer.append(<MessageEntry*>self.carried.data, self.carried.entry_count())
        self.carried = StateWriter()
        self.unsaved_heap -= written        # from its end: what comes forward in the heap stays among those to write
        writer.append(self.heap + self.unsaved_heap, written)
        if self.unsaved_heap:
            return True
        while self.unsaved:
            bucket = self.unsaved[len(self.unsaved) - 1]
            while bucket.unsaved:
                if written >= most:
                    return True
                if bucket.save_at != NULL:
                    writer.append(bucket.save_at.entries, bucket.save_at.count)
                    written += bucket.save_at.count
                    bucket.save_at = bucket.save_at.next
                    continue
                if bucket.spilled is not None:
                    if bucket.save_blocks is None:
                        bucket.save_blocks = bucket.spilled.peek_blocks()
                    block = next(bucket.save_blocks, None)
                    if block is not None:
                        writer.append(<MessageEntry*>PyBytes_AS_STRING(block),
                                      len(block) // <Py_ssize_t>sizeof(MessageEntry))
                        written += len(block) // <Py_ssize_t>sizeof(MessageEntry)
                        continue
                bucket.unsaved = False
                bucket.save_blocks = None
            self.unsaved.pop()
        return False

    cdef int clear(self) except -1:
        """Drop everything."""
        cdef Bucket bucket
        for bucket in self._buckets():
            if bucket.spilled is not None:
                bucket.spilled.remove()
        free(self.heap)
        self.heap = NULL
        self.heap_count = self.heap_capacity = 0
        self.count = self.in_memory = self.spilled = 0
        self._reset()
        return 0

    cdef int _spill_some(self) except -1:
        """Put the fullest bucket, or a part of it, in its file."""
        cdef Bucket bucket
        cdef Bucket fullest = None
        cdef Chunk* chunk
        cdef Py_ssize_t count = 0
        cdef StateWriter writer
        if self.spill is None:
            if not self.warned:
                self.warned = True
                logger.warning("deferred messages above their bound stay in memory entries=%d bound=%d",
                               self.in_memory, self.max_in_memory)
            return 0
        for buckets in self.levels:
            for bucket in buckets.values():
                if fullest is None or bucket.count > fullest.count:
                    fullest = bucket
        if fullest is None or fullest.count == 0:
            return 0
        writer = StateWriter.__new__(StateWriter)
        chunk = fullest.chunks
        while chunk != NULL and count < SPILL_ENTRIES:
            writer.append(chunk.entries, chunk.count)
            count += chunk.count
            chunk = chunk.next
        try:
            if fullest.spilled is None:
                fullest.spilled = self.spill.create()
            fullest.spilled.append(writer.finish())
        except OSError as exc:      # nothing has left memory; try again when an eighth more has come
            self.max_in_memory += max(self.max_in_memory >> 3, SPILL_ENTRIES)
            logger.error("cannot spill deferred messages, they stay in memory entries=%d bound=%d error=%s",
                         self.in_memory, self.max_in_memory, exc)
            return 0
        while fullest.chunks != chunk:
            fullest.count -= fullest.chunks.count
            self._free_first(fullest)
        self.in_memory -= count
        self.spilled += count
        return 0

    cdef void _free_first(self, Bucket bucket) noexcept:
        cdef Chunk* chunk = bucket.chunks
        bucket.chunks = chunk.next
        if bucket.save_at == chunk:
            bucket.save_at = chunk.next
        free(chunk)

    cdef void trim(self) noexcept:
        """Give back the heap's memory when it is mostly unused."""
        cdef Py_ssize_t capacity = self.heap_capacity
        cdef MessageEntry* smaller
        while capacity > 64 and capacity > self.heap_count * 4:
            capacity >>= 1
        if capacity == self.heap_capacity:
            return
        smaller = <MessageEntry*>realloc(self.heap, capacity * sizeof(MessageEntry))
        if smaller != NULL:
            self.heap = smaller
            self.heap_capacity = capacity
