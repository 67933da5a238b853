"""One file of the commit log and its mapping.

The file is allocated in full when it is made (posix_fallocate), so a full disk is an error then, not in the middle of
a batch. Readers use the mapping, the writer uses pwrite: docs/adr/0006-write-path.md says why.

A log of many segments keeps a bounded number of them mapped (``SegmentSet``): those asked for last, and always the
active one. A segment that leaves the set is unmapped when its last view lets go of it.
"""

import errno
import os
import re
import stat
from contextlib import suppress

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from posix.types cimport off_t
from posix.unistd cimport pwrite

from headrace.format.record cimport find_record

from headrace.errors import SideFileError
from headrace.format.names import is_offset_name
from headrace.format.side_file import sync_folder
from headrace.format.sparse import written_ranges
from headrace.lock_file import require_in_place

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int mincore(void* address, size_t length, unsigned char* residency)
    int madvise(void* address, size_t length, int advice)
    int PROT_READ, MAP_SHARED, MADV_DONTNEED, MADV_WILLNEED
    void* MAP_FAILED

cdef extern from *:
    """
    static const char headrace_zeros[1 << 20];
    """
    const char headrace_zeros[1 << 20]

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t pwritev(int fd, const iovec* pieces, int count, off_t position)

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, int64_t offset, int64_t size)
    int FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
    int sync_file_range(int fd, int64_t offset, int64_t size, unsigned int flags)
    unsigned int SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_AFTER

cdef extern from "<unistd.h>" nogil:
    int syncfs(int fd)

cdef extern from "<sys/vfs.h>" nogil:
    struct statfs_result "statfs":
        long f_type
    int statfs(const char* path, statfs_result* into)

cdef enum:
    MAGIC_END = 8               # of a record: its size and its magic
    EXT4_MAGIC = 0xEF53
    XFS_MAGIC = 0x58465342
    TMPFS_MAGIC = 0x01021994

cdef long BTRFS_MAGIC = 0x9123683E
cdef tuple _LINUX = tuple([int(number) for number in re.findall(r"\d+", os.uname().release)[:2]])
cdef int64_t PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")    # 4 KiB on x86-64, up to 64 KiB on arm64


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
        require_in_place(path)
        self.fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        _require_size(path, os.fstat(self.fd).st_size, size_bytes)
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

    cdef Py_ssize_t write(self, const uint8_t* data, Py_ssize_t size, int64_t position, Py_ssize_t zeros) noexcept nogil:
        cdef iovec[2] pieces
        if zeros == 0:
            return pwrite(self.fd, data, size, position)
        pieces[0].iov_base = <void*>data
        pieces[0].iov_len = size
        pieces[1].iov_base = <void*>headrace_zeros
        pieces[1].iov_len = zeros
        return pwritev(self.fd, pieces, 2, position)

    def written_ranges(self, int64_t position):
        return list(written_ranges(self.fd, position, self.size_bytes))

    def find_record(self, int64_t position):
        cdef int64_t start, end
        cdef int64_t found = -1
        for start, end in self.written_ranges(position):
            # A record's magic lies behind its size: look from a little before the data to a little behind it.
            start = max(position, start - MAGIC_END)
            end = min(end + MAGIC_END, self.size_bytes)
            with nogil:
                found = find_record(self.base, start, end, self.size_bytes, self.first_offset)
            if found >= 0:
                break
        return found

    def touch(self, int64_t position, int64_t size):
        cdef int64_t at = position & ~<int64_t>(PAGE_BYTES - 1)
        cdef int64_t end = min(position + size, self.size_bytes)
        cdef volatile uint8_t sink = 0
        with nogil:
            madvise(self.base + at, end - at, MADV_WILLNEED)    # in one piece, not as each page is missed
            while at < end:
                sink = self.base[at]
                at += PAGE_BYTES

    def drop_pages(self):
        with nogil:
            madvise(self.base, self.size_bytes, MADV_DONTNEED)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.size_bytes, True, flags)

    def view(self, int64_t position, int64_t size):
        if position < 0 or size < 0 or position + size > self.size_bytes:
            raise IndexError(f"range {position}+{size} is outside {self.path}")
        return memoryview(self)[position:position + size]

    def read(self, int64_t position, int64_t size):
        if position < 0 or size < 0 or position + size > self.size_bytes:
            raise IndexError(f"range {position}+{size} is outside {self.path}")
        return self.base[position:position + size]


