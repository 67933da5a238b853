"""Copies of records: stored once more somewhere else, without an object for each message."""

from collections.abc import Callable

from headrace.batch import PublishBatch, RecordBatch

def add_copies(
    records: RecordBatch, first: int, end: int, into: PublishBatch, resolve: Callable[[str, int], int]
) -> int:
    """Add to ``into`` a copy of each of the records [first, end) that belongs where its properties say.

    Copies have body, flag, sys flag, producer, birth time, reconsume count, prepared offset and properties of their
    originals, but for ``__CRC32#`` and ``__BATCH#``; the tag hash is that of TAGS. They borrow: ``records`` must not be
    cleared before ``into`` was appended.

    Args:
        resolve: Returns the index of a destination of ``into`` for REAL_TOPIC and REAL_QID, -1 for none. Called once
            for each pair.

    Returns:
        How many records belong nowhere and were left out.
    """

def add_copies_to(records: RecordBatch, count: int, into: PublishBatch, destination: int) -> None:
    """Add to ``into`` a copy of each of the first ``count`` records, all for one destination, inside a command.

    They are what ``add_copies`` makes but for the place; the entry that begins the command is the caller's.
    """

class RecordCopy:
    """One record of the log that is stored again with other properties.

    Its entries borrow from it: it must be there until the batch was appended.

    Attributes:
        raw: The whole record.
        topic: Its topic; bytes that are no UTF-8 as surrogates.
        sys_flag: With all of its bits.
        message_id: The id by its place (offset id).
    """

    raw: bytes
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body_bytes: int
    sys_flag: int
    reconsume_times: int
    store_ms: int
    prepared_offset: int
    message_id: str
    def __init__(self, raw: bytes) -> None:
        """Read a whole record.

        Raises:
            ValueError: it is none.
        """

    def property(self, name: bytes) -> str | None:
        """Return a property, the last of that name; None where there is none, or it is empty."""

    def add_to(
        self,
        into: PublishBatch,
        destination: int,
        *,
        changes: dict[bytes, bytes | None] | None = None,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_offset: int | None = None,
        command_entries: int = 1,
    ) -> None:
        """Add a copy, as ``add_copies`` makes it but for what is given.

        Args:
            changes: Properties to set, in their place or behind the others, or (None) to remove. They must not hold
                the bytes that part properties. TAGS must not be among them: the tag hash is the original's.
            command_entries: How many entries the command has that begins with this one; 0 inside a command.
        """
