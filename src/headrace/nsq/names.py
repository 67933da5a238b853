"""Topic and channel names as NSQ spells them, and LMQ's ``#tmp``."""

from __future__ import annotations

from typing import Final

from headrace.errors import InvalidNameError
from headrace.format.names import EPHEMERAL_SUFFIX, INTERNAL_TOPICS
from headrace.nsq.words import is_valid_name

TEMPORARY: Final = "#tmp"


def is_spelled(name: str) -> bool:
    """Return whether NSQ can spell a name; bytes that are no UTF-8 may be in it as surrogates."""
    return name.isascii() and is_valid_name(name.encode())


def canonical_name(name: str) -> str:
    """Return the name under which a topic or channel is kept: ``x#tmp`` is another spelling of ``x#ephemeral``.

    For names that reach us through Headrace's own API or HTTP. On the wire nsqd refuses ``#tmp``, clients refuse it
    before that, and so does the codec (nsq.md 1.14).

    Raises:
        InvalidNameError: NSQ cannot spell it.
    """
    spelled = name.removesuffix(TEMPORARY) + EPHEMERAL_SUFFIX if name.endswith(TEMPORARY) else name
    if not is_spelled(spelled):
        raise InvalidNameError(name, "1 to 64 of . a-z A-Z 0-9 _ - with an optional #ephemeral (or #tmp) at the end")
    return spelled


def topic_name(name: str) -> str:
    """Return the name under which a topic is kept.

    Raises:
        InvalidNameError: NSQ cannot spell it, or it is the broker's own.
    """
    spelled = canonical_name(name)
    if spelled in INTERNAL_TOPICS:
        raise InvalidNameError(name, "the broker's own topic")
    return spelled
