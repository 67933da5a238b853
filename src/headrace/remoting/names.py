"""What RocketMQ clients may call topics, and the names that are not theirs to write to.

Ref: remoting.md 4.3, 4.10.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from headrace.format.names import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    MAX_TOPIC_BYTES,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    STATISTICS_TOPIC,
    TIMER_TOPIC,
    is_reserved,
)
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import RequestRefusedError

VALID: Final = re.compile(r"[%|a-zA-Z0-9_-]+|%(?:RETRY|DLQ)%[%|a-zA-Z0-9_.-]+")
"""RocketMQ's rule, and what is made of the name of a group: that may have dots."""

NOT_SENDABLE: Final = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
        STATISTICS_TOPIC,
    )
)
"""Topics that only the broker writes to."""


def is_valid_topic(name: str) -> bool:
    """Return whether clients may use ``name`` for a topic."""
    return len(name) <= MAX_TOPIC_BYTES and _is_spelled_right(name)


@lru_cache(maxsize=32_768)  # asked for every run of sends, and for every topic by each registration
def _is_spelled_right(name: str) -> bool:
    return VALID.fullmatch(name) is not None and not is_reserved(name)


def require_topic(name: str) -> None:
    """Accept a topic's name.

    Raises:
        RequestRefusedError: it breaks a rule; the remark says which.
    """
    if not name:
        raise RequestRefusedError("the topic is blank")
    if len(name) > MAX_TOPIC_BYTES:
        raise RequestRefusedError(f"the topic is longer than {MAX_TOPIC_BYTES} characters: {name[:MAX_TOPIC_BYTES]}...")
    if VALID.fullmatch(name) is None:
        raise RequestRefusedError(f"the topic {name!r} contains illegal characters, allowed are ^[%|a-zA-Z0-9_-]+$")
    if is_reserved(name):
        raise RequestRefusedError(f"the topic {name} is reserved for the broker", ResponseCode.NO_PERMISSION)
