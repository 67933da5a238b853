"""A broker in memory for tests of the NSQ server: real channels and logs, and a gate that the test opens.

The product's broker opens its gate from a flusher thread; here a test decides when what is durable, and can refuse
the next publish or fail the flush.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.batch import PublishBatch
from headrace.broker.channels.channel import Channel, Subscription
from headrace.errors import RequestError, StoreError, TooManyConsumersError
from headrace.settings import BrokerSettings
from headrace.store.memory_log import MemoryLog, MemoryQueue
from tests.support.gates import FakeGate


class FakeTopic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.log = MemoryLog(1_000_000, 1 << 30)
        self.queue = MemoryQueue(name, 0, self.log)
        self.queue.awaits_flush = True
        self.is_system = False
        self.channels: dict[str, Channel] = {}


class FakeBroker:
    """What the NSQ server uses of a broker."""

    def __init__(self, now_ms: Callable[[], int], *, node_id: int = 7, max_channel_consumers: int = 0) -> None:
        self.gate = FakeGate()
        self.settings = BrokerSettings(busy_poll_us=0)  # there is no event loop to keep awake
        self.node_id = node_id
        self.topics: dict[str, FakeTopic] = {}
        self.last_change = 0
        self.overloaded = False
        self.refuse_next: RequestError | StoreError | None = None
        self.published: list[tuple[str, bytes]] = []
        self.commands: list[int] = []
        self.dirty: dict[Channel, None] = {}
        self.on_work: Callable[[], None] = lambda: None
        self.offset = 0
        self._now_ms = now_ms
        self._max_channel_consumers = max_channel_consumers
        self._channels: dict[Subscription, Channel] = {}

    def ensure_topic(self, name: str) -> FakeTopic:
        if name not in self.topics:
            self.topics[name] = FakeTopic(name)
            self.last_change = self._step()
        return self.topics[name]

    def ensure_channel(self, topic: FakeTopic, name: str) -> Channel:
        if name not in topic.channels:
            channel = Channel(name, topic.name, node_id=self.node_id)
            channel.add_queue(topic.queue, topic.queue.min_offset if not topic.channels else topic.queue.next_offset)
            topic.channels[name] = channel
            self.last_change = self._step()
        return topic.channels[name]

    def made_at(self, topic: FakeTopic, channel: Channel | None = None) -> int:
        return self.last_change

    def publish(self, batch: PublishBatch) -> int:
        if self.refuse_next is not None:
            error, self.refuse_next = self.refuse_next, None
            raise error
        topics = [self.ensure_topic(name) for name in batch.destinations]
        batch.queues = [topic.queue for topic in topics]
        for topic in topics:
            topic.log.append(batch, self._now_ms())
            for channel in topic.channels.values():
                self.touch_channel(channel)
        return self._step()

    def subscribe(
        self, topic: FakeTopic, channel: Channel, owner: object, *, msg_timeout_ms: int, sample_rate: int
    ) -> Subscription:
        limit = self._max_channel_consumers
        if limit and len(channel.subscriptions) >= limit:
            raise TooManyConsumersError(topic.name, channel.name, limit)
        subscription = channel.subscribe(owner, msg_timeout_ms, sample_rate)
        self._channels[subscription] = channel
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._channels.pop(subscription).unsubscribe(subscription)

    def delete_channel(self, topic: str, channel: str) -> None:
        gone = self.topics[topic].channels.pop(channel)
        owners: list[Any] = [subscription.owner for subscription in gone.subscriptions]
        for owner in owners:
            owner.closed_by_broker("channel deleted")

    def touch_channel(self, channel: Channel) -> None:
        if not self.dirty:
            self.on_work()
        self.dirty[channel] = None

    def take_dirty(self) -> list[Channel]:
        dirty, self.dirty = list(self.dirty), {}
        return dirty

    def _step(self) -> int:
        self.offset += 100
        return self.offset
