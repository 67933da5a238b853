"""The broker core: topics, channels, publishing, timers. Knows no protocol and no socket, and never waits.

Calls come in with decoded batches and go out as effects: ``on_work`` asks for a dispatch, replies that must wait for
the disk wait in ``gate``. Changes to what exists are control records in the log, written before the live
objects follow (``control``). What each channel has delivered and finished is in the journal, at most
``journal_interval_ms`` behind (``state_writer``); time-outs and delays are on one heap (``timers``).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from typing import Protocol

from headrace.batch import PublishBatch
from headrace.broker.catalog import ChannelEntry, TopicEntry
from headrace.broker.channel import Channel, Subscription
from headrace.broker.control import ControlRecords
from headrace.broker.state_writer import StateWriter
from headrace.broker.timers import ChannelTimers
from headrace.broker.topic import Topic
from headrace.clock import Clock
from headrace.errors import (
    ChannelNotFoundError,
    InvalidNameError,
    QuotaExceededError,
    StoreError,
    TooManyConsumersError,
    TopicNotFoundError,
)
from headrace.settings import BrokerSettings
from headrace.store.consume_queue import ConsumeQueue, QueueBase
from headrace.store.gate import Gate
from headrace.store.memory_log import MemoryLog, MemoryQueue
from headrace.store.store import Store

logger = logging.getLogger(__name__)

EPHEMERAL_SUFFIX = "#ephemeral"

_FLUSH_AT_BYTES = 8 << 20
"""Unflushed bytes at which a flush begins before its time: many small ones beside the loop take less from publishers
than one large one that they have to wait for at ``max_unflushed_bytes``."""


class Owner(Protocol):
    """Whoever holds a subscription: a protocol's connection."""

    def closed_by_broker(self, reason: str) -> None:
        """The channel was deleted: close."""


@dataclass
class BrokerCounters:
    """Events since the broker was opened."""

    channels_deleted: int = 0
    topics_deleted: int = 0
    evicted_ephemeral: int = 0
    clamped_positions: int = 0
    # What channels that no longer exist had counted, so that totals never fall.
    delivered_before: int = 0


def derive_node_id(host_name: str) -> int:
    """Return the node id that nsqd makes of a host's name (nsq.md 1.1)."""
    return zlib.crc32(md5(host_name.encode(), usedforsecurity=False).digest()) % 1024


