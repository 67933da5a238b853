"""Messages that a consumer group could not process: another try later, and in the end the dead letters.

A consumer sends a message back by its physical offset. A copy, with one more reconsumption, waits at a delay level and
then stands in the group's retry topic, which the group's consumers read like any other. After too many tries, or when
the consumer says so, the copy goes to the group's dead-letter topic instead, and somebody should hear of it.

Ref: remoting.md 4.4, code 36; A-BROKER-29 to 35, X-BROKER-07.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.copies import RecordCopy
from headrace.broker.gathering import Gathering, Joint, Work
from headrace.broker.topic import Topic, TopicConfig
from headrace.broker.withheld.schedule import DelayLevels
from headrace.errors import MessageNotFoundError
from headrace.format.names import DEAD_LETTER_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX
from headrace.log_pace import LogPace

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.clock import Clock
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
_RETRY_TOPIC: Final = RETRY_TOPIC.encode()
_ORIGIN_ID: Final = ORIGIN_ID.encode()

FIRST_LEVEL: Final = 3
"""Delay level of the first retry: 10 s, and the next level for each further one."""

MAX_GROUPS: Final = 20_000
"""Groups whose dead letters are counted apart."""

_MAX_TRIES: Final = 0x7FFFFFFF
_LONGEST_NAME: Final = 255
"""Characters of a dead letter's topic and id: both are properties, which a producer may set."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """What a group says about its failed messages."""

    group: str
    retry_queues: int = 1
    """Queues of its retry topic; 0 or less: what fails is dropped."""
    retry_max_times: int = 16
    """Reconsumptions after which a message is a dead letter."""
    topic_sys_flag: int = 0
    """Of the retry topic (RocketMQ: unit mode)."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What an alarm says."""

    group: str
    topic: str
    """Where the message was published first."""
    message_id: str
    reconsume_times: int
    count: int
    """Dead letters of the group since the start, this one included."""
    now_ms: int


