"""Consumers that asked for what is not there: an event each in OFFSET_MOVED_EVENT, as RocketMQ's tools expect it.

A consumer that goes on asking writes one event a second for each queue, whatever it asks: events are for people.

Ref: remoting.md 4.4.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.message import Message, put
from headrace.errors import RequestError, StoreError
from headrace.format.names import OFFSET_MOVED_TOPIC

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 1000
"""The same group has no second event for the same queue before this."""
_MAX_REMEMBERED: Final = 10_000


@dataclass
class OffsetMovedCounters:
    """Events since the start."""

    written: int = 0
    repeated: int = 0
    """Not written: there was one for the same queue a moment ago."""
    refused: int = 0
    """Not written: the store took none."""


class OffsetMovedEvents:
    """Writes the events."""

    def __init__(self, broker: Broker) -> None:
        self.counters = OffsetMovedCounters()
        self._broker = broker
        self._last_ms: dict[tuple[str, str, int], int] = {}  # of the last event of a queue; the oldest first

    def note(self, group: str, topic: str, queue_id: int, requested: int, moved_to: int) -> None:
        """Write that a group asked for an offset and was told another; a store that is full does not matter."""
        now_ms = self._broker.clock.monotonic_ms()
        key = (group, topic, queue_id)
        last_ms = self._last_ms.get(key)
        if last_ms is not None:
            if now_ms - last_ms < AGAIN_MS:
                self.counters.repeated += 1
                return
            del self._last_ms[key]  # goes to the end
        while len(self._last_ms) >= _MAX_REMEMBERED:
            oldest = next(iter(self._last_ms))
            if now_ms - self._last_ms[oldest] < AGAIN_MS:
                self.counters.repeated += 1
                return
            del self._last_ms[oldest]
        self._last_ms[key] = now_ms
        queue = {"brokerName": self._broker.name, "queueId": queue_id, "topic": topic}
        event = {"consumerGroup": group, "messageQueue": queue, "offsetNew": moved_to, "offsetRequest": requested}
        message = Message(OFFSET_MOVED_TOPIC, 0, msgspec.json.encode(event), {"TAGS": group, "KEYS": group})
        try:
            put(self._broker, message)
        except (RequestError, StoreError) as error:
            if not self.counters.refused:
                logger.warning("event not written, the store takes none topic=%s error=%s", OFFSET_MOVED_TOPIC, error)
            self.counters.refused += 1
        else:
            self.counters.written += 1
