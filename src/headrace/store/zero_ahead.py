"""Zeros written behind the end of the log.

A block that was only allocated is "unwritten" until data reaches it: an fdatasync of such blocks also converts them and
commits the file system's journal, which costs as much again as the data. Blocks that hold zeros are only overwritten.
So while publishers wait for small flushes, a thread keeps a few MiB behind the end written. It does nothing at level
``async``, nor where flushes are large: there the journal is shared by many records, and writing every byte twice costs
more than it saves (docs/adr/0006-write-path.md has the figures).

There zeros help in another way. The kernel makes page cache as large as the write that needs it, mostly of 4 KiB. If a
write goes on with zeros to the end of 128 KiB, these become one folio, and it is by the folio that making, flushing and
mapping them cost: an append of 60 KB takes a third of the time. The log adds such zeros by itself, in the same call
(``CommitLog.fills_folios``). While small flushes are waited for it does not, for they would have more to write.

A zero written over a record would be data loss. It cannot happen, since both sides are decided on the loop's thread:

- a stretch is begun only ``_MARGIN_BYTES`` or more behind the log's end, and noted in ``CommitLog.zeroing_from``
  before the thread has it;
- the log writes nothing that reaches ``zeroing_from`` before ``settle`` was called, which returns only when the thread
  writes nothing any more.

For the rest of the store zeros are what was never written; they need no sync of their own: lost in a power cut they are
unwritten blocks again. They are written through a descriptor of their own, because waiting for written pages takes the
file's pending error, and that one belongs to the flusher.
"""

from __future__ import annotations

import errno
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from headrace.lock_file import require_in_place
from headrace.store.commit_log import NEVER_ZEROING, CommitLog
from headrace.store.segment import is_cached_in_large_folios, is_overwritten_in_place, write_zeros

if TYPE_CHECKING:
    from headrace.store.store import StoreCounters

logger = logging.getLogger(__name__)

_STRETCH_BYTES: Final = 4 << 20
"""What is written in one job, and the least that is kept ahead while it pays."""
_PIECE_BYTES: Final = 1 << 20
"""What the thread writes before it looks whether it is to stop: an append waits for one of them at most."""
_MARGIN_BYTES: Final = 1 << 20
"""Distance from the end of the log to a new stretch: the thread gets a start on the appends."""
_ALIGNMENT: Final = 64 << 10
_LARGE_FLUSH_BYTES: Final = 192 << 10
"""Mean size of a flush from which on zeros cost more than they save."""
_MEAN_OF: Final = 8
"""Flushes over which the mean goes, about."""
_FLUSHES_BETWEEN: Final = 16
"""Flushes somebody waited for that must have been since the last stretch: a broker with little to do writes none."""


class ZeroAhead:
    """The zeros of one open store. Everything but ``_write`` is called on the loop's thread.

    Attributes:
        is_enabled: Whether zeros are written at all: not where a file system writes data to new blocks each time, since
            there the zeros would use up what was allocated for the records; and not after a write that failed
            for another reason than a missing descriptor.
        zeroed_offset: Physical offset up to which this process has written zeros.
    """

    def __init__(self, log: CommitLog, executor: ThreadPoolExecutor, counters: StoreCounters) -> None:
        self.is_enabled = is_overwritten_in_place(log.directory)
        self.zeroed_offset = 0
        self._log = log
        self._executor = executor
        self._counters = counters
        self._mean_bytes = 0.0
        self._flushes = 0  # waited for, since the last stretch began
        self._stopping = False
        self._job: Future[int] | None = None
        self._can_fill_folios = log.fills_folios = is_cached_in_large_folios(log.directory)
        log.before_zeroed = self.settle

    def note_flush(self, flushed_bytes: int, *, is_waited_for: bool) -> None:
        """Begin another stretch if flushes like this one profit; called after each."""
        self._mean_bytes += (flushed_bytes - self._mean_bytes) / _MEAN_OF
        self._flushes += is_waited_for
        is_small = self._mean_bytes < _LARGE_FLUSH_BYTES
        self._log.fills_folios = self._can_fill_folios and not (is_small and is_waited_for)
        if self._flushes < _FLUSHES_BETWEEN or not self.is_enabled or not is_small:
            return
        if self._job is not None:
            if not self._job.done():
                return
            self._take_result()
        if self.zeroed_offset - self._log.end_offset < _STRETCH_BYTES:
            self._begin()

    def _begin(self) -> None:
        log = self._log
        segment = log.active
        if segment is None or not self.is_enabled:
            return
        first = max(self.zeroed_offset, -(-(log.end_offset + _MARGIN_BYTES) // _ALIGNMENT) * _ALIGNMENT)
        end = min(first + _STRETCH_BYTES, segment.first_offset + segment.size_bytes)
        if first >= end:
            return
        self._flushes = 0
        log.zeroing_from = first
        self._stopping = False
        self._job = self._executor.submit(self._write, segment.path, segment.first_offset, first, end)

    def settle(self) -> None:
        """Return when no zeros are being written; what was not begun yet is not written any more. May block."""
        self._stopping = True
        if self._job is not None:
            if self._job.cancel():
                self._job = None
            else:
                self._counters.zero_waits += not self._job.done()
                self._take_result()
        self._log.zeroing_from = NEVER_ZEROING

    def _take_result(self) -> None:
        """Wait for the job and take note of what it did."""
        job, self._job = self._job, None
        assert job is not None
        try:
            self.zeroed_offset = job.result()
            self._log.filled_offset = max(self._log.filled_offset, self.zeroed_offset)
        except OSError as error:
            self._counters.zero_errors += 1
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                self.is_enabled = False
                logger.warning("no zeros ahead of the log any more error=%s", error)
            elif self._counters.zero_errors == 1:
                logger.warning("no zeros ahead of the log for now, tried again; more are only counted error=%s", error)
        self._log.zeroing_from = NEVER_ZEROING

    def _write(self, path: str, segment_offset: int, first: int, end: int) -> int:
        """Write zeros from ``first`` to ``end`` or until told to stop; return where the zeros end."""
        require_in_place(path)
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while first < end and not self._stopping:
                size = min(_PIECE_BYTES, end - first)
                write_zeros(fd, first - segment_offset, size)
                self._counters.zeroed_bytes += size
                first += size
        finally:
            os.close(fd)
        return first
