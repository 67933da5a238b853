from collections.abc import Sequence
from typing import Any

from headrace.store.queue_base import QueueBase
from headrace.store.queue_files import QueueFiles
from headrace.store.recovery import Hole

UNSYNCED_VIEWS: str
"""What it comes to that queues could not be synced."""

def count_sound(raw: bytes, log_end: int, most_bytes: int) -> int:
    """Return how many raw entries come before the first that no broker wrote: damage, for those may be not written yet.

    Args:
        log_end: The physical offset behind the log's files; entries may point behind it, into files that are missing.
        most_bytes: What a record may have.
    """

class ConsumeQueue(QueueBase):
    """One queue of one topic: 20-byte entries that point into the commit log."""

    directory: str
    written_offset: int
    tail_offset: int
    """Entries from this queue offset on are in memory."""
    issued_position: int
    """Physical offset behind the last record that the files knew of at ``load``, above what that was told."""
    mended_entries: int
    """Entries of the files that recovery found to differ from the log, and rewrote."""
    is_numbered_anew: bool
    """Recovery found the queue numbered from 0 again in the log: RocketMQ does so with a topic that is made again."""
    delay_ms: int
    """Above 0 in a queue of a delay level: its entries hold, for a tag hash, when their message is due."""
    listed: bool
    dirty_files: set[int]
    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles, log: Any) -> None: ...
    def load(self, synced_physical_offset: int) -> int:
        """Find the entries that stand below ``synced_physical_offset`` in the files and forget the rest.

        Returns:
            The queue_offset behind the last entry that the files held, forgotten ones and fillers included: offsets
            below it were issued once and must not be issued again. ``issued_position`` says the same for the log.
        """
    def restore(self, queue_offset: int, physical_offset: int, record_bytes: int, tag_hash: int) -> None:
        """Take in one entry during recovery. Gaps get filler entries.

        A queue without files begins with the file of its first entry.
        """
    def drop_strays(self, holes: Sequence[Hole], since_start: bool) -> None:
        """Turn entries that recovery found no record for, and that point at no hole, into fillers: they are another's.

        Args:
            holes: In the order of the log.
            since_start: The log was scanned from its first record on.
        """
    def skip_to(self, queue_offset: int) -> int:
        """Fill with filler entries up to ``queue_offset``; return how many it took."""
    @property
    def records_end(self) -> int:
        """The queue_offset behind the last entry that is no filler."""
    def drop_last_fillers(self) -> None:
        """Take the fillers behind the last record's entry out of the files. For the end: memory keeps them.

        What was cut is to be synced.

        Raises:
            OSError: a file could not be cut.
        """
    def forget_from(self, physical_offset: int) -> int:
        """Turn entries of records from ``physical_offset`` on, which were cut off, into fillers; return how many."""
    def advance_visible(self, durable_offset: int) -> int:
        """Show readers what lies below ``durable_offset``; return how many entries became visible."""
    def count_below(self, physical_offset: int) -> int:
        """Return the queue_offset behind the last entry of a record that ends at or below ``physical_offset``."""
    def count_messages(self, from_offset: int) -> int:
        """Return how many visible entries from ``from_offset`` on are no fillers: a lost record leaves one."""
    def write_out(self) -> int:
        """Write the entries that only memory has; return how many."""
    def sync(self) -> None:
        """fdatasync the files written since the last call. Blocks: for a thread.

        Raises:
            UnsyncedError: nobody knows what of a file is on disk.
            OSError: one could not be opened; the next call tries again.
        """
    def forget_dirty(self) -> None:
        """Count such files as synced: the caller syncs what holds them."""
    def hide_below(self, queue_offset: int) -> None:
        """Let readers begin at ``queue_offset`` at the earliest: what lies below belonged to a topic since deleted."""
    def unlink(self) -> None:
        """Remove the queue's files."""
