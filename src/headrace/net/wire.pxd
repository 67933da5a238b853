# What a connection does with each read and each write: see wire.pyi for the public description.

from libc.stdint cimport int64_t

from headrace.clock cimport Clock
from headrace.net.stream_input cimport StreamInput

cdef class TrafficCounters:
    cdef public int64_t bytes_in
    cdef public int64_t bytes_out
    cdef public int64_t heartbeats_missed
    cdef public int64_t read_pauses
    cdef public int64_t write_pauses

cdef class ReadTaker:
    cpdef bint take_read(self, Py_ssize_t nbytes) except -1

cdef class Wire:
    cdef public str cause
    cdef public tuple takers
    cdef public StreamInput _input              # None where nothing is read through ``get_buffer``
    cdef public object _receive
    cdef public object _turns
    cdef public bytes _rest                     # what is left of a read, after what the reader has already
    cdef public object _turn                    # ends the turn; None: the next read begins one
    cdef public int64_t _turn_began_ms
    cdef public object _transport
    cdef public int64_t _shut_at_ms             # when a connection that was left is cut; 0 = not shut yet
    cdef public int64_t _written_bytes
    cdef public Py_ssize_t _last_bytes          # of the last write
    cdef readonly Clock _clock
    cdef readonly TrafficCounters _traffic
