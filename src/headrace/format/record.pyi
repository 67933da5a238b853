from typing import TypedDict

class DecodedRecord(TypedDict):
    """The fields of one record that people look at."""

    record_bytes: int
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    body: bytes
    properties: bytes

def encode(
    body: bytes,
    topic: bytes,
    *,
    properties: bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    born_host: int = 0,
    born_host_v6: bytes | None = None,
    store_host: int = 0,
    born_ms: int = 0,
    store_ms: int = 0,
    deliver_at_ms: int = 0,
    command_entries: int = 1,
) -> bytes:
    """Return one whole record.

    Layout: docs/formats/commit-log.md, "Record".

    Args:
        born_host: IPv4 address << 32 | port.
        born_host_v6: 16 address bytes and an i32 port; wins over ``born_host``.
        deliver_at_ms: Adds the property TIMER_DELIVER_MS unless 0.
        command_entries: Adds the property __BATCH# when above 1.
    """

def check(
    buffer: bytes | bytearray | memoryview, position: int = 0, physical_offset: int = -1, checksums: bool = True
) -> int:
    """Return the size of the record at ``position``, 0 for unwritten space, or a negative reason (``describe``)."""

def find(buffer: bytes | bytearray | memoryview, start: int = 0, first_offset: int = 0) -> int:
    """Return the position of the first whole record at or after ``start``, -1 if there is none."""

def decode(buffer: bytes | bytearray | memoryview, position: int = 0) -> DecodedRecord:
    """Return the fields of the record at ``position``.

    Raises:
        ValueError: there is no well-formed record; checksums are not looked at.
    """

def tag_hash(tag: str) -> int:
    """Return Java's ``String.hashCode`` of ``tag``: what a consume-queue entry holds."""

def describe(found: int) -> str:
    """Say in words what ``check`` returned."""
