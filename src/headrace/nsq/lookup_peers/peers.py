"""All nsqlookupds that this broker is announced to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.errors import NotConnectedError
from headrace.log_pace import LogPace
from headrace.net.address import parse_registries
from headrace.net.names import Names
from headrace.nsq.lookup_peers.announcements import changes_of
from headrace.nsq.lookup_peers.channel_queries import ChannelQueries
from headrace.nsq.lookup_peers.counters import LookupCounters
from headrace.nsq.lookup_peers.http_query import query_channels
from headrace.nsq.lookup_peers.link import LookupLink
from headrace.nsq.lookup_peers.own import OwnProducer
from headrace.nsq.names import is_spelled
from headrace.registry.producers import ProducerInfo

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.clock import Clock
    from headrace.nsq.lookup_peers.codec import NsqdIdentity
    from headrace.registry.producers import ProducerTable


class _Peer:
    """A link with its task, and the questions for the same nsqlookupd."""

    def __init__(self, link: LookupLink, queries: ChannelQueries) -> None:
        self.link = link
        self.queries = queries
        self.task = asyncio.create_task(link.serve())

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, self.queries.close(), return_exceptions=True)


class LookupPeers:
    """Keeps nsqlookupds told of this broker, and asks them for the channels of topics that it makes.

    The one in this process knows it anyway, and is told without a connection (``own``).

    Attributes:
        addresses: Where the others are, as set last.
        counters: What goes on with all of them.
    """

    def __init__(
        self,
        broker: Broker,
        identity: NsqdIdentity,
        clock: Clock,
        addresses: Iterable[str],
        *,
        own_address: str = "",
        own_table: ProducerTable | None = None,
    ) -> None:
        """Announce nothing yet, but note which topics are made from now on.

        Args:
            own_address: Where the nsqlookupd in this process listens, as bound; empty where it does not.
            own_table: What that one tells.
        """
        self.addresses = list(addresses)
        self.counters = LookupCounters()
        self._broker = broker
        self._identity = identity
        self._names = Names()
        self._pace = LogPace(clock)
        self._own_listener = own_address if own_table is not None else ""
        own_address = "".join(parse_registries("", own_address))
        self._own_names = (own_address, own_address.replace("127.0.0.1:", "localhost:", 1))
        self._own: OwnProducer | None = None
        self._own_queries: ChannelQueries | None = None
        self._own_task: asyncio.Task[None] | None = None
        if own_table is not None:
            info = ProducerInfo(**asdict(identity), remote_address=own_address)
            self._own = own = OwnProducer(own_table, info, broker, self._pace)
            self._own_queries = ChannelQueries(own_address, own.find_channels, broker, self.counters, self._pace)
        self._peers: dict[str, _Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._early: list[Topic] | None = []  # topics made before the start; None since then
        broker.presence_listeners.append(self._presence_changed)

    @property
    def links(self) -> list[LookupLink]:
        """Each nsqlookupd in another process, while started."""
        return [peer.link for peer in self._peers.values()]

    def start(self) -> None:
        """Begin to announce; waits for nobody."""
        if self._own is not None:
            self._own.enter()
            self._own_task = asyncio.create_task(self._own.keep_told())
        self.set_addresses(self.addresses)
        early, self._early = self._early, None
        for topic in early or ():
            self._ask(topic)
            topic.awaited_answers -= 1

    def set_addresses(self, addresses: list[str]) -> None:
        """Announce to these from now on: those that are no more among them are closed, new ones told."""
        self.addresses = addresses
        own = self._own_names if self._own is not None else ()
        wanted = dict.fromkeys(address for address in addresses if address not in own)
        for address in [address for address in self._peers if address not in wanted]:
            task = asyncio.create_task(self._peers.pop(address).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._peers = {address: self._peers.get(address) or self._make_peer(address) for address in wanted}

    async def stop(self) -> None:
        """Close the connections: to a nsqlookupd this broker goes with its own."""
        self._broker.presence_listeners.remove(self._presence_changed)
        self.set_addresses([])
        if self._own is not None and self._own_queries is not None:
            if self._own_task is not None:
                self._own_task.cancel()
                await asyncio.gather(self._own_task, return_exceptions=True)
            self._own.leave()
            await self._own_queries.close()
        await asyncio.gather(*self._closing)

    def _make_peer(self, address: str) -> _Peer:
        own = self._own_listener
        link = LookupLink(
            address, self._identity, self._broker, self.counters, self._names, self._pace, own_listener=own
        )

        async def find(topic: str) -> Iterable[str]:
            return await self._find(link, topic)

        return _Peer(link, ChannelQueries(address, find, self._broker, self.counters, self._pace))

    async def _find(self, link: LookupLink, topic: str) -> Iterable[str]:
        """Return the channels that a nsqlookupd knows of a topic."""
        await link.tried.wait()  # at a start it may be about to answer
        if link.is_own:  # asked without a connection
            return ()
        if not link.http_address:
            reason = "not announced there" if link.last_error else "it does not say where it answers over HTTP"
            raise NotConnectedError(link.address, reason)
        return await query_channels(link.http_address, topic, self._names)

    def _presence_changed(self, topic: Topic, channel: str) -> None:
        """Note that a topic, or a channel of it, was made or deleted."""
        for change in changes_of(topic, channel):
            if self._own is not None:
                self._own.note(change)
            for peer in self._peers.values():
                peer.link.note(change)
        if not channel and is_spelled(topic.name) and self._broker.topics.get(topic.name) is topic:
            if self._early is None:
                self._ask(topic)
            elif self.addresses:
                self._early.append(topic)
                topic.awaited_answers += 1

    def _ask(self, topic: Topic) -> None:
        if self._own is not None and self._own_queries is not None and self._own.knows_channels(topic.name):
            self._own_queries.ask(topic)
        for peer in self._peers.values():
            peer.queries.ask(topic)
