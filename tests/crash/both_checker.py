"""The two checkers on one history, where NSQ's and RocketMQ's clients share the topics of a broker.

Each checker gets the events of its own clients, and what the others' clients publish, make and delete in its own words.
So a message is owed to every channel and must stand in a queue, whoever sent it. Ref: docs/protocols/mapping.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.checker import Checker
from tests.crash.history import (
    Answered,
    Asked,
    Crashed,
    Drained,
    Event,
    Granted,
    Held,
    Outcome,
    Payload,
    Published,
    Thing,
    read_body,
)
from tests.crash.rocketmq_checker import RocketmqChecker
from tests.crash.rocketmq_history import (
    Decision,
    Ended,
    Kind,
    Place,
    Read,
    SendAnswered,
    Sent,
    TopicAsked,
    TopicDeleteAsked,
    TopicDeleted,
    TopicGranted,
)
from tests.crash.violations import Violation

_NSQ = frozenset(Event.__args__)
_BOTH = frozenset({Crashed, Drained, Held})


class BothChecker:
    """Feed it every event of a history (``observe``); read ``violations``.

    Args:
        one_queue: Topics with a single queue. In the others a channel sees no order of what NSQ's clients publish.
    """

    def __init__(self, one_queue: frozenset[str] = frozenset()) -> None:
        self.nsq = Checker()
        self.rocketmq = RocketmqChecker()
        self._one_queue = one_queue
        self._sent: dict[int, Sent] = {}  # what is not in its topic yet: half messages without a commit
        self._joining: dict[Payload, int] = {}  # committed half messages that nobody has read yet
        self._translations: dict[type, Callable[[Any], None]] = {
            Published: self._published,
            Answered: self._answered,
            Asked: self._asked,
            Granted: self._granted,
            Sent: self._was_sent,
            SendAnswered: self._send_answered,
            Ended: self._ended,
            Read: self._read,
            TopicAsked: self._topic_asked,
            TopicDeleteAsked: self._topic_asked,
            TopicGranted: self._topic_granted,
            TopicDeleted: self._topic_granted,
        }
        self._deleting: set[str] = set()

    @property
    def violations(self) -> list[Violation]:
        """What was found, the earliest first."""
        return sorted([*self.nsq.violations, *self.rocketmq.violations], key=lambda violation: violation.at)

    @property
    def violation_count(self) -> int:
        """How many were found."""
        return self.nsq.violation_count + self.rocketmq.violation_count

    def observe(self, event: tuple[Any, ...]) -> None:
        """Take the next event."""
        kind = type(event)
        if translate := self._translations.get(kind):
            translate(event)
            return
        if kind in _NSQ:
            self.nsq.observe(event)
        if kind in _BOTH or kind not in _NSQ:
            self.rocketmq.observe(event)

    # -- from NSQ ---------------------------------------------------------------------------------------------------

    def _published(self, event: Published) -> None:
        queue_id = 0 if event.topic in self._one_queue else -1
        self.nsq.observe(event._replace(queue_id=queue_id))
        kind = Kind.BATCH if event.messages > 1 else Kind.PLAIN
        place = Place(event.topic, -1)
        # A group gets the message of a DPUB at once: the delay is the channels' own.
        self.rocketmq.observe(
            Sent(event.at, event.command, kind, place, event.producer, event.first_sequence, event.messages)
        )

    def _answered(self, event: Answered) -> None:
        self.nsq.observe(event)
        self.rocketmq.observe(SendAnswered(event.at, event.command, event.outcome))

    def _asked(self, event: Asked) -> None:
        self.nsq.observe(event)
        topic, channel = event.thing
        if not channel:
            asked = TopicAsked(event.at, topic, 1) if event.creates else TopicDeleteAsked(event.at, topic)
            (self._deleting.discard if event.creates else self._deleting.add)(topic)
            self.rocketmq.observe(asked)

    def _granted(self, event: Granted) -> None:
        self.nsq.observe(event)
        topic, channel = event.thing
        if not channel:
            kind = TopicDeleted if topic in self._deleting else TopicGranted
            self.rocketmq.observe(kind(event.at, topic))

    # -- from RocketMQ ----------------------------------------------------------------------------------------------

    def _was_sent(self, event: Sent) -> None:
        self.rocketmq.observe(event)
        if event.kind is Kind.HALF:
            self._sent[event.command] = event
        else:
            self._publish(event, event.at)

    def _publish(self, event: Sent, at: float) -> None:
        waits = event.kind in (Kind.LEVEL, Kind.TIMED)
        delay_s = max(0.0, event.due - event.at) if waits else 0.0
        topic, queue_id = event.place
        queue_id = -1 if event.kind is Kind.HALF else queue_id  # they join in the order of their commits
        self.nsq.observe(
            Published(
                at, event.command, topic, event.producer, event.first_sequence, event.messages, delay_s, queue_id, waits
            )
        )

    def _send_answered(self, event: SendAnswered) -> None:
        self.rocketmq.observe(event)
        if event.command not in self._sent:
            self.nsq.observe(Answered(event.at, event.command, event.outcome))

    def _ended(self, event: Ended) -> None:
        self.rocketmq.observe(event)
        if event.decision is Decision.COMMIT and (sent := self._sent.pop(event.command, None)):
            self._joining[Payload(sent.place.topic, sent.producer, sent.first_sequence)] = event.command
            self._publish(sent, event.at)

    def _topic_asked(self, event: TopicAsked | TopicDeleteAsked) -> None:
        self.rocketmq.observe(event)
        self.nsq.observe(Asked(event.at, Thing(event.topic), isinstance(event, TopicAsked)))

    def _topic_granted(self, event: TopicGranted | TopicDeleted) -> None:
        self.rocketmq.observe(event)
        self.nsq.observe(Granted(event.at, Thing(event.topic)))

    def _read(self, event: Read) -> None:
        self.rocketmq.observe(event)
        if self._joining and event.place.topic in {payload.topic for payload in self._joining}:
            payload = read_body(event.body)
            if payload and (command := self._joining.pop(payload, None)):
                self.nsq.observe(Answered(event.at, command, Outcome.OK))
