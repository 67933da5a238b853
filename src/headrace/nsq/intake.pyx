"""What one read brought: publishes and settles, side by side.

Only publish commands have a success reply; ``settled_after`` remembers where among those replies the error of a failed FIN
belongs. Entries borrow from where the socket was read to (``net.stream_input``).
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc

from headrace.batch cimport (
    SETTLE_FINISH, SETTLE_NOT_IN_FLIGHT, SETTLE_NOT_OWNER, SETTLE_OK, SETTLE_REQUEUE, SETTLE_TOUCH,
    PublishBatch, PublishEntry, SettleBatch, SettleEntry,
)

from headrace.nsq.words import COMMAND_NAMES

_FAIL_REASONS = {SETTLE_NOT_IN_FLIGHT: b"ID not in flight", SETTLE_NOT_OWNER: b"client does not own message"}
_SETTLE_NAMES = {SETTLE_FINISH: "FIN", SETTLE_REQUEUE: "REQ", SETTLE_TOUCH: "TOUCH"}


cdef class Intake:
    def __cinit__(self):
        self.settled_after = NULL

    def __init__(self):
        self.publishes = PublishBatch()
        self.settles = SettleBatch()

    def __dealloc__(self):
        free(self.settled_after)

    @property
    def first_publish_name(self):
        return COMMAND_NAMES[self.first_publish]

    cdef int mark(self) except -1:
        cdef Py_ssize_t wanted
        cdef uint32_t* grown
        if self.settles.count > self.marks_capacity:
            wanted = self.settles.capacity
            grown = <uint32_t*>realloc(self.settled_after, wanted * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError(f"cannot grow the settle marks to {wanted} entries")
            self.settled_after = grown
            self.marks_capacity = wanted
        self.settled_after[self.settles.count - 1] = <uint32_t>self.publish_commands
        return 0

    def clear(self):
        """Forget the commands. Arrays that one huge MPUB made grow are given back."""
        self.publish_commands = 0
        if self.publishes.capacity > 65536:
            self.publishes = PublishBatch()
        elif self.publishes.count or self.publishes.destinations:
            self.publishes.clear()
        self.settles.count = 0

    def drop_settles_behind_publishes(self):
        cdef Py_ssize_t index = 0
        while index < self.settles.count and self.settled_after[index] == 0:
            index += 1
        self.settles.count = index

    def failures(self):
        cdef Py_ssize_t index
        cdef SettleEntry* entry
        failed = []
        for index in range(self.settles.count):
            entry = &self.settles.entries[index]
            if entry.result == SETTLE_OK:
                continue
            name = _SETTLE_NAMES[entry.kind]
            code = f"E_{name}_FAILED"
            reason = _FAIL_REASONS[entry.result]
            data = b"%s %s %016x failed %s" % (code.encode(), name.encode(), entry.message_id, reason)
            failed.append((self.settled_after[index], code, data))
        return failed

    def published(self, Py_ssize_t index):
        if not 0 <= index < self.publishes.count:
            raise IndexError(index)
        cdef PublishEntry* entry = &self.publishes.entries[index]
        topic = self.publishes.destinations[entry.destination]
        return topic, entry.body[:entry.body_bytes], entry.deliver_at_ms, entry.command_entries

    def settled(self, Py_ssize_t index):
        if not 0 <= index < self.settles.count:
            raise IndexError(index)
        cdef SettleEntry* entry = &self.settles.entries[index]
        return _SETTLE_NAMES[entry.kind], entry.message_id, entry.delay_ms, self.settled_after[index]

    def command_counts(self):
        return {name: self.counts[index] for index, name in enumerate(COMMAND_NAMES)}
