"""Delivery at any time: a message that names its own time waits in an internal topic until then.

An ordinary durable channel of that topic keeps who waits for when: in memory, spilled to disk when there are many, in
the channel journal across restarts. What becomes due is delivered to a subscription of our own, appended again to the
topic and queue named in its properties, and finished once that copy is durable. A crash in between delivers again,
never less. Ref: remoting.md 2.6 (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS); docs/formats/delayed-messages.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.batch import RecordBatch, SettleBatch
from headrace.broker.message import Message, Placed, need_system_topic, put
from headrace.broker.withheld.redelivery import redeliver
from headrace.broker.withheld.schedule import level_of
from headrace.errors import InvalidDelayError, StoreError
from headrace.format.names import TIMER_TOPIC
from headrace.log_pace import LogPace, Trouble

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.channels.channel import Channel, Subscription
    from headrace.broker.topic import Topic
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

CHANNEL: Final = "headrace"

DELIVER_AT: Final = "TIMER_DELIVER_MS"
DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
CANCEL: Final = "TIMER_DEL_UNIQKEY"
"""By which RocketMQ 5 takes back a message that waits, where it stands beside one of the three above. Refused here:
taken for one more message, both would come."""

MAX_AT_ONCE: Final = 4_000
"""Messages delivered in one tick: some five milliseconds of the loop."""
MAX_BYTES_AT_ONCE: Final = 4 << 20

MAX_UNFINISHED: Final = 10_000
"""Copies that may wait for the disk before more are made."""

_FINISH: Final = 0
_REQUEUE: Final = 1
_RETRY_MS: Final = 1_000
_MAX_DIGITS: Final = 15


def timer_number(text: str) -> int | None:
    """Return the time or delay that a property names, 0 for a negative one; None where it names none."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS
    return max(0, int(text)) if is_number else None


@dataclass
class TimedCounters:
    """Events since the start."""

    delivered: int = 0
    dropped: int = 0
    """Messages whose topic was deleted, or that do not say where they belong."""
    errors: int = 0
    """Times that nothing could be delivered because the store took no writes."""


