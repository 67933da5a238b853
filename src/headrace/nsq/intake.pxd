# What one read brought: see intake.pyi for the public description.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from headrace.batch cimport PublishBatch, SettleBatch
from headrace.nsq.words cimport COMMANDS

cdef class Intake:
    cdef readonly PublishBatch publishes
    cdef readonly SettleBatch settles
    cdef readonly Py_ssize_t publish_commands   # PUB, MPUB and DPUB in publishes: that many OKs are owed
    cdef int first_publish                      # CMD_... of the first of them
    cdef uint32_t* settled_after                # per settle entry: publish commands before it in the stream
    cdef Py_ssize_t marks_capacity
    cdef uint64_t[COMMANDS] counts
    cdef readonly int64_t requeues_clamped

    cdef int mark(self) except -1               # notes where the newest settle entry stands among the publish commands
