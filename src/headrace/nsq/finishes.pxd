# FINs, done in compiled code: see finishes.pyi for the public description.

from libc.stdint cimport int64_t

from headrace.broker.channels.channel cimport Channel, Subscription
from headrace.clock cimport Clock
from headrace.net.wire cimport ReadTaker
from headrace.nsq.codec cimport Reader
from headrace.nsq.intake cimport Intake

cdef class Finisher(ReadTaker):
    cdef public bint is_plain
    cdef public bint is_small
    cdef object _client
    cdef object _deadlines                      # the client's
    cdef Reader _reader
    cdef Channel _channel
    cdef Subscription _subscription
    cdef Finishes _finishes

cdef class Finishes:
    cdef readonly Py_ssize_t reads
    cdef object _server
    cdef Clock _clock
    cdef Intake _intake                         # the server's
    cdef bytearray _received                    # the server's receive buffer
    cdef set _touched                           # channels that the next dispatch looks at
    cdef int64_t _monotonic_ms                  # when the first of them was touched

    cdef bint _take(self, Finisher finisher, Py_ssize_t length) except -1
