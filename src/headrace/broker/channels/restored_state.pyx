"""RestoredState: what a journal says of one channel, until its queues are there.

Finished offsets only ever join, so states may be applied twice; of a message's waiting entries the last counts.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from headrace.broker.channels.channel_state cimport (
    MessageEntry, SECTION_CUT, SECTION_ENTRIES, SECTION_FULL_PAGE, SECTION_POSITION, SECTION_WORDS, STATE_VERSION,
    StateReader, StateWriter,
)
from headrace.broker.channels.finished cimport FinishedSet
from headrace.broker.channels.in_flight cimport OffsetMap


cdef class RestoredState:
    def __cinit__(self):
        self.positions = {}
        self.entries = StateWriter()
        self.by_offset = OffsetMap()

    def __dealloc__(self):
        free(self.firsts)

    cdef FinishedSet finished_of(self, int queue_id):
        finished = self.positions.get(queue_id)
        if finished is None:
            finished = self.positions[queue_id] = FinishedSet(0, records_changes=False)
        return finished

    cdef int apply(self, bytes state) except -1:
        cdef StateReader reader = StateReader(state)
        reader.take_u8()
        version = reader.take_u8()
        if version != STATE_VERSION:
            raise ValueError(f"channel state has version {version}, expected {STATE_VERSION}")
        return self.apply_sections(reader)

    cdef int apply_sections(self, StateReader reader) except -1:
        cdef int section
        cdef FinishedSet finished
        cdef int64_t page, end
        cdef uint16_t i, count, word
        while reader.has_more():
            section = reader.take_u8()
            if section == SECTION_ENTRIES:
                self.apply_entries(reader)
                continue
            queue_id = reader.take_u16()
            finished = self.finished_of(queue_id)
            if section == SECTION_POSITION:
                finished.raise_floor(reader.take_i64())
                reader.take_i64()
            elif section == SECTION_WORDS:
                page = reader.take_i64()
                count = reader.take_u16()
                for i in range(count):
                    word = reader.take_u16()
                    finished.add_word(page, word, reader.take_u64())
            elif section == SECTION_FULL_PAGE:
                finished.add_page(reader.take_i64())
            elif section == SECTION_CUT:
                self.was_cut = True
                end = reader.take_i64()
                finished.truncate(end)
                self.cut_entries(queue_id, end)
            else:
                raise ValueError(f"channel state has an unknown section {section}")
        return 0

    cdef int apply_entries(self, StateReader reader) except -1:
        cdef uint32_t i, count = reader.take_u32()
        cdef MessageEntry entry
        cdef int64_t known
        for i in range(count):
            memcpy(&entry, reader.take(sizeof(MessageEntry)), sizeof(MessageEntry))
            known = self.by_offset.find(<int64_t>(entry.where >> 16))
            if known < 0:
                known = self.entries.entry_count()
                self.by_offset.put(<int64_t>(entry.where >> 16), known)
                self.entries.reserve(sizeof(MessageEntry))
            (<MessageEntry*>self.entries.data)[known] = entry
        return 0

    cdef int cut_entries(self, uint64_t queue_id, uint64_t end) except -1:
        """Forget the entries of one queue at or above ``end``."""
        cdef MessageEntry* entries = <MessageEntry*>self.entries.data
        cdef Py_ssize_t i
        for i in range(self.entries.entry_count()):
            if entries[i].place & 0xFFFF == queue_id and entries[i].place >> 16 >= end:
                entries[i].due_ms = DEAD_MS
        return 0

    cdef int part_by_queue(self) except -1:
        """Put the entries of each queue together, in their order: behind the last state, before the first queue."""
        cdef MessageEntry* entries = <MessageEntry*>self.entries.data
        cdef MessageEntry* parted
        cdef StateWriter writer
        cdef int64_t i, queue_id, at = 0
        self.left = self.entries.entry_count()
        self.by_offset.clear()
        if self.left == 0:
            return 0
        for i in range(self.left):
            self.queues = max(self.queues, <int64_t>(entries[i].place & 0xFFFF) + 1)
        self.firsts = <int64_t*>calloc(self.queues + 1, sizeof(int64_t))
        if self.firsts == NULL:
            raise MemoryError("cannot part a channel's waiting messages by queue")
        for i in range(self.left):
            self.firsts[(entries[i].place & 0xFFFF) + 1] += 1
        for queue_id in range(self.queues):
            self.firsts[queue_id + 1] += self.firsts[queue_id]
        if self.queues == 1:
            return 0
        writer = StateWriter()
        parted = <MessageEntry*>writer.reserve(self.entries.size)
        for i in range(self.left):
            queue_id = <int64_t>(entries[i].place & 0xFFFF)
            parted[self.firsts[queue_id]] = entries[i]
            self.firsts[queue_id] += 1      # in the end where the next queue's begin
        for queue_id in range(self.queues):
            at, self.firsts[queue_id] = self.firsts[queue_id], at
        self.entries = writer
        return 0

    cdef int64_t first_of(self, int64_t queue_id) noexcept:
        """Return where the entries of a queue begin, and those of the one before it end."""
        return self.firsts[min(queue_id, self.queues)] if self.firsts != NULL else 0