class TimedMessages:
    """Holds messages back until a time of their own. Add it to ``Broker.tickers``."""

    def __init__(self, broker: Broker) -> None:
        self.counters = TimedCounters()
        self._broker = broker
        self._topic = need_system_topic(broker, TIMER_TOPIC)
        self._channel: Channel | None = None
        self._subscription: Subscription | None = None
        self._records = RecordBatch(verifies=True)
        self._unfinished: deque[tuple[int, list[int]]] = deque()
        self._unfinished_count = 0
        self._trouble = Trouble(logger)
        self._drop_pace = LogPace(broker.clock)
        if CHANNEL in self._topic.channels:
            self._subscribe()

    def _subscribe(self) -> Channel:
        """Take up the channel, made now if nothing was ever held back."""
        channel = self._broker.ensure_channel(self._topic, CHANNEL)
        subscription = self._broker.subscribe(
            self._topic,
            channel,
            self,
            msg_timeout_ms=15 * 60_000,  # copies become durable long before
        )
        subscription.ready_count = MAX_UNFINISHED
        subscription.writable = False  # nobody but ``tick`` delivers to it
        self._channel, self._subscription = channel, subscription
        return channel

    def closed_by_broker(self, reason: str) -> None:
        """The channel was deleted, and what it held back with it."""
        logger.error("messages with a delivery time were dropped reason=%s", reason)
        self._channel = self._subscription = None
        self._unfinished.clear()
        self._unfinished_count = 0

    # -- delaying ---------------------------------------------------------------------------------------------------

    def due_ms(self, properties: Mapping[str, str], now_ms: int) -> int:
        """Return when a message wants to be delivered (ms since 1970); 0 for at once.

        A time in the past is at once, and so is a negative delay. Of several properties the first counts: the time,
        seconds, milliseconds: a message that came has its time, which is over, and is not delayed again when it is sent
        on. RocketMQ 5 has the time last, and knows such a message by a property of its own.

        Raises:
            InvalidDelayError: it is no number, or more than ``broker.max_delay_ms`` away, or the message is to cancel
                another.
        """
        is_timed = any(properties.get(name) for name in (DELIVER_AT, DELAY_SECONDS, DELAY_MS))
        if is_timed and CANCEL in properties and not level_of(properties):
            raise InvalidDelayError(
                f"property {CANCEL}: a message that waits for its time cannot be cancelled, so both would be delivered"
            )
        for name, unit_ms, base_ms in ((DELIVER_AT, 1, 0), (DELAY_SECONDS, 1000, now_ms), (DELAY_MS, 1, now_ms)):
            text = properties.get(name)
            if not text:
                continue
            number = timer_number(text)
            if number is None:
                raise InvalidDelayError(
                    f"property {name} = {text[:40]!r} is not a number of {_MAX_DIGITS} digits at most"
                )
            due_ms = base_ms + number * unit_ms
            most = self._broker.settings.max_delay_ms
            if due_ms - now_ms > most:
                raise InvalidDelayError(
                    f"property {name} = {text} is {due_ms - now_ms} ms away, more than broker.max_delay_ms = {most}"
                )
            return due_ms if due_ms > now_ms else 0
        return 0

    def put(self, message: Message, due_ms: int) -> tuple[Placed, int]:
        """Append a message that is delivered to its topic and queue at ``due_ms``.

        Returns:
            Where it waits, and the physical offset that must be durable before its sender is answered.

        Raises:
            RequestError, StoreError: it was not appended.
        """
        return put(self._broker, self.delayed(message), deliver_at_ms=due_ms)

    def waiting_place(self) -> tuple[Topic, QueueBase]:
        """Return where messages wait; each must be appended with the time at which it is due.

        Raises:
            RequestError, StoreError: there is no channel to keep them yet, and none can be made.
        """
        if self._channel is None:
            self._subscribe()
        return self._topic, self._topic.queues[0]

    def delayed(self, message: Message) -> Message:
        """Return the message as it waits; it must be appended with the time at which it is due.

        Raises:
            RequestError, StoreError: as ``waiting_place``.
        """
        self.waiting_place()
        # The record gets the property from the time that is given with it.
        return message.diverted(TIMER_TOPIC, 0, **{DELIVER_AT: None})

    @property
    def waiting(self) -> int:
        """Messages that are held back."""
        return 0 if self._channel is None else self._channel.deferred_count + self._channel.depth

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Deliver what is due, and finish what was delivered and is durable."""
        channel, subscription = self._channel, self._subscription
        if channel is None or subscription is None:
            return
        self._finish_durable(channel, subscription, now_ms)
        if self._broker.store.failure is not None or self._broker.overloaded:
            return
        if channel.has_ready() and self._unfinished_count < MAX_UNFINISHED:
            self._deliver(channel, subscription, now_ms)

    def _deliver(self, channel: Channel, subscription: Subscription, now_ms: int) -> None:
        mono_ms = self._broker.clock.monotonic_ms()
        channel.deliver(subscription, now_ms, mono_ms, MAX_AT_ONCE, MAX_BYTES_AT_ONCE, self._records)
        count = len(self._records)
        ids = [self._broker.node_id << 48 | self._records.position(index)[2] for index in range(count)]
        try:
            if count:
                left_out = redeliver(self._broker, self._records, count)
                for reason, dropped in left_out.items():
                    self._drop(reason, dropped)
                self.counters.delivered += count - left_out.total()
                self._unfinished.append((self._broker.store.log.end_offset, ids))
                self._unfinished_count += count
                self._trouble.end()
        except StoreError as error:
            self.counters.errors += 1
            self._trouble.note("messages with a delivery time wait, the store takes no writes error=%s", error)
            self._settle(channel, subscription, ids, _REQUEUE, now_ms)
        finally:
            self._records.clear()
        self._broker.touch_channel(channel)

    def _drop(self, reason: str, count: int) -> None:
        self.counters.dropped += count
        if self._drop_pace.is_due():
            logger.warning(
                "messages with a delivery time dropped count=%d total=%d reason=%s",
                count,
                self.counters.dropped,
                reason,
            )

    def _finish_durable(self, channel: Channel, subscription: Subscription, now_ms: int) -> None:
        """Finish the messages whose copies are durable: what the journal forgets must be in the log."""
        durable = self._broker.store.durable_offset
        while self._unfinished and self._unfinished[0][0] <= durable:
            ids = self._unfinished.popleft()[1]
            self._unfinished_count -= len(ids)
            self._settle(channel, subscription, ids, _FINISH, now_ms)
            self._broker.touch_channel(channel)

    def _settle(self, channel: Channel, subscription: Subscription, ids: list[int], kind: int, now_ms: int) -> None:
        settles = SettleBatch()
        for message_id in ids:
            settles.append(kind, message_id, _RETRY_MS if kind == _REQUEUE else 0)
        channel.settle(subscription, settles, now_ms, self._broker.clock.monotonic_ms())

    def close(self) -> None:
        """Finish what was delivered up to now, and end the subscription. Blocks."""
        channel, subscription = self._channel, self._subscription
        if channel is None or subscription is None:
            return
        try:
            self._broker.store.flush()
        except StoreError as error:
            logger.error("last messages with a delivery time not durable, they come again error=%s", error)
        self._finish_durable(channel, subscription, self._broker.clock.now_ms())
        self._channel = self._subscription = None
        self._broker.unsubscribe(subscription)
