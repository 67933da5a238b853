"""Pieces of the log as bytes: found on the event loop, read into memory by a thread, then borrowed without a copy.

What lies below the durable end never changes, so a piece may be looked at long after it was found; its segment stays
mapped meanwhile, also when retention removes the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.store.commit_log import CommitLog
    from headrace.store.segment import Segment

HOT_BYTES: Final = 64 << 20
"""What was appended last is taken to be in memory, as the log itself takes it."""
READ_AHEAD_BYTES: Final = 8 << 20
"""What the kernel is told to read behind a range: readers go on there."""
LONGEST_READ_BYTES: Final = 8 << 20
"""What is read in of one record at most: the size in front of it may be anything where a client guessed an offset."""
_PAGE_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class LogRange:
    """Some bytes of one segment."""

    segment: Segment
    position: int
    size: int

    def read_in(self) -> None:
        """Have every page in memory, and what follows on its way. Blocks without the GIL: for a thread."""
        if not self.segment.is_resident(self.position, self.size):
            os.posix_fadvise(self.segment.fd, self.position, self.size + READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        self.segment.touch(self.position, self.size)

    def view(self) -> memoryview:
        """Return the bytes; the segment stays mapped until the view is let go of."""
        return self.segment.view(self.position, self.size)


@dataclass(frozen=True, slots=True)
class ColdRecord:
    """Where a record begins that is not in memory; its size is known when its first page is."""

    segment: Segment
    position: int

    def read_in(self) -> None:
        """Have the record in memory. Blocks without the GIL: for a thread."""
        self.segment.touch(self.position, _PAGE_BYTES)
        self.segment.touch(self.position, _size_at(self.segment, self.position))


def find_range(log: CommitLog, physical_offset: int, max_bytes: int) -> LogRange | None:
    """Return up to ``max_bytes`` from an offset below the durable end on, never across a segment's end or that end.

    Returns:
        None where the log jumped over a part for which there is no file.

    Raises:
        UnreadableError: the system refuses the file.
    """
    segment = log.segment_of(physical_offset)
    if segment is None:
        return None
    position = physical_offset - segment.first_offset
    return LogRange(
        segment, position, min(max_bytes, log.durable_offset - physical_offset, segment.size_bytes - position)
    )


def next_file(log: CommitLog, physical_offset: int) -> int:
    """Return where the first file behind an offset begins, or the durable end if there is none."""
    behind = (index * log.segment_bytes for index in log.segments if index * log.segment_bytes > physical_offset)
    return min(log.durable_offset, next(behind, log.durable_offset))


def find_cold(log: CommitLog, physical_offset: int) -> ColdRecord | None:
    """Return the record at an offset if reading it would wait for the disk; None too where there is none.

    Raises:
        UnreadableError: the system refuses the segment's file.
    """
    if not log.first_offset <= physical_offset < log.end_offset - HOT_BYTES:
        return None
    segment = log.segment_of(physical_offset)
    if segment is None:
        return None
    position = physical_offset - segment.first_offset
    return None if _is_in_memory(segment, position) else ColdRecord(segment, position)


def _is_in_memory(segment: Segment, position: int) -> bool:
    # The size is read only when its page is there.
    return segment.is_resident(position, _PAGE_BYTES) and segment.is_resident(position, _size_at(segment, position))


def _size_at(segment: Segment, position: int) -> int:
    """Return the size that a record at a position says it has."""
    head = segment.read(position, min(4, segment.size_bytes - position))
    return min(int.from_bytes(head, "big"), LONGEST_READ_BYTES)
