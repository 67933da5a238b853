"""The readable reference of headrace.spark.decode: records to rows in plain struct code, one dict per record."""

from __future__ import annotations

import socket
import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.format.compression import GIVEN_AS_STORED, INFLATE_ERRORS, inflate

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
FIRST_MS, LAST_MS = -62135596800000, 253402300799999


def timestamp(ms: int) -> datetime | None:
    if not FIRST_MS <= ms <= LAST_MS:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def host(raw: bytes) -> str:
    port = struct.unpack(">i", raw[-4:])[0]
    if len(raw) == 8:
        return f"{socket.inet_ntop(socket.AF_INET, raw[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw[:16])}]:{port}"


def pairs(raw: bytes) -> dict[str, str]:
    found: dict[bytes, bytes] = {}
    for piece in raw.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            found[name] = value
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in found.items()}


def checksums_fit(record: bytes, body: bytes, properties: bytes) -> bool:
    if properties[-20:-11] == b"__CRC32#\x01":
        stored = properties[-11:-1]
        return properties[-1] == 2 and stored.isdigit() and int(stored[::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF
    return struct.unpack_from(">I", record, 8)[0] == zlib.crc32(body) & 0x7FFFFFFF


def protocol(topic: str, found: dict[str, str], row: dict[str, Any], has_properties: bool) -> str:
    if topic.startswith(("%RETRY%", "%DLQ%")):
        return "retry"
    is_plain = not row["flag"] and not row["reconsume_times"] and not row["sys_flag"] & ~0x30
    own = {"__CRC32#", "__BATCH#", "TIMER_DELIVER_MS"}
    if is_plain and has_properties and row["born_ts"] == row["store_ts"] and set(found) <= own:
        return "nsq"
    return "rocketmq"


def row_of(record: bytes, broker: str = "b", *, with_body: bool = True) -> dict[str, Any]:
    """Return what the decoder makes of one whole record; ``sys_flag`` speaks of the body only where that is read."""
    size, magic, _, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms = struct.unpack_from(
        ">IIIiiqqiq", record
    )
    assert size == len(record)
    at = 48
    born_end = at + (20 if sys_flag & 0x10 else 8)
    born_host = record[at:born_end]
    (store_ms,) = struct.unpack_from(">q", record, born_end)
    store_end = born_end + 8 + (20 if sys_flag & 0x20 else 8)
    store_host = record[born_end + 8 : store_end]
    reconsume_times, _, body_bytes = struct.unpack_from(">iqI", record, store_end)
    at = store_end + 16
    body = record[at : at + body_bytes]
    at += body_bytes
    topic_form = ">B" if magic == MAGIC_V1 else ">H"
    (topic_bytes,) = struct.unpack_from(topic_form, record, at)
    at += struct.calcsize(topic_form)
    topic = record[at : at + topic_bytes].decode("utf-8", "replace")
    at += topic_bytes
    (properties_bytes,) = struct.unpack_from(">H", record, at)
    properties = record[at + 2 : at + 2 + properties_bytes]
    found = pairs(properties)
    plain = body
    if with_body and sys_flag & 1:
        try:
            plain = inflate(body, sys_flag >> 8 & 7)
        except INFLATE_ERRORS:
            sys_flag |= GIVEN_AS_STORED
    row: dict[str, Any] = {
        "topic": topic,
        "broker": broker,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "log_offset": log_offset,
        "msg_id": (store_host + struct.pack(">q", log_offset)).hex().upper(),
        "unique_key": found.get("UNIQ_KEY"),
        "keys": found.get("KEYS"),
        "tags": found.get("TAGS"),
        "flag": flag,
        "sys_flag": sys_flag,
        "reconsume_times": reconsume_times,
        "store_size": size,
        "born_ts": timestamp(born_ms),
        "store_ts": timestamp(store_ms),
        "born_host": host(born_host),
        "store_host": host(store_host),
    }
    has_checksum = properties_bytes >= 20
    row["source_protocol"] = protocol(topic, found, row, has_checksum)
    row["body_crc_ok"] = checksums_fit(record, body, properties)
    row["body"] = plain
    row["properties"] = [(n, v) for n, v in found.items() if n not in ("__CRC32#", "__BATCH#")]
    return row


def lay_log(records: list[dict[str, Any]], segment_bytes: int, first: int = 0) -> tuple[bytes, list[bytes]]:
    """Return (a log, its records): what ``format.record.encode`` makes of each, with blanks where files end."""
    from headrace.format import record

    log = bytearray()
    whole = []
    for fields in records:
        at = first + len(log)
        size = len(record.encode(**fields, physical_offset=at))
        left = segment_bytes - at % segment_bytes
        if size + 8 > left:
            log += struct.pack(">II", left, 0xCBD43194) + b"\x99" * (left - 8)
            at = first + len(log)
        raw = record.encode(**fields, physical_offset=at)
        log += raw
        whole.append(raw)
    return bytes(log), whole
