from collections.abc import Mapping
from typing import Final, TypedDict

BLANK_MAGIC: Final[int]
"""The u32 at byte 4 of a blank record, behind its size: the rest of its file is not used."""

UNWRITTEN: Final[int]
BLANK: Final[int]
BAD_OFFSET: Final[int]
"""What ``check`` says of places that are asked about by name: zeros, a blank record, another place's record."""

SYS_PREPARED: Final[int]
"""Bit of the sys flag that prepared and rolled-back records have: they are in no queue."""

SYS_COMMITTED: Final[int]
SYS_TRANSACTION: Final[int]
"""Bits of the sys flag that say what a record is to its transaction; both: it is rolled back, and in no index."""

SYS_BORN_V6: Final[int]
SYS_STORE_V6: Final[int]
"""Bits of the sys flag: that host is an IPv6 address."""

class DecodedRecord(TypedDict):
    """The fields of one record. Hosts are "ip:port", with an IPv6 address in brackets."""

    record_bytes: int
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    prepared_offset: int
    body_crc: int
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
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Return one whole record.

    Layout: docs/formats/commit-log.md, "Record".

    Args:
        born_host: IPv4 address << 32 | port.
        born_host_v6: 16 address bytes and an i32 port; wins over ``born_host``.
        deliver_at_ms: Adds the property TIMER_DELIVER_MS unless 0.
        command_entries: Adds the property __BATCH# when above 1.
        sys_flag: The bits that say whether the hosts are IPv6 are set from the hosts, whatever is given.
    """

def with_place(raw: bytes, topic: str, queue_id: int) -> bytes:
    """Return a whole record as it would be in another topic and queue, everything else as it is."""

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

def describe_host(host: bytes) -> str:
    """Return "ip:port" of a host as records hold it: 4 or 16 address bytes and an i32 port.

    Raises:
        ValueError: it has another size.
    """

def message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the offset id of a message: its store host and physical offset in upper-case hex, 32 or 56 characters.

    Args:
        store_host: 4 or 16 address bytes and an i32 port, as the record holds them.

    Raises:
        ValueError: ``store_host`` has another size.

    Ref: docs/formats/commit-log.md, "Message id".
    """

def properties_of(properties: bytes) -> dict[str, str]:
    """Return a record's properties by name; of a name that is there twice the last one.

    Layout: name 0x01 value 0x02 for each; the last 0x02 may be missing. A piece without name or value is dropped.
    Bytes that are no UTF-8 become lone surrogates, which ``encode_properties`` turns back.
    """

def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return properties as a record holds them, in the order given; empty names and values are left out.

    Raises:
        ValueError: a name holds 0x01, or a name or value 0x02. What ``properties_of`` returned never does.
    """

def tag_hash(tag: str) -> int:
    """Return Java's ``String.hashCode`` of ``tag``: what a consume-queue entry holds."""

def describe(found: int) -> str:
    """Say in words what ``check`` returned."""