class DeadLetters:
    """Counts dead letters and raises the alarm: ``on_alarm`` each time, and a line of the log once a minute per group.

    What ``on_alarm`` does, such as calling a webhook, must not wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0
        self._places: Counter[tuple[str, str]] = Counter()  # (group, topic) since take_counts
        self.on_alarm: Callable[[DeadLetter], None] = lambda letter: None
        self._pace = LogPace(clock, MAX_GROUPS)

    def note(self, group: str, topic: str, message_id: str, reconsume_times: int, now_ms: int) -> None:
        """Count one, and say so."""
        topic, message_id = topic[:_LONGEST_NAME], message_id[:_LONGEST_NAME]
        self.total += 1
        place = (group, topic)
        if place in self._places or len(self._places) < MAX_GROUPS:
            self._places[place] += 1
        if group in self.counts or len(self.counts) < MAX_GROUPS:
            self.counts[group] = self.counts.get(group, 0) + 1
        count = self.counts.get(group, self.total)
        if self._pace.is_due(group):
            logger.error(
                "dead letter group=%s topic=%s message_id=%s reconsume_times=%d count=%d",
                group,
                topic,
                message_id,
                reconsume_times,
                count,
            )
        self.on_alarm(DeadLetter(group, topic, message_id, reconsume_times, count, now_ms))

    def forget_group(self, group: str) -> None:
        """Forget what was counted of a group that is deleted."""
        self.counts.pop(group, None)

    def take_counts(self) -> dict[tuple[str, str], int]:
        """Return the dead letters of each (group, topic) since the last time; they are then forgotten here."""
        taken = dict(self._places)
        self._places.clear()
        return taken


@dataclass
class RetryCounters:
    """Events since the start."""

    retried: int = 0
    dropped: int = 0
    """Messages of groups without a retry queue."""


class Retries:
    """Takes back what consumers could not process."""

    def __init__(self, broker: Broker, levels: DelayLevels, letters: DeadLetters) -> None:
        self.counters = RetryCounters()
        self.letters = letters
        self._broker = broker
        self._levels = levels

    def ensure_retry_topic(self, rules: RetryRules) -> Topic:
        """Return a group's retry topic, made now if it does not exist.

        Raises:
            RequestError: it cannot be made.
        """
        name = RETRY_PREFIX + rules.group
        topic = self._broker.topics.get(name)
        if topic is None:
            queues = max(1, rules.retry_queues)
            topic = self._broker.create_topic(name, TopicConfig(queues, queues, sys_flag=rules.topic_sys_flag))
        return topic

    def ensure_dead_letter_topic(self, group: str) -> Topic:
        """Return a group's dead-letter topic, made now if it does not exist; it can be read as well.

        Raises:
            RequestError: it cannot be made.
        """
        return self._broker.create_topic(DEAD_LETTER_PREFIX + group, TopicConfig(1, 1))

    def sending_back(
        self,
        gathering: Gathering,
        rules: RetryRules,
        stored: RecordCopy,
        delay_level: int,
        *,
        max_times: int | None = None,
    ) -> SendingBack | None:
        """Add the copy of a message to a gathering; its ``finish`` is to be called when that was published.

        Args:
            stored: The record that the consumer got.
            delay_level: 0: by the number of reconsumptions; below 0: a dead letter at once.
            max_times: The consumer's own limit of reconsumptions; None for the group's.

        Returns:
            None when the message is dropped, because its group has no retry queue.

        Raises:
            MessageNotFoundError: it is no message that a consumer can have got.
            RequestError, StoreError: the group has no topic for it, and gets none.
        """
        if rules.retry_queues <= 0:
            self.counters.dropped += 1
            return None
        if stored.topic in INTERNAL_TOPICS:
            # No consumer was given it: whoever names it guesses offsets, and must not get to read it this way.
            raise MessageNotFoundError(stored.physical_offset)
        times = stored.reconsume_times
        if delay_level < 0 or times >= (rules.retry_max_times if max_times is None else max_times):
            topic = self.ensure_dead_letter_topic(rules.group)
            work = SendingBack(self, rules.group, stored, (topic, topic.queues[0]))
            work.bury()
        else:
            retry = self.ensure_retry_topic(rules)
            level = max(1, min(delay_level or FIRST_LEVEL + times, self._levels.count))
            work = SendingBack(self, rules.group, stored, self._levels.waiting_place(level))
            work.delay(level, retry.name, retry.pick_queue())
        gathering.add(work)
        return work

    def note_stored(self, work: SendingBack, now_ms: int) -> None:
        """Count a copy that was stored."""
        if not work.is_dead:
            self.counters.retried += 1
            return
        self.letters.note(work.group, work.origin, work.known_as, work.reconsume_times, now_ms)


class SendingBack(Work):
    """The copy of one message that came back.

    Attributes:
        origin: Where the message was published first.
        reconsume_times: Of the copy.
        queue_id: Where it goes.
        is_dead: Whether it is a dead letter.
    """

    def __init__(self, retries: Retries, group: str, stored: RecordCopy, place: tuple[Topic, QueueBase]) -> None:
        super().__init__()
        self.group = group
        self.origin = stored.property(_RETRY_TOPIC) or stored.topic
        self.reconsume_times = min(stored.reconsume_times + 1, _MAX_TRIES)
        self.queue_id = place[1].queue_id
        self.is_dead = False
        self._retries = retries
        self._stored = stored
        self._place = place
        self._first_id = stored.property(_ORIGIN_ID) or stored.message_id
        self._awaits_flush = False
        self._changes: dict[bytes, bytes | None] = {
            _RETRY_TOPIC: _encoded(self.origin),
            _ORIGIN_ID: _encoded(self._first_id),
            b"WAIT": b"false",
        }

    @property
    def known_as(self) -> str:
        """The id by which people look for the message: its producer's, or that of its first place."""
        return self._stored.property(b"UNIQ_KEY") or self._first_id

    def bury(self) -> None:
        """Make it a dead letter, which does not wait."""
        self.is_dead = True
        self._changes[b"DELAY"] = None

    def delay(self, level: int, topic: str, queue: QueueBase) -> None:
        """Have it wait at a level, and then come to a queue of its group's retry topic."""
        self._awaits_flush = queue.awaits_flush
        self._changes[b"DELAY"] = b"%d" % level
        self._changes[b"REAL_TOPIC"] = _encoded(topic)
        self._changes[b"REAL_QID"] = b"%d" % queue.queue_id

    def add_to(self, joint: Joint) -> None:
        """Add the copy."""
        joint.is_waited_for |= self._awaits_flush
        self._stored.add_to(
            joint.batch,
            joint.destination(*self._place),
            changes=self._changes,
            reconsume_times=self.reconsume_times,
        )

    def finish(self, now_ms: int) -> int:
        """Note that the copy is stored; return the physical offset that must be durable before the consumer is told.

        Raises:
            RequestError, StoreError: it is not.
        """
        wait_offset = self.require_written()
        self._retries.note_stored(self, now_ms)
        return wait_offset


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
