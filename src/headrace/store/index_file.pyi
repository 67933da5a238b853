from typing import Final

from headrace.format.side_shapes import IndexFileNote

DAMAGED: Final = -1
"""What stands for an entry number where a file holds one that cannot be."""

def file_bytes(slot_count: int, capacity: int) -> int:
    """Return the size of an index file."""

class IndexFile:
    """One index file. Entry numbers begin at 1.

    While it is filled its slots and newest entries are in memory; whoever opened it for filling calls ``finish`` before
    another reader may use the file.
    """

    path: str
    slot_count: int
    capacity: int
    count: int
    written_count: int
    slots_count: int
    used_slots: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    is_full: bool
    has_slots: bool
    is_unsynced: bool
    """A sync failed: nobody knows what of the file is on disk, whatever is written and synced later."""
    def __init__(self, path: str, slot_count: int, capacity: int) -> None: ...
    @staticmethod
    def create(path: str, slot_count: int, capacity: int) -> IndexFile:
        """Make an empty file that is ready to be filled; it takes room on the disk as it is written."""
    def write_out(self) -> None:
        """Write the entries that are in memory only.

        Raises:
            OSError: the disk takes none; they stay in memory.
        """
    def write_header(self) -> None: ...
    def write_slots(self) -> None:
        """Write the slots to the file; blocks of which none was ever used are left out."""
    def sync(self) -> None:
        """Make what was written durable. Blocks.

        Raises:
            OSError: it may not be; ``is_unsynced`` is set if the disk was asked.
        """
    def finish(self) -> None:
        """Write all that is in memory and sync it: RocketMQ can read the file then. Blocks."""
    def drop_slots(self) -> None:
        """Give back the memory of a file that was finished."""
    def release(self) -> None:
        """Close a file that is not being filled; it is opened again when it is read."""
    def restore(self, noted: IndexFileNote) -> None:
        """Say what the file holds: its own header may be older."""
    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (hash, physical offset, seconds, previous number) of an entry that is in the file."""
    def cut(self, physical_offset: int) -> bool:
        """Forget the entries of records from ``physical_offset`` on; return whether any is left."""
    def set_end_ms(self, store_ms: int) -> None:
        """Set the store time of the newest entry's record, after ``cut``."""
    def count_at_end(self, physical_offset: int) -> int:
        """Return how many of the last entries are of the record at ``physical_offset``."""
    def load_slots(self) -> None:
        """Bring the slots into memory: from the file as far as it has them, behind that from the entries. Blocks."""
    def first_of(self, key_hash: int) -> int:
        """Return the number of the newest entry in the slot of a hash, 0 for none, DAMAGED for one that cannot be.

        Raises:
            OSError: the file cannot be read.
        """
    def search(self, key_hash: int, begin_ms: int, end_ms: int, number: int, most: int) -> tuple[list[int], int]:
        """Follow a chain from an entry on.

        Args:
            begin_ms: The chain ends at an entry that is older.
            end_ms: Newer entries are left out.
            number: Entry to begin with, from ``first_of`` or the call before.

        Returns:
            Physical offsets of entries with that hash, newest first, and the number to go on with: 0 at the end,
            DAMAGED where the chain is broken. Fewer than ``most`` does not mean the end: a call follows a few
            thousand entries at the most. Entries hold seconds, so one second too much on each side is found.

        Raises:
            OSError: the file cannot be read.
        """

def verify_file(
    path: str, slot_count: int, count: int, begin_offset: int, end_offset: int, with_slots: bool
) -> str | None:
    """Return what is wrong with a file's first ``count - 1`` entries, and its slots if asked; None for nothing. Blocks.

    Raises:
        OSError: the file cannot be read.
    """
