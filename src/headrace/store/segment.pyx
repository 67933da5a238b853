"""One file of the commit log and its mapping.

The file is allocated in full when it is made (posix_fallocate), so a full disk is an error then, not in the middle of
a batch. Readers use the mapping, the writer uses pwrite: docs/adr/0006-write-path.md says why.
"""

import errno
import os

from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

from headrace.errors import SideFileError

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int mincore(void* address, size_t length, unsigned char* residency)
    int PROT_READ, MAP_SHARED
    void* MAP_FAILED

cdef enum:
    PAGE_BYTES = 4096


cdef class Segment:
    def __cinit__(self):
        self.fd = -1
        self.base = NULL

    def __init__(self, str path not None, int64_t first_offset, int64_t size_bytes, *, bint writable=False):
        cdef void* mapping
        self.path = path
        self.first_offset = first_offset
        self.size_bytes = size_bytes
        self.writable = writable
        self.fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        actual = os.fstat(self.fd).st_size
        if actual != size_bytes:
            raise SideFileError(path, f"is {actual} bytes long instead of {size_bytes}",
                                "restore the file from a backup, or move it away to go on without its messages")
        mapping = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, self.fd, 0)
        if mapping == MAP_FAILED:
            raise OSError(c_errno, os.strerror(c_errno), path)
        self.base = <uint8_t*>mapping

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.size_bytes)
        if self.fd >= 0:
            os.close(self.fd)

    cpdef bint is_resident(self, int64_t position, int64_t size) except -1:
        cdef int64_t start = position & ~<int64_t>(PAGE_BYTES - 1)
        cdef int64_t end = min(position + size, self.size_bytes)
        cdef Py_ssize_t pages = (end - start + PAGE_BYTES - 1) // PAGE_BYTES
        cdef Py_ssize_t i
        cdef bint resident = True
        cdef unsigned char* residency
        if pages <= 0:
            return True
        residency = <unsigned char*>malloc(pages)
        if residency == NULL:
            raise MemoryError()
        try:
            if mincore(self.base + start, end - start, residency) != 0:
                raise OSError(c_errno, os.strerror(c_errno), self.path)
            for i in range(pages):
                if not residency[i] & 1:
                    resident = False
                    break
        finally:
            free(residency)
        return resident

    cpdef int64_t next_data(self, int64_t position) except -1:
        if position >= self.size_bytes:
            return self.size_bytes
        try:
            return os.lseek(self.fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size_bytes
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return position     # the file system keeps no record of holes: everything may be data
            raise

    def touch(self, int64_t position, int64_t size):
        cdef int64_t at = position & ~<int64_t>(PAGE_BYTES - 1)
        cdef int64_t end = min(position + size, self.size_bytes)
        cdef volatile uint8_t sink = 0
        with nogil:
            while at < end:
                sink = self.base[at]
                at += PAGE_BYTES

    def read(self, int64_t position, int64_t size):
        if position < 0 or size < 0 or position + size > self.size_bytes:
            raise IndexError(f"range {position}+{size} is outside {self.path}")
        return self.base[position:position + size]


def create_segment_file(str path, int64_t size_bytes):
    cdef int fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    sync_directory(os.path.dirname(path))


def sync_directory(str path):
    cdef int fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
