"""The producer table: which NSQ producers (nsqd, Headrace) have which topics and channels.

What nsqlookupd keeps, by its rules. A producer is known by its connection and goes with it, at once. The names of
topics and channels stay when their last producer has gone: a consumer that asks for them is told "no producer" and asks
again, and a new broker makes the channels it finds here. Only ``#ephemeral`` names go with the last producer that says
so. A producer that is silent, or was tombstoned for a topic, is hidden for a time and not removed.

Nothing is kept on disk: producers register again when the registry is back.

Ref: nsq.md 4.2; requirements X-REG-05, X-REG-06; docs/protocols/nsqlookupd.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.errors import QuotaExceededError
from headrace.format.names import EPHEMERAL_SUFFIX

NEVER_MS: Final = -1
ALWAYS_HEARD_MS: Final = 1 << 62
"""When a producer was last heard that cannot be silent: it is in this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerInfo:
    """What a producer says of itself, and where it was seen to come from (``remote_address``)."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def node(self) -> str:
        """What tools call it: the address of its HTTP interface."""
        return f"{self.broadcast_address}:{self.http_port}"


@dataclass(eq=False, slots=True)
class Producer:
    """A producer that is connected.

    Attributes:
        seen_ms: When it last said that it lives; monotonic.
        tombstones: Of each of its topics, when it was tombstoned there; ``NEVER_MS`` = not.
        channels: Those it has of each of its topics, if any: to end a topic costs what it has, not what all have.
    """

    info: ProducerInfo
    seen_ms: int
    tombstones: dict[str, int] = field(default_factory=dict)
    channels: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _TopicEntry:
    """A topic's producers, and those of each of its channels."""

    producers: list[Producer] = field(default_factory=list)
    channels: dict[str, list[Producer]] = field(default_factory=dict)


class Lookup(NamedTuple):
    """The answer to a consumer that looks for a topic."""

    channels: list[str]
    producers: list[ProducerInfo]


class Node(NamedTuple):
    """A producer as tools list it: its topics, and for each whether it is tombstoned there."""

    info: ProducerInfo
    topics: list[str]
    tombstones: list[bool]


class Entry(NamedTuple):
    """One producer under one key of the table: ``category`` is client, topic or channel."""

    category: str
    topic: str
    channel: str
    producer: Producer
    tombstoned_ms: int


