"""nsqlookupd's HTTP API: consumers look for producers, tools list and change what is registered.

Ref: nsq.md 4.3; ``tests/interop/test_nsq_lookupd.py`` compares with nsqlookupd, request by request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.errors import QuotaExceededError
from headrace.log_pace import LogPace
from headrace.net.http import HttpCounters
from headrace.nsq.http_api import DONE, Handler, HttpApi, Routes
from headrace.nsq.http_request import (
    JSON_TYPE,
    TEXT_TYPE,
    HttpRefusal,
    Reply,
    Request,
    named_argument,
)
from headrace.nsq.lookupd.answers import debug_fields, info_fields, lookup_fields, names_fields, nodes_fields
from headrace.nsq.lookupd.old_form import asks_for_today, refused_in_both_forms, told_in_both_forms
from headrace.nsq.names import is_spelled
from headrace.nsq.version import server_version

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.registry.producers import Lookup, ProducerTable

Fields = Callable[[], Iterator[bytes]]
"""Begins to write an answer, in slices."""

MAX_DEBUG_BYTES: Final = 64 << 20
"""Longest answer of /debug; some 250 bytes for each producer of a topic or channel."""


@dataclass(kw_only=True)
class LookupdHttp(HttpApi):
    """The ASGI application that answers as nsqlookupd does."""

    table: ProducerTable
    clock: Clock
    counters: HttpCounters = field(default_factory=HttpCounters)

    def __post_init__(self) -> None:
        self.set_up(self._build_routes(), LogPace(self.clock))
        self._for_consumers, self._for_tools = asyncio.Lock(), asyncio.Lock()

    def _build_routes(self) -> Routes:
        get: dict[str, Handler] = {
            "/ping": self.handle_ping,
            "/info": self.handle_info,
            "/debug": self.handle_debug,
            "/lookup": self.handle_lookup,
            "/topics": self.handle_topics,
            "/channels": self.handle_channels,
            "/nodes": self.handle_nodes,
        }
        post: dict[str, Handler] = {
            "/topic/create": self.handle_create_topic,
            "/topic/delete": self.handle_delete_topic,
            "/topic/tombstone": self.handle_tombstone,
            "/channel/create": self.handle_create_channel,
            "/channel/delete": self.handle_delete_channel,
        }
        return {"GET": get, "POST": post}

    # -- reading --

    async def handle_ping(self, request: Request) -> Reply:
        """GET /ping. The one answer without NSQ's header."""
        return Reply(200, b"OK", TEXT_TYPE, ())

    async def handle_info(self, request: Request) -> Reply:
        """GET /info."""
        return await self._tell(request, lambda: info_fields(server_version()), self._for_consumers)

    async def handle_lookup(self, request: Request) -> Reply:
        """GET /lookup: a topic's channels, and the producers that consumers should connect to."""
        topic = named_argument(request.arguments(), "topic")
        return await self._tell(request, lambda: lookup_fields(self._find(topic)), self._for_consumers)

    async def handle_topics(self, request: Request) -> Reply:
        """GET /topics."""
        return await self._tell(request, lambda: names_fields("topics", self.table.topics()), self._for_consumers)

    async def handle_channels(self, request: Request) -> Reply:
        """GET /channels: of a topic, none if it is not known."""
        topic = named_argument(request.arguments(), "topic")
        return await self._tell(
            request, lambda: names_fields("channels", self.table.channels_of(topic)), self._for_consumers
        )

    async def handle_nodes(self, request: Request) -> Reply:
        """GET /nodes: every producer with its topics."""
        return await self._tell(
            request, lambda: nodes_fields(self.table.nodes(self.clock.monotonic_ms())), self._for_tools
        )

    async def handle_debug(self, request: Request) -> Reply:
        """GET /debug: the whole table, as nsqlookupd keys it."""
        now_ms = self.clock.monotonic_ms()
        to_wall_ms = self.clock.now_ms() - now_ms
        fields = lambda: debug_fields(self.table.entries(), now_ms, to_wall_ms)  # noqa: E731
        return await self._tell(request, fields, self._for_tools, most_bytes=MAX_DEBUG_BYTES)

    def _find(self, topic: str) -> Lookup:
        found = self.table.lookup(topic, self.clock.monotonic_ms())
        if found is None:
            raise HttpRefusal(404, "TOPIC_NOT_FOUND")
        return found

    async def _tell(
        self, request: Request, fields: Fields, turns: asyncio.Lock, *, most_bytes: int = sys.maxsize
    ) -> Reply:
        """Answer with an object of these fields.

        Raises:
            QuotaExceededError: they would be longer than ``most_bytes``.
        """
        parts = await _write(fields, turns, most_bytes)
        if asks_for_today(request.headers):
            return Reply(200, b"".join((b"{", *parts, b"}")), JSON_TYPE)
        return told_in_both_forms(parts)

    async def _answer(self, request: Request) -> Reply:
        reply = await super()._answer(request)
        return reply if reply.status < 400 or asks_for_today(request.headers) else refused_in_both_forms(reply)

    # -- changing --

    async def handle_create_topic(self, request: Request) -> Reply:
        """POST /topic/create: make a topic known that no producer has yet."""
        self.table.create(_valid_name(request.arguments(), "topic"))
        return DONE

    async def handle_delete_topic(self, request: Request) -> Reply:
        """POST /topic/delete: forget a topic; producers that still have it are not asked."""
        self.table.delete_topic(named_argument(request.arguments(), "topic"))
        return DONE

    async def handle_tombstone(self, request: Request) -> Reply:
        """POST /topic/tombstone: hide a producer of a topic for a while, as tools do that are deleting it there."""
        arguments = request.arguments()
        topic, node = (named_argument(arguments, kind) for kind in ("topic", "node"))
        self.table.tombstone(topic, node, self.clock.monotonic_ms())
        return DONE

    async def handle_create_channel(self, request: Request) -> Reply:
        """POST /channel/create: make a channel known, and its topic."""
        arguments = request.arguments()
        self.table.create(*(_valid_name(arguments, kind) for kind in ("topic", "channel")))
        return DONE

    async def handle_delete_channel(self, request: Request) -> Reply:
        """POST /channel/delete."""
        arguments = request.arguments()
        topic, channel = (_valid_name(arguments, kind) for kind in ("topic", "channel"))
        if not self.table.delete_channel(topic, channel):
            raise HttpRefusal(404, "CHANNEL_NOT_FOUND")
        return DONE


def _valid_name(arguments: Mapping[str, str], kind: str) -> str:
    """Return a name that producers can register, or refuse the request."""
    name = named_argument(arguments, kind)
    if not is_spelled(name):
        raise HttpRefusal(400, f"INVALID_ARG_{kind.upper()}")
    return name


async def _write(fields: Fields, turns: asyncio.Lock, most_bytes: int) -> list[bytes]:
    """Return the slices of an answer: of a short one at once, of a long one each in a turn of the event loop.

    Long ones are written one behind the other: those that wait for ``turns`` hold nothing, however many are asked for.
    """
    slices = fields()
    parts = list(islice(slices, 2))
    if len(parts) == 1:
        return parts
    if turns.locked():
        slices, parts = iter(()), []
    async with turns:
        if not parts:
            slices = fields()
        size = sum(map(len, parts))
        for part in slices:
            await asyncio.sleep(0)
            parts.append(part)
            size += len(part)
            if size > most_bytes:
                raise QuotaExceededError(f"the table is too long for the answer, which has {most_bytes} bytes at most")
        await asyncio.sleep(0)
        return parts
