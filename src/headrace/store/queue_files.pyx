"""The files of all consume queues: a bounded pool of those that are open, and the blocks of entries kept for readers."""

import errno
import os
from collections import OrderedDict
from contextlib import suppress

from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_EXCL, O_RDWR, open as open_file
from posix.types cimport mode_t
from posix.unistd cimport close, ftruncate

from headrace.store.consume_queue cimport ConsumeQueue
from headrace.store.queue_base cimport ENTRY_BYTES

from headrace.lock_file import require_in_place

cdef extern from "<sys/stat.h>" nogil:
    int mkdir(const char* path, mode_t mode)

cdef enum:
    MAX_BLOCKS = 256            # queues that keep one: 2.6 MB


class QueueFiles:
    def __init__(self, file_bytes, most_open):
        self.file_bytes = (file_bytes + ENTRY_BYTES - 1) // ENTRY_BYTES * ENTRY_BYTES
        self._most_open = most_open
        self._open = OrderedDict()
        self._with_block = OrderedDict()    # the queues that keep one, that of the oldest first

    def descriptor(self, directory, first_byte, create):
        """Return an open file of a queue, or -1 when it is absent and not to be created."""
        key = (directory, first_byte)
        fd = self._open.get(key)
        if fd is not None:
            self._open.move_to_end(key)
            return fd
        path = f"{directory}/{first_byte:020d}"
        try:
            require_in_place(path)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                return -1
            for folder in (os.path.dirname(directory), directory):  # not the folder of all: it may have been moved away
                with suppress(FileExistsError):
                    os.mkdir(folder)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < self.file_bytes:      # also where a kill or a full disk left it short
                os.ftruncate(fd, self.file_bytes)
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, error.strerror, path) from error
        self._open[key] = fd
        if len(self._open) > self._most_open:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return fd

    def make_first(self, directories):
        cdef int64_t file_bytes = self.file_bytes
        cdef bytes folder, folder_above, path
        cdef const char* names[3]
        cdef int fd, error
        for directory in directories:
            folder = os.fsencode(directory)
            folder_above = os.path.dirname(folder)
            path = folder + b"/%020d" % 0
            names[0], names[1], names[2] = folder_above, folder, path
            with nogil:
                mkdir(names[0], 0o777)
                mkdir(names[1], 0o777)
                fd = open_file(names[2], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
                error = 0
                if fd < 0 or ftruncate(fd, file_bytes) < 0:
                    error = c_errno
                if fd >= 0:
                    close(fd)
            if error and error != errno.EEXIST:
                raise OSError(error, os.strerror(error), os.fsdecode(path))

    def keep_block(self, ConsumeQueue queue not None):
        """Note that a queue keeps a block of its entries; it keeps it until MAX_BLOCKS others were read later."""
        cdef ConsumeQueue oldest
        self._with_block[queue] = None
        self._with_block.move_to_end(queue)
        if len(self._with_block) > MAX_BLOCKS:
            oldest, _ = self._with_block.popitem(last=False)
            oldest.block = None

    def drop_block(self, ConsumeQueue queue not None):
        """Have a queue forget its block."""
        queue.block = None
        self._with_block.pop(queue, None)

    def forget(self, directory):
        """Close the open files of one queue."""
        for key in [key for key in self._open if key[0] == directory]:
            os.close(self._open.pop(key))

    def close(self):
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        self._with_block.clear()
