"""The channels of all topics: how they come and go, who consumes them, and which have something to do.

A lasting channel is made by a control record, whose physical offset is its *key*: it names the channel's state in the
journal for ever. Ephemeral channels have the key -1 and no record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from headrace.broker.catalog import ChannelEntry
from headrace.broker.channels.channel import Channel, Subscription
from headrace.broker.channels.journal_writer import JournalWriter
from headrace.broker.channels.spill import remove_left_over
from headrace.broker.channels.timers import ChannelTimers
from headrace.broker.core import Core
from headrace.broker.topic import Topic
from headrace.broker.topic_table import TopicTable
from headrace.errors import ChannelNotFoundError, QuotaExceededError, StoreError
from headrace.format.names import EPHEMERAL_SUFFIX, segment_name

logger = logging.getLogger(__name__)

NOTE_MS: Final = 4_000
"""Between two notes of how far ephemeral channels have read: a FIN older than 5 s survives a kill."""

NOTE_AT_ONCE: Final = 16
"""Topics noted in that time, the others in the next: the log must not fill with such notes."""

NOTE_LOOKS: Final = 128
"""Topics that one tick looks at for it."""


MANY: Final = 64
"""Messages with which a channel is dispatched though it is held."""

MAX_DELAYED: Final = 65_536
"""Delayed messages of which the table knows that they wait in their topics."""

MAX_DELAYED_OF_TOPIC: Final = 4_096

MAX_RELEASED: Final = 65_536
"""Messages times channels that are deferred at once: some ten milliseconds."""


class Owner(Protocol):
    """Whoever holds a subscription: a protocol's connection."""

    def closed_by_broker(self, reason: str) -> None:
        """The channel was deleted: close."""


