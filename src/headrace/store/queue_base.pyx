"""What readers and the broker know of a queue: its bounds, and entries that point into a log."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from headrace.errors import UnreadableError


cdef class QueueBase:
    cdef int push(self, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) except -1:
        raise NotImplementedError

    cdef Py_ssize_t read_entries(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        raise NotImplementedError

    cdef Py_ssize_t read_or_refuse(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        """Read as ``read_entries`` for one who cannot try again by itself.

        Raises:
            UnreadableError: the system refuses the file, which the store was told.
        """
        try:
            return self.read_entries(from_offset, into, most)
        except OSError as error:
            self.log.on_unreadable(error)
            raise UnreadableError(error) from error

    def entries(self, int64_t from_offset, Py_ssize_t most):
        cdef QueueEntry* into = <QueueEntry*>malloc(max(most, 1) * sizeof(QueueEntry))
        cdef Py_ssize_t i, part
        cdef Py_ssize_t n = 0
        if into == NULL:
            raise MemoryError()
        try:
            while n < most:
                try:
                    part = self.read_or_refuse(from_offset + n, into + n, most - n)
                except UnreadableError:
                    if n == 0:
                        raise
                    break   # what is in front of it can be used
                if part <= 0:
                    break
                n += part
            return [(into[i].physical_offset, into[i].record_bytes, into[i].tag_hash) for i in range(n)]
        finally:
            free(into)

    def position_of(self, int64_t queue_offset):
        cdef QueueEntry entry
        return entry.physical_offset if self.read_or_refuse(queue_offset, &entry, 1) > 0 else -1