class ProducerTable:
    """All producers, topics and channels.

    Names are checked by the protocol before they come here. Times are monotonic ms.
    """

    def __init__(
        self,
        *,
        silent_ms: int,
        tombstone_ms: int,
        max_producers: int,
        max_topics: int,
        max_channels: int,
        max_registrations: int,
    ) -> None:
        """Make an empty table.

        Args:
            silent_ms: A producer that has said nothing for longer is hidden.
            tombstone_ms: How long a tombstone hides a producer.
            max_producers: Producers it holds; as the others a bound against peers that invent names.
            max_topics: Topics it holds.
            max_channels: Channels of all topics it holds.
            max_registrations: Topics and channels of all producers it holds, each counted for each of them.
        """
        self._silent_ms = silent_ms
        self._tombstone_ms = tombstone_ms
        self._max_producers = max_producers
        self._max_topics = max_topics
        self._max_channels = max_channels
        self._max_registrations = max_registrations
        self._producers: dict[Hashable, Producer] = {}
        self._topics: dict[str, _TopicEntry] = {}
        self.channel_count = 0
        self.registration_count = 0

    @property
    def producer_count(self) -> int:
        """Producers that are connected, silent ones too."""
        return len(self._producers)

    @property
    def topic_count(self) -> int:
        """Topics whose name is known."""
        return len(self._topics)

    # -- what producers say --------------------------------------------------------------------------------------

    def identify(self, owner: Hashable, info: ProducerInfo, now_ms: int) -> None:
        """Take up a producer; it goes with ``owner``, its connection.

        Raises:
            QuotaExceededError: there are as many as may be.
        """
        if len(self._producers) >= self._max_producers:
            raise QuotaExceededError(
                f"the registry has its limit of {self._max_producers} producers (registry.max_brokers)"
            )
        self._producers[owner] = Producer(info, now_ms)

    def note_alive(self, owner: Hashable, now_ms: int) -> None:
        """Note that a producer lives, if the connection is one's."""
        producer = self._producers.get(owner)
        if producer is not None:
            producer.seen_ms = now_ms

    def register(self, owner: Hashable, topic: str, channel: str = "") -> None:
        """Note that a producer has a topic, and a channel of it; one that was tombstoned stays so.

        Raises:
            QuotaExceededError: there are as many topics, channels or registrations as may be; nothing was noted.
        """
        producer = self._producers[owner]
        is_new = topic not in producer.tombstones
        is_new_channel = bool(channel) and channel not in producer.channels.get(topic, ())
        count = self.registration_count + is_new + is_new_channel
        if self.registration_count < count > self._max_registrations:
            raise QuotaExceededError(
                f"the registry has its limit of {self._max_registrations} registrations "
                "(registry.max_nsq_registrations)"
            )
        entry = self._make(topic, channel)
        if is_new_channel:
            entry.channels[channel].append(producer)
            producer.channels.setdefault(topic, set()).add(channel)
        if is_new:
            producer.tombstones[topic] = NEVER_MS
            entry.producers.append(producer)
        self.registration_count = count

    def unregister(self, owner: Hashable, topic: str, channel: str = "", *, is_final: bool = False) -> None:
        """Note that a producer has a channel no longer; without ``channel``, the topic and all its channels.

        Args:
            is_final: Names that nobody has any more go, as ephemeral ones do.
        """
        producer, entry = self._producers[owner], self._topics.get(topic)
        if entry is None:
            return
        if channel:
            own = producer.channels.get(topic)
            if own is not None and channel in own:
                own.remove(channel)
                self._remove_from_channel(producer, entry, channel)
            self._drop_unused(topic, entry, [channel] if is_final or channel.endswith(EPHEMERAL_SUFFIX) else [])
            return
        if topic in producer.tombstones:
            self._remove_from_topic(producer, entry, topic)
            del producer.tombstones[topic]
        self._drop_unused(topic, entry, list(entry.channels) if is_final else [])
        if not entry.producers and (is_final or topic.endswith(EPHEMERAL_SUFFIX)):
            self.delete_topic(topic)

    def connection_closed(self, owner: Hashable) -> ProducerInfo | None:
        """Forget the producer of a connection that ends, and return what it was; names stay."""
        producer = self._producers.pop(owner, None)
        if producer is None:
            return None
        for topic in producer.tombstones:
            self._remove_from_topic(producer, self._topics[topic], topic)
        return producer.info

    # -- what tools ask for --------------------------------------------------------------------------------------

    def create(self, topic: str, channel: str = "") -> None:
        """Make names known that no producer has yet.

        Raises:
            QuotaExceededError: there are as many topics or channels as may be.
        """
        self._make(topic, channel)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels, whoever has them."""
        entry = self._topics.pop(topic, None)
        if entry is not None:
            for channel in list(entry.channels):
                self._drop_channel(topic, entry, channel)
            self.registration_count -= len(entry.producers)
            for producer in entry.producers:
                del producer.tombstones[topic]
                producer.channels.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel, whoever has it; return whether it was known."""
        entry = self._topics.get(topic)
        if entry is None or channel not in entry.channels:
            return False
        self._drop_channel(topic, entry, channel)
        return True

    def tombstone(self, topic: str, node: str, now_ms: int) -> int:
        """Hide the producers of a topic with this ``broadcast_address:http_port``; return how many those are."""
        entry = self._topics.get(topic)
        named = [producer for producer in entry.producers if producer.info.node == node] if entry is not None else []
        for producer in named:
            producer.tombstones[topic] = now_ms
        return len(named)

    # -- what is told --------------------------------------------------------------------------------------------

    def lookup(self, topic: str, now_ms: int) -> Lookup | None:
        """Return who has a topic, without those that are silent or tombstoned there; None if it is not known."""
        entry = self._topics.get(topic)
        if entry is None:
            return None
        producers = [
            producer.info
            for producer in entry.producers
            if self._is_heard(producer, now_ms) and not self._is_hidden(producer.tombstones[topic], now_ms)
        ]
        return Lookup(list(entry.channels), producers)

    def topics(self) -> list[str]:
        """Return the topics that are known."""
        return list(self._topics)

    def channels_of(self, topic: str) -> list[str]:
        """Return a topic's channels."""
        entry = self._topics.get(topic)
        return list(entry.channels) if entry is not None else []

    def has_channels(self, topic: str) -> bool:
        """Return whether any channel of a topic is known."""
        entry = self._topics.get(topic)
        return entry is not None and bool(entry.channels)

    def nodes(self, now_ms: int) -> Iterator[Node]:
        """Walk the producers that are heard, with their topics; they may change meanwhile."""
        ended_ms = now_ms - self._tombstone_ms
        for producer in list(self._producers.values()):
            if self._is_heard(producer, now_ms):
                tombstones = producer.tombstones
                are_hidden = [since_ms > ended_ms and since_ms != NEVER_MS for since_ms in tombstones.values()]
                yield Node(producer.info, list(tombstones), are_hidden)

    def entries(self) -> Iterator[Entry]:
        """Walk the whole table, key by key; it may change meanwhile, and then some of it is as it was."""
        for producer in list(self._producers.values()):
            yield Entry("client", "", "", producer, NEVER_MS)
        for topic, entry in list(self._topics.items()):
            for producer in list(entry.producers):
                yield Entry("topic", topic, "", producer, producer.tombstones.get(topic, NEVER_MS))
            for channel, producers in list(entry.channels.items()):
                for producer in list(producers):
                    yield Entry("channel", topic, channel, producer, NEVER_MS)

    # -- the rules -----------------------------------------------------------------------------------------------

    def _is_heard(self, producer: Producer, now_ms: int) -> bool:
        return now_ms - producer.seen_ms <= self._silent_ms

    def _is_hidden(self, since_ms: int, now_ms: int) -> bool:
        return since_ms != NEVER_MS and now_ms - since_ms < self._tombstone_ms

    def _make(self, topic: str, channel: str) -> _TopicEntry:
        entry = self._topics.get(topic)
        if entry is None and len(self._topics) >= self._max_topics:
            raise QuotaExceededError(f"the registry has its limit of {self._max_topics} topics (registry.max_topics)")
        is_new_channel = bool(channel) and (entry is None or channel not in entry.channels)
        if is_new_channel and self.channel_count >= self._max_channels:
            raise QuotaExceededError(
                f"the registry has its limit of {self._max_channels} channels (registry.max_nsq_channels)"
            )
        if entry is None:
            entry = self._topics[topic] = _TopicEntry()
        if is_new_channel:
            entry.channels[channel] = []
            self.channel_count += 1
        return entry

    def _drop_unused(self, topic: str, entry: _TopicEntry, channels: Iterable[str]) -> None:
        """Forget those of some channels that nobody has."""
        for channel in channels:
            if not entry.channels.get(channel, True):
                self._drop_channel(topic, entry, channel)

    def _drop_channel(self, topic: str, entry: _TopicEntry, channel: str) -> None:
        having = entry.channels.pop(channel)
        for producer in having:
            producer.channels[topic].remove(channel)
        self.registration_count -= len(having)
        self.channel_count -= 1

    def _remove_from_channel(self, producer: Producer, entry: _TopicEntry, channel: str) -> None:
        entry.channels[channel].remove(producer)
        self.registration_count -= 1

    def _remove_from_topic(self, producer: Producer, entry: _TopicEntry, topic: str) -> None:
        entry.producers.remove(producer)
        self.registration_count -= 1
        for channel in producer.channels.pop(topic, ()):
            self._remove_from_channel(producer, entry, channel)
