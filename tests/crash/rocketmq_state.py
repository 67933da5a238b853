"""What the checker of the RocketMQ protocol keeps of a history: commands, queues, copies, channels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.history import Outcome, Payload
from tests.crash.rocketmq_history import Decision, Sent


@dataclass(slots=True)
class Command:
    """One send."""

    event: Sent
    outcome: Outcome = Outcome.UNKNOWN
    queue_offset: int = -1  # of its first message, as its producer was told
    decisions: set[Decision] = field(default_factory=set)
    end: int = -1  # number of the latest Ended
    end_answered_at: float = -1.0
    was_asked_about: bool = False

    def payloads(self) -> list[Payload]:
        event = self.event
        return [
            Payload(event.place.topic, event.producer, event.first_sequence + index) for index in range(event.messages)
        ]


class Slot(NamedTuple):
    """What stands at one place of a queue."""

    payload: Payload
    reconsume_times: int
    message_id: str


@dataclass(slots=True)
class Queue:
    """One queue. Invariant: below ``ordered`` every order and batch was looked at."""

    slots: dict[int, Slot] = field(default_factory=dict)
    end: int = 0  # behind the last slot
    floor: int = 0  # what stands below may be deleted
    gone: int = 0  # what stood below is deleted
    read: set[int] = field(default_factory=set)
    holes: set[int] = field(default_factory=set)  # left by batches that were cut off
    read_now: set[int] = field(default_factory=set)  # since the last start
    passed: set[int] = field(default_factory=set)  # places without a message when some group was led past them
    ordered: int = 0
    last_sequence: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Copies:
    """The copies of one message that was sent back: to the retry topic, or to the dead letters."""

    asked: int = 0
    acknowledged: int = 0
    due: float = float("inf")  # of the first
    last_due: float = 0.0
    stored_at: list[float] = field(default_factory=list)

    @property
    def is_owed(self) -> bool:
        return len(self.stored_at) < self.acknowledged


@dataclass(slots=True)
class Channel:
    """A channel of NSQ."""

    made_at: float
    seen: set[Payload] = field(default_factory=set)
    owed: set[Payload] = field(default_factory=set)  # in the topic, not delivered yet
