"""Consume queues: per queue, the index of 20-byte entries that point into the commit log.

A queue is a view. New entries live in memory (``tail``) and are written behind the log by ``write_out``; what a crash
takes is rebuilt from the log. Files have RocketMQ's names and full length but are sparse, and are read and written
with pread and pwrite through a bounded pool of open files, so ten thousand queues need neither ten thousand maps nor
as many descriptors: a read of 800 entries is one system call of about a microsecond. Those who read a backlog 32 entries
at a time get them from the block that was read last.

Invariants: min_offset <= next_offset and visible_offset <= next_offset (min_offset is above visible_offset only while
entries that ``hide_below`` took from readers await their flush); entries [tail_offset, next_offset) are in ``tail``;
entries below written_offset are in the files; tail_offset <= written_offset.
"""

import errno
import logging
import os
from bisect import bisect_right
from contextlib import suppress

from libc.errno cimport errno as c_errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memmove
from posix.unistd cimport pread, pwrite

from headrace.format.arrays cimport reserve
from headrace.format.record cimport load_i32, load_i64, store_i64, store_u32
from headrace.store.log_base cimport LogBase
from headrace.store.queue_base cimport ENTRY_BYTES, FILLER_BYTES, QueueBase, QueueEntry

from headrace.errors import UnreadableError, UnsyncedError
from headrace.format.names import is_offset_name
from headrace.format.side_file import naming

logger = logging.getLogger(__name__)

UNSYNCED_VIEWS = "check the disk: the next start makes the views anew from the log"

cdef bytes FILLER = bytes(8) + (<int>FILLER_BYTES).to_bytes(4, "big") + bytes(8)

cdef int64_t FARTHEST_BYTES = 1 << 50   # of missing files that entries may point into behind a log's end: a pebibyte

cdef enum:
    FIRST_CAPACITY = 32         # a queue that got one message costs 640 bytes
    WRITE_AT = 4096             # entries in memory before a write
    KEEP = 256                  # entries kept for readers that follow closely
    READ_ENTRIES = 128          # entries read at a time to compare them with the log
    BLOCK_ENTRIES = 512         # entries that a reader of more than one gets from the files, for those that follow


def count_sound(const uint8_t[::1] raw not None, int64_t log_end, int64_t most_bytes):
    cdef const uint8_t* at
    cdef int64_t position, size
    cdef Py_ssize_t i, entries = raw.shape[0] // ENTRY_BYTES
    for i in range(entries):
        at = &raw[i * ENTRY_BYTES]
        position = load_i64(at)
        size = load_i32(at + 8)
        if position == 0 and size == 0 and load_i64(at + 12) == 0:
            continue    # not written
        if not 0 <= position < log_end + FARTHEST_BYTES or not (0 < size <= most_bytes or size == FILLER_BYTES):
            return i
    return entries


cdef inline void _load_entry(const uint8_t* at, QueueEntry* into) noexcept:
    into.physical_offset = load_i64(at)
    into.record_bytes = load_i32(at + 8)
    into.tag_hash = load_i64(at + 12)


cdef inline void _store_entry(uint8_t* at, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) noexcept:
    store_i64(at, physical_offset)
    store_u32(at + 8, <unsigned int>record_bytes)
    store_i64(at + 12, tag_hash)


cdef class FileEntries:
    """What recovery has compared of one queue's files."""


