"""The producer table: which NSQ producers (nsqd, Headrace) have which topics and channels.

What nsqlookupd keeps, by its rules. A producer is known by its connection and goes with it, at once. The names of
topics and channels stay when their last producer has gone: a consumer that asks for them is told "no producer" and asks
again, and a new broker makes the channels it finds here. Only ``#ephemeral`` names go with the last producer that says
so. A producer that is silent, or was tombstoned for a topic, is hidden for a time and not removed.

What goes with a producer or a topic may be a million names. It is gone at once, as far as anybody is told, and counted
so; what is left of it in lists is taken out in slices (``tidy``) where it is much.

Nothing is kept on disk: producers register again when the registry is back.

Ref: nsq.md 4.2; requirements X-REG-05, X-REG-06; docs/protocols/nsqlookupd.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.errors import QuotaExceededError
from headrace.format.names import EPHEMERAL_SUFFIX

NEVER_MS: Final = -1
ALWAYS_HEARD_MS: Final = 1 << 62
"""When a producer was last heard that cannot be silent: it is in this process."""
SLICE: Final = 1_000
"""Names that are taken out of lists at once: less than a millisecond."""
_GONE_MS: Final = -1 << 62


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
    """A producer that is connected, or was and is not yet out of all lists.

    Attributes:
        seen_ms: When it last said that it lives; monotonic.
        holdings: What it has, by topic.
    """

    info: ProducerInfo
    seen_ms: int
    holdings: dict[str, _Holding] = field(default_factory=dict)


@dataclass(slots=True)
class _TopicEntry:
    """A topic's producers, and those of each of its channels; some that are gone may be among them."""

    holdings: dict[Producer, _Holding] = field(default_factory=dict)
    channels: dict[str, list[_Holding]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Holding:
    """A topic that a producer has, until it has it no longer.

    Attributes:
        entry: The topic's.
        channels: Those of the topic that it has.
        tombstoned_ms: When it was tombstoned there; ``NEVER_MS`` = not.
        has_ended: Its producer has the topic no longer, or has another holding of it.
    """

    producer: Producer
    entry: _TopicEntry
    channels: set[str] | frozenset[str] = frozenset()
    tombstoned_ms: int = NEVER_MS
    has_ended: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it counts."""
        return not self.has_ended and self.producer.seen_ms != _GONE_MS


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

    Attributes:
        channel_count: Channels of all topics whose name is known.
        registration_count: Topics and channels of all producers.
        on_leftover: Called when ``tidy`` has something to do.
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
        self._leftovers: deque[Iterator[None]] = deque()
        self.on_leftover: Callable[[], None] = lambda: None
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
        holding = producer.holdings.get(topic)
        is_new_channel = bool(channel) and (holding is None or channel not in holding.channels)
        count = self.registration_count + (holding is None) + is_new_channel
        if self.registration_count < count > self._max_registrations:
            raise QuotaExceededError(
                f"the registry has its limit of {self._max_registrations} registrations "
                "(registry.max_nsq_registrations)"
            )
        entry = self._make(topic, channel)
        if holding is None:
            holding = producer.holdings[topic] = entry.holdings[producer] = _Holding(producer, entry)
        if is_new_channel:
            entry.channels[channel].append(holding)
            if not isinstance(holding.channels, set):
                holding.channels = set()
            holding.channels.add(channel)
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
            holding = producer.holdings.get(topic)
            if holding is not None and channel in holding.channels:
                _drop(holding, channel)
                entry.channels[channel].remove(holding)
                self.registration_count -= 1
            self._drop_unused(entry, [channel] if is_final or channel.endswith(EPHEMERAL_SUFFIX) else [])
            return
        holding = producer.holdings.pop(topic, None)
        if holding is not None:
            del entry.holdings[producer]
            self.registration_count -= 1 + len(holding.channels)
            holding.has_ended = True
            self._tidy_away(_clear(holding))
        if is_final or topic.endswith(EPHEMERAL_SUFFIX):
            if not any(holding.is_live for holding in entry.holdings.values()):
                self.delete_topic(topic)
            elif is_final:
                self._drop_unused(entry, list(entry.channels))

    def connection_closed(self, owner: Hashable) -> ProducerInfo | None:
        """Forget the producer of a connection that ends, and return what it was; names stay."""
        producer = self._producers.pop(owner, None)
        if producer is None:
            return None
        producer.seen_ms = _GONE_MS
        self.registration_count -= sum(1 + len(holding.channels) for holding in producer.holdings.values())
        self._tidy_away(_clear_all(producer))
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
        if entry is None:
            return
        self.channel_count -= len(entry.channels)
        for producer, holding in entry.holdings.items():
            if holding.is_live:
                self.registration_count -= 1 + len(holding.channels)
                del producer.holdings[topic]
            holding.has_ended = True
        self._tidy_away(_clear_entry(entry))

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel, whoever has it; return whether it was known."""
        entry = self._topics.get(topic)
        if entry is None or channel not in entry.channels:
            return False
        self._drop_channel(entry, channel)
        return True

    def tombstone(self, topic: str, node: str, now_ms: int) -> int:
        """Hide the producers of a topic with this ``broadcast_address:http_port``; return how many those are."""
        entry = self._topics.get(topic)
        holdings = entry.holdings.values() if entry is not None else ()
        named = [holding for holding in holdings if holding.is_live and holding.producer.info.node == node]
        for holding in named:
            holding.tombstoned_ms = now_ms
        return len(named)

    # -- what is told --------------------------------------------------------------------------------------------

    def lookup(self, topic: str, now_ms: int) -> Lookup | None:
        """Return who has a topic, without those that are silent or tombstoned there; None if it is not known."""
        entry = self._topics.get(topic)
        if entry is None:
            return None
        producers = [
            producer.info
            for producer, holding in entry.holdings.items()
            if self._is_heard(producer, now_ms) and not self._is_hidden(holding.tombstoned_ms, now_ms)
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
                tombstones = [holding.tombstoned_ms for holding in producer.holdings.values()]
                are_hidden = [since_ms > ended_ms and since_ms != NEVER_MS for since_ms in tombstones]
                yield Node(producer.info, list(producer.holdings), are_hidden)

    def entries(self) -> Iterator[Entry]:
        """Walk the whole table, key by key; it may change meanwhile, and then some of it is as it was."""
        for producer in list(self._producers.values()):
            yield Entry("client", "", "", producer, NEVER_MS)
        for topic, entry in list(self._topics.items()):
            for holding in list(entry.holdings.values()):
                if holding.is_live:
                    yield Entry("topic", topic, "", holding.producer, holding.tombstoned_ms)
            for channel, having in list(entry.channels.items()):
                for holding in list(having):
                    if holding.is_live:
                        yield Entry("channel", topic, channel, holding.producer, NEVER_MS)

    # -- what is left of those that are gone --------------------------------------------------------------------------

    def tidy(self) -> bool:
        """Take one slice of what is gone out of the lists; return whether there is more."""
        if self._leftovers and next(self._leftovers[0], _DONE) is _DONE:
            self._leftovers.popleft()
        return bool(self._leftovers)

    def _tidy_away(self, work: Iterator[None]) -> None:
        """Do the first slice of some work now, and leave the others."""
        if next(work, _DONE) is not _DONE:
            self._leftovers.append(work)
            self.on_leftover()

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

    def _drop_unused(self, entry: _TopicEntry, channels: Iterable[str]) -> None:
        """Forget those of some channels that nobody has."""
        for channel in channels:
            having = entry.channels.get(channel)
            if having is not None and not any(holding.is_live for holding in having):
                self._drop_channel(entry, channel)

    def _drop_channel(self, entry: _TopicEntry, channel: str) -> None:
        for holding in entry.channels.pop(channel):
            self.registration_count -= holding.is_live
            _drop(holding, channel)
        self.channel_count -= 1


_DONE: Final = object()


def _drop(holding: _Holding, channel: str) -> None:
    if isinstance(holding.channels, set):
        holding.channels.discard(channel)


def _clear(holding: _Holding) -> Iterator[None]:
    """Take a holding out of the lists of its channels; yields behind each slice, as those below."""
    channels, lists = holding.channels, holding.entry.channels
    taken = 0
    while isinstance(channels, set) and channels:
        having = lists.get(channels.pop(), [])
        if holding in having:  # else the channel was deleted and made again
            having.remove(holding)
        taken += 1 + len(having) // 100
        if taken >= SLICE:
            taken = 0
            yield


def _clear_all(producer: Producer) -> Iterator[None]:
    taken = 0
    while producer.holdings:
        _, holding = producer.holdings.popitem()
        holding.entry.holdings.pop(producer, None)
        taken += 1 + len(holding.channels)
        yield from _clear(holding)
        if taken >= SLICE:
            taken = 0
            yield


def _clear_entry(entry: _TopicEntry) -> Iterator[None]:
    """Empty the lists of a topic that is deleted: they may be a million, and take their time to be freed."""
    taken = 0
    while entry.channels:
        entry.channels.popitem()
        taken += 1
        if taken >= SLICE:
            taken = 0
            yield
    while entry.holdings:
        _, holding = entry.holdings.popitem()
        yield from _clear(holding)
