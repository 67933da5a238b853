"""Entries of consume queues, for whoever reads them one by one; ``store.consume_queue`` has the compiled loops.

Ref: docs/formats/consume-queue.md, "Entry".
"""

from __future__ import annotations

import struct
from typing import Final

ENTRY: Final = struct.Struct(">qiq")  # physical offset, size of the record, tag hash

FILLER_BYTES: Final = 0x7FFFFFFF
"""Size in an entry without a record: the queue offset was issued, and what stood there is gone."""
