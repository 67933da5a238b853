"""What RocketMQ clients of a broker did and saw, as one sequence of events.

As in ``history``: recorded from the clients' side by one thread, times in seconds of the monotonic clock. The store
time of a message is brought to that clock too. Bodies are those of ``history.make_body``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tests.crash.history import Outcome


class Kind(StrEnum):
    """How a message is sent."""

    PLAIN = "plain"  # also one-way: never answered
    BATCH = "batch"
    LEVEL = "level"  # delayed by level
    TIMED = "timed"  # TIMER_DELIVER_MS and the like
    HALF = "half"  # first part of a transaction


class Decision(StrEnum):
    """What a producer says of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


class Sent(NamedTuple):
    """A send request left: one message, or a batch (whole or absent). A place with queue -1: NSQ's, any queue."""

    at: float
    command: int  # unique number
    kind: Kind
    place: Place
    producer: int
    first_sequence: int
    messages: int = 1
    due: float = 0.0  # not to be delivered before


class SendAnswered(NamedTuple):
    """A send was answered, or never will be. Offset and ids as the response has them."""

    at: float
    command: int
    outcome: Outcome
    queue_offset: int = -1
    message_ids: tuple[str, ...] = ()


class Ended(NamedTuple):
    """The producer told the broker what becomes of a half message."""

    at: float
    command: int  # of its Sent
    decision: Decision
    number: int


class EndAnswered(NamedTuple):
    """The broker confirmed an ``Ended``, not always the latest: it asks again before it has heard the answer."""

    at: float
    command: int
    number: int  # of the Ended


class CheckAsked(NamedTuple):
    """The broker asked what becomes of a half message."""

    at: float
    place: Place
    body: bytes


class Read(NamedTuple):
    """A message was pulled."""

    at: float
    place: Place
    queue_offset: int
    message_id: str
    body: bytes
    keys: str
    reconsume_times: int
    stored_at: float


class Pulled(NamedTuple):
    """A group's pull from ``first`` on brought the messages at ``found``, and goes on at ``following``."""

    at: float
    group: str
    place: Place
    first: int
    following: int
    found: tuple[int, ...]


class Scanned(NamedTuple):
    """A queue was read from ``first`` to its end while nobody wrote to it."""

    at: float
    place: Place
    first: int
    end: int


class CommitSent(NamedTuple):
    """A group committed an offset, having read everything below it."""

    at: float
    number: int
    group: str
    place: Place
    queue_offset: int


class CommitAnswered(NamedTuple):
    """A commit was confirmed."""

    at: float
    number: int


class CommittedFound(NamedTuple):
    """A broker that has just started told a group's offset; -1: none."""

    at: float
    group: str
    place: Place
    queue_offset: int


class SentBack(NamedTuple):
    """A consumer sent a message back. ``dead``: it is to become a dead letter."""

    at: float
    number: int
    group: str
    body: bytes
    reconsume_times: int  # of the copy that stands behind it: one more than the consumer saw
    dead: bool
    due: float


class SentBackAnswered(NamedTuple):
    """A send-back was answered, or never will be."""

    at: float
    number: int
    outcome: Outcome


class KeyFound(NamedTuple):
    """A query for the key of one message brought these bodies."""

    at: float
    topic: str
    producer: int
    sequence: int
    bodies: tuple[bytes, ...]


class ChannelMade(NamedTuple):
    """A channel of NSQ exists: it gets every message that joins the topic from here on."""

    at: float
    topic: str
    channel: str


class ChannelRead(NamedTuple):
    """A channel of NSQ delivered a message."""

    at: float
    topic: str
    channel: str
    body: bytes


class TopicAsked(NamedTuple):
    """The creation of a topic, or more queues for it, was asked for."""

    at: float
    topic: str
    queues: int


class TopicGranted(NamedTuple):
    """The latest ``TopicAsked`` for a topic was answered with success."""

    at: float
    topic: str


class TopicDeleteAsked(NamedTuple):
    """The deletion of a topic was asked for: every send to it is answered, and none follows."""

    at: float
    topic: str


class TopicDeleted(NamedTuple):
    """The latest ``TopicDeleteAsked`` for a topic was answered with success."""

    at: float
    topic: str


class TopicsFound(NamedTuple):
    """A broker that has just started listed its topics with their numbers of queues."""

    at: float
    topics: tuple[tuple[str, int], ...]


def key_of(producer: int, sequence: int) -> str:
    """Return the key that a message carries: unique within its topic."""
    return f"k{producer}-{sequence}"
