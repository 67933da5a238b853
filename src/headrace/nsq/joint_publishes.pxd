# Small publishes of many clients, appended together: see joint_publishes.pyi for the public description.

from libc.stdint cimport int64_t, uint64_t

from headrace.batch cimport CopiedBatch, PublishBatch
from headrace.clock cimport Clock
from headrace.net.joint_turn cimport JointTurn
from headrace.net.wire cimport ReadTaker
from headrace.nsq.codec cimport Reader
from headrace.nsq.intake cimport Intake

cdef class Publisher(ReadTaker):
    cdef readonly object client
    cdef public bint is_joined
    cdef public bint is_plain
    cdef public uint64_t born_host
    cdef public bytes born_v6
    cdef Reader _reader
    cdef object _row                            # where the statistics count what it publishes to _row_topic, or None
    cdef str _row_topic
    cdef object _rows_version                   # of the statistics when they gave the row
    cdef JointPublishes _joint

cdef class Share:
    cdef readonly Publisher publisher
    cdef readonly object client                 # kept also when the publisher has let go of it
    cdef readonly str topic
    cdef readonly Py_ssize_t first
    cdef readonly Py_ssize_t messages
    cdef readonly int64_t body_bytes
    cdef readonly Py_ssize_t commands
    cdef readonly str command_name

cdef class JointPublishes(JointTurn):
    cdef Intake _intake                         # the server's
    cdef bytearray _received                    # the server's receive buffer
    cdef object _server
    cdef Clock _clock
    cdef CopiedBatch _batch
    cdef dict _places                           # of topics among the batch's destinations

    cdef bint _take_read(self, Publisher publisher, Py_ssize_t length) except -1
    cdef bint _take(self, Publisher publisher, PublishBatch source, Py_ssize_t commands, str name) except -1
    cdef int _take_batch(self, Publisher publisher, PublishBatch source) except -1  # of at most half of MEMORY_BYTES
    cdef object _append(self, PublishBatch batch, list shares)
