# The event loop stays awake for a moment after a read: see busy_poll.pyi for the public description.

from libc.stdint cimport int64_t

cdef class BusyPoll:
    cdef object _now_ns                         # stands for the system's monotonic clock in tests, or None
    cdef object _loop
    cdef object _look_again                     # ``_look``, bound
    cdef int64_t _look_ns
    cdef int64_t _began_ns
    cdef int64_t _in_vain_ns                    # since then
    cdef int64_t _looked_ns
    cdef Py_ssize_t _reads
    cdef Py_ssize_t _seen                       # of them, when it was looked last
    cdef Py_ssize_t _left_out                   # reads still to come that are not looked behind
    cdef Py_ssize_t _next_left_out              # when nothing comes again
    cdef bint _is_looking
    cdef bint _waits                            # the last read's answer waits for the disk

    cpdef int served(self) except -1
    cpdef int waits(self) except -1
    cpdef int answered(self) except -1
    cdef int _look_on(self) except -1
    cdef int64_t _ns(self) except -1
