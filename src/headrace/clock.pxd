# The time source: see clock.pyi for the public description.

from libc.stdint cimport int64_t

cdef class Clock:
    cpdef int64_t now_ms(self) except? -1
    cpdef int64_t monotonic_ms(self) except? -1

cdef class LoopClock(Clock):
    cdef object _now_ns                         # stands for the system's monotonic clock in tests, or None
    cdef int64_t _looked_ns                     # when the loop's thread asked last
    cdef int64_t _left_out_ns
    cdef unsigned long _thread                  # the loop's; 0 before it runs

    cdef int64_t _monotonic_ns(self) except? -1
    cdef int _leave_out(self, int64_t standstill_ns) except -1