cdef class SegmentSet:
    def __init__(self, str directory not None, int64_t segment_bytes, Py_ssize_t most_mapped):
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.most_mapped = max(most_mapped, 2)
        self.known = set()
        self.mapped = {}
        self.on_retired = None

    def load(self):
        for name in os.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if not is_offset_name(name):
                continue
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                continue
            if int(name) % self.segment_bytes:
                raise SideFileError(path, f"is no file of this log, whose files begin at multiples of "
                                          f"{self.segment_bytes}", "give it its name again, or move it away")
            _require_size(path, found.st_size, self.segment_bytes)
            self.known.add(int(name) // self.segment_bytes)

    cdef Segment find(self, int64_t index):
        """Return a segment, mapped now if it was not; None when the log has none of that index."""
        cdef Segment segment = self.mapped.get(index)
        if segment is None:
            if index not in self.known:
                return None
            segment = Segment(self.path_of(index), index * self.segment_bytes, self.segment_bytes)
            self._map(index, segment)
        self.clock += 1
        segment.used_at = self.clock
        return segment

    cdef int _map(self, int64_t index, Segment segment) except -1:
        """Take in a mapped segment; above the bound the one that was asked for longest ago goes."""
        cdef Segment oldest = None
        cdef Segment other
        self.mapped[index] = segment
        self.clock += 1
        segment.used_at = self.clock
        if len(self.mapped) <= self.most_mapped:
            return 0
        for other in self.mapped.values():
            if other is not self.newest and other is not segment and (oldest is None or other.used_at < oldest.used_at):
                oldest = other
        if oldest is not None:
            del self.mapped[oldest.first_offset // self.segment_bytes]
            if self.on_retired is not None:
                self.on_retired(oldest)
        return 0

    def path_of(self, int64_t index):
        return f"{self.directory}/{index * self.segment_bytes:020d}"

    @property
    def mapped_count(self):
        return len(self.mapped)

    def get(self, int64_t index):
        return self.find(index)

    def __getitem__(self, int64_t index):
        cdef Segment segment = self.find(index)
        if segment is None:
            raise KeyError(index)
        return segment

    def __setitem__(self, int64_t index, Segment segment not None):
        self.known.add(index)
        if segment.writable:
            self.newest = segment
        self._map(index, segment)

    def leave_out(self, int64_t index):
        self.known.discard(index)
        self.mapped.pop(index, None)

    def __contains__(self, index):
        return index in self.known

    def __iter__(self):
        return iter(sorted(self.known))

    def __len__(self):
        return len(self.known)

    def clear(self):
        self.known.clear()
        self.mapped.clear()
        self.newest = None


def _require_size(path, actual, expected):
    if actual != expected:
        keep = f"fill it up with zeros, truncate -s {expected}, which keeps what is whole in it; or "
        raise SideFileError(path, f"is {actual} bytes long instead of {expected}",
                            f"restore the file from a backup; or {keep if actual < expected else ''}"
                            "move it away to go on without its messages")


def create_segment_file(str path, int64_t size_bytes):
    cdef int fd
    require_in_place(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):     # whoever makes it next removes it before
            os.unlink(path)
        raise
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def punch_hole(int fd, int64_t position, int64_t size):
    cdef int failed
    if size == 0:
        return True
    with nogil:
        failed = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, position, size)
    if failed and c_errno in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    if failed:
        raise OSError(c_errno, os.strerror(c_errno))
    return True


def write_zeros(int fd, int64_t position, int64_t size):
    cdef int64_t end = position + size
    cdef int64_t at = position
    cdef Py_ssize_t wrote = 0
    cdef int failed = 0
    with nogil:
        while at < end:
            wrote = pwrite(fd, headrace_zeros, min(end - at, <int64_t>sizeof(headrace_zeros)), at)
            if wrote < 0:
                break
            at += wrote
        if wrote >= 0:
            failed = sync_file_range(fd, position, size, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)
    if wrote < 0 or failed:
        raise OSError(c_errno, os.strerror(c_errno))


def is_overwritten_in_place(str path):
    return _file_system(path) == EXT4_MAGIC


def is_cached_in_large_folios(str path):
    cdef long kind = _file_system(path)
    return (kind == EXT4_MAGIC and _LINUX >= (6, 16)) or (kind == XFS_MAGIC and _LINUX >= (5, 18))


def is_syncfs_told_of_errors(str path):
    return _file_system(path) in (EXT4_MAGIC, XFS_MAGIC, BTRFS_MAGIC, TMPFS_MAGIC)


cdef long _file_system(str path) except? -1:
    cdef statfs_result found
    return found.f_type if statfs(os.fsencode(path), &found) == 0 else -1


def sync_file_system(int fd):
    cdef int failed
    with nogil:
        failed = syncfs(fd)
    if failed:
        raise OSError(c_errno, os.strerror(c_errno))
