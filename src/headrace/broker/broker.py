"""The broker core: topics, channels, publishing, timers. Knows no protocol and no socket, and never waits.

Calls come in with decoded batches and go out as effects: ``on_work`` asks for a dispatch, replies that must wait for
the disk wait in ``gate``. Changes to what exists are control records in the log, written before the live objects
follow (``control``); ``topic_table`` and ``channel_table`` keep what exists. What each channel has delivered and
finished is in the journal, at most ``journal_interval_ms`` behind (``journal_writer``); time-outs and delays are on one
heap (``timers``).

What consumer groups need beside is no part of this class: ``tickers`` run on its clock, ``queue_listeners`` hear of
new messages.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import md5
from typing import Protocol

from headrace.batch import PublishBatch
from headrace.broker.channels.channel import Channel, Subscription
from headrace.broker.channels.channel_table import MAX_RELEASED, ChannelTable, Owner
from headrace.broker.channels.journal_writer import JournalWriter
from headrace.broker.control import ControlRecords
from headrace.broker.core import BrokerCounters, Core
from headrace.broker.data_version import DataVersion
from headrace.broker.topic import Topic, TopicConfig
from headrace.broker.topic_table import TopicTable
from headrace.clock import Clock
from headrace.errors import InvalidNameError, StoreError, TooManyConsumersError
from headrace.format.names import INTERNAL_TOPICS, READ_ONLY_TOPICS
from headrace.settings import BrokerSettings
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.gate import Gate
from headrace.store.queue_base import QueueBase
from headrace.store.store import Store
from headrace.threads import Threads

logger = logging.getLogger(__name__)

_UNPUBLISHED = INTERNAL_TOPICS | READ_ONLY_TOPICS
"""Topics that nobody but the broker writes to."""

_FLUSH_AT_BYTES = 8 << 20
"""Unflushed bytes at which a flush begins before its time: many small ones beside the loop take less from publishers
than one large one that they have to wait for at ``max_unflushed_bytes``."""


class Ticker(Protocol):
    """A part of the broker with a rhythm of its own, such as delayed delivery."""

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (ms since 1970)."""

    def close(self) -> None:
        """Write down what the next start needs. The store still takes writes."""


def derive_node_id(host_name: str) -> int:
    """Return the node id that nsqd makes of a host's name (nsq.md 1.1)."""
    return zlib.crc32(md5(host_name.encode(), usedforsecurity=False).digest()) % 1024


