"""What a start looks for in a queue: all records from one on, or, by halving, the first behind a place of the log.

A filler, an entry whose record is damaged or gone, stands nowhere: what is behind it says where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from headrace.format.queue_entry import FILLER_BYTES
from headrace.store.queue_base import QueueBase

NO_RECORD: Final = -1
"""Physical offset of a filler; the log reads no record there."""
_ENTRIES_AT_ONCE: Final = 512


def places_from(queue: QueueBase, queue_offset: int) -> Iterator[tuple[int, int]]:
    """Yield queue offset and physical offset of the records from a queue offset on, ``NO_RECORD`` of a filler."""
    while entries := queue.entries(queue_offset, _ENTRIES_AT_ONCE):
        for physical_offset, record_bytes, _ in entries:
            yield queue_offset, physical_offset if record_bytes != FILLER_BYTES else NO_RECORD
            queue_offset += 1


def first_behind(queue: QueueBase, physical_offset: int) -> int:
    """Return the queue offset of the first message behind a place of the log; the queue's end where there is none."""
    found = first_that_is_not(queue, lambda position: position <= physical_offset)
    while found < queue.next_offset and queue.entries(found, 1)[0][1] == FILLER_BYTES:
        found += 1
    return found


def first_that_is_not(queue: QueueBase, is_before: Callable[[int], bool]) -> int:
    """Return the first queue offset whose record is not in front of a place of the log, or a filler before it.

    At a start, when all entries are visible.

    Args:
        is_before: Tells of a physical offset whether it is in front.
    """
    low, high = queue.min_offset, queue.next_offset
    while low < high:
        middle = at = (low + high) // 2
        while at < high and (entry := queue.entries(at, 1)[0])[1] == FILLER_BYTES:
            at += 1
        if at < high and is_before(entry[0]):
            low = at + 1
        else:
            high = middle
    return low
