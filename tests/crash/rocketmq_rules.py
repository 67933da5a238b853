"""What a broker promises RocketMQ clients about crashes: each rule is tested by ``test_rocketmq_checker.py``."""

from __future__ import annotations

from enum import StrEnum

CURSORS_S = 3.5
"""How long before a crash a delayed message may have come and yet come again: cursors are saved every second here."""

OFFSETS_S = 6.5
"""A committed offset older than this survives any crash: the table is saved every 5 s, which takes its time."""


class Rule(StrEnum):
    """What can be broken."""

    LOST = "an acknowledged message is lost"
    PHANTOM = "a message that nobody sent"
    CORRUPT = "a body or key that nobody sent"
    REFUSED = "a refused message is delivered"
    DUPLICATE = "a duplicate without a cause"
    ORDER = "a producer's messages out of order in a queue"
    TWO_PAYLOADS = "two messages at one place of a queue"
    MISPLACED = "a message not where its producer was told"
    PASSED_OVER = "a message that a group was led past"
    HOLE = "places of a queue without a message, and no batch that a kill cut off"
    TORN_BATCH = "a part of a batch"
    EARLY = "a delayed message before its time"
    UNCOMMITTED = "a half message delivered that nobody committed"
    NOT_ASKED = "a half message whose producer is not asked"
    ASKED_AGAIN = "a producer asked about a decided transaction"
    AHEAD = "a committed offset ahead of what was consumed"
    BEHIND = "a committed offset forgotten that was old enough to be kept"
    NOT_INDEXED = "a message that its key does not find"
    CAME_BACK = "something deleted is there again"
    VANISHED = "something created is gone"
    COMPLAINT = "the broker reports damage"