class Broker:
    """All topics of one store. ``open`` makes one; the node then calls ``tick`` about every 50 ms.

    Attributes:
        on_topics_changed: Called with the name of a lasting topic that was made, configured or deleted.
        deletion_listeners: Called with a topic when it was deleted, by whichever protocol.
        presence_listeners: Called with a topic that was made or deleted, in memory or lasting, and an empty text; or
            with one whose channel was, and its name. They only note it: who asked for the change is still at it.
        queue_listeners: Called with each queue of a topic that has new entries which readers may see.
        warm_listeners: Called when records that were not in memory have been read in: try again what stopped at one.
        tickers: Get their ``tick`` with the broker's, and their ``close`` before its own.
    """

    def __init__(
        self, store: Store, settings: BrokerSettings, clock: Clock, *, host_name: str, max_msg_timeout_ms: int
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.node_id = settings.node_id if settings.node_id >= 0 else derive_node_id(host_name)
        self.name = settings.name or host_name
        self.counters = BrokerCounters()
        self.on_work: Callable[[], None] = lambda: None
        self.on_relief: Callable[[], None] = lambda: None
        self.on_topics_changed: Callable[[str], None] = lambda name: None
        self.deletion_listeners: list[Callable[[Topic], None]] = []
        self.presence_listeners: list[Callable[[Topic, str], None]] = []
        self.queue_listeners: list[Callable[[QueueBase], None]] = []
        self.warm_listeners: list[Callable[[], None]] = []
        self.tickers: list[Ticker] = []
        self.max_channel_consumers = 0
        self._was_overloaded = False
        self._executor = Threads("headrace-journal")
        self._control = ControlRecords(store, self._executor, clock)
        core = Core(store, settings, clock, self._control, self.counters, self.node_id, max_msg_timeout_ms)
        self._table = TopicTable(core, lambda name: self.on_topics_changed(name), self._tell_presence)
        self.topics = self._table.topics
        self._states = JournalWriter(store.directory.channels, self._executor, clock, settings.journal_interval_ms)
        self._channels = ChannelTable(core, self._table, self._states, lambda: self.on_work())
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
        system_topics: Mapping[str, TopicConfig] | None = None,
    ) -> Broker:
        """Build topics and channels from the store's control records and the journal.

        Args:
            host_name: What node id and name are made of where the settings leave them open.
            system_topics: Topics that are there from the start, as ``add_system_topic`` adds them. Those whose names
                depend on settings must be named here: else one that has messages is taken for a lost ordinary topic.

        Raises:
            SideFileError: the catalog is damaged and the log no longer reaches back to its beginning.
            StoreError: clamped channel positions cannot be noted; a start that forgets them would lose messages.
        """
        broker = cls(store, settings, clock, host_name=host_name, max_msg_timeout_ms=max_msg_timeout_ms)
        for name, entry in broker._control.catalog.topics.items():
            topic = broker._table.revive(name, entry)
            for channel_name, channel_entry in entry.channels.items():
                broker._channels.revive(topic, channel_name, channel_entry)
            topic.limit_channels()
        if broker._states.lacks_beginning and broker._states.keys:
            logger.warning(
                "channel snapshot missing path=%s channels=%d effect=%s",
                store.directory.channels / "snapshot", len(broker._states.keys), "messages are delivered again",
            )  # fmt: skip
        for name, config in (system_topics or {}).items():
            broker.add_system_topic(name, config)
        broker._table.adopt_unnamed()
        broker._table.hide_former()
        broker._states.drop_histories()
        broker._channels.remove_left_over()
        broker._states.write()
        if broker._states.errors and broker.counters.clamped_positions:
            # Unclamped, the old positions would pass over what is published from now on, at the next start.
            raise StoreError(
                f"cannot write to {store.directory.channels} that channel positions beyond the log were clamped: "
                "free space on its file system and start again"
            )
        broker._states.sync()
        return broker

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
        return self._table.find(name)

    @property
    def topic_version(self) -> DataVersion:
        """Rises with each lasting topic that is made, configured or deleted."""
        return self._table.version

    def creation_of(self, topic: Topic) -> int:
        """Return which creation of its name a topic is: it changes when the topic is deleted and made again."""
        return self._table.creation_of(topic)

    def is_former(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether what a producer stored is gone with a former topic of that name (``TopicTable``)."""
        return self._table.is_former(topic, queue_id, offset)

    def due_of_present(self, topic: str, due_ms: int) -> int:
        """Return when what waits for a topic is due, never before the topic was made (``TopicTable``)."""
        return self._table.due_of_present(topic, due_ms)

    def is_whole(self, queue: QueueBase) -> bool:
        """Return whether a queue has everything published to it since its topic was made, or made again."""
        return self._table.is_whole(queue)

    def made_at(self, topic: Topic, channel: Channel | None = None) -> int:
        """Return the offset to wait for before a topic, or a channel of it, is answered as made."""
        return max(self._table.creation_of(topic), 0 if channel is None else self._channels.creation_of(channel))

    def find_channel(self, topic: str, channel: str) -> Channel:
        """Return a channel.

        Raises:
            TopicNotFoundError, ChannelNotFoundError: there is none of that name.
        """
        return self._channels.find(topic, channel)

    # -- creating and deleting --------------------------------------------------------------------------------------

    @property
    def last_change(self) -> int:
        """Physical offset that an answered change of what topics and channels exist has to wait for."""
        return self._control.last_change

    def ensure_topic(self, name: str) -> Topic:
        """Return a topic, made now with one queue if it does not exist; ``made_at`` says what to wait for.

        Raises:
            InvalidNameError: no topic can be called so, or it is the broker's own.
            QuotaExceededError: the broker has all the topics it may have.
        """
        self._require_public((name,))
        return self._table.ensure(name)

    @staticmethod
    def _require_public(names: Iterable[str]) -> None:
        """Refuse internal topics: a record there decides transactions, a reader takes what waits for its time."""
        if not INTERNAL_TOPICS.isdisjoint(names):
            raise InvalidNameError(next(name for name in names if name in INTERNAL_TOPICS), "the broker's own topic")

    def create_topic(self, name: str, config: TopicConfig) -> Topic:
        """Return a topic, made now as configured if it does not exist; ``last_change`` says what to wait for.

        Raises:
            RequestError: it cannot be made so.
        """
        return self._table.create(name, config)

    def configure_topic(self, name: str, config: TopicConfig) -> int:
        """Configure a topic, made now if it does not exist; return the offset to wait for.

        It never loses a queue; channels get a new one from its start on.

        Raises:
            RequestError: it cannot be configured so.
        """
        wait = self._table.configure(name, config)
        for channel in self.topics[name].channels.values():
            self._states.look_at(channel)
        return wait

    def add_system_topic(self, name: str, config: TopicConfig) -> Topic:
        """Return a topic that the broker has from the start, without a control record; listings may hide it."""
        return self._table.add_system(name, config)

    def ensure_channel(self, topic: Topic, name: str, *, from_start: bool = False, logged: bool = True) -> Channel:
        """Return a channel of a topic, made now if it does not exist.

        The first channel begins at the topic's hold position, a later one at what is published from now on. ``made_at``
        says what to wait for.

        Args:
            from_start: It begins where the topic did, though others were made before it.
            logged: The log has a line of it; False where the caller writes one for many.
        """
        return self._channels.ensure(topic, name, from_start=from_start, logged=logged)

    def delete_topic(self, name: str) -> int:
        """Delete a topic and its channels; return the offset to wait for."""
        topic = self.find_topic(name)
        self._table.require_deletable(topic)
        self._table.write_deletion(topic)
        owners = [owner for channel in list(topic.channels.values()) for owner in self._channels.detach(topic, channel)]
        self._channels.forget_delayed(topic)
        self._table.forget(topic)
        self.counters.topics_deleted += 1
        logger.info("topic deleted topic=%s", name)
        for listener in self.deletion_listeners:
            self._run(partial(listener, topic))
        self._channels.send_away(owners, "topic deleted")
        return self.last_change

    def delete_channel(self, topic_name: str, name: str) -> int:
        """Delete a channel and close its consumers' connections; return the offset to wait for."""
        self._channels.drop(self.find_channel(topic_name, name), "channel deleted")
        return self.last_change

    def pause_topic(self, name: str, paused: bool) -> int:
        """Stop or resume the flow from a topic to its channels; return the offset to wait for."""
        topic = self.find_topic(name)
        if topic.paused != paused:
            self._table.promote(topic)
            frozen = topic.fan_out() if paused or not topic.channels else None
            if not topic.ephemeral:
                noted = topic.lasting(frozen)
                self._control.write({"op": "pause_topic", "topic": name, "paused": paused, "frozen": noted})
            topic.paused, topic.frozen = paused, frozen
            topic.limit_channels()
            self._channels.release_delayed(topic)
            self._channels.touch_topics([topic])
        return self.last_change

    def empty_topic(self, name: str) -> int:
        """Drop what waits in the topic itself; return the offset to wait for."""
        topic = self.find_topic(name)
        if topic.frozen is not None and topic.depth:
            self._table.promote(topic)
            ends = topic.ends()
            if not topic.ephemeral:
                self._control.write({"op": "empty_topic", "topic": name, "frozen": ends})
            self._skip(topic, topic.frozen, ends)
            topic.frozen = topic.dropped = ends
            topic.limit_channels()
            self._channels.forget_delayed(topic)
        return self.last_change

    def _tell_presence(self, topic: Topic, channel: str) -> None:
        for listener in self.presence_listeners:
            self._run(partial(listener, topic, channel))

    def _skip(self, topic: Topic, start: list[int], end: list[int]) -> None:
        """Have the channels of a paused topic pass over a range that was dropped before it was theirs."""
        for channel in topic.channels.values():
            for queue, first, last in zip(topic.queues, start, end, strict=True):
                channel.skip_range(queue.queue_id, first, last)
            self._states.look_at(channel)

    def pause_channel(self, topic_name: str, name: str, paused: bool) -> int:
        """Stop or resume delivery of a channel; return the offset to wait for."""
        self._channels.pause(self.find_channel(topic_name, name), paused)
        return self.last_change

    def empty_channel(self, topic_name: str, name: str) -> int:
        """Drop everything a channel has: ready, in flight and deferred; return the offset to wait for."""
        self._channels.empty(self.find_channel(topic_name, name))
        return self.last_change

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, batch: PublishBatch) -> int:
        """Append a batch, all or nothing; its ``destinations`` are valid topic names, made if they do not exist.

        Returns:
            The physical offset that must be durable before the publisher is answered; 0 to answer at once.

        Raises:
            StoreFullError, FlushError, StoreClosedError, MessageTooLargeError, InvalidNameError, QuotaExceededError:
                nothing of the batch was appended.
        """
        if not _UNPUBLISHED.isdisjoint(batch.destinations):
            self._require_public(batch.destinations)
            name = next(name for name in batch.destinations if name in READ_ONLY_TOPICS)
            raise InvalidNameError(name, "only the broker writes to this topic")
        topics = [self.topics.get(name) or self.ensure_topic(name) for name in batch.destinations]
        batch.queues = [topic.pick_queue() for topic in topics]
        return self.publish_placed(batch, topics)

    def publish_placed(
        self, batch: PublishBatch, topics: Sequence[Topic | None], *, is_waited_for: bool = False
    ) -> int:
        """Append a batch, all or nothing, to the queues that the caller chose.

        Args:
            batch: With its ``queues`` set; the queue of an ephemeral topic at most once.
            topics: The topic of each destination; None, as its queue, where the caller refused it.
            is_waited_for: Whether it must be durable whatever its queues say: its messages are on their way to others.

        Returns:
            The physical offset that must be durable before the publisher is answered; 0 to answer at once.

        Raises:
            StoreFullError, FlushError, StoreClosedError, MessageTooLargeError: nothing of the batch was appended.
        """
        end = self.store.append(batch)
        wait = end if is_waited_for else 0
        grown: list[QueueBase] = []
        visible: list[Topic] = []
        for topic, queue, (messages, size) in zip(topics, batch.queues, batch.totals(), strict=True):
            if topic is None:
                continue
            topic.message_count += messages
            topic.message_bytes += size
            if topic.ephemeral:
                self.counters.evicted_ephemeral += queue.log.append(batch, self.clock.now_ms())
            elif queue.awaits_flush:
                wait = end
            if not queue.awaits_flush:
                visible.append(topic)
                grown.append(queue)
        self._channels.touch_topics(visible)
        delayed = batch.delayed()
        if delayed:
            self._defer_when_visible(topics, batch.queues, delayed, wait)
        unflushed_bytes = self.store.unflushed_bytes
        if unflushed_bytes >= self.store.settings.max_unflushed_bytes and self.overloaded:
            self._was_overloaded = True
        if wait or self._was_overloaded:
            self.store.request_flush()
        elif unflushed_bytes >= _FLUSH_AT_BYTES:
            self.store.request_flush(is_waited_for=False)
        if self.queue_listeners and grown:
            self._tell_listeners(grown)
        return wait

    def _tell_listeners(self, grown: Sequence[QueueBase]) -> None:
        """Tell who listens; what was published stays published whatever they do."""
        for listener in self.queue_listeners:
            for queue in grown:
                try:
                    listener(queue)
                except Exception:
                    self.counters.listener_errors += 1
                    logger.exception("listener failed by a bug topic=%s queue_id=%d", queue.topic, queue.queue_id)

    def _defer_when_visible(
        self,
        topics: Sequence[Topic | None],
        queues: list[QueueBase],
        delayed: list[tuple[int, int, int, int]],
        wait: int,
    ) -> None:
        """Move delayed messages to their channels' deferred sets as soon as readers may see them.

        Many of them are deferred by each channel when it reads them: for all at once would hold the loop.
        """
        channels = max((len(topic.channels) for topic in topics if topic is not None), default=0)
        if len(delayed) * channels > MAX_RELEASED:
            return

        def defer(failure: object) -> None:
            if failure is not None:
                return
            for destination, queue_offset, physical_offset, due_ms in delayed:
                topic = topics[destination]
                if topic is not None:
                    self._channels.defer(topic, queues[destination].queue_id, queue_offset, physical_offset, due_ms)

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
        return self._channels.subscribe(channel, owner, msg_timeout_ms, sample_rate)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a consumer; an ephemeral channel goes with its last one."""
        self._channels.unsubscribe(subscription)

    def touch_channel(self, channel: Channel) -> None:
        """Note that something about a channel changed: it may have something to deliver, journal or time."""
        self._channels.touch(channel)

    def hold_channel(self, channel: Channel) -> None:
        """Ask for no dispatch of a channel until ``release_channels``, unless it comes to have many messages."""
        self._channels.hold(channel)

    def release_channels(self) -> None:
        """Hold no channel any more; ask for a dispatch if one of them has something to do."""
        self._channels.release_held()

    def take_dirty(self) -> list[Channel]:
        """Return the channels that may have something to deliver and forget them."""
        return self._channels.take_dirty()

    def _log_flushed(self, grown_queues: list[ConsumeQueue]) -> None:
        grown: list[QueueBase] = [queue for queue in grown_queues if queue.owner is not None]
        self._channels.touch_topics([queue.owner for queue in grown])
        if self.queue_listeners:
            self._tell_listeners(grown)
        if not self.overloaded:  # whether or not a publish saw it: records of changes fill the same bound
            self._was_overloaded = False
            self.on_relief()

    def _log_warmed(self) -> None:
        self._channels.warmed()
        for listener in self.warm_listeners:
            self._run(listener)

    def add_tickers(self, *tickers: Ticker) -> None:
        """Have parts tick, and close at the end, in front of those there are.

        What is made later may write to what was made before it, at the end too: transactions to the table of offsets.
        """
        self.tickers[:0] = tickers

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, read_ms: int | None = None) -> None:
        """Do what is due: time-outs, delays, journal, catalog, services. Call about every 50 ms.

        Args:
            read_ms: Monotonic time; what consumers sent before it has been done. None: now.
        """
        self._channels.expire(read_ms)
        self._channels.note_ephemeral()
        self._states.tick()
        self._control.tick(len(self._channels))
        now_ms = self.clock.now_ms()
        for ticker in self.tickers:
            self._run(partial(ticker.tick, now_ms))

    def _run(self, work: Callable[[], None]) -> None:
        """Call a ticker or a listener; a bug in it must not take the others with it."""
        try:
            work()
        except Exception:
            self.counters.service_errors += 1
            logger.exception("ticker or listener failed by a bug")

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

    def begin_stop(self) -> None:
        """Have consumers leave without ending their ephemeral channels: call it before the servers close connections.

        What such a channel has not finished then waits in the topic after the next start, as after a crash.
        """
        self._channels.is_stopping = True

    def close(self) -> None:
        """Close the services, write down the state of every channel and the catalog. Blocks; then close the store."""
        self.store.look_at_place()
        for ticker in self.tickers:
            self._run(ticker.close)
        self._executor.shutdown(wait=True)
        try:
            if self.store.failure is None:
                self._channels.note_all_ephemeral()
                self.store.flush()
                self._write_last_state()
        finally:
            self._states.close()
            self._channels.close()

    def _write_last_state(self) -> None:
        """Save everything in full, so that the next start reads little."""
        try:
            self._states.write()  # should there be no room for a snapshot, the journal has the last changes
            self._states.write_all()
            self._control.save()
        except (StoreError, OSError) as error:
            logger.error("last state not written, some messages will be redelivered error=%s", error)
