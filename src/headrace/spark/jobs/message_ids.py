"""Message ids that say where a message lies: RocketMQ's offset ids, and the ids of NSQ.

RocketMQ: address and port of the broker that stored it and its physical offset, 32 hex digits, 56 with IPv6. NSQ: the
node's number in 16 bits and the physical offset in 48, 16 hex digits; its top bit is set for ephemeral messages, which
are in no log.
"""

from __future__ import annotations

import socket
import string
from typing import Final, NamedTuple

from headrace.errors import ConfigError

_OFFSET_IDS: Final = (32, 56)
_NSQ_ID: Final = 16
_OFFSET_BITS: Final = 48
_EPHEMERAL: Final = 1 << 47


class MessageId(NamedTuple):
    """An id: its text, the physical offset that it names, and where it was stored as the column ``store_host`` has it.

    ``store_host`` is empty for NSQ's ids, which name a node's number instead.
    """

    text: str
    physical_offset: int
    store_host: str


def parse_message_id(text: str) -> MessageId:
    """Read an id.

    Raises:
        ConfigError: it is none of these, or names a message that was never in a log.
    """
    digits = text.strip()
    if not digits or set(digits) - set(string.hexdigits) or len(digits) not in (*_OFFSET_IDS, _NSQ_ID):
        raise ConfigError(
            f"{text!r} is no message id: RocketMQ's offset ids have 32 hex digits (56 with IPv6), NSQ's ids 16; "
            "the key that a producer gave is --key",
            key="id",
        )
    if len(digits) != _NSQ_ID:
        offset = int.from_bytes(bytes.fromhex(digits[-16:]), signed=True)
        if offset < 0:
            raise ConfigError(f"{text!r} names no place in a log: its last 16 digits are negative", key="id")
        return MessageId(digits.upper(), offset, _host_of(bytes.fromhex(digits[:-16])))
    number = int(digits, 16)
    if number & _EPHEMERAL:
        raise ConfigError(f"{text!r} is the id of an ephemeral message: those are in no log", key="id")
    return MessageId(digits.lower(), number & ((1 << _OFFSET_BITS) - 1), "")


def _host_of(raw: bytes) -> str:
    """Write an address and port as the decoder does."""
    address, port = raw[:-4], int.from_bytes(raw[-4:], signed=True)
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
