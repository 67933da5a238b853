from collections.abc import Callable

from headrace.store.index_file import IndexFile
from headrace.store.segment import Segment

def key_hash(topic: bytes, key: bytes) -> int:
    """Return the hash under which a key of a topic is indexed: of Java's ``topic#key``, made positive.

    Ref: docs/formats/index-file.md, "Hash".
    """

class KeyIndex:
    """What is indexed so far, and the file that is being filled.

    Attributes:
        provide_file: Makes the next file, given the store time of its first entry; raises OSError.
        on_error: Told of an OSError or MemoryError that made the index fall behind, or may do so.
    """

    provide_file: Callable[[int], IndexFile]
    on_error: Callable[[Exception], None]
    active: IndexFile | None
    indexed_offset: int
    keys_ahead: int
    added_keys: int
    is_live: bool
    def __init__(self, provide_file: Callable[[int], IndexFile], on_error: Callable[[Exception], None]) -> None: ...
    def start_at(self, active: IndexFile | None, indexed_offset: int, keys_ahead: int) -> None:
        """Say what is indexed.

        Args:
            active: File to go on with; its slots are in memory.
            indexed_offset: The keys of every record below are in.
            keys_ahead: So many keys of the records from there on are in too.
        """
    def skip_to(self, physical_offset: int) -> None:
        """Pass over a range of the log whose records are lost; what is in of those behind it is not known then."""
    def go_live(self, end_offset: int) -> bool:
        """Let appends put in their keys themselves, if everything below the log's end is indexed."""
    def stop_live(self) -> None: ...
    def index_some(self, segment: Segment, until: int) -> int:
        """Index records of one segment from ``indexed_offset`` on: some thousand keys or a few MiB of records.

        For a thread, while the index is not live.

        Args:
            until: Physical offset at which a record begins, or the segment's or the log's end. A blank record reaches
                up to there.

        Returns:
            1, or what ``format.record.check`` says of the bytes at ``indexed_offset``, which are no record.

        Raises:
            OSError, MemoryError: nothing is lost; the next call tries again.
        """
