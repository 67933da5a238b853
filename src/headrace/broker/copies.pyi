"""Copies of records: stored once more somewhere else, without an object for each message."""

from collections.abc import Callable

from headrace.batch import PublishBatch, RecordBatch

def add_copies(records: RecordBatch, count: int, into: PublishBatch, resolve: Callable[[str, int], int]) -> int:
    """Add to ``into`` a copy of each of the first ``count`` records that belongs where its properties say.

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
