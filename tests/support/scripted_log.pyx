"""A memory log and queue whose faults a test chooses: cold, damaged and removed records, holes, late visibility."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from headrace.batch cimport RecordBatch
from headrace.store.queue_base cimport FILLER_BYTES, QueueEntry
from headrace.store.memory_log cimport MemoryLog, MemoryQueue


cdef class ScriptedLog(MemoryLog):
    cdef public dict outcomes       # physical_offset -> 1 damaged, 2 cold, 3 gone
    cdef public int64_t views

    def __init__(self, int64_t max_messages=1 << 30, int64_t max_bytes=1 << 40):
        MemoryLog.__init__(self, max_messages, max_bytes)
        self.outcomes = {}

    cdef int view(self, int64_t physical_offset, uint32_t record_bytes, RecordBatch into) except -1:
        self.views += 1
        if self.outcomes:
            outcome = self.outcomes.get(physical_offset, 0)
            if outcome:
                return outcome
        return MemoryLog.view(self, physical_offset, record_bytes, into)


cdef class ScriptedQueue(MemoryQueue):
    cdef public set holes           # queue offsets without a record
    cdef public int64_t hidden      # messages at the end that readers may not see yet

    def __init__(self, str topic, int queue_id, ScriptedLog log):
        MemoryQueue.__init__(self, topic, queue_id, log)
        self.holes = set()

    cdef int push(self, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) except -1:
        MemoryQueue.push(self, physical_offset, record_bytes, tag_hash)
        self.visible_offset = self.next_offset - self.hidden
        return 0

    def hide(self, int64_t messages):
        self.hidden = messages
        self.visible_offset = self.next_offset - messages

    def remove_below(self, int64_t offset):
        """As retention does."""
        self.min_offset = offset

    def pretend_end(self, int64_t end):
        """As after a recovery that cut the log."""
        self.next_offset = self.visible_offset = end

    def entry(self, int64_t queue_offset):
        """Return the physical offset of one message."""
        return self.ring[queue_offset % self.ring_capacity].physical_offset

    cdef Py_ssize_t read_entries(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        cdef Py_ssize_t i, count = MemoryQueue.read_entries(self, from_offset, into, most)
        for i in range(count):
            if from_offset + i in self.holes:
                into[i].record_bytes = FILLER_BYTES
        return count
