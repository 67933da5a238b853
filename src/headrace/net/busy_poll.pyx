"""The event loop stays awake for a moment after a read: see busy_poll.pyi."""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

import asyncio
import os

MAX_LEFT_OUT = 1024

cdef Py_ssize_t _MAX_LEFT_OUT = MAX_LEFT_OUT


# Invariant: a call of ``_look`` is due exactly while ``_is_looking``.
cdef class BusyPoll:
    def __init__(self, int64_t look_us, now_ns=None):
        self._look_ns = look_us * 1000 if os.cpu_count() != 1 else 0
        self._now_ns = now_ns
        self._look_again = self._look
        self._next_left_out = 1

    @property
    def seconds(self):
        return self._looked_ns / 1e9

    cpdef int served(self) except -1:
        self._reads += 1
        self.answered()
        return 0

    cpdef int waits(self) except -1:
        self._waits = True
        return 0

    cpdef int answered(self) except -1:
        self._waits = False
        if self._is_looking or not self._look_ns:
            return 0
        if self._left_out:
            self._left_out -= 1
            return 0
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._is_looking = True
        self._look_on()
        return 0

    cdef int _look_on(self) except -1:
        """Begin to look for the next read."""
        self._seen = self._reads
        self._in_vain_ns = 0
        self._began_ns = self._ns()
        self._loop.call_soon(self._look_again)
        return 0

    def _look(self):
        """See whether a read came in this turn of the loop, which has not slept before it."""
        if self._waits or self._reads != self._seen:
            self._looked_ns += self._in_vain_ns
            self._next_left_out = 1
            if self._waits:
                self._is_looking = False
            else:
                self._look_on()
            return
        self._in_vain_ns = self._ns() - self._began_ns
        if self._in_vain_ns < self._look_ns:
            self._loop.call_soon(self._look_again)
        else:
            self._looked_ns += self._in_vain_ns
            self._is_looking = False
            self._left_out = self._next_left_out
            self._next_left_out = min(2 * self._next_left_out, _MAX_LEFT_OUT)

    cdef int64_t _ns(self) except -1:
        cdef timespec now
        if self._now_ns is not None:
            return self._now_ns()
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec
