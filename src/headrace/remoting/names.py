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
    HIDDEN_TOPICS,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    STATISTICS_TOPIC,
    TIMER_TOPIC,
)
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import RequestRefusedError

LONGEST_TOPIC: Final = 127
VALID: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
RESERVED_PREFIX: Final = "%SYS%"
"""Topics of the broker itself: the log's control records. Nobody reads or writes them through this protocol."""

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
    return len(name) <= LONGEST_TOPIC and _is_spelled_right(name)


@lru_cache(maxsize=32_768)  # asked for every run of sends, and for every topic by each registration
def _is_spelled_right(name: str) -> bool:
    return VALID.fullmatch(name) is not None and not _is_reserved(name)


def _is_reserved(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) or name in HIDDEN_TOPICS


def require_topic(name: str) -> None:
    """Accept a topic's name.

    Raises:
        RequestRefusedError: it breaks a rule; the remark says which.
    """
    if not name:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the topic is blank")
    if len(name) > LONGEST_TOPIC:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR, f"the topic is longer than {LONGEST_TOPIC} characters: {name[:LONGEST_TOPIC]}..."
        )
    if VALID.fullmatch(name) is None:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {name!r} contains illegal characters, allowed are ^[%|a-zA-Z0-9_-]+$",
        )
    if _is_reserved(name):
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"the topic {name} is reserved for the broker")
