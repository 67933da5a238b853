"""The time source: see clock.pyi.

Compiled because every read, delivery and publish asks for the time, most of them more than once.
"""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

import logging

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept

logger = logging.getLogger(__name__)

STANDSTILL_MS = 250

cdef int64_t _STANDSTILL_NS = STANDSTILL_MS * 1_000_000
cdef int64_t _TOLD_NS = 1_000_000_000


cdef int64_t _system_ns(int which) noexcept:
    """What one of the system's clocks shows; these two cannot fail."""
    cdef timespec now
    clock_gettime(which, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef class Clock:
    cpdef int64_t now_ms(self) except? -1:
        return _system_ns(CLOCK_REALTIME) // 1_000_000

    cpdef int64_t monotonic_ms(self) except? -1:
        return _system_ns(CLOCK_MONOTONIC) // 1_000_000


cdef class LoopClock(Clock):
    def __init__(self, now_ns=None):
        self._now_ns = now_ns

    def begin(self):
        self._thread = PyThread_get_thread_ident()
        self._looked_ns = self._monotonic_ns()

    cpdef int64_t monotonic_ms(self) except? -1:
        cdef int64_t now_ns = self._monotonic_ns()
        cdef int64_t since_ns
        if PyThread_get_thread_ident() == self._thread:
            since_ns = now_ns - self._looked_ns
            self._looked_ns = now_ns
            if since_ns > _STANDSTILL_NS:
                self._leave_out(since_ns - _STANDSTILL_NS)
        return (now_ns - self._left_out_ns) // 1_000_000

    @property
    def left_out_seconds(self):
        return self._left_out_ns / 1e9

    cdef int64_t _monotonic_ns(self) except? -1:
        return _system_ns(CLOCK_MONOTONIC) if self._now_ns is None else self._now_ns()

    cdef int _leave_out(self, int64_t standstill_ns) except -1:
        self._left_out_ns += standstill_ns
        if standstill_ns >= _TOLD_NS:
            logger.warning(
                "event loop stood still ms=%d effect=%s",
                standstill_ns // 1_000_000,
                "deadlines of clients and messages are put off by that; the disk blocked it, or the machine was busy",
            )
        return 0


class ManualClock(Clock):
    def __init__(self, *, now_ms=1_700_000_000_000, monotonic_ms=1_000):
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self):
        return self._now_ms

    def monotonic_ms(self):
        return self._monotonic_ms

    def advance_ms(self, milliseconds):
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def step_ms(self, milliseconds):
        self._now_ms += milliseconds
