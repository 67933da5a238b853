"""Where in a queue the records begin that lie behind a place of the log: looked for at a start, by halving.

A filler, an entry whose record is damaged or gone, stands nowhere: what is behind it says where it is.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.format.queue_entry import FILLER_BYTES
from headrace.store.consume_queue import QueueBase


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
