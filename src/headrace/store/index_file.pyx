"""One file of the key index, RocketMQ's bit for bit: docs/formats/index-file.md.

A file is a hash table on disk: slots that name the newest entry of their chain, and entries that name the one before.
While a file is filled its slots are in anonymous memory, touched page by page, and new entries are in ``tail``; entries
are written behind with pwrite, slots only when the file is full or at a clean end, because after a crash they can be
made anew from the entries. Files are read with pread: a query is a few hops, and a damaged disk is an error, not a
signal.

Slots are prefetched for many keys before the first is used: in a table of 20 MB each is a cache miss, and one after
the other they would cost more than everything else together.
"""

import errno
import os

from libc.errno cimport errno as c_errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcmp
from posix.unistd cimport pread, pwrite

from headrace.format.arrays cimport reserve
from headrace.format.record cimport load_i32, load_i64, load_u32, store_i64, store_u32
from headrace.format.side_file import naming
from headrace.format.sparse import written_ranges
from headrace.lock_file import require_in_place

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void* MAP_FAILED

cdef extern from *:
    """
    #define headrace_prefetch(p) __builtin_prefetch((p), 1)
    """
    void headrace_prefetch(const void* at) noexcept nogil

cdef enum:
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    KEEP_TAIL = 8192                # entries whose memory is kept from one write to the next
    AT_ONCE_BYTES = 1 << 20
    BLOCK_ENTRIES = 400             # read at a time by a search: entries of one key often lie close together
    MAX_HOPS = 4096                # of one search call: other threads wait meanwhile
    MAX_SECONDS = 0x7FFFFFFF

DAMAGED = -1


def file_bytes(int64_t slot_count, int64_t capacity):
    return HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * capacity


