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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.broker.message import Message, Placed, StoredMessage, put
from headrace.broker.schedule import DelayLevels
from headrace.broker.topic import Topic, TopicConfig
from headrace.errors import MessageNotFoundError
from headrace.format.names import DEAD_LETTER_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

logger = logging.getLogger(__name__)

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"

FIRST_LEVEL: Final = 3
"""Delay level of the first retry: 10 s, and the next level for each further one."""

ALARM_INTERVAL_MS: Final = 60_000
MOST_GROUPS: Final = 20_000
"""Groups whose dead letters are counted apart."""

_MOST_TRIES: Final = 0x7FFFFFFF
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

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0
        self._places: Counter[tuple[str, str]] = Counter()  # (group, topic) since take_counts
        self.on_alarm: Callable[[DeadLetter], None] = lambda letter: None
        self._logged_ms: dict[str, int] = {}

    def note(self, group: str, topic: str, message_id: str, reconsume_times: int, now_ms: int) -> None:
        """Count one, and say so."""
        topic, message_id = topic[:_LONGEST_NAME], message_id[:_LONGEST_NAME]
        self.total += 1
        place = (group, topic)
        if place in self._places or len(self._places) < MOST_GROUPS:
            self._places[place] += 1
        if group in self.counts or len(self.counts) < MOST_GROUPS:
            self.counts[group] = self.counts.get(group, 0) + 1
        count = self.counts.get(group, self.total)
        last = self._logged_ms.get(group)
        if last is None or not 0 <= now_ms - last < ALARM_INTERVAL_MS:
            if len(self._logged_ms) >= MOST_GROUPS:
                self._logged_ms.clear()
            self._logged_ms[group] = now_ms
            logger.error(
                "dead letter group=%s topic=%s message_id=%s reconsume_times=%d count=%d",
                group,
                topic,
                message_id,
                reconsume_times,
                count,
            )
        self.on_alarm(DeadLetter(group, topic, message_id, reconsume_times, count, now_ms))

    def take_counts(self) -> dict[tuple[str, str], int]:
        """Return the dead letters of each (group, topic) since the last time; they are then forgotten here."""
        taken = dict(self._places)
        self._places.clear()
        return taken


@dataclass
class RetryCounters:
    """Events since the start."""

    retried: int = 0
    dead: int = 0
    dropped: int = 0
    """Messages of groups without a retry queue."""
    refused: int = 0
    """Messages that are not there any more."""


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
        queues = max(1, rules.retry_queues)
        return self._broker.create_topic(
            RETRY_PREFIX + rules.group, TopicConfig(queues, queues, sys_flag=rules.topic_sys_flag)
        )

    def ensure_dead_letter_topic(self, group: str) -> Topic:
        """Return a group's dead-letter topic, made now if it does not exist; it can be read as well.

        Raises:
            RequestError: it cannot be made.
        """
        return self._broker.create_topic(DEAD_LETTER_PREFIX + group, TopicConfig(1, 1))

    def send_back(
        self,
        rules: RetryRules,
        physical_offset: int,
        delay_level: int,
        now_ms: int,
        *,
        max_times: int | None = None,
    ) -> tuple[Placed, int] | None:
        """Store a message again for its group.

        Args:
            physical_offset: Of the record that the consumer got.
            delay_level: 0: by the number of reconsumptions; below 0: a dead letter at once.
            max_times: The consumer's own limit of reconsumptions; None for the group's.

        Returns:
            Where the copy is, and the physical offset that must be durable before the consumer is answered; None when
            the message is dropped, because its group has no retry queue.

        Raises:
            MessageNotFoundError: there is no such record.
            RequestError, StoreError: the copy was not stored.
        """
        if rules.retry_queues <= 0:
            self.counters.dropped += 1
            return None
        raw = self._broker.store.log.read(physical_offset)
        if raw is None:
            self.counters.refused += 1
            raise MessageNotFoundError(physical_offset)
        stored = StoredMessage.from_record(raw)
        if stored.topic in INTERNAL_TOPICS:
            # No consumer was given it: whoever names it guesses offsets, and must not get to read it this way.
            self.counters.refused += 1
            raise MessageNotFoundError(physical_offset)
        times = stored.reconsume_times
        if delay_level < 0 or times >= (rules.retry_max_times if max_times is None else max_times):
            return self._bury(rules.group, self._copy(stored), now_ms)
        queue_id = self.ensure_retry_topic(rules).pick_queue().queue_id
        copy = replace(self._copy(stored), topic=RETRY_PREFIX + rules.group, queue_id=queue_id)
        placed = self._levels.put(copy, delay_level or FIRST_LEVEL + times)
        self.counters.retried += 1
        return placed

    @staticmethod
    def _copy(stored: StoredMessage) -> Message:
        """Return what is stored again: the message, with where it came from, and one more reconsumption."""
        origin = stored.properties.get(RETRY_TOPIC) or stored.topic
        first_id = stored.properties.get(ORIGIN_ID) or stored.message_id
        return Message(
            topic=origin,
            queue_id=stored.queue_id,
            body=stored.body,
            properties=stored.with_properties(**{RETRY_TOPIC: origin, ORIGIN_ID: first_id, "WAIT": "false"}),
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            born_ms=stored.born_ms,
            born_host=stored.born_host,
            born_v6=stored.born_v6,
            reconsume_times=min(stored.reconsume_times + 1, _MOST_TRIES),
            prepared_offset=stored.prepared_offset,
        )

    def _bury(self, group: str, copy: Message, now_ms: int) -> tuple[Placed, int]:
        topic = self.ensure_dead_letter_topic(group)
        letter = replace(copy, topic=topic.name, queue_id=0, properties=copy.with_properties(DELAY=None))
        placed = put(self._broker, letter)
        self.counters.dead += 1
        message_id = copy.properties.get("UNIQ_KEY") or copy.properties[ORIGIN_ID]
        self.letters.note(group, copy.topic, message_id, copy.reconsume_times, now_ms)
        return placed