class Broker:
    """All topics of one store. ``open`` makes one; the node then calls ``tick`` about every 50 ms."""

    def __init__(
        self, store: Store, settings: BrokerSettings, clock: Clock, *, host_name: str, max_msg_timeout_ms: int
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.node_id = settings.node_id if settings.node_id >= 0 else derive_node_id(host_name)
        self.name = settings.name or host_name
        self.topics: dict[str, Topic] = {}
        self.counters = BrokerCounters()
        self.on_work: Callable[[], None] = lambda: None
        self.on_relief: Callable[[], None] = lambda: None
        self.max_channel_consumers = 0
        self._max_msg_timeout_ms = max_msg_timeout_ms
        self._keys: dict[Channel, int] = {}
        self._channel_of: dict[Subscription, Channel] = {}
        self._dirty: dict[Channel, None] = {}
        self._was_overloaded = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-journal")
        self._timers = ChannelTimers(clock)
        self._control = ControlRecords(store, self._executor, clock)
        self._states = StateWriter(
            store.directory.channels, self._keys, self._executor, clock, settings.journal_interval_ms
        )
        store.on_durable = self._log_flushed
        store.on_warm = self._log_warmed

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        store: Store,
        settings: BrokerSettings,
        clock: Clock,
        *,
        host_name: str = "localhost",
        max_msg_timeout_ms: int = 900_000,
    ) -> Broker:
        """Build topics and channels from the store's control records and the journal.

        Args:
            host_name: What node id and name are made of where the settings leave them open.

        Raises:
            SideFileError: the catalog is damaged and the log no longer reaches back to its beginning.
            StoreError: clamped channel positions cannot be noted; a start that forgets them would lose messages.
        """
        broker = cls(store, settings, clock, host_name=host_name, max_msg_timeout_ms=max_msg_timeout_ms)
        for name, entry in broker._control.catalog.topics.items():
            broker._revive_topic(name, entry)
        broker._adopt_unnamed_topics()
        broker._states.drop_histories()
        broker._states.write()
        if broker._states.errors and broker.counters.clamped_positions:
            # Unclamped, the old positions would pass over what is published from now on, at the next start.
            raise StoreError(
                f"cannot write to {store.directory.channels} that channel positions beyond the log were clamped: "
                "free space on its file system and start again"
            )
        broker._states.sync()
        return broker

    def _revive_topic(self, name: str, entry: TopicEntry) -> None:
        queues = [self.store.queue(name, queue_id) for queue_id in range(entry.queues)]
        topic = Topic(name, queues, ephemeral=False, paused=entry.paused, frozen=entry.frozen)
        if topic.frozen is not None:
            topic.frozen = self._clamp(name, queues, topic.frozen)
        self.topics[name] = topic
        for channel_name, channel_entry in entry.channels.items():
            self._revive_channel(topic, channel_name, channel_entry)
        topic.limit_channels()

    def _clamp(self, topic: str, queues: list[ConsumeQueue], positions: list[int]) -> list[int]:
        """Bring positions that lie beyond the end of their queues back to it."""
        clamped = [min(at, queue.next_offset) for queue, at in zip(queues, positions, strict=True)]
        if clamped != positions:
            self.counters.clamped_positions += 1
            logger.warning("positions beyond the log clamped topic=%s positions=%s to=%s", topic, positions, clamped)
        return clamped

    def _revive_channel(self, topic: Topic, name: str, entry: ChannelEntry) -> None:
        channel = self._new_channel(topic, name, entry.key, ephemeral=False)
        history = self._states.take_history(entry.key)
        if history is not None:
            channel.restore(history.snapshot, history.changes, now_ms=self.clock.now_ms())
        channel.paused = entry.paused
        for queue, start in zip(topic.queues, entry.start, strict=True):
            dropped = channel.add_queue(queue, min(start, queue.next_offset))
            if dropped:
                self.counters.clamped_positions += dropped
                logger.warning(
                    "channel positions beyond the log dropped topic=%s channel=%s count=%d", topic.name, name, dropped
                )
        for gap_start, gap_end in entry.gaps:
            for queue, first, last in zip(topic.queues, gap_start, gap_end, strict=True):
                channel.skip_range(queue.queue_id, first, min(last, queue.next_offset))
        if entry.empty_below:
            channel.empty({queue.queue_id: at for queue, at in zip(topic.queues, entry.empty_below, strict=True)})
        self._attach(topic, channel, entry.key)
        self._states.look_at(channel)

    def _adopt_unnamed_topics(self) -> None:
        """Bring back topics whose messages are in the log but whose creation record was lost."""
        for (name, queue_id), queue in sorted(self.store.queues.items()):
            if name.startswith("%SYS%") or name in self.topics or name in self._control.catalog.deleted:
                continue
            if queue.next_offset == 0 or queue_id != 0:
                continue
            logger.warning("topic brought back from its messages topic=%s", name)
            count = 1 + max(other for topic, other in self.store.queues if topic == name)
            start = [self.store.queue(name, number).min_offset for number in range(count)]
            self._create_topic(name, start)

    # -- lookup -----------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """Where replies wait for durability."""
        return self.store.gate

    @property
    def overloaded(self) -> bool:
        """Whether so much awaits the disk that publishers must not be read from; ``on_relief`` says when it ends.

        Never after a failed flush: publishers are read from to be told.
        """
        return self.store.failure is None and self.store.unflushed_bytes >= self.store.settings.max_unflushed_bytes

    def find_topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def find_channel(self, topic: str, channel: str) -> Channel:
        """Return a channel.

        Raises:
            TopicNotFoundError, ChannelNotFoundError: there is none of that name.
        """
        found = self.find_topic(topic).channels.get(channel)
        if found is None:
            raise ChannelNotFoundError(topic, channel)
        return found

    # -- creating and deleting --------------------------------------------------------------------------------------

    @property
    def last_change(self) -> int:
        """Physical offset that an answered creation or deletion has to wait for."""
        return self._control.last_change

    def ensure_topic(self, name: str) -> Topic:
        """Return a topic, made now if it does not exist; ``last_change`` says what to wait for."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if not name or name.startswith("%SYS%"):
            raise InvalidNameError(name, "empty, or reserved for the broker")
        if len(self.topics) >= self.settings.max_topics:
            raise QuotaExceededError(
                f"the broker has its limit of {self.settings.max_topics} topics (broker.max_topics)"
            )
        if name.endswith(EPHEMERAL_SUFFIX):
            log = MemoryLog(self.settings.ephemeral_messages, self.settings.ephemeral_bytes)
            topic = Topic(name, [MemoryQueue(name, 0, log)], ephemeral=True, paused=False, frozen=[0])
            self.topics[name] = topic
            return topic
        return self._create_topic(name, [self.store.queue(name, 0).next_offset])

    def _create_topic(self, name: str, start: list[int]) -> Topic:
        self._control.write({"op": "create_topic", "topic": name, "queues": len(start), "start": start})
        queues = [self.store.queue(name, queue_id) for queue_id in range(len(start))]
        topic = Topic(name, queues, ephemeral=False, paused=False, frozen=start)
        self.topics[name] = topic
        logger.info("topic created topic=%s", name)
        return topic

    def ensure_channel(self, topic: Topic, name: str) -> Channel:
        """Return a channel of a topic, made now if it does not exist.

        The first channel begins at the topic's hold position, a later one at what is published from now on.
        """
        channel = topic.channels.get(name)
        if channel is not None:
            return channel
        if len(self._keys) >= self.settings.max_channels:
            raise QuotaExceededError(
                f"the broker has its limit of {self.settings.max_channels} channels (broker.max_channels)"
            )
        start = topic.fan_out()
        ephemeral = topic.ephemeral or name.endswith(EPHEMERAL_SUFFIX)
        key = -1
        if not ephemeral:
            key = self._control.write({"op": "create_channel", "topic": topic.name, "channel": name, "start": start})
        if not topic.paused:
            topic.frozen = None
        channel = self._new_channel(topic, name, key, ephemeral=ephemeral)
        for queue, at in zip(topic.queues, start, strict=True):
            channel.add_queue(queue, at)
        self._attach(topic, channel, key)
        topic.limit_channel(channel)
        if not ephemeral:
            logger.info("channel created topic=%s channel=%s", topic.name, name)
        return channel

    def _new_channel(self, topic: Topic, name: str, key: int, *, ephemeral: bool) -> Channel:
        return Channel(
            name,
            topic.name,
            node_id=self.node_id,
            ephemeral=ephemeral,
            max_msg_timeout_ms=self._max_msg_timeout_ms,
            max_deferred_in_memory=self.settings.max_deferred_in_memory,
            seed=key & 0xFFFFFFFF,
            spill_directory=None if key < 0 else self.store.directory.channels / f"{key:020d}",
        )

    def _attach(self, topic: Topic, channel: Channel, key: int) -> None:
        topic.channels[channel.name] = channel
        self._keys[channel] = key
        self._timers.look_at(channel)

    def delete_topic(self, name: str) -> int:
        """Delete a topic and its channels; return the offset to wait for."""
        topic = self.find_topic(name)
        if not topic.ephemeral:
            self._control.write({"op": "delete_topic", "topic": name})
        for channel in list(topic.channels.values()):
            self._detach(topic, channel, "topic deleted")
        del self.topics[name]
        self.counters.topics_deleted += 1
        logger.info("topic deleted topic=%s", name)
        return self.last_change

    def delete_channel(self, topic_name: str, name: str) -> int:
        """Delete a channel and close its consumers' connections; return the offset to wait for."""
        channel = self.find_channel(topic_name, name)
        self._drop_channel(self.topics[topic_name], channel, "channel deleted")
        return self.last_change

    def _drop_channel(self, topic: Topic, channel: Channel, reason: str) -> None:
        frozen = topic.frozen
        if frozen is None and len(topic.channels) == 1:
            frozen = topic.ends()
        if not channel.ephemeral:
            noted = self._lasting(topic, frozen, without=channel)
            change = {"op": "delete_channel", "topic": topic.name, "channel": channel.name, "frozen": noted}
            self._control.write(change)
            logger.info("channel deleted topic=%s channel=%s", topic.name, channel.name)
        elif not topic.ephemeral and frozen is not topic.frozen:
            try:
                self._control.write({"op": "freeze_topic", "topic": topic.name, "frozen": frozen})
            except StoreError as error:
                # It goes all the same: its last consumer is gone. The catalog has the topic frozen further back.
                logger.warning("end of an ephemeral channel not noted, a start would redeliver error=%s", error)
        topic.frozen = frozen
        self._detach(topic, channel, reason)
        if topic.ephemeral and not topic.channels:
            del self.topics[topic.name]

    @staticmethod
    def _lasting(topic: Topic, frozen: list[int] | None, without: Channel | None = None) -> list[int] | None:
        """Return the frozen position as a start must find it: ephemeral channels do not come back.

        A topic without a durable channel holds what is published; only this process knows what an ephemeral one read.
        """
        if frozen is None and all(channel.ephemeral or channel is without for channel in topic.channels.values()):
            return topic.ends()
        return frozen

    def _detach(self, topic: Topic, channel: Channel, reason: str) -> None:
        """Forget a channel: its state, timers and consumers."""
        del topic.channels[channel.name]
        key = self._keys.pop(channel)
        self._dirty.pop(channel, None)
        self._timers.forget(channel)
        self._states.forget(channel, key)
        owners = [subscription.owner for subscription in channel.subscriptions]
        for subscription in channel.subscriptions:
            self._channel_of.pop(subscription, None)
        self.counters.channels_deleted += 1
        self.counters.delivered_before += sum(subscription.message_count for subscription in channel.subscriptions)
        channel.close()
        for owner in owners:
            owner.closed_by_broker(reason)  # type: ignore[attr-defined]  # an Owner: subscribe() takes nothing else

    def pause_topic(self, name: str, paused: bool) -> int:
        """Stop or resume the flow from a topic to its channels; return the offset to wait for."""
        topic = self.find_topic(name)
        if topic.paused != paused:
            frozen = topic.fan_out() if paused or not topic.channels else None
            if not topic.ephemeral:
                noted = self._lasting(topic, frozen)
                self._control.write({"op": "pause_topic", "topic": name, "paused": paused, "frozen": noted})
            topic.paused, topic.frozen = paused, frozen
            topic.limit_channels()
            self._touch_topic(topic)
        return self.last_change

    def empty_topic(self, name: str) -> int:
        """Drop what waits in the topic itself; return the offset to wait for."""
        topic = self.find_topic(name)
        if topic.frozen is not None and topic.depth:
            ends = topic.ends()
            if not topic.ephemeral:
                self._control.write({"op": "empty_topic", "topic": name, "frozen": ends})
            self._skip(topic, topic.frozen, ends)
            topic.frozen = ends
            topic.limit_channels()
        return self.last_change

    def _skip(self, topic: Topic, start: list[int], end: list[int]) -> None:
        """Have the channels of a paused topic pass over a range that was dropped before it was theirs."""
        for channel in topic.channels.values():
            for queue, first, last in zip(topic.queues, start, end, strict=True):
                channel.skip_range(queue.queue_id, first, last)
            self._states.look_at(channel)

    def pause_channel(self, topic_name: str, name: str, paused: bool) -> int:
        """Stop or resume delivery of a channel; return the offset to wait for."""
        channel = self.find_channel(topic_name, name)
        if channel.paused != paused:
            if not channel.ephemeral:
                self._control.write({"op": "pause_channel", "topic": topic_name, "channel": name, "paused": paused})
            channel.paused = paused
            self.touch_channel(channel)
        return self.last_change

    def empty_channel(self, topic_name: str, name: str) -> int:
        """Drop everything a channel has: ready, in flight and deferred; return the offset to wait for."""
        channel = self.find_channel(topic_name, name)
        topic = self.topics[topic_name]
        limits = topic.fan_out()
        if not channel.ephemeral:
            self._control.write({"op": "empty_channel", "topic": topic_name, "channel": name, "below": limits})
        channel.empty({queue.queue_id: at for queue, at in zip(topic.queues, limits, strict=True)})
        self.touch_channel(channel)
        return self.last_change

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, batch: PublishBatch) -> int:
        """Append a batch, all or nothing; its ``destinations`` are valid topic names, made if they do not exist.

        Returns:
            The physical offset that must be durable before the publisher is answered; 0 to answer at once.

        Raises:
            StoreFullError, FlushError, StoreClosedError, MessageTooLargeError, QuotaExceededError: nothing of the
                batch was appended.
        """
        topics = [self.topics.get(name) or self.ensure_topic(name) for name in batch.destinations]
        batch.queues = [topic.pick_queue() for topic in topics]
        end = self.store.append(batch)
        wait = 0
        for topic, queue, (messages, size) in zip(topics, batch.queues, batch.totals(), strict=True):
            topic.message_count += messages
            topic.message_bytes += size
            if topic.ephemeral:
                self.counters.evicted_ephemeral += queue.log.append(batch, self.clock.now_ms())
            elif queue.awaits_flush:
                wait = end
            if not queue.awaits_flush:
                self._touch_topic(topic)
        delayed = batch.delayed()
        if delayed:
            self._defer_when_visible(topics, batch.queues, delayed, wait)
        if self.overloaded:
            self._was_overloaded = True
        if wait or self._was_overloaded or self.store.unflushed_bytes >= _FLUSH_AT_BYTES:
            self.store.request_flush()
        return wait

    def _defer_when_visible(
        self, topics: list[Topic], queues: list[QueueBase], delayed: list[tuple[int, int, int, int]], wait: int
    ) -> None:
        """Move delayed messages to their channels' deferred sets as soon as readers may see them."""

        def defer(failure: object) -> None:
            if failure is not None:
                return
            now_ms = self.clock.now_ms()
            for destination, queue_offset, physical_offset, due_ms in delayed:
                for channel in topics[destination].channels.values():
                    channel.defer(queues[destination].queue_id, queue_offset, physical_offset, due_ms, now_ms)
                    self._timers.look_at(channel)

        self.gate.wait(wait, defer)

    # -- consuming --------------------------------------------------------------------------------------------------

    def subscribe(
        self, topic: Topic, channel: Channel, owner: Owner, *, msg_timeout_ms: int, sample_rate: int = 0
    ) -> Subscription:
        """Add a consumer to a channel.

        Raises:
            TooManyConsumersError: the channel has ``max_channel_consumers`` already.
        """
        if self.max_channel_consumers and len(channel.subscriptions) >= self.max_channel_consumers:
            raise TooManyConsumersError(topic.name, channel.name, self.max_channel_consumers)
        subscription = channel.subscribe(owner, msg_timeout_ms, sample_rate)
        self._channel_of[subscription] = channel
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a consumer; an ephemeral channel goes with its last one."""
        channel = self._channel_of.pop(subscription, None)
        if channel is None:
            return
        self.counters.delivered_before += subscription.message_count
        channel.unsubscribe(subscription)
        self.touch_channel(channel)
        if channel.ephemeral and channel.name.endswith(EPHEMERAL_SUFFIX) and not channel.subscriptions:
            self._drop_channel(self.topics[channel.topic_name], channel, "last consumer left")

    def touch_channel(self, channel: Channel) -> None:
        """Note that something about a channel changed: it may have something to deliver, journal or time."""
        self._states.look_at(channel)
        self._timers.look_at(channel)
        if channel not in self._dirty:
            self._dirty[channel] = None
            self.on_work()

    def _touch_topic(self, topic: Topic) -> None:
        for channel in topic.channels.values():
            if channel not in self._dirty:
                self._dirty[channel] = None
                self.on_work()

    def take_dirty(self) -> list[Channel]:
        """Return the channels that may have something to deliver and forget them."""
        dirty, self._dirty = self._dirty, {}
        channels = [channel for channel in dirty if channel in self._keys]
        for channel in channels:
            self._states.look_at(channel)
            self._timers.look_at(channel)
        return channels

    def _log_flushed(self, grown_queues: list[ConsumeQueue]) -> None:
        for queue in grown_queues:
            if queue.owner is not None:
                self._touch_topic(queue.owner)
        if self._was_overloaded and not self.overloaded:
            self._was_overloaded = False
            self.on_relief()

    def _log_warmed(self) -> None:
        """Cold records were read in: channels that stopped at one go on."""
        for channel in self._keys:
            if channel.stopped_cold:
                self.touch_channel(channel)

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: time-outs, delays, journal, catalog. Call about every 50 ms."""
        for channel in self._timers.expire():
            self.touch_channel(channel)
        self._states.tick()
        self._control.tick(len(self._keys))

    def wait_for_journal(self) -> None:
        """Return when what ``tick`` gave to the journal's thread is done. Blocks: for tools and tests."""
        self._executor.submit(lambda: None).result()

    @property
    def journal_errors(self) -> int:
        """Writes of the journal that failed: a crash would redeliver."""
        return self._states.errors

    @property
    def catalog_errors(self) -> int:
        """Times the catalog could not be saved: a start reads more of the log."""
        return self._control.errors

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write down the state of every channel and the catalog. Blocks; the store is closed after it."""
        self._executor.shutdown(wait=True)
        try:
            if self.store.failure is None:
                self.store.flush()
                self._write_last_state()
        finally:
            self._states.close()
            for channel in self._keys:
                channel.close()

    def _write_last_state(self) -> None:
        """Save everything in full, so that the next start reads little."""
        try:
            self._states.write_all()
            self._control.save()
        except (StoreError, OSError) as error:
            logger.error("last state not written, some messages will be redelivered error=%s", error)