cdef class IndexFile:
    def __cinit__(self):
        self.fd = -1
        self.slots = NULL
        self.tail = NULL

    def __init__(self, str path not None, int32_t slot_count, int32_t capacity):
        self.path = path
        self.slot_count = slot_count
        self.capacity = capacity
        self.count = self.written_count = self.slots_count = 1
        self._open()

    cdef int _open(self) except -1:
        if self.fd < 0:
            require_in_place(self.path)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return 0

    def release(self):
        cdef int fd = self.fd
        if self.slots == NULL and fd >= 0:
            self.fd = -1
            os.close(fd)

    def __dealloc__(self):
        free(self.tail)
        if self.slots != NULL:
            munmap(self.slots, self.slot_count * <size_t>SLOT_BYTES)
        if self.fd >= 0:
            os.close(self.fd)

    @staticmethod
    def create(str path not None, int32_t slot_count, int32_t capacity):
        cdef int fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        cdef IndexFile made
        try:
            os.ftruncate(fd, file_bytes(slot_count, capacity))
            made = IndexFile(path, slot_count, capacity)
            made._make_slots()
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        return made

    @property
    def is_full(self):
        return self.count >= self.capacity

    @property
    def has_slots(self):
        return self.slots != NULL

    # -- filling ----------------------------------------------------------------------------------------------------

    cdef int _make_slots(self) except -1:
        cdef void* made = mmap(NULL, self.slot_count * <size_t>SLOT_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if made == MAP_FAILED:
            raise MemoryError(f"cannot hold the slots of {self.path}")
        self.slots = <uint32_t*>made
        self.used_slots = 0
        return 0

    cdef int _reserve(self, Py_ssize_t entries) except -1:
        return reserve(<void**>&self.tail, &self.tail_capacity, entries, 256, ENTRY_BYTES)

    cdef int put(self, KeyRef* refs, Py_ssize_t count) except -1:
        """Add entries; there is room for them. All or, without memory, none."""
        cdef Py_ssize_t i
        cdef uint8_t* at
        cdef uint32_t* slot
        cdef uint32_t before
        cdef int64_t seconds
        self._reserve(self.count - self.written_count + count)
        for i in range(count):
            refs[i].slot = refs[i].key_hash % <uint32_t>self.slot_count
            headrace_prefetch(&self.slots[refs[i].slot])
        at = self.tail + (self.count - self.written_count) * ENTRY_BYTES
        if self.count <= 1:
            self.begin_ms = refs[0].store_ms
            self.begin_offset = refs[0].physical_offset
        for i in range(count):
            slot = &self.slots[refs[i].slot]
            before = load_u32(slot)
            if before == 0:
                self.used_slots += 1
            seconds = 0
            if self.begin_ms > 0:
                seconds = max(<int64_t>0, min((refs[i].store_ms - self.begin_ms) // 1000, <int64_t>MAX_SECONDS))
            store_u32(at, refs[i].key_hash)
            store_i64(at + 4, refs[i].physical_offset)
            store_u32(at + 12, <uint32_t>seconds)
            store_u32(at + 16, before)
            store_u32(slot, <uint32_t>self.count)
            self.count += 1
            at += ENTRY_BYTES
        self.end_ms = refs[count - 1].store_ms
        self.end_offset = refs[count - 1].physical_offset
        return 0

    cdef int64_t _entry_at(self, int64_t number) noexcept nogil:
        return HEADER_BYTES + SLOT_BYTES * <int64_t>self.slot_count + ENTRY_BYTES * number

    def write_out(self):
        cdef Py_ssize_t size = (self.count - self.written_count) * <Py_ssize_t>ENTRY_BYTES
        cdef Py_ssize_t wrote
        cdef Py_ssize_t done = 0
        while done < size:
            wrote = pwrite(self.fd, self.tail + done, size - done, self._entry_at(self.written_count) + done)
            if wrote < 0 and c_errno == errno.EINTR:
                continue
            if wrote <= 0:
                # What was written stays in memory too and is written again: nothing of it counts before a note.
                raise OSError(c_errno if wrote < 0 else errno.ENOSPC, os.strerror(c_errno), self.path)
            done += wrote
        self.written_count = self.count
        if self.tail_capacity > KEEP_TAIL:
            free(self.tail)
            self.tail = NULL
            self.tail_capacity = 0

    def write_header(self):
        cdef uint8_t raw[HEADER_BYTES]
        store_i64(raw, self.begin_ms)
        store_i64(raw + 8, self.end_ms)
        store_i64(raw + 16, self.begin_offset)
        store_i64(raw + 24, self.end_offset)
        store_u32(raw + 32, <uint32_t>self.used_slots)
        store_u32(raw + 36, <uint32_t>self.count)
        self._open()
        with naming(self.path):
            os.pwrite(self.fd, <bytes>raw[:HEADER_BYTES], 0)

    def write_slots(self):
        cdef const uint8_t* base = <const uint8_t*>self.slots
        cdef int64_t size = self.slot_count * <int64_t>SLOT_BYTES
        cdef int64_t at = 0
        cdef int64_t block, i, wrote
        cdef bint used
        if self.slots == NULL:
            raise ValueError("the slots are not in memory")
        while at < size:
            block = min(size - at, 65536)
            used = self.has_stale_slots
            i = 0
            while not used and i < block:
                used = (<const uint32_t*>(base + at + i))[0] != 0
                i += SLOT_BYTES
            if used:
                with nogil:
                    wrote = pwrite(self.fd, base + at, block, HEADER_BYTES + at)
                if wrote != block:
                    raise OSError(c_errno if wrote < 0 else errno.ENOSPC, "cannot write slots", self.path)
            at += block
        self.has_stale_slots = False

    def sync(self):
        self._open()
        try:
            with naming(self.path):
                os.fdatasync(self.fd)
        except OSError:
            self.is_unsynced = True
            raise

    def finish(self):
        self.write_out()
        if self.slots != NULL and (self.slots_count != self.count or self.has_stale_slots):
            self.write_slots()
        self.write_header()
        self.sync()
        self.slots_count = self.count

    def drop_slots(self):
        if self.slots != NULL:
            munmap(self.slots, self.slot_count * <size_t>SLOT_BYTES)
            self.slots = NULL
        free(self.tail)
        self.tail = NULL
        self.tail_capacity = 0

    # -- opening ----------------------------------------------------------------------------------------------------

    def restore(self, noted):
        self.count = self.written_count = noted.count
        self.slots_count = noted.slots_count
        self.used_slots = noted.used_slots
        self.begin_ms = noted.begin_ms
        self.end_ms = noted.end_ms
        self.begin_offset = noted.begin_offset
        self.end_offset = noted.end_offset

    def entry(self, int32_t number):
        raw = self._read(number, 1)
        at = <const uint8_t*><bytes>raw
        return load_u32(at), load_i64(at + 4), load_i32(at + 12), load_i32(at + 16)

    cdef bytes _read(self, int32_t number, Py_ssize_t entries):
        """Return raw entries that are in the file."""
        self._open()
        raw = os.pread(self.fd, entries * ENTRY_BYTES, self._entry_at(number))
        if len(raw) != entries * ENTRY_BYTES:
            raise OSError(errno.EIO, "file is too short", self.path)
        return raw

    def cut(self, int64_t physical_offset):
        cdef int32_t low = 1
        cdef int32_t high = self.count
        cdef int32_t middle
        while low < high:
            middle = low + (high - low) // 2
            if self.entry(middle)[1] < physical_offset:
                low = middle + 1
            else:
                high = middle
        if low < self.count:
            self.slots_count = 1
            self.count = self.written_count = low
            if low > 1:
                self.end_offset = self.entry(low - 1)[1]
        return low > 1

    def set_end_ms(self, int64_t store_ms):
        self.end_ms = store_ms

    def count_at_end(self, int64_t physical_offset):
        cdef int32_t number = self.count
        while number > 1 and self.entry(number - 1)[1] == physical_offset:
            number -= 1
        return self.count - number

    def load_slots(self):
        try:
            self._load_slots()
        except BaseException:
            self.drop_slots()       # those of a part of the entries would be taken for all
            raise

    cdef int _load_slots(self) except -1:
        cdef bint from_file = self.slots_count > 1
        cdef bint are_counted = self.slots_count == self.count
        cdef int32_t noted = self.used_slots
        self._make_slots()
        # Fewer in use than were noted: a part of them was lost.
        if from_file and (not self._read_slots() or are_counted and self.used_slots != noted):
            self.drop_slots()
            self._make_slots()
            from_file = False
        self.has_stale_slots = not from_file
        if not from_file:
            self.slots_count = 1
        self._link_entries(self.slots_count)
        return 0

    cdef bint _read_slots(self) except -1:
        """Read the file's slots; return False if they are not as of ``slots_count``: a clean end that was cut short."""
        cdef int64_t size = self.slot_count * <int64_t>SLOT_BYTES
        cdef int64_t at, end, got
        cdef int32_t i, value
        cdef int32_t used = 0
        cdef uint8_t* base = <uint8_t*>self.slots
        for start, stop in written_ranges(self.fd, HEADER_BYTES, HEADER_BYTES + size):
            at, end = start - HEADER_BYTES, stop - HEADER_BYTES
            while at < end:
                with nogil:
                    got = pread(self.fd, base + at, min(end - at, <int64_t>AT_ONCE_BYTES), HEADER_BYTES + at)
                if got <= 0:
                    raise OSError(c_errno if got < 0 else errno.EIO, "cannot read slots", self.path)
                at += got
        with nogil:
            for i in range(self.slot_count):
                value = load_i32(<const uint8_t*>&self.slots[i])
                if value != 0:
                    if value < 0 or value >= self.slots_count:
                        used = -1
                        break
                    used += 1
        self.used_slots = used
        return used >= 0

    cdef int _link_entries(self, int32_t number) except -1:
        """Let slots name the entries from ``number`` on, which are in the file."""
        cdef bytes raw
        cdef const uint8_t* at
        cdef Py_ssize_t i, entries
        cdef uint32_t* slot
        cdef uint32_t* slots = self.slots
        cdef uint32_t slot_count = <uint32_t>self.slot_count
        cdef int32_t used = self.used_slots
        while number < self.written_count:
            entries = min(self.written_count - number, AT_ONCE_BYTES // ENTRY_BYTES)
            raw = self._read(number, entries)
            at = raw
            with nogil:
                for i in range(entries):
                    slot = &slots[load_u32(at + i * ENTRY_BYTES) % slot_count]
                    if slot[0] == 0:
                        used += 1
                    store_u32(slot, <uint32_t>(number + i))
            number += entries
        self.used_slots = used
        return 0

    # -- searching --------------------------------------------------------------------------------------------------

    def first_of(self, uint32_t key_hash):
        cdef int64_t slot = key_hash % <uint32_t>self.slot_count
        cdef int32_t number
        if self.slots != NULL:
            number = load_i32(<const uint8_t*>&self.slots[slot])
        else:
            self._open()
            raw = os.pread(self.fd, SLOT_BYTES, HEADER_BYTES + SLOT_BYTES * slot)
            number = int.from_bytes(raw, "big", signed=True)
        return number if 0 <= number < self.count else DAMAGED

    def search(self, uint32_t key_hash, int64_t begin_ms, int64_t end_ms, int32_t number, Py_ssize_t most):
        cdef list found = []
        cdef uint8_t block[BLOCK_ENTRIES * ENTRY_BYTES]
        cdef int32_t block_first = 0
        cdef int32_t block_end = 0
        cdef int32_t before
        cdef int64_t offset, entry_ms, got, size
        cdef const uint8_t* at
        cdef int hops = 0
        self._open()
        while number > 0 and len(found) < most and hops < MAX_HOPS:
            hops += 1
            if number >= self.written_count:
                at = self.tail + (number - self.written_count) * ENTRY_BYTES
            else:
                if not block_first <= number < block_end:
                    block_first = max(1, number - BLOCK_ENTRIES + 1)
                    block_end = number + 1
                    size = (block_end - block_first) * ENTRY_BYTES
                    with nogil:
                        got = pread(self.fd, block, size, self._entry_at(block_first))
                    if got != size:
                        raise OSError(c_errno if got < 0 else errno.EIO, "cannot read entries", self.path)
                at = block + (number - block_first) * ENTRY_BYTES
            offset = load_i64(at + 4)
            before = load_i32(at + 16)
            if not self.begin_offset <= offset <= self.end_offset or before < 0 or before >= number:
                return found, DAMAGED
            entry_ms = self.begin_ms + 1000 * <int64_t>load_i32(at + 12)
            if entry_ms + 999 < begin_ms:
                return found, 0
            if load_u32(at) == key_hash and entry_ms <= end_ms:
                found.append(offset)
            number = before
        return found, number


cdef IndexFile _open_read_only(str path, int32_t slot_count, int32_t count):
    """Open a file that may be somebody else's, on a file system that may take no writes."""
    cdef IndexFile file = IndexFile.__new__(IndexFile)
    file.path = path
    file.slot_count = slot_count
    file.capacity = count
    file.count = file.written_count = file.slots_count = count
    file.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return file


def verify_file(str path not None, int32_t slot_count, int32_t count, int64_t begin_offset, int64_t end_offset,
                bint with_slots):
    cdef IndexFile file = _open_read_only(path, slot_count, count)
    cdef IndexFile stored
    cdef int32_t number = 1
    cdef int32_t bad = 0
    cdef Py_ssize_t i, entries
    cdef bytes raw
    cdef const uint8_t* at
    cdef uint32_t* slot
    cdef int64_t offset
    cdef int64_t last = begin_offset
    file._make_slots()
    while number < count and not bad:
        entries = min(count - number, AT_ONCE_BYTES // ENTRY_BYTES)
        raw = file._read(number, entries)
        at = raw
        with nogil:
            for i in range(entries):
                slot = &file.slots[load_u32(at) % <uint32_t>slot_count]
                offset = load_i64(at + 4)
                if load_u32(at + 16) != load_u32(slot) or load_i32(at) < 0 or offset < last or offset > end_offset:
                    bad = number + i
                    break
                last = offset
                store_u32(slot, <uint32_t>(number + i))
                at += ENTRY_BYTES
        number += entries
    if bad:
        return f"entry {bad} does not fit those before it"
    if with_slots:
        stored = _open_read_only(path, slot_count, count)
        stored._make_slots()
        if not stored._read_slots() or memcmp(stored.slots, file.slots, slot_count * <size_t>SLOT_BYTES) != 0:
            return "the slots are not those of the entries"
    return None
