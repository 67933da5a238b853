from collections.abc import Callable, Sequence
from typing import Any

from headrace.batch import PublishBatch
from headrace.store.index import KeyIndex
from headrace.store.segment import Segment, SegmentSet

NEVER_ZEROING: int
"""``CommitLog.zeroing_from`` while no thread writes zeros behind the log."""

class CommitLog:
    """The one sequence of records that everything else is a view of."""

    directory: str
    segment_bytes: int
    first_offset: int
    end_offset: int
    durable_offset: int
    trusted_offset: int
    segments: SegmentSet
    active: Segment | None
    store_host: int
    store_host_v6: bytes | None
    index: KeyIndex | None
    reserve_bytes: int
    provide_segment: Callable[[int], Segment]
    on_cold: Callable[[Segment, int, int], None]
    on_damaged: Callable[[int, str], None]
    on_unreadable: Callable[[OSError], None]
    zeroing_from: int
    before_zeroed: Callable[[], None]
    fills_folios: bool
    filled_offset: int
    dirty_queues: list[Any]
    appended_records: int
    appended_bytes: int
    def __init__(self, directory: str, segment_bytes: int, most_mapped: int = 64) -> None: ...
    def open_segments(self) -> None:
        """Learn which segments the directory holds; each is mapped when it is asked for."""
    def leave_out(self, indexes: Sequence[int]) -> None:
        """Take segments out of the log whose files stay: nothing in them is of it."""
    def start_at(self, end_offset: int, trusted_offset: int) -> None:
        """Say where the next record goes, once recovery has found it."""
    def append(self, batch: PublishBatch, now_ms: int) -> int:
        """Append the entries whose queue is a durable one, all or none; return the log's new end.

        The entries get their offsets and sizes; their queues get their entries.

        Raises:
            MessageTooLargeError: an entry breaks a limit of the format.
            StoreFullError: there is no room for the next segment.
            OSError, MemoryError: the write failed.
            FlushError: so did taking back what was written of it: nothing may be appended any more.
        """
    def mark_durable(self, physical_offset: int) -> None: ...
    def show_durable(self) -> list[Any]:
        """Let readers of queues of level fsync see what is durable now; return the queues that show more."""
    def mark_warm(self, first_offset: int, position: int) -> None:
        """Say that a range reported to ``on_cold`` has been read."""
    def forget_warm(self) -> None:
        """Look again at what is in memory: pages go when the kernel needs room."""
    def segment_of(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds a position, mapped now if it was not; None when the log has none there.

        Raises:
            UnreadableError: the system refuses its file, which ``on_unreadable`` was told.
        """
    def read(self, physical_offset: int) -> bytes | None:
        """Return a copy of the record at ``physical_offset``, None unless it is there and whole. May block.

        Raises:
            UnreadableError: as ``segment_of``.
        """
    def close(self) -> None: ...
