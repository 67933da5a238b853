# What channels have for their consumers, sent: see delivery.pyi for the public description.

from libc.stdint cimport int64_t

from headrace.batch cimport RecordBatch
from headrace.broker.channels.channel cimport Channel, Subscription
from headrace.clock cimport Clock

cdef class Delivery:
    cdef object _server
    cdef Clock _clock
    cdef RecordBatch _records                   # of one write

    cdef Py_ssize_t _quantum(self, Channel channel, Py_ssize_t consumers) except -1
    cdef int64_t _send(self, Channel channel, Subscription subscription, int64_t now_ms, int64_t monotonic_ms,
                       Py_ssize_t most, int64_t most_bytes, dict sent) except -1
