def checksum(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Return the CRC-32 of ``data``, continuing ``start``; equal to ``zlib.crc32``."""

def checksum_by_table(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Return the same by the table implementation alone, so that tests cover it on every processor."""

def implementation() -> str:
    """Return ``clmul`` when the processor multiplies carry-less, else ``table``."""
