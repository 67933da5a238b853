"""nsqd's HTTP API over the broker core.

A request becomes a ``Request``, a handler turns it into a ``Reply``, and nothing is streamed: bodies are bounded and
answers are small. Handlers call the synchronous core on the loop and wait only for bodies and for durability: what is
answered ``OK`` survives a crash. ``http_api`` has the routing, ``tests/interop/test_nsq_http.py`` compares with nsqd,
request by request.

Topic and channel names may end in ``#tmp`` here, LMQ's spelling of ``#ephemeral``.

Ref: nsq.md 3.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.batch import PublishBatch
from headrace.errors import (
    MessageTooLargeError,
    ProtocolError,
    StoreError,
)
from headrace.log_pace import LogPace
from headrace.net.address import born_of
from headrace.net.http import BodyReader, HttpCounters, HttpLimits
from headrace.nsq import mpub
from headrace.nsq.config_options import (
    LEVELS,
    LOG_LEVEL,
    LOOKUPDS,
    NodeFacts,
    log_level,
    port_of,
    read_addresses,
    read_options,
)
from headrace.nsq.http_api import DONE, Handler, HttpApi, Routes
from headrace.nsq.http_request import (
    CONFIG_PATH,
    CONFIG_PREFIX,
    JSON_TYPE,
    TEXT_TYPE,
    HttpRefusal,
    Reply,
    Request,
    channel_arguments,
    json_reply,
    name_filter,
    parse_integer,
    topic_argument,
)
from headrace.nsq.stats import (
    SOURCE,
    StatsFilter,
    StatsReport,
    is_listed,
    memory_row,
    read_producers,
    read_topics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.broker import Broker
    from headrace.broker.consumers.offsets import OffsetTable
    from headrace.broker.statistics import Statistics
    from headrace.clock import Clock
    from headrace.nsq.connection import NsqConnection
    from headrace.nsq.lookup_peers.peers import LookupPeers
    from headrace.settings import NsqSettings

logger = logging.getLogger(__name__)

PORTION_MESSAGES: Final = 65_536
"""Messages of one /mpub that are stored as one unit, some tens of milliseconds of the loop; others are served before
the next portion of a body that holds more."""
NAMED_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

PUBLISHED: Final = Reply(200, b"OK", TEXT_TYPE)


@dataclass(kw_only=True)
class NsqHttp(HttpApi):
    """The ASGI application that answers as nsqd does."""

    broker: Broker
    settings: NsqSettings
    facts: NodeFacts
    clock: Clock
    connections: Callable[[], Iterable[NsqConnection]]
    """Returns the connections of the TCP server."""
    health: Callable[[], str]
    """Returns why the last write to the store failed; empty = it did not."""
    statistics: Statistics
    offsets: OffsetTable
    """Of RocketMQ's groups."""
    lookup_peers: LookupPeers | None = None
    """None where the broker is announced to no nsqlookupd, as its TCP port is not served."""
    limits: HttpLimits = field(default_factory=HttpLimits)
    counters: HttpCounters = field(default_factory=HttpCounters)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace"))
    """Whose level ``/config/log_level`` is."""

    def __post_init__(self) -> None:
        self._bodies = BodyReader(self.limits)
        self.set_up(self._build_routes(), LogPace(self.clock))
        self._options = read_options(self.settings, self.facts)

    def _build_routes(self) -> Routes:
        post: dict[str, Handler] = {
            "/pub": self.handle_pub,
            "/put": self.handle_pub,
            "/mpub": self.handle_mpub,
            "/mput": self.handle_mpub,
            "/topic/create": self.handle_create_topic,
            "/topic/delete": self.handle_delete_topic,
            "/topic/empty": self.handle_empty_topic,
            "/topic/pause": self.handle_pause_topic,
            "/topic/unpause": self.handle_pause_topic,
            "/channel/create": self.handle_create_channel,
            "/channel/delete": self.handle_delete_channel,
            "/channel/empty": self.handle_empty_channel,
            "/channel/pause": self.handle_pause_channel,
            "/channel/unpause": self.handle_pause_channel,
        }
        get: dict[str, Handler] = {
            "/ping": self.handle_ping,
            "/info": self.handle_info,
            "/stats": self.handle_stats,
            CONFIG_PATH: self.handle_get_config,
        }
        return {"GET": get, "POST": post, "PUT": {CONFIG_PATH: self.handle_put_config}}

    # -- reading --

    async def handle_ping(self, request: Request) -> Reply:
        """GET /ping: whether the last write to the store worked. The one answer without nsqd's header."""
        reason = self.health()
        return Reply(500 if reason else 200, health_text(reason).encode(), TEXT_TYPE, ())

    async def handle_info(self, request: Request) -> Reply:
        """GET /info: what nsqadmin and clients need to know of this node."""
        settings, facts = self.settings, self.facts
        return json_reply(
            {
                "version": facts.version,
                "broadcast_address": facts.broadcast_address,
                "hostname": facts.hostname,
                "http_port": port_of(facts.http_address, -1),
                "tcp_port": port_of(facts.tcp_address, -1),
                "start_time": facts.started_at_ms // 1000,
                "max_heartbeat_interval": settings.max_heartbeat_interval_ms * 1_000_000,
                "max_output_buffer_size": settings.max_output_buffer_bytes,
                "max_output_buffer_timeout": settings.max_output_buffer_timeout_ms * 1_000_000,
                "max_deflate_level": settings.max_deflate_level,
                "topology_zone": "",
                "topology_region": "",
            }
        )

    async def handle_stats(self, request: Request) -> Reply:
        """GET /stats: counters of topics, channels and clients."""
        arguments = request.arguments()
        wanted = StatsFilter(
            topic=name_filter(arguments, "topic"),
            channel=name_filter(arguments, "channel"),
            include_clients=NAMED_BOOLEANS.get(arguments.get("include_clients", ""), True),
        )
        topics = self.broker.topics
        named = [topics[wanted.topic]] if wanted.topic in topics else [] if wanted.topic else topics.values()
        listed = [topic for topic in named if is_listed(topic)]
        selected = listed if listed or not wanted.topic else None
        producers = None
        if wanted.include_clients and selected is not None:
            producers = await read_producers(self.connections(), wanted)
        report = StatsReport(
            version=self.facts.version,
            health=health_text(self.health()),
            started_at_ms=self.facts.started_at_ms,
            topics=None if selected is None else read_topics(selected, wanted),
            producers=producers,
            memory=memory_row() if NAMED_BOOLEANS.get(arguments.get("include_mem", ""), True) else None,
        )
        if arguments.get("format") == "json":
            return Reply(200, await report.as_json(), JSON_TYPE)
        return Reply(200, await report.as_text(self.clock.now_ms()), TEXT_TYPE)

    async def handle_get_config(self, request: Request) -> Reply:
        """GET /config/NAME: one of nsqd's options."""
        return self._config_reply(request.path.removeprefix(CONFIG_PREFIX))

    async def handle_put_config(self, request: Request) -> Reply:
        """PUT /config/NAME: change an option that can change while the broker runs."""
        name = request.path.removeprefix(CONFIG_PREFIX)
        async with self._body(request, self.settings.max_message_bytes, "INVALID_VALUE") as body:
            value = bytes(body)
        if not value:
            raise HttpRefusal(413, "INVALID_VALUE")
        if name == LOG_LEVEL:
            self._set_log_level(value.decode("utf-8", "replace").lower())
        elif name == LOOKUPDS and self.lookup_peers is not None:
            self._set_lookupds(self.lookup_peers, value)
        else:
            raise HttpRefusal(400, "INVALID_OPTION")
        return self._config_reply(name)

    def _set_log_level(self, text: str) -> None:
        level = LEVELS.get(text)
        if level is None:
            raise HttpRefusal(400, "INVALID_VALUE")
        self.logger.setLevel(level[1])
        self.logger.warning("log level changed level=%s", text)

    def _set_lookupds(self, peers: LookupPeers, value: bytes) -> None:
        addresses = read_addresses(value)
        if addresses is None:
            raise HttpRefusal(400, "INVALID_VALUE")
        logger.warning("nsqlookupds changed until the next start addresses=%s", addresses)
        peers.set_addresses(addresses)

    def _config_reply(self, name: str) -> Reply:
        value = self._options.get(name)
        if name == LOG_LEVEL:
            value = log_level(self.logger)
        elif name == LOOKUPDS and self.lookup_peers is not None:
            value = self.lookup_peers.addresses
        if value is None:
            raise HttpRefusal(400, "INVALID_OPTION")
        if isinstance(value, str):
            return Reply(200, value.encode(), TEXT_TYPE if value else b"")
        return json_reply(value)

    # -- publishing --

    async def handle_pub(self, request: Request) -> Reply:
        """POST /pub: the body is one message."""
        if request.content_length > self.settings.max_message_bytes:
            raise HttpRefusal(413, "MSG_TOO_BIG")
        await self._wait_durable(await self._publish_one(request))
        return PUBLISHED

    async def handle_mpub(self, request: Request) -> Reply:
        """POST /mpub: the body is many messages, all of which are looked at before the first is stored."""
        if request.content_length > self.settings.max_body_bytes:
            raise HttpRefusal(413, "BODY_TOO_BIG")
        await self._wait_durable(await self._publish_many(request))
        return PUBLISHED

    # The two below end, and let go of the body, once the messages are in the log: what waits for the disk is there.

    async def _publish_one(self, request: Request) -> int:
        await self._wait_for_room()
        async with self._body(request, self.settings.max_message_bytes, "MSG_TOO_BIG") as body:
            if not body:
                raise HttpRefusal(400, "MSG_EMPTY")
            arguments = request.arguments()
            batch = PublishBatch()
            batch.destinations = [self._open_topic(arguments)]
            batch.append(body, 0, deliver_at_ms=self._due_time(arguments))
            await self._wait_for_room()
            return self._append(batch, request.peer)

    async def _publish_many(self, request: Request) -> int:
        arguments = request.arguments()
        topic = self._open_topic(arguments)
        due_ms = self._due_time(arguments)
        most, most_message = self.settings.max_body_bytes, self.settings.max_message_bytes
        await self._wait_for_room()
        async with self._body(request, most, "BODY_TOO_BIG") as body:
            try:
                if NAMED_BOOLEANS.get(arguments.get("binary", "false"), True):
                    messages = mpub.read_counted(body, most_message, (most - 4) // 5)
                else:
                    messages = mpub.read_lines(body, most_message)
            except ProtocolError as error:
                raise HttpRefusal(413, str(error)) from None
            wait = self.broker.last_change  # of the topic, which may be new
            while messages.left:
                await self._wait_for_room()
                batch = PublishBatch()
                batch.destinations = [topic]
                messages.take(batch, PORTION_MESSAGES, due_ms)
                wait = self._append(batch, request.peer)
                if messages.left:
                    await asyncio.sleep(0)
            return wait

    def _append(self, batch: PublishBatch, peer: tuple[str, int] | None) -> int:
        batch.born_host, batch.born_host_v6 = born_of(peer)
        wait = self.broker.publish(batch)
        for topic, (messages, size) in zip(batch.destinations, batch.totals(), strict=True):
            self.statistics.note_put(topic, messages, size, source=SOURCE, host=peer[0] if peer else "")
        return wait

    def _open_topic(self, arguments: Mapping[str, str]) -> str:
        """Create the topic (nsqd does so before it looks at ``defer`` or the messages) and return its name."""
        topic = topic_argument(arguments)
        self.broker.ensure_topic(topic)
        return topic

    def _due_time(self, arguments: Mapping[str, str]) -> int:
        """Return when the messages are due in ms since 1970; 0 = at once."""
        if "defer" not in arguments:
            return 0
        delay_ms = parse_integer(arguments["defer"])
        if delay_ms is None or not 0 <= delay_ms <= self.settings.max_req_timeout_ms:
            raise HttpRefusal(400, "INVALID_DEFER")
        return self.clock.now_ms() + delay_ms if delay_ms else 0

    async def _wait_for_room(self) -> None:
        """Wait while too much waits for the disk; before a body is read this also stops its sender."""
        while self.broker.overloaded:
            await self._wait_durable(self.broker.store.log.end_offset)

    # -- topics and channels --

    async def handle_create_topic(self, request: Request) -> Reply:
        """POST /topic/create."""
        topic = self.broker.ensure_topic(topic_argument(request.arguments()))
        return await self._done(self.broker.made_at(topic))

    async def handle_delete_topic(self, request: Request) -> Reply:
        """POST /topic/delete: the topic, its channels and their connections."""
        topic = topic_argument(request.arguments(), exists=True)
        has_offsets = bool(self.offsets.groups_of(topic))
        reply = await self._done(self.broker.delete_topic(topic))
        if has_offsets:
            # Else a kill brings back what groups had committed, for a topic of that name that is made later.
            try:
                await _called_back(self.offsets.when_saved)
            except OSError as error:
                raise StoreError(f"committed offsets of a deleted topic are still on disk: {error}") from error
        return reply

    async def handle_empty_topic(self, request: Request) -> Reply:
        """POST /topic/empty: drop what waits for a first channel or an unpause."""
        topic = topic_argument(request.arguments())
        return await self._done(self.broker.empty_topic(topic))

    async def handle_pause_topic(self, request: Request) -> Reply:
        """POST /topic/pause and /topic/unpause."""
        topic = topic_argument(request.arguments(), exists=True)
        return await self._done(self.broker.pause_topic(topic, request.path == "/topic/pause"))

    async def handle_create_channel(self, request: Request) -> Reply:
        """POST /channel/create: the topic must exist."""
        topic_name, name = channel_arguments(request)
        topic = self.broker.find_topic(topic_name)
        channel = self.broker.ensure_channel(topic, name)
        return await self._done(self.broker.made_at(topic, channel))

    async def handle_delete_channel(self, request: Request) -> Reply:
        """POST /channel/delete: the channel and its connections."""
        return await self._done(self.broker.delete_channel(*channel_arguments(request)))

    async def handle_empty_channel(self, request: Request) -> Reply:
        """POST /channel/empty: drop what is ready, in flight and deferred."""
        return await self._done(self.broker.empty_channel(*channel_arguments(request)))

    async def handle_pause_channel(self, request: Request) -> Reply:
        """POST /channel/pause and /channel/unpause."""
        topic, channel = channel_arguments(request)
        return await self._done(self.broker.pause_channel(topic, channel, request.path == "/channel/pause"))

    async def _done(self, offset: int) -> Reply:
        await self._wait_durable(offset)
        return DONE

    async def _wait_durable(self, offset: int) -> None:
        """Return once everything below ``offset`` is as durable as its topic asks.

        Raises:
            StoreError: it never will be.
        """
        if offset <= 0:  # nothing of it is in the log
            return
        await _called_back(partial(self.broker.gate.wait, offset))

    @contextlib.asynccontextmanager
    async def _body(self, request: Request, most_bytes: int, too_large: str) -> AsyncIterator[bytes]:
        """Give the request's body for the time of a block, or refuse it with 413 and the code ``too_large``."""
        request.body_begun = True
        async with contextlib.AsyncExitStack() as held:
            try:
                body = await held.enter_async_context(self._bodies.read(request.receive, most_bytes))
            except MessageTooLargeError:
                raise HttpRefusal(413, too_large) from None
            yield body


async def _called_back(begin: Callable[[Callable[[Exception | None], None]], None]) -> None:
    """Return once what ``begin`` is given was called, or raise what it was called with."""
    called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def call(error: Exception | None) -> None:
        if called.done():  # the request was cancelled meanwhile
            return
        if error is None:
            called.set_result(None)
        else:
            called.set_exception(error)

    begin(call)
    await called


def health_text(reason: str) -> str:
    """Return nsqd's word for the state of the last write."""
    return f"NOK - {reason}" if reason else "OK"
