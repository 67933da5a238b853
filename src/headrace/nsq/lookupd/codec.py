"""nsqlookupd's protocol V1 as bytes: what producers send, and the replies.

A producer sends the magic, then lines of words; IDENTIFY has a JSON body behind its line. Each is answered in order by
a length and data, without a type; who may send what is for ``connection`` to say.

Ref: nsq.md 4.1.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from headrace.nsq.refusal import RefusedError
from headrace.registry.producers import ProducerInfo

MAGIC: Final = b"  V1"
MAX_LINE_BYTES: Final = 1024
"""nsqlookupd knows no bound; no command has more than two names of 64 bytes each, with ``#ephemeral``."""
MAX_BODY_BYTES: Final = 4 << 10
"""Of IDENTIFY; nsqd's has some 150. nsqlookupd knows no bound here either, but what a producer says of itself is in the
log and, for each of its topics, in the answers of consumers."""
_SIZE_BYTES: Final = 4


def encode_reply(data: bytes) -> bytes:
    """Return a reply as it goes out."""
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


class ProducerReader:
    """Takes what a producer sends apart, however it is cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._held)

    def feed(self, data: bytes) -> None:
        """Put what was read behind what is there."""
        self._held += data

    def take_magic(self) -> bytes | None:
        """Return the first four bytes, or None if they have not come yet."""
        return self._take(len(MAGIC)) if len(self._held) >= len(MAGIC) else None

    def take_line(self) -> list[str] | None:
        """Return the next line's words, or None if its end has not come yet. Bytes that are no UTF-8 are surrogates.

        Raises:
            RefusedError: it is too long.
        """
        end = self._held.find(b"\n", 0, MAX_LINE_BYTES + 1)
        if end >= 0:
            return self._take(end + 1).strip().decode("utf-8", "surrogateescape").split(" ")
        if len(self._held) > MAX_LINE_BYTES:
            raise RefusedError("E_INVALID", b"line longer than %d bytes" % MAX_LINE_BYTES, start=bytes(self._held[:4]))
        return None

    def take_body(self) -> bytes | None:
        """Return the body behind IDENTIFY's line, or None if its end has not come yet.

        Raises:
            RefusedError: it is too long, or has a negative length.
        """
        if len(self._held) < _SIZE_BYTES:
            return None
        size = int.from_bytes(self._held[:_SIZE_BYTES], "big", signed=True)
        if not 0 <= size <= MAX_BODY_BYTES:
            raise RefusedError("E_BAD_BODY", b"IDENTIFY body of %d bytes, at most %d" % (size, MAX_BODY_BYTES))
        if len(self._held) < _SIZE_BYTES + size:
            return None
        return self._take(_SIZE_BYTES + size)[_SIZE_BYTES:]

    def cut_short(self) -> RefusedError:
        """Return what to say where the rest of IDENTIFY's body will not come."""
        return RefusedError("E_BAD_BODY", b"IDENTIFY failed to read body" + b" size" * (len(self._held) < _SIZE_BYTES))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


# Any consumer's JSON must be able to hold it: one port beyond would make it refuse the whole answer.
_Port = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Identity(msgspec.Struct):
    """IDENTIFY's body. What is missing or null is as good as empty; other fields are passed over."""

    hostname: str | None = None
    broadcast_address: str | None = None
    tcp_port: _Port | None = None
    http_port: _Port | None = None
    version: str | None = None
    topology_zone: str | None = None
    topology_region: str | None = None


_decode_identity: Final = msgspec.json.Decoder(_Identity | None).decode


def read_identity(body: bytes, remote_address: str) -> ProducerInfo:
    """Return what a producer says of itself.

    Raises:
        RefusedError: it is no JSON, or lacks a field.
    """
    try:
        said = _decode_identity(body) or _Identity()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError("E_BAD_BODY", b"IDENTIFY failed to decode JSON body") from None
    if not (said.broadcast_address and said.tcp_port and said.http_port and said.version):
        raise RefusedError("E_BAD_BODY", b"IDENTIFY missing fields")
    return ProducerInfo(
        remote_address=remote_address,
        hostname=said.hostname or "",
        broadcast_address=said.broadcast_address,
        tcp_port=said.tcp_port,
        http_port=said.http_port,
        version=said.version,
        topology_zone=said.topology_zone or "",
        topology_region=said.topology_region or "",
    )
