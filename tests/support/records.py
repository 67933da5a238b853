"""The messages in the body of a pull's answer, as a client reads them."""

from __future__ import annotations

import zlib
from typing import Any

from headrace.format import record

_COMPRESSED = 0x1
_COMPRESSION = 0x300
_ZLIB = (0, 0x300)


def decode_messages(body: bytes) -> list[dict[str, Any]]:
    """Return what ``format.record.decode`` returns of each message, with ``properties`` as a dict.

    ``body`` is decompressed when it is zlib. ``message_id`` is the property UNIQ_KEY, or ``offset_id`` without one.
    """
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(body):
        message: dict[str, Any] = dict(record.decode(body, at))
        sys_flag = message["sys_flag"]
        host_at = at + (76 if sys_flag & 0x10 else 64)
        host = body[host_at : host_at + (20 if sys_flag & 0x20 else 8)]
        if sys_flag & _COMPRESSED and sys_flag & _COMPRESSION in _ZLIB:
            message["body"] = zlib.decompress(message["body"])
        message["properties"] = record.properties_of(message["properties"])
        message["offset_id"] = record.message_id(host, message["physical_offset"])
        message["message_id"] = message["properties"].get("UNIQ_KEY") or message["offset_id"]
        found.append(message)
        at += message["record_bytes"]
    return found
