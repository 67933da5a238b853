"""How often the file system can make a batch durable: the limit that group commit works against."""

import os
import tempfile
import time
from pathlib import Path

BATCH_RECORDS = 200
RECORD_BYTES = 300


def measure_fdatasync(directory: Path, seconds: float) -> float:
    """Append one batch of records to a fresh file and fdatasync it, over and over; return how many times a second."""
    batch = bytes(BATCH_RECORDS * RECORD_BYTES)
    syncs = 0
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            file.write(batch)
            os.fdatasync(file.fileno())
            syncs += 1
        return syncs / (time.monotonic() - start)