cdef class ConsumeQueue(QueueBase):
    def __cinit__(self):
        self.tail = NULL

    def __init__(self, str topic not None, int32_t queue_id, str directory not None, files, LogBase log):
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.directory = directory
        self.files = files
        self.log = log
        self.dirty_files = set()

    def __dealloc__(self):
        free(self.tail)

    def _path_of(self, int64_t first_byte):
        return f"{self.directory}/{first_byte:020d}"

    cdef int _reserve(self, Py_ssize_t entries) except -1:
        return reserve(<void**>&self.tail, &self.tail_capacity, entries, FIRST_CAPACITY, ENTRY_BYTES)

    cdef int push(self, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash) except -1:
        """Append one entry."""
        cdef Py_ssize_t held = self.next_offset - self.tail_offset
        cdef uint8_t* at
        if held == self.tail_capacity:
            self._reserve(held + 1)
        at = self.tail + held * ENTRY_BYTES
        _store_entry(at, physical_offset, record_bytes, tag_hash)
        if record_bytes != FILLER_BYTES:
            self.last_end = physical_offset + record_bytes
        else:
            if self.filled_to != self.next_offset:
                self.filled_from = self.next_offset
            self.filled_to = self.next_offset + 1
        self.next_offset += 1
        if not self.awaits_flush:
            self.visible_offset = self.next_offset
        return 0

    cdef Py_ssize_t read_entries(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        """Read visible entries from ``from_offset`` on; return how many (0 at the end)."""
        cdef Py_ssize_t n = min(<int64_t>most, self.visible_offset - from_offset)
        cdef Py_ssize_t i
        cdef const uint8_t* at
        if n <= 0:
            return 0
        if from_offset < self.tail_offset:
            return self._read_files(from_offset, into, min(<int64_t>n, self.tail_offset - from_offset))
        at = self.tail + (from_offset - self.tail_offset) * ENTRY_BYTES
        for i in range(n):
            _load_entry(at, &into[i])
            at += ENTRY_BYTES
        return n

    def position_of(self, int64_t queue_offset):
        cdef QueueEntry entry
        if not 0 <= queue_offset < self.next_offset:
            return -1
        if queue_offset >= self.tail_offset:
            return load_i64(self.tail + (queue_offset - self.tail_offset) * ENTRY_BYTES)
        try:
            return entry.physical_offset if self._read_files(queue_offset, &entry, 1) > 0 else -1
        except OSError as error:
            self.log.on_unreadable(error)
            raise UnreadableError(error) from error

    def _read_file_bytes(self, int64_t from_offset, Py_ssize_t entries, bint is_for_reader=False):
        """Return raw entries from one file; fewer at the file's end; missing ones are zeros, also where it is missing.

        Raises:
            OSError: it cannot be read. For a reader also when its whole folder is gone: it was moved, or its disk is
                not mounted.
        """
        cdef int64_t first_byte = from_offset * ENTRY_BYTES
        cdef int64_t file_bytes = self.files.file_bytes
        cdef int64_t file_start = first_byte // file_bytes * file_bytes
        cdef Py_ssize_t size = min(<int64_t>entries * ENTRY_BYTES, file_start + file_bytes - first_byte)
        fd = self.files.descriptor(self.directory, file_start, False)
        if fd < 0:
            if is_for_reader and not os.path.isdir(self.directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.directory)
            return bytes(size)
        try:
            raw = os.pread(fd, size, first_byte - file_start)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path_of(file_start)) from error
        return raw if len(raw) == size else raw + bytes(size - len(raw))

    cdef int _load(self, int64_t queue_offset, QueueEntry* into) except -1:
        """Load one entry, shown to readers or not, from memory or from the files."""
        cdef bytes raw
        if queue_offset >= self.tail_offset:
            _load_entry(self.tail + (queue_offset - self.tail_offset) * ENTRY_BYTES, into)
        else:
            raw = self._read_file_bytes(queue_offset, 1)
            _load_entry(<const uint8_t*>raw, into)
        return 0

    cdef Py_ssize_t _read_files(self, int64_t from_offset, QueueEntry* into, Py_ssize_t most) except -1:
        """Read entries below ``tail_offset``: those change no more."""
        cdef Py_ssize_t skipped = from_offset % BLOCK_ENTRIES
        cdef int64_t block_offset = from_offset - skipped
        cdef bytes raw = None
        cdef const uint8_t* at
        cdef Py_ssize_t i, n
        if self.block is not None and self.block_offset == block_offset:
            raw = self.block
        elif most > 1 and block_offset + BLOCK_ENTRIES <= self.tail_offset:
            raw = self._read_file_bytes(block_offset, BLOCK_ENTRIES, True)
            self.block = raw
            self.block_offset = block_offset
            self.files.keep_block(self)
        if raw is None or len(raw) <= skipped * ENTRY_BYTES:    # too new, or the file ends inside the block
            raw = self._read_file_bytes(from_offset, most, True)
            skipped = 0
        at = <const uint8_t*>raw + skipped * ENTRY_BYTES
        n = min(most, len(raw) // ENTRY_BYTES - skipped)
        for i in range(n):
            _load_entry(at, &into[i])
            if into[i].record_bytes <= 0:
                # An entry that the files should have and do not: readers skip it like any hole.
                into[i].record_bytes = FILLER_BYTES
                self._name_missing(from_offset + i)
            at += ENTRY_BYTES
        return n

    def count_messages(self, int64_t from_offset):
        cdef QueueEntry* read = <QueueEntry*>malloc(WRITE_AT * sizeof(QueueEntry))
        cdef int64_t count = 0
        cdef Py_ssize_t i, n
        if read == NULL:
            raise MemoryError()
        try:
            while True:
                n = self.read_entries(from_offset, read, WRITE_AT)
                if n == 0:
                    return count
                for i in range(n):
                    count += read[i].record_bytes != FILLER_BYTES
                from_offset += n
        finally:
            free(read)

    def _name_missing(self, int64_t queue_offset):
        """Log, once for each queue, that its files have lost entries."""
        if not self.is_named:
            self.is_named = True
            logger.error(
                "consume queue damaged, entries are missing topic=%s queue_id=%d first_queue_offset=%d remedy=%s",
                self.topic, self.queue_id, queue_offset,
                f"stop the broker and remove {self.directory}: the next start makes it anew from the log",
            )

    cpdef int64_t advance_visible(self, int64_t durable_offset) except -1:
        cdef int64_t before = self.visible_offset
        cdef int64_t offset = before
        cdef const uint8_t* at
        if offset < self.tail_offset:
            offset = self.tail_offset   # what left memory was durable: write_out waits for that
        while offset < self.next_offset:
            at = self.tail + (offset - self.tail_offset) * ENTRY_BYTES
            if load_i32(at + 8) != FILLER_BYTES and load_i64(at) + load_i32(at + 8) > durable_offset:
                break
            offset += 1
        self.visible_offset = offset
        return offset - before

    cpdef int64_t write_out(self) except -1:
        cdef int64_t file_bytes = self.files.file_bytes
        cdef int64_t first_byte, file_start
        cdef Py_ssize_t size, wrote, keep, held
        cdef int64_t total = self.next_offset - self.written_offset
        cdef int fd
        if self.compared is not None:
            self.compared.raw = None
        while self.written_offset < self.next_offset:
            first_byte = self.written_offset * ENTRY_BYTES
            file_start = first_byte // file_bytes * file_bytes
            size = min((self.next_offset - self.written_offset) * ENTRY_BYTES, file_start + file_bytes - first_byte)
            fd = self.files.descriptor(self.directory, file_start, True)
            wrote = pwrite(fd, self.tail + (self.written_offset - self.tail_offset) * ENTRY_BYTES, size,
                           first_byte - file_start)
            if wrote < 0:
                raise OSError(c_errno, os.strerror(c_errno), self._path_of(file_start))
            self.dirty_files.add(file_start)
            self.written_offset += wrote // ENTRY_BYTES
            if wrote != size and wrote < ENTRY_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path_of(file_start))
        # Drop what readers no longer need from memory; a queue at rest keeps nothing.
        held = self.next_offset - self.tail_offset
        keep = 0 if total == 0 else min(<int64_t>KEEP, held)
        if self.visible_offset < self.next_offset - keep:
            keep = self.next_offset - self.visible_offset
        if keep == 0:
            free(self.tail)
            self.tail = NULL
            self.tail_capacity = 0
        elif keep < held:
            memmove(self.tail, self.tail + (held - keep) * ENTRY_BYTES, keep * ENTRY_BYTES)
        self.tail_offset = self.next_offset - keep
        return total

    def sync(self):
        for file_start in list(self.dirty_files):
            path = self._path_of(file_start)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                self.dirty_files.discard(file_start)
                continue    # the queue was removed meanwhile
            self.dirty_files.discard(file_start)
            try:
                os.fdatasync(fd)
            except OSError as error:
                raise UnsyncedError(path, error.errno, UNSYNCED_VIEWS) from error
            finally:
                os.close(fd)

    def forget_dirty(self):
        self.dirty_files.clear()

    def hide_below(self, int64_t queue_offset):
        self.min_offset = max(self.min_offset, min(queue_offset, self.next_offset))

    def unlink(self):
        self.files.forget(self.directory)
        self.files.drop_block(self)
        self.dirty_files.clear()
        for name in os.listdir(self.directory) if os.path.isdir(self.directory) else ():
            os.unlink(f"{self.directory}/{name}")

    # -- start-up ---------------------------------------------------------------------------------------------------

    def load(self, int64_t synced_physical_offset):
        cdef int64_t file_bytes = self.files.file_bytes
        cdef int64_t low, high, middle, at
        cdef QueueEntry entry
        names = sorted(name for name in os.listdir(self.directory) if is_offset_name(name))
        low = 0 if not names else int(names[0]) // ENTRY_BYTES
        high = 0 if not names else (int(names[len(names) - 1]) + file_bytes) // ENTRY_BYTES
        self.min_offset = self.first_offset = low
        self._reset(high)       # what is looked at now is in the files
        self.files.drop_block(self)
        cdef bint is_filler = False
        # Entries below the checkpoint are a prefix: find its end by halving.
        while low < high:
            middle = at = (low + high) // 2
            self._load(at, &entry)
            if entry.record_bytes == FILLER_BYTES:      # the record in front of it says where it is
                at = self._behind_last_record(low, middle) - 1
                self._load(max(at, 0), &entry)
            if at < low or (entry.record_bytes > 0 and entry.physical_offset < synced_physical_offset):
                low = middle + 1
                is_filler = at < middle
            else:
                high = at
        if is_filler:
            low = self._behind_last_record(self.first_offset, low)  # as checkpoints count
        self._reset(low)
        self.loaded_offset = low
        return self._end_behind(low)

    def _reset(self, int64_t offset):
        self.next_offset = self.visible_offset = self.written_offset = self.tail_offset = offset
        self.filled_from = self.filled_to = offset

    def _behind_last_record(self, int64_t first, int64_t end):
        """Return the offset behind the last entry in [first, end) that is no filler; ``first`` if there is none."""
        cdef int64_t file_entries = self.files.file_bytes // ENTRY_BYTES
        cdef int64_t start
        cdef Py_ssize_t i
        cdef const uint8_t* at
        while end > max(first, self.tail_offset):
            if load_i32(self.tail + (end - 1 - self.tail_offset) * ENTRY_BYTES + 8) != FILLER_BYTES:
                return end
            end -= 1
        while end > first:
            start = max(first, end - WRITE_AT, (end - 1) // file_entries * file_entries)
            raw = self._read_file_bytes(start, end - start)
            at = <const uint8_t*><bytes>raw
            for i in range(end - start - 1, -1, -1):
                if load_i32(at + i * ENTRY_BYTES + 8) != FILLER_BYTES:
                    return start + i + 1
            end = start
        return first

    def _end_behind(self, int64_t offset):
        """Return the offset behind the last entry from ``offset`` on, and note how far into the log they point.

        Nothing is cleared here: recovery writes every one of these entries anew, and until then a start that is
        killed leaves the next one the same knowledge.
        """
        cdef int64_t end = offset
        cdef Py_ssize_t i, n
        cdef Py_ssize_t most = READ_ENTRIES     # few, as a rule: ten thousand queues should not read 80 KB each
        cdef const uint8_t* at
        while True:
            raw = self._read_file_bytes(end, most)
            most = WRITE_AT
            n = len(raw) // ENTRY_BYTES
            i = 0
            while i < n and load_i32(<const uint8_t*><bytes>raw + i * ENTRY_BYTES + 8) > 0:
                i += 1
                at = <const uint8_t*><bytes>raw + i * ENTRY_BYTES - ENTRY_BYTES
                if load_i32(at + 8) != FILLER_BYTES:
                    self.issued_position = max(self.issued_position, load_i64(at) + load_i32(at + 8))
            end += i
            if i < n or n == 0:
                return end

    def restore(self, int64_t queue_offset, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash):
        if self.stepped_back.record_bytes and queue_offset == self.stepped_back_to + 1:
            self._begin_anew()
        elif queue_offset < self.restored_end:
            # A topic that was made again, if the next record goes on from here; else damage that no checksum covers.
            self.stepped_back_to = queue_offset
            self.stepped_back.physical_offset = physical_offset
            self.stepped_back.record_bytes = record_bytes
            self.stepped_back.tag_hash = tag_hash
            return
        else:
            self.stepped_back.record_bytes = 0
        self.restored_end = queue_offset + 1
        self._restore(queue_offset, physical_offset, record_bytes, tag_hash)

    cdef int _restore(self, int64_t queue_offset, int64_t physical_offset, int32_t record_bytes,
                      int64_t tag_hash) except -1:
        if queue_offset < self.next_offset:
            if self.min_offset <= queue_offset < self.loaded_offset:
                self._mend(queue_offset, physical_offset, record_bytes, tag_hash)
            return 0
        self._begin_in_file_of(queue_offset)
        self.skip_to(queue_offset)
        self.push(physical_offset, record_bytes, tag_hash)
        if self.next_offset - self.written_offset >= WRITE_AT:
            self.visible_offset = self.next_offset
            self.write_out()
        return 0

    cdef int _begin_anew(self) except -1:
        """Forget all entries but the one that stepped back: RocketMQ numbers a topic from 0 again that was made again.

        The records of the topic before, which was deleted, are in front of the new one's in the log; these all come now.
        """
        cdef int32_t record_bytes = self.stepped_back.record_bytes
        logger.warning("queue numbered anew in the log, what came before is a deleted topic's topic=%s queue_id=%d "
                       "entries=%d", self.topic, self.queue_id, self.next_offset - self.min_offset)
        self.mended_entries += self.next_offset - self.min_offset
        self.is_numbered_anew = True
        self.unlink()
        free(self.tail)
        self.tail = NULL
        self.tail_capacity = 0
        self._reset(0)
        self.min_offset = self.first_offset = self.loaded_offset = self.last_end = 0
        self.compared = None
        self.stepped_back.record_bytes = 0
        self._restore(self.stepped_back_to, self.stepped_back.physical_offset, record_bytes, self.stepped_back.tag_hash)
        return 0

    def _mend(self, int64_t queue_offset, int64_t physical_offset, int32_t record_bytes, int64_t tag_hash):
        """Rewrite an entry of the files that is not what the log says."""
        cdef uint8_t entry[ENTRY_BYTES]
        cdef Py_ssize_t at = (queue_offset - self.read_offset) * ENTRY_BYTES
        cdef FileEntries compared = self.compared
        if compared is None:
            self.compared = compared = FileEntries()
            compared.first_found = compared.end_found = queue_offset
            compared.without_record = []
        if queue_offset > compared.end_found:
            compared.without_record.append((compared.end_found, queue_offset))
        compared.end_found = queue_offset + 1
        if compared.raw is None or at < 0 or at >= len(compared.raw):
            compared.raw = self._read_file_bytes(queue_offset, READ_ENTRIES)
            self.read_offset = queue_offset
            at = 0
        _store_entry(entry, physical_offset, record_bytes, tag_hash)
        if memcmp(<const uint8_t*>compared.raw + at, entry, ENTRY_BYTES) != 0:
            self._rewrite(queue_offset, entry[:ENTRY_BYTES])

    def drop_strays(self, holes, bint since_start):
        if self.stepped_back.record_bytes and self.stepped_back_to == 0:    # the only message of a topic made again
            self._begin_anew()
        cdef int64_t offset, end, position, first_hole, hole_end
        cdef Py_ssize_t i
        cdef const uint8_t* at
        cdef FileEntries compared = self.compared
        cdef int64_t mended_before = self.mended_entries
        starts = [hole.first_offset for hole in holes]
        ranges = []
        self.compared = None
        if compared is not None:
            ranges = [*compared.without_record, (compared.end_found, self.loaded_offset)]
        if since_start:
            end = self.loaded_offset if compared is None else compared.first_found
            ranges.append((self._first_that_may_be_in_log(self.min_offset, end), end))
        for offset, end in ranges:
            first_hole = hole_end = 0
            while offset < end:
                raw = self._read_file_bytes(offset, min(end - offset, <int64_t>WRITE_AT))
                for i in range(len(raw) // ENTRY_BYTES):
                    at = <const uint8_t*><bytes>raw + i * ENTRY_BYTES
                    position = load_i64(at)
                    if load_i32(at + 8) == FILLER_BYTES or position < self.log.first_offset:
                        continue
                    if not first_hole <= position < hole_end:
                        number = bisect_right(starts, position) - 1
                        if number >= 0:
                            first_hole, hole_end = starts[number], holes[number].end_offset
                        if not first_hole <= position < hole_end:
                            self._rewrite(offset + i, FILLER)
                offset += len(raw) // ENTRY_BYTES
        if self.mended_entries > mended_before and self.next_offset == self.loaded_offset:
            self.filled_from = self._behind_last_record(self.first_offset, self.next_offset)
            self.filled_to = self.next_offset

    def _first_that_may_be_in_log(self, int64_t low, int64_t high):
        """Return an offset below which all entries are of what retention has taken from the log, by halving."""
        cdef int64_t middle
        cdef QueueEntry entry
        while low < high and self.log.first_offset > 0:
            middle = (low + high) // 2
            self._load(middle, &entry)
            if entry.record_bytes != FILLER_BYTES and entry.physical_offset < self.log.first_offset:
                low = middle + 1
            else:
                high = middle       # a filler says nothing: others of the log may lie before it
        return low

    def _rewrite(self, int64_t queue_offset, bytes entry):
        """Put another entry into the files, where recovery found a wrong one."""
        self._overwrite(queue_offset, entry)
        self.mended_entries += 1

    def _overwrite(self, int64_t queue_offset, bytes entry):
        cdef int64_t first_byte = queue_offset * ENTRY_BYTES
        cdef int64_t file_start = first_byte // self.files.file_bytes * self.files.file_bytes
        fd = self.files.descriptor(self.directory, file_start, True)
        self.dirty_files.add(file_start)
        with naming(self._path_of(file_start)):
            if os.pwrite(fd, entry, first_byte - file_start) != ENTRY_BYTES:    # it reaches into another page
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin_in_file_of(self, int64_t queue_offset):
        """Let a queue without entries and files begin with the file of ``queue_offset``, as RocketMQ does.

        Where the log has lost its beginning, fillers for every offset before would be gigabytes.
        """
        cdef int64_t file_entries = self.files.file_bytes // ENTRY_BYTES
        if self.next_offset == 0 and queue_offset >= file_entries and self.log.first_offset > 0 and \
                not os.path.exists(self.directory):
            self._reset(queue_offset // file_entries * file_entries)
            self.min_offset = self.first_offset = self.next_offset

    def skip_to(self, int64_t queue_offset):
        cdef int64_t skipped = 0
        self._begin_in_file_of(queue_offset - 1)
        while self.next_offset < queue_offset:
            self.push(0, FILLER_BYTES, 0)
            skipped += 1
            if self.next_offset - self.written_offset >= WRITE_AT:
                self.visible_offset = self.next_offset
                self.write_out()
        return skipped

    def forget_from(self, int64_t physical_offset):
        cdef int64_t offset = self.next_offset
        cdef int64_t forgotten = 0
        cdef int64_t kept_end = self.min_offset
        cdef QueueEntry entry
        self.files.drop_block(self)
        while offset > self.min_offset:
            offset -= 1
            self._load(offset, &entry)
            if entry.record_bytes == FILLER_BYTES:
                continue
            if entry.physical_offset < physical_offset:
                kept_end = offset + 1
                break
            if offset >= self.tail_offset:
                _store_entry(self.tail + (offset - self.tail_offset) * ENTRY_BYTES, 0, FILLER_BYTES, 0)
            if offset < self.written_offset:
                self._overwrite(offset, FILLER)
            forgotten += 1
        self.filled_from = kept_end
        self.filled_to = self.next_offset
        return forgotten

    @property
    def records_end(self):
        return self.filled_from if self.filled_to == self.next_offset else self.next_offset

    def drop_last_fillers(self):
        cdef int64_t end_byte = self.records_end * ENTRY_BYTES
        cdef int64_t file_bytes = self.files.file_bytes
        cdef int64_t file_start = end_byte // file_bytes * file_bytes
        if self.records_end == self.next_offset:
            return
        self.files.forget(self.directory)
        while file_start < self.next_offset * ENTRY_BYTES:
            path = self._path_of(file_start)
            with suppress(FileNotFoundError):
                if file_start < end_byte or file_start <= self.first_offset * ENTRY_BYTES:
                    os.truncate(path, end_byte - file_start)
                    os.truncate(path, file_bytes)
                    self.dirty_files.add(file_start)
                else:
                    os.unlink(path)
            file_start += file_bytes

    def count_below(self, int64_t physical_offset):
        cdef int64_t low = self.first_offset    # as ``load`` counts: those that are hidden, too
        cdef int64_t high = self.next_offset
        cdef int64_t middle
        cdef bint is_filler = False
        cdef QueueEntry entry
        if self.last_end <= physical_offset:
            return self.records_end     # the rule; a search may have to read files
        while low < high:
            middle = (low + high) // 2
            self._load(middle, &entry)
            if entry.record_bytes == FILLER_BYTES or entry.physical_offset + entry.record_bytes <= physical_offset:
                low = middle + 1
                is_filler = entry.record_bytes == FILLER_BYTES
            else:
                high = middle
        return self._behind_last_record(self.first_offset, low) if is_filler else low
