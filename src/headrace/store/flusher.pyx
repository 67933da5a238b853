"""The thread that calls fdatasync.

It never takes the GIL while it waits or works. Requests stand in a short line, guarded by a mutex, and are carried out
in order; one that nobody has begun takes up what is asked for later in the same file, so that the thread goes from one
flush to the next without the event loop, which may be busy with a turn of its own meanwhile. Results travel through a
pipe as fixed structs: the loop learns of them by a readable descriptor.
"""

import errno
import os
import threading

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EINTR, errno as c_errno
from libc.stdint cimport int32_t, int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport write

from headrace.errors import NoThreadError

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)

cdef enum:
    MAX_WAITING = 64       # a power of two: the counters wrap around

cdef enum Place:
    NEW
    JOINED
    NO_ROOM

cdef struct Request:
    int64_t target          # the physical offset the flush stands for
    int fd

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
    cdef int done_write
    cdef readonly int done_read     # readable when a result waits
    cdef object thread
    cdef pthread_mutex_t mutex      # guards what follows
    cdef pthread_cond_t added       # a request was added, or ending was set
    cdef pthread_cond_t taken       # a request was begun: there is room in the line
    cdef Request[MAX_WAITING] line
    cdef unsigned int begun, asked  # requests so far; line holds begun..asked modulo its length
    cdef bint ending

    def __cinit__(self):
        pthread_mutex_init(&self.mutex, NULL)
        pthread_cond_init(&self.added, NULL)
        pthread_cond_init(&self.taken, NULL)
        self.begun = self.asked = 0
        self.ending = False

    def __dealloc__(self):
        pthread_cond_destroy(&self.added)
        pthread_cond_destroy(&self.taken)
        pthread_mutex_destroy(&self.mutex)

    def __init__(self):
        self.done_read, self.done_write = os.pipe2(os.O_CLOEXEC)
        self.thread = threading.Thread(target=self._run, name="headrace-flush", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            for fd in (self.done_read, self.done_write):
                os.close(fd)
            raise NoThreadError(self.thread.name) from error

    def request(self, int64_t target, int fd):
        cdef Place place
        # Nobody who has the mutex waits for the GIL, so it may be taken with it. Giving the GIL up for each of a burst of
        # requests would wait as often for a thread that computes: 5 ms each.
        pthread_mutex_lock(&self.mutex)
        place = self._stand_in_line(target, fd)
        pthread_mutex_unlock(&self.mutex)
        if place == NO_ROOM:
            with nogil:
                pthread_mutex_lock(&self.mutex)
                while True:
                    place = self._stand_in_line(target, fd)
                    if place != NO_ROOM:
                        break
                    pthread_cond_wait(&self.taken, &self.mutex)
                pthread_mutex_unlock(&self.mutex)
        # Not with the mutex: the thread, woken on this core, would run at once, find it taken and sleep again.
        if place == NEW:
            pthread_cond_signal(&self.added)
        return place == NEW

    cdef Place _stand_in_line(self, int64_t target, int fd) noexcept nogil:
        """Have the last request stand for ``target`` too if it is of the same file, else add one."""
        cdef Request* last = &self.line[(self.asked - 1) % MAX_WAITING]
        if self.asked != self.begun and last.fd == fd:
            last.target = max(last.target, target)
            return JOINED
        if self.asked - self.begun == MAX_WAITING:
            return NO_ROOM
        self.line[self.asked % MAX_WAITING].target = target
        self.line[self.asked % MAX_WAITING].fd = fd
        self.asked = self.asked + 1
        return NEW

    def take_result(self):
        # Python's own read, which a signal does not end.
        cdef bytes raw = os.read(self.done_read, sizeof(Result))
        cdef const Result* result = <const Result*>PyBytes_AS_STRING(raw)
        if len(raw) != sizeof(Result):
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE), "flush result pipe")
        return result.target, result.error, result.nanoseconds / 1e9

    def _run(self):
        cdef Request request
        cdef Result result
        cdef int64_t started
        with nogil:
            while True:
                pthread_mutex_lock(&self.mutex)
                while self.asked == self.begun and not self.ending:
                    pthread_cond_wait(&self.added, &self.mutex)
                if self.asked == self.begun:
                    pthread_mutex_unlock(&self.mutex)
                    break
                request = self.line[self.begun % MAX_WAITING]
                self.begun = self.begun + 1
                pthread_cond_signal(&self.taken)
                pthread_mutex_unlock(&self.mutex)
                started = _now_ns()
                result.error = 0
                result.reserved = 0
                while fdatasync(request.fd) != 0:
                    if c_errno != EINTR:    # which says nothing of what was written
                        result.error = c_errno
                        break
                result.target = request.target
                result.nanoseconds = _now_ns() - started
                if write(self.done_write, &result, sizeof(result)) != sizeof(result):
                    break

    def close(self):
        if self.thread is None:
            return
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.ending = True
            pthread_mutex_unlock(&self.mutex)
            pthread_cond_signal(&self.added)
        self.thread.join()
        self.thread = None
        for fd in (self.done_read, self.done_write):
            os.close(fd)
