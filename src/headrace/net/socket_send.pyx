"""``send`` on a socket of the event loop, without letting go of the interpreter: it never blocks. Ref: send(2)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL


def send_now(int fd, bytes data not None):
    cdef ssize_t sent = c_send(fd, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    if sent >= 0:
        return sent
    return 0 if errno == EAGAIN or errno == EINTR else -1
