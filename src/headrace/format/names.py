"""Names of files and of the topics we keep for ourselves, and how far names and ids reach."""

from __future__ import annotations

MAX_TOPIC_BYTES = 127
"""Length of a topic's name: a record has a byte for it."""

MAX_QUEUES = 65_536
"""Queues of one topic: a queue id has 16 bits in the channels' journal."""

LOG_END = 1 << 47
"""No physical offset is as high: the ids of NSQ's messages have 47 bits for it, and one for ephemeral topics."""

EPHEMERAL_SUFFIX = "#ephemeral"
"""Of topics and channels that end with their last consumer, as NSQ spells them."""

RESERVED_PREFIX = "%SYS%"
"""Of topics that are the log's own. No NSQ client can spell them, other front ends hide them."""

CONTROL_TOPIC = RESERVED_PREFIX + "CONTROL"
"""Holds the control records."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Holds messages with a delay level until they are due: queue id = level - 1."""

RETRY_PREFIX = "%RETRY%"
"""Before a group's name: the topic of the messages that it could not process yet."""

DEAD_LETTER_PREFIX = "%DLQ%"
"""Before a group's name: the topic of the messages that it gave up."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Holds messages whose transaction is open."""

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Says which messages of ``HALF_TOPIC`` are decided."""

DECIDED_GROUP = "CID_RMQ_SYS_TRANS"
"""Its committed offsets say how far both are decided; no client may commit for it."""

CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Holds messages whose transaction was asked about too often."""

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Holds messages with a delivery time of their own until they are due."""

PRODUCER_TOPIC = "HR_PRODUCERS"
"""Holds what is known of producers that send with an identity, one record for each of their batches."""

STAGED_TOPIC = "HR_STAGED"
"""Holds messages whose batch is not yet committed."""

GIVEN_UP_TOPIC = "HR_GIVEN_UP"
"""Says which transactions were given up, and what was decided about them later."""

HIDDEN_TOPICS = frozenset({PRODUCER_TOPIC, STAGED_TOPIC, GIVEN_UP_TOPIC})
"""Internal topics without an entry among the broker's topics: no protocol lists, reads or makes them."""

OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Where clients send their message traces."""

STATISTICS_TOPIC = "HR_STATS"
"""Where the broker writes down, minute by minute, what it counted. Everybody may read it."""

TEMPLATE_TOPICS = ("DEFAULT_TOPIC", "TBW102")
"""What a topic made by a send inherits its number of queues from: SmartGo's name and RocketMQ's."""

SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        CHECK_MAX_TOPIC,
        TIMER_TOPIC,
        OFFSET_MOVED_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        TRACE_TOPIC,
        STATISTICS_TOPIC,
        *HIDDEN_TOPICS,
        *TEMPLATE_TOPICS,
    }
)
"""Topics that a broker has whatever its name: no control record makes them."""

INTERNAL_TOPICS = HIDDEN_TOPICS | {CONTROL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC}
"""Topics whose records mean something to the broker alone: no client writes to them, none is delivered from them."""

READ_ONLY_TOPICS = frozenset({STATISTICS_TOPIC})
"""Topics that clients read and only the broker writes to."""


def is_reserved(topic: str) -> bool:
    """Whether a topic is the log's own: no protocol lists, reads or makes it."""
    return topic.startswith(RESERVED_PREFIX) or topic in HIDDEN_TOPICS


_DOT_NAMES = {".": "~dot", "..": "~dotdot"}


def topic_directory(topic: str) -> str:
    """Return the folder name of a topic's consume queues.

    It is the topic's name, but for the two that a file system reserves; no protocol allows ``~`` in a topic.
    """
    return _DOT_NAMES.get(topic, topic)


def topic_of_directory(name: str) -> str:
    """Undo ``topic_directory``."""
    for topic, directory in _DOT_NAMES.items():
        if name == directory:
            return topic
    return name


def is_offset_name(name: str) -> bool:
    """Whether a name can be that of a commit-log or consume-queue file (``segment_name``); no offset is that large."""
    return len(name) == 20 and name.isascii() and name.isdigit() and int(name) < 1 << 62


def segment_name(first_offset: int) -> str:
    """Return the name of a commit-log or consume-queue file: its first byte's offset in 20 digits."""
    return f"{first_offset:020d}"
