"""The thread that calls fdatasync.

It never takes the GIL while it waits or works: requests and results travel through two pipes as fixed structs, so a
flush costs the event loop one write and one read, and the loop learns of the end by a readable descriptor. Requests
are answered in order.
"""

import os
import threading

from libc.errno cimport errno as c_errno
from libc.stdint cimport int32_t, int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport read, write

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef struct Request:
    int64_t target          # the physical offset the flush stands for
    int32_t fd              # -1 ends the thread
    int32_t reserved

cdef struct Result:
    int64_t target
    int64_t nanoseconds
    int32_t error           # errno, 0 on success
    int32_t reserved


cdef int64_t _now_ns() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_MONOTONIC, &at)
    return <int64_t>at.tv_sec * 1000000000 + at.tv_nsec


cdef class Flusher:
    cdef int request_read, request_write, done_write
    cdef readonly int done_read     # readable when a result waits
    cdef object thread

    def __init__(self):
        self.request_read, self.request_write = os.pipe2(os.O_CLOEXEC)
        self.done_read, self.done_write = os.pipe2(os.O_CLOEXEC)
        self.thread = threading.Thread(target=self._run, name="headrace-flush", daemon=True)
        self.thread.start()

    def request(self, int64_t target, int fd):
        cdef Request message
        message.target = target
        message.fd = fd
        message.reserved = 0
        if write(self.request_write, &message, sizeof(message)) != sizeof(message):
            raise OSError(c_errno, os.strerror(c_errno), "flush request pipe")

    def take_result(self):
        """Wait for the next result; return (target, errno, seconds)."""
        cdef Result result
        cdef Py_ssize_t got
        with nogil:
            got = read(self.done_read, &result, sizeof(result))
        if got != sizeof(result):
            raise OSError(c_errno, os.strerror(c_errno), "flush result pipe")
        return result.target, result.error, result.nanoseconds / 1e9

    def _run(self):
        cdef Request message
        cdef Result result
        cdef int64_t started
        with nogil:
            while read(self.request_read, &message, sizeof(message)) == sizeof(message) and message.fd >= 0:
                started = _now_ns()
                result.error = 0
                result.reserved = 0
                if fdatasync(message.fd) != 0:
                    result.error = c_errno
                result.target = message.target
                result.nanoseconds = _now_ns() - started
                if write(self.done_write, &result, sizeof(result)) != sizeof(result):
                    break

    def close(self):
        """End the thread after the requests already made."""
        if self.thread is None:
            return
        self.request(0, -1)
        self.thread.join()
        self.thread = None
        for fd in (self.request_read, self.request_write, self.done_read, self.done_write):
            os.close(fd)
