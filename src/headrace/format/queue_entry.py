"""Entries of consume queues, for whoever reads them one by one; ``store.consume_queue`` has the compiled loops.

Ref: docs/formats/consume-queue.md, "Files" and "Entry".
"""

from __future__ import annotations

import struct
from typing import Final

ENTRY: Final = struct.Struct(">qiq")  # physical offset, size of the record, tag hash

FILLER_BYTES: Final = 0x7FFFFFFF
"""Size in an entry without a record: the queue offset was issued, and what stood there is gone."""

DEFAULT_FILE_BYTES: Final = 6_000_000
"""Size of a queue's files where the store does not say it: RocketMQ's, and that of ``store.queue_file_bytes``."""


def whole_entries(file_bytes: int) -> int:
    """Return a size rounded up to a whole number of entries, as a queue's files have it."""
    return -(-file_bytes // ENTRY.size) * ENTRY.size
