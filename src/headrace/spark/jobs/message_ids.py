"""Message ids that say where a message lies: RocketMQ's offset ids, and the ids of NSQ.

RocketMQ: address and port of the broker that stored it and its physical offset, 32 hex digits, 56 with IPv6. NSQ: the
node's number in 16 bits and the physical offset in 48, 16 hex digits; its top bit is set for ephemeral messages, which
are in no log.
"""

from __future__ import annotations

import string
from typing import Final, NamedTuple

from headrace.errors import ConfigError

_OFFSET_IDS: Final = (32, 56)
_NSQ_ID: Final = 16
_OFFSET_BITS: Final = 48
_EPHEMERAL: Final = 1 << 47


class MessageId(NamedTuple):
    """An id: its text, and the physical offset that it names. ``is_exact``: it names the broker as well."""

    text: str
    physical_offset: int
    is_exact: bool


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
        return MessageId(digits.upper(), int(digits[-16:], 16), True)
    number = int(digits, 16)
    if number & _EPHEMERAL:
        raise ConfigError(f"{text!r} is the id of an ephemeral message: those are in no log", key="id")
    return MessageId(digits.lower(), number & ((1 << _OFFSET_BITS) - 1), False)
