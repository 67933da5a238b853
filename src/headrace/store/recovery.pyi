from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.store.consume_queue import ConsumeQueue
from headrace.store.segment import SegmentSet

MISSING_FILE: Final = "the file is missing"
"""Reason of a hole that ends when the file is put back."""

LOST_CHECKSUM: Final[str]
"""Why a last record counts as torn that would be whole if RocketMQ had written it."""

@dataclass(frozen=True)
class Hole:
    """A range of the log that holds no valid record, with valid ones behind it."""

    first_offset: int
    end_offset: int
    reason: str

@dataclass
class Scan:
    """What a pass over the log found. ``torn_offset`` is -1 unless the log ends in damage or an unfinished command."""

    end_offset: int = 0
    records: int = 0
    holes: list[Hole] = field(default_factory=list)
    torn_offset: int = -1
    torn_reason: str = ""
    unfinished_records: int = 0

def scan_log(
    segments: SegmentSet,
    start_offset: int,
    segment_bytes: int,
    find_queue: Callable[[str, int], ConsumeQueue | None],
    progress: Callable[[int], None] | None = None,
    known_holes: Iterable[Hole] = (),
    epoch_offset: int = 0,
    epoch_gaps: dict[int, int] | None = None,
    durable_offset: int = 0,
    was_clean: bool = False,
) -> Scan:
    """Check every record from ``start_offset`` to the end of the log and offer each to its queue.

    Args:
        progress: Called now and then with the physical offset reached.
        known_holes: Damaged ranges found by earlier scans.
        epoch_offset: Where the newest epoch begins: the log does not end below it.
        epoch_gaps: For each epoch that ended, where its log ended and where the next begins.
        durable_offset: Commands that begin below it were written and synced whole.
        was_clean: The process before this one noted a clean end, or the log is imported: its last record is whole.
    """