class ChannelTable:
    """Every channel of one broker."""

    def __init__(self, core: Core, topics: TopicTable, states: JournalWriter, on_work: Callable[[], None]) -> None:
        """Make an empty table.

        Args:
            on_work: Called when a channel comes to have something to do.
        """
        self._core = core
        self._topics = topics
        self._states = states
        self._keys = states.keys
        self._on_work = on_work
        self._timers = ChannelTimers(core.clock)
        self._channel_of: dict[Subscription, Channel] = {}
        self._dirty: dict[Channel, None] = {}
        self._held_channels: set[Channel] = set()  # no dispatch is asked for because of them
        self._ephemeral: dict[Topic, int] = {}  # lasting topics: their ephemeral channels; those noted last at the end
        self._to_note: list[Topic] = []  # still to look at, the next one at the end
        self._notes_left = 0
        self._next_note_ms = 0
        self._delayed: dict[Topic, list[tuple[int, int, int, int]]] = {}  # messages that wait for their topic's flow
        self._delayed_count = 0
        self.is_stopping = False
        """Consumers leave because the broker stops: an ephemeral channel does not go with its last one."""

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, topic: str, channel: str) -> Channel:
        """Return a channel.

        Raises:
            TopicNotFoundError, ChannelNotFoundError: there is none of that name.
        """
        found = self._topics.find(topic).channels.get(channel)
        if found is None:
            raise ChannelNotFoundError(topic, channel)
        return found

    def creation_of(self, channel: Channel) -> int:
        """Return where a lasting channel was made: the physical offset of its creation record, plus 1; 0 of others."""
        return self._keys[channel] + 1

    # -- making -----------------------------------------------------------------------------------------------------

    def revive(self, topic: Topic, name: str, entry: ChannelEntry) -> None:
        """Make a channel of the catalog, with what the journal knows of it."""
        channel = self._new(topic, name, entry.key, ephemeral=False)
        channel.restore(self._states.take_history(entry.key), now_ms=self._core.clock.now_ms())
        channel.paused = entry.paused
        for queue, start in zip(topic.queues, entry.start, strict=True):
            dropped = channel.add_queue(queue, min(start, queue.next_offset))
            if dropped:
                self._core.counters.clamped_positions += dropped
                logger.warning(
                    "channel positions beyond the log dropped topic=%s channel=%s count=%d", topic.name, name, dropped
                )
        if channel.was_cut:
            self._states.replace_all()
        for gap_start, gap_end in entry.gaps:
            for queue, first, last in zip(topic.queues, gap_start, gap_end, strict=True):
                channel.skip_range(queue.queue_id, first, min(last, queue.next_offset))
        if entry.empty_below:
            self._empty(topic, channel, entry.empty_below)
        self._attach(topic, channel, entry.key)
        self._states.look_at(channel)

    def remove_left_over(self) -> None:
        """Delete what files there are of channels that are no more."""
        remove_left_over(self._core.store.directory.channels, self._keys.values())

    def ensure(self, topic: Topic, name: str, *, from_start: bool = False, logged: bool = True) -> Channel:
        """Return a channel of a topic, made now if it does not exist.

        The first channel begins at the topic's hold position, a later one at what is published from now on.

        Args:
            from_start: It begins where the topic did, as if it had been made with it. Of a topic that was emptied,
                behind what was dropped. So does each while it is being found out which ones do.
            logged: The log has a line of it; False where the caller writes one for many.

        Raises:
            QuotaExceededError: the broker has all the channels it may have.
        """
        channel = topic.channels.get(name)
        if channel is not None:
            return channel
        if len(self._keys) >= self._core.settings.max_channels:
            raise QuotaExceededError(
                f"the broker has its limit of {self._core.settings.max_channels} channels (broker.max_channels)"
            )
        self._topics.promote(topic)
        start = topic.beginnings() if from_start or topic.awaited_answers else topic.fan_out()
        ephemeral = topic.ephemeral or name.endswith(EPHEMERAL_SUFFIX)
        key = -1
        if not ephemeral:
            key = self._core.control.write(
                {"op": "create_channel", "topic": topic.name, "channel": name, "start": start}
            )
        if not topic.paused:
            topic.frozen = None
        channel = self._new(topic, name, key, ephemeral=ephemeral)
        for queue, at in zip(topic.queues, start, strict=True):
            channel.add_queue(queue, at)
        self._attach(topic, channel, key)
        topic.limit_channel(channel)
        self.release_delayed(topic)
        if logged and not ephemeral:
            logger.info("channel created topic=%s channel=%s", topic.name, name)
        self._topics.tell_presence(topic, name)
        return channel

    def _new(self, topic: Topic, name: str, key: int, *, ephemeral: bool) -> Channel:
        return Channel(
            name,
            topic.name,
            node_id=self._core.node_id,
            ephemeral=ephemeral,
            max_msg_timeout_ms=self._core.max_msg_timeout_ms,
            max_deferred_in_memory=self._core.settings.max_deferred_in_memory,
            seed=key & 0xFFFFFFFF,
            spill_directory=None if key < 0 else self._core.store.directory.channels / segment_name(key),
        )

    def _attach(self, topic: Topic, channel: Channel, key: int) -> None:
        topic.channels[channel.name] = channel
        self._keys[channel] = key
        if channel.ephemeral and not topic.ephemeral:
            self._ephemeral[topic] = self._ephemeral.get(topic, 0) + 1
        self._timers.look_at(channel)

    # -- ending -----------------------------------------------------------------------------------------------------

    def drop(self, channel: Channel, reason: str) -> None:
        """End a channel and close its consumers' connections; an ephemeral topic goes with its last one."""
        topic = self._topics.find(channel.topic_name)
        frozen = topic.frozen
        if frozen is None and len(topic.channels) == 1:
            frozen = topic.ends()
        if not channel.ephemeral:
            noted = topic.lasting(frozen, without=channel)
            change = {"op": "delete_channel", "topic": topic.name, "channel": channel.name, "frozen": noted}
            self._core.control.write(change)
            logger.info("channel deleted topic=%s channel=%s", topic.name, channel.name)
        elif not topic.ephemeral and frozen is not topic.frozen:
            try:
                self._core.control.write({"op": "freeze_topic", "topic": topic.name, "frozen": frozen})
            except StoreError as error:
                # It goes all the same: its last consumer is gone. The catalog has the topic frozen further back.
                logger.warning("end of an ephemeral channel not noted, a start would redeliver error=%s", error)
        topic.frozen = frozen
        owners = self.detach(topic, channel)
        if topic.ephemeral and not topic.channels:
            self.forget_delayed(topic)
            self._topics.forget(topic)
            self._core.counters.topics_deleted += 1
        self.send_away(owners, reason)

    def detach(self, topic: Topic, channel: Channel) -> list[object]:
        """Forget a channel: its state, timers and consumers; return these, to be sent away."""
        del topic.channels[channel.name]
        topic.consumed.pop(channel, None)
        key = self._keys.pop(channel)
        self._dirty.pop(channel, None)
        if channel in self._held_channels:
            self._held_channels.discard(channel)
            self._on_work()  # whoever touched it counts on a dispatch
        if channel.ephemeral and not topic.ephemeral:
            self._ephemeral[topic] -= 1
            if not self._ephemeral[topic]:
                del self._ephemeral[topic]
        self._timers.forget(channel)
        self._states.forget(channel, key)
        owners = [subscription.owner for subscription in channel.subscriptions]
        for subscription in channel.subscriptions:
            self._channel_of.pop(subscription, None)
        self._core.counters.channels_deleted += 1
        channel.close()
        self._topics.tell_presence(topic, channel.name)
        return owners

    @staticmethod
    def send_away(owners: list[object], reason: str) -> None:
        """Tell consumers that their channel is gone, once all is done: what they have published is published then."""
        for owner in owners:
            owner.closed_by_broker(reason)  # type: ignore[attr-defined]  # an Owner: subscribe() takes nothing else

    def close(self) -> None:
        """Let go of the channels' files."""
        for channel in self._keys:
            channel.close()

    # -- changing ---------------------------------------------------------------------------------------------------

    def pause(self, channel: Channel, paused: bool) -> None:
        """Stop or resume delivery of a channel."""
        if channel.paused != paused:
            if not channel.ephemeral:
                change = {"op": "pause_channel", "topic": channel.topic_name, "channel": channel.name, "paused": paused}
                self._core.control.write(change)
            channel.paused = paused
            self.touch(channel)

    def empty(self, channel: Channel) -> None:
        """Drop everything a channel has: ready, in flight and deferred."""
        topic = self._topics.find(channel.topic_name)
        limits = topic.fan_out()
        if not channel.ephemeral:
            change = {"op": "empty_channel", "topic": topic.name, "channel": channel.name, "below": limits}
            self._core.control.write(change)
        self._empty(topic, channel, limits)
        self.touch(channel)

    def _empty(self, topic: Topic, channel: Channel, below: list[int]) -> None:
        limits = {queue.queue_id: at for queue, at in zip(topic.queues, below, strict=True)}
        channel.empty(limits, now_ms=self._core.clock.now_ms())

    # -- consumers --------------------------------------------------------------------------------------------------

    def subscribe(self, channel: Channel, owner: Owner, msg_timeout_ms: int, sample_rate: int) -> Subscription:
        """Add a consumer to a channel."""
        subscription = channel.subscribe(owner, msg_timeout_ms, sample_rate)
        self._channel_of[subscription] = channel
        self._topics.find(channel.topic_name).consumed[channel] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a consumer; an ephemeral channel goes with its last one."""
        channel = self._channel_of.pop(subscription, None)
        if channel is None:
            return
        channel.unsubscribe(subscription)
        self.touch(channel)
        if channel.subscriptions:
            return
        del self._topics.find(channel.topic_name).consumed[channel]
        if self.is_stopping:
            return
        if channel.ephemeral and channel.name.endswith(EPHEMERAL_SUFFIX):
            self.drop(channel, "last consumer left")

    # -- what there is to do ----------------------------------------------------------------------------------------

    def touch(self, channel: Channel) -> None:
        """Note that something about a channel changed: it may have something to deliver, journal or time."""
        self._states.look_at(channel)
        self._timers.look_at(channel)
        self._mark(channel)

    def touch_topics(self, topics: Iterable[Topic]) -> None:
        """Note that the channels of topics may have something to deliver: those that nobody consumes have not."""
        dirty, held = self._dirty, self._held_channels
        is_new = False
        for topic in topics:
            for channel in topic.consumed:
                if channel in held:
                    self._mark(channel)
                elif channel not in dirty:
                    dirty[channel] = None
                    is_new = True
        if is_new:
            self._on_work()

    def _mark(self, channel: Channel) -> None:
        """Have a channel dispatched, at the end of this turn of the loop or when it is not held any more."""
        if channel in self._held_channels:
            self._dirty[channel] = None
            if channel.depth < MANY:
                return
            self._held_channels.discard(channel)
        elif channel in self._dirty:
            return
        self._dirty[channel] = None
        self._on_work()

    def hold(self, channel: Channel) -> None:
        """Ask for no dispatch of a channel until ``release_held``, unless it comes to have many messages."""
        self._held_channels.add(channel)

    def release_held(self) -> None:
        """Hold no channel any more; ask for a dispatch if one of them has something to do."""
        held, self._held_channels = self._held_channels, set()
        if not held.isdisjoint(self._dirty):
            self._on_work()

    def defer(self, topic: Topic, queue_id: int, queue_offset: int, physical_offset: int, due_ms: int) -> None:
        """Give a message with a delay to the deferred sets of its topic's channels, at once or when its flow begins.

        Not when the topic was deleted while the message was on its way to the disk.
        """
        if self._topics.topics.get(topic.name) is not topic:
            return
        if topic.frozen is not None and self._delayed_count < MAX_DELAYED:
            waiting = self._delayed.setdefault(topic, [])
            if len(waiting) < MAX_DELAYED_OF_TOPIC:
                waiting.append((queue_id, queue_offset, physical_offset, due_ms))
                self._delayed_count += 1
        now_ms = self._core.clock.now_ms()
        for channel in topic.channels.values():
            channel.defer(queue_id, queue_offset, physical_offset, due_ms, now_ms)
            self._timers.look_at(channel)
            self._states.look_at(channel)  # its notes would grow for as long as nobody consumes it

    def release_delayed(self, topic: Topic) -> None:
        """Defer the delayed messages that waited in a topic, if its channels get them from now on.

        It only makes them seen as deferred: a channel that reads one before its time defers it as well.
        """
        if topic.frozen is not None or topic not in self._delayed:
            return
        waiting = self.forget_delayed(topic)
        if len(waiting) * len(topic.channels) > MAX_RELEASED:
            return
        now_ms = self._core.clock.now_ms()
        for channel in topic.channels.values():
            for queue_id, queue_offset, physical_offset, due_ms in waiting:
                if due_ms > now_ms:
                    channel.defer(queue_id, queue_offset, physical_offset, due_ms, now_ms)
            self.touch(channel)

    def forget_delayed(self, topic: Topic) -> list[tuple[int, int, int, int]]:
        """Forget, and return, which delayed messages wait in a topic."""
        waiting = self._delayed.pop(topic, [])
        self._delayed_count -= len(waiting)
        return waiting

    def take_dirty(self) -> list[Channel]:
        """Return the channels that may have something to deliver and forget them."""
        dirty, held = self._dirty, self._held_channels
        self._dirty = {channel: None for channel in held if channel in dirty} if held else {}
        channels = [channel for channel in dirty if channel in self._keys and channel not in held]
        for channel in channels:
            self._states.look_at(channel)
            self._timers.look_at(channel)
        return channels

    def warmed(self) -> None:
        """Cold records were read in: channels that stopped at one go on."""
        for channel in self._keys:
            if channel.stopped_cold:
                self.touch(channel)

    def note_ephemeral(self) -> None:
        """Note how far topics without a lasting channel were read: else a kill brings back all they ever held.

        What an ephemeral channel has not finished waits in its topic after a start; the channel itself is forgotten.
        """
        now = self._core.clock.monotonic_ms()
        if now >= self._next_note_ms:
            self._next_note_ms = now + NOTE_MS
            self._to_note = list(reversed(self._ephemeral))
            self._notes_left = NOTE_AT_ONCE
        looks = min(NOTE_LOOKS, len(self._to_note))
        while looks and self._notes_left:
            looks -= 1
            topic = self._to_note.pop()
            if topic in self._ephemeral and self._note_read(topic):
                self._notes_left -= 1
                self._ephemeral[topic] = self._ephemeral.pop(topic)

    def note_all_ephemeral(self) -> None:
        """Note so of every topic, before a stop."""
        for topic in self._ephemeral:
            self._note_read(topic)

    def _note_read(self, topic: Topic) -> bool:
        """Note how far all channels of a topic have read, if they are ephemeral; return whether there was a need."""
        held = self._core.control.catalog.topics[topic.name].frozen
        read = None if topic.frozen is not None else topic.lasting(None)
        if read is None or held is None:
            return False  # it is paused, or has a lasting channel
        # Never back: below the position that is known may be what was dropped.
        frozen = [max(known, at) for known, at in zip(held, read, strict=True)]
        if frozen == held:
            return False
        try:
            self._core.control.write({"op": "freeze_topic", "topic": topic.name, "frozen": frozen})
        except StoreError as error:
            logger.debug("progress of ephemeral channels not noted topic=%s error=%s", topic.name, error)
        return True

    def expire(self, read_ms: int | None) -> None:
        """Wake the channels of which a time-out or delay has come; ``read_ms`` as for ``Broker.tick``."""
        for channel in self._timers.expire(read_ms):
            self.touch(channel)
