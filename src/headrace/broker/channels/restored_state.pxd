# What a start knows of a channel before its queues are added: see restored_state.pyi.

from libc.stdint cimport int64_t, uint64_t
from headrace.broker.channels.channel_state cimport StateReader, StateWriter
from headrace.broker.channels.finished cimport FinishedSet
from headrace.broker.channels.in_flight cimport OffsetMap

cdef enum:
    DEAD_MS = -1                        # due_ms of an entry that lay beyond its queue's end

cdef class RestoredState:
    cdef dict positions                 # queue_id -> FinishedSet
    cdef StateWriter entries            # MessageEntry, the latest of each message
    cdef OffsetMap by_offset            # physical_offset -> index in entries, until part_by_queue()
    cdef int64_t* firsts                # of each queue up to the highest: its first entry, and behind them all the end
    cdef int64_t queues
    cdef int64_t left                   # entries of queues that are still to come
    cdef int64_t now_ms
    cdef bint was_cut                   # a state took back what those before it say
    cdef int apply(self, bytes state) except -1
    cdef int apply_sections(self, StateReader reader) except -1
    cdef int apply_entries(self, StateReader reader) except -1
    cdef int cut_entries(self, uint64_t queue_id, uint64_t end) except -1
    cdef int part_by_queue(self) except -1
    cdef int64_t first_of(self, int64_t queue_id) noexcept
    cdef FinishedSet finished_of(self, int queue_id)
