"""Bytes of nsqlookupd's TCP protocol V1, as a broker sends and reads them. No I/O.

A command is a line, behind IDENTIFY a size (u32, big-endian) and JSON. A reply is a size and so many bytes, without the
frame type of V2; replies come in the order of the commands. Ref: nsq.md 4.1.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from headrace.errors import ProtocolError
from headrace.net.address import format_address

MAGIC: Final = b"  V1"
PING: Final = b"PING\n"
OK: Final = b"OK"
MAX_REPLY_BYTES: Final = 64 << 10
"""Of one reply. nsqlookupd's longest, who it is, has some hundred bytes."""
MAX_SHOWN: Final = 200
"""Bytes of a reply in an error."""

_SIZE_BYTES: Final = 4
_HTTP: Final = int.from_bytes(b"HTTP", "big")
"""What a web server begins with, as a size."""
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
"""A name or an address, as it may stand in a request."""


class LookupdRefusedError(ProtocolError):
    """The nsqlookupd refused a command, and closes the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NsqdIdentity:
    """What a nsqlookupd tells consumers and tools of this broker: the fields that nsqd sends."""

    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    version: str


class LookupdIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a nsqlookupd says of itself; what it leaves out is empty."""

    broadcast_address: str = ""
    http_port: int = 0
    version: str = ""

    @property
    def http_address(self) -> str:
        """Where it answers over HTTP; empty where it says nothing of use."""
        is_host = _HOST.fullmatch(self.broadcast_address) is not None
        return format_address((self.broadcast_address, self.http_port)) if is_host and self.http_port > 0 else ""


class ReplyReader:
    """Takes the bytes of a connection, gives its replies."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the replies that are whole now.

        Raises:
            ProtocolError: the size of one is none that a nsqlookupd sends.
        """
        self._bytes += data
        replies = []
        start = 0
        while len(self._bytes) >= start + _SIZE_BYTES:
            size = int.from_bytes(self._bytes[start : start + _SIZE_BYTES], "big")
            if size == _HTTP:
                raise ProtocolError("it answers in HTTP: this is its HTTP port, its TCP port (4160) is wanted")
            if size > MAX_REPLY_BYTES:
                raise ProtocolError(f"a reply of {size} bytes is announced, more than {MAX_REPLY_BYTES}")
            end = start + _SIZE_BYTES + size
            if len(self._bytes) < end:
                break
            replies.append(bytes(self._bytes[start + _SIZE_BYTES : end]))
            start = end
        del self._bytes[:start]
        return replies


def encode_identify(identity: NsqdIdentity) -> bytes:
    """Encode IDENTIFY: the line, then size u32 (big-endian) | JSON."""
    body = msgspec.json.encode(asdict(identity))
    return b"IDENTIFY\n" + len(body).to_bytes(_SIZE_BYTES, "big") + body


def encode_register(topic: str, channel: str = "") -> bytes:
    """Encode the registration of a topic, or of a channel and its topic. NSQ can spell both."""
    return f"REGISTER {topic} {channel}".rstrip(" ").encode() + b"\n"


def encode_unregister(topic: str, channel: str = "") -> bytes:
    """Encode the end of a topic and its channels, or of one channel. NSQ can spell both."""
    return b"UN" + encode_register(topic, channel)


def decode_identity(reply: bytes) -> LookupdIdentity:
    """Decode the reply to IDENTIFY.

    Raises:
        LookupdRefusedError: it is a refusal.
        ProtocolError: it is neither.
    """
    if reply.startswith(b"E_"):
        raise LookupdRefusedError(f"refused IDENTIFY: {shown(reply)}")
    try:
        return msgspec.json.decode(reply, type=LookupdIdentity)
    except (msgspec.DecodeError, RecursionError):
        raise ProtocolError(f"answered IDENTIFY with {shown(reply)}") from None


def require_ok(reply: bytes, command: bytes) -> None:
    """Accept the reply to any other command.

    Raises:
        LookupdRefusedError: it is a refusal.
        ProtocolError: it is neither.
    """
    if reply == OK:
        return
    if reply.startswith(b"E_"):
        raise LookupdRefusedError(f"refused {shown(command)}: {shown(reply)}")
    raise ProtocolError(f"answered {shown(command)} with {shown(reply)}")


def shown(text: bytes) -> str:
    """Return bytes of a peer, or for one, as an error shows them."""
    return text[:MAX_SHOWN].decode(errors="replace").strip()
