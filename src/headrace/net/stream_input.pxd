# Socket reads of one connection as the input of a parser: see stream_input.pyx.

from libc.stdint cimport int64_t

cdef enum:
    HEADROOM = 32 * 1024                        # bytes in front of what a socket is read to

cdef class StreamInput:
    cdef readonly int64_t commands              # whole ones taken so far
    # Input being parsed: [_at, _end) inside _source.
    cdef object _source
    cdef const char* _at
    cdef const char* _end
    # Start of a command whose rest has not arrived. _large: _held has room for the whole command, up to _room_end, and
    # is read into directly; otherwise it is put in front of the next read. Invariant: not _large -> _held_bytes <=
    # HEADROOM_BYTES.
    cdef bytearray _held
    cdef Py_ssize_t _held_bytes
    cdef Py_ssize_t _room_end                   # what _held has for the command: a buffer may be larger
    cdef bint _large
    cdef Py_ssize_t _wanted                     # parse again only when that many bytes are there

    cdef int _hold(self, bytearray buffer) except -1
    cdef int _keep_rest(self, Py_ssize_t total) except -1
