"""What lies on disk, in plain ``struct``: the readable reference that compiled code is held to.

Ref: docs/formats/commit-log.md, docs/formats/consume-queue.md, docs/formats/side-files.md; remoting.md 2 and 3.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

MESSAGE_V1 = 0xDAA320A7
MESSAGE_V2 = 0xDAA320AB
BLANK = 0xCBD43194
BORN_V6 = 0x10
STORE_V6 = 0x20
NAME_END, VALUE_END = b"\x01", b"\x02"
FILLER = (0, 0x7FFFFFFF, 0)


@dataclass(kw_only=True)
class Record:
    """One record of the commit log, field by field in the order of the bytes."""

    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = bytes(8)
    store_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0
    body: bytes = b""
    topic: bytes = b"t"
    properties: bytes = b""
    magic: int = MESSAGE_V1
    body_crc: int = field(default=-1)

    def encode(self) -> bytes:
        """Return the bytes of the record; totalSize and bodyCRC are computed."""
        topic_length = struct.pack(">B" if self.magic == MESSAGE_V1 else ">H", len(self.topic))
        crc = self.body_crc if self.body_crc >= 0 else crc31(self.body)
        parts = [
            struct.pack(">iqqiq", self.flag, self.queue_offset, self.physical_offset, self.sys_flag, self.born_ms),
            self.born_host,
            struct.pack(">q", self.store_ms),
            self.store_host,
            struct.pack(">iq", self.reconsume_times, self.prepared_offset),
            struct.pack(">I", len(self.body)) + self.body,
            topic_length + self.topic,
            struct.pack(">H", len(self.properties)) + self.properties,
        ]
        rest = struct.pack(">Ii", crc, self.queue_id) + b"".join(parts)
        return struct.pack(">II", len(rest) + 8, self.magic) + rest

    def encode_checked(self) -> bytes:
        """Return the record as Headrace writes it: with the property ``__CRC32#`` at its end."""
        properties = self.properties
        if properties and not properties.endswith(VALUE_END):
            properties += VALUE_END
        whole = Record(**{**self.__dict__, "properties": properties + checksum_property(0)}).encode()
        return whole[:-20] + checksum_property(crc31(whole[:-20]))


def decode_record(raw: bytes) -> Record:
    """Return the record that begins ``raw``."""
    at = 0

    def take(layout: str) -> Any:
        nonlocal at
        values = struct.unpack_from(">" + layout, raw, at)
        at += struct.calcsize(">" + layout)
        return values if len(values) > 1 else values[0]

    size, magic, crc, queue_id = take("IIIi")
    flag, queue_offset, physical_offset, sys_flag, born_ms = take("iqqiq")
    born_host = take(f"{20 if sys_flag & BORN_V6 else 8}s")
    store_ms = take("q")
    store_host = take(f"{20 if sys_flag & STORE_V6 else 8}s")
    reconsume_times, prepared_offset = take("iq")
    body = take(f"{take('I')}s")
    topic = take(f"{take('B' if magic == MESSAGE_V1 else 'H')}s")
    properties = take(f"{take('H')}s")
    assert at == size
    return Record(
        queue_id=queue_id, flag=flag, queue_offset=queue_offset, physical_offset=physical_offset, sys_flag=sys_flag,
        born_ms=born_ms, born_host=born_host, store_ms=store_ms, store_host=store_host,
        reconsume_times=reconsume_times, prepared_offset=prepared_offset, body=body, topic=topic,
        properties=properties, magic=magic, body_crc=crc,
    )  # fmt: skip


def crc31(data: bytes) -> int:
    """CRC-32 with its top bit cleared, as RocketMQ stores it."""
    return zlib.crc32(data) & 0x7FFFFFFF


def checksum_property(crc: int) -> bytes:
    """``__CRC32#``: ten decimal digits, the least significant first."""
    return b"__CRC32#" + NAME_END + f"{crc:010d}"[::-1].encode() + VALUE_END


def encode_properties(pairs: dict[str, str]) -> bytes:
    """``name 0x01 value 0x02`` for each pair."""
    return b"".join(name.encode() + NAME_END + value.encode() + VALUE_END for name, value in pairs.items())


def decode_properties(raw: bytes) -> dict[str, str]:
    """Undo ``encode_properties``."""
    pairs = (item.partition(NAME_END) for item in raw.split(VALUE_END) if item)
    return {name.decode(): value.decode() for name, _, value in pairs}


def encode_blank(size: int) -> bytes:
    """The head of a blank record that fills ``size`` bytes."""
    return struct.pack(">II", size, BLANK)


def encode_entry(physical_offset: int, record_bytes: int, tag_hash: int) -> bytes:
    """One consume-queue entry."""
    return struct.pack(">qiq", physical_offset, record_bytes, tag_hash)


def decode_entries(raw: bytes) -> list[tuple[int, int, int]]:
    """Every entry in ``raw``."""
    return list(struct.iter_unpack(">qiq", raw))


def java_hash(text: str) -> int:
    """Java's String.hashCode: h = 31 h + c over UTF-16 code units, signed 32 bits."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def encode_side_file(kind: str, version: int, body: bytes) -> bytes:
    """A side file: one header line, then JSON."""
    return f"headrace {kind} {version} {zlib.crc32(body):08x} {len(body)}\n".encode() + body


def decode_side_file(raw: bytes) -> tuple[str, int, Any]:
    """Return (kind, version, payload) of a side file."""
    header, _, body = raw.partition(b"\n")
    name, kind, version, crc, size = header.decode().split(" ")
    assert (name, int(crc, 16), int(size)) == ("headrace", zlib.crc32(body), len(body))
    return kind, int(version), json.loads(body)


def encode_mark_slot(sequence: int, physical_offset: int) -> bytes:
    """One slot of the durable mark; slot ``sequence & 1``."""
    checked = struct.pack(">qq", sequence, physical_offset)
    return checked + struct.pack(">II", zlib.crc32(checked), 0)
