"""One call of the event loop after some microseconds: see fine_timer.pyi."""

import asyncio

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport close, read

cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/timerfd.h>
    #include <time.h>
    static int open_timer(void)
    {
        return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }
    static int arm_timer(int fd, long long ns)
    {
        struct itimerspec once = {{0, 0}, {ns / 1000000000, ns % 1000000000}};
        return timerfd_settime(fd, 0, &once, NULL);
    }
    #else
    static int open_timer(void)
    {
        return -1;
    }
    static int arm_timer(int fd, long long ns)
    {
        (void)fd;
        (void)ns;
        return -1;
    }
    #endif
    """
    int open_timer() nogil
    int arm_timer(int fd, long long ns) nogil


cdef class FineTimer:
    cdef object _call
    cdef object _loop
    cdef object _handle         # of the loop's own timer, where there is no descriptor
    cdef int _fd

    def __cinit__(self):
        self._fd = -1

    def __init__(self, call):
        self._call = call

    def __dealloc__(self):
        if self._fd >= 0:
            close(self._fd)

    def start(self, int64_t ns):
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._fd = open_timer()
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._fire)
        if self._fd < 0:
            self._handle = self._loop.call_later(ns / 1e9, self._call)
        elif arm_timer(self._fd, max(ns, 1)) < 0:
            raise OSError(errno, "timerfd_settime")

    def _fire(self):
        cdef uint64_t times
        if read(self._fd, &times, sizeof(times)) == sizeof(times):  # else it was started anew meanwhile
            self._call()

    def close(self):
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            close(self._fd)
            self._fd = -1
        self._loop = None
