"""nsqlookupd's HTTP API: consumers look for producers, tools list and change what is registered.

Ref: nsq.md 4.3; ``tests/interop/test_nsq_lookupd.py`` compares with nsqlookupd, request by request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import QuotaExceededError
from headrace.log_pace import LogPace
from headrace.net.http import HttpCounters
from headrace.nsq.codec import is_valid_name
from headrace.nsq.http_api import DONE, Handler, HttpApi, Routes
from headrace.nsq.http_request import (
    JSON_TYPE,
    TEXT_TYPE,
    HttpRefusal,
    Reply,
    Request,
    json_reply,
    named_argument,
)
from headrace.nsq.version import server_version
from headrace.registry.producers import NEVER_MS

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.registry.producers import Entry, ProducerTable

NEVER_NS: Final = -6_795_364_578_871_345_152
"""What Go's UnixNano says of a time that was never set; /debug shows it."""
MAX_DEBUG_BYTES: Final = 64 << 20
"""Longest answer of /debug; some 250 bytes for each producer of a topic or channel."""
ROWS_PER_TURN: Final = 200
"""Of /debug, before others have their turn: a millisecond."""
NAMES_PER_TURN: Final = 2_000
"""Of topics in /nodes: the same."""


@dataclass(kw_only=True)
class LookupdHttp(HttpApi):
    """The ASGI application that answers as nsqlookupd does."""

    table: ProducerTable
    clock: Clock
    counters: HttpCounters = field(default_factory=HttpCounters)

    def __post_init__(self) -> None:
        self.set_up(self._build_routes(), LogPace(self.clock))
        self._debugging = asyncio.Lock()

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
        return json_reply({"version": server_version()})

    async def handle_lookup(self, request: Request) -> Reply:
        """GET /lookup: a topic's channels, and the producers that consumers should connect to."""
        found = self.table.lookup(named_argument(request.arguments(), "topic"), self.clock.monotonic_ms())
        if found is None:
            raise HttpRefusal(404, "TOPIC_NOT_FOUND")
        return json_reply({"channels": found.channels, "producers": found.producers})

    async def handle_topics(self, request: Request) -> Reply:
        """GET /topics."""
        return json_reply({"topics": self.table.topics()})

    async def handle_channels(self, request: Request) -> Reply:
        """GET /channels: of a topic, none if it is not known."""
        return json_reply({"channels": self.table.channels_of(named_argument(request.arguments(), "topic"))})

    async def handle_nodes(self, request: Request) -> Reply:
        """GET /nodes: every producer with its topics; others have turns meanwhile."""
        parts: list[bytes] = []
        names_in_turn = 0
        for node in self.table.nodes(self.clock.monotonic_ms()):
            row = {**asdict(node.info), "tombstones": node.tombstones, "topics": node.topics}
            parts.append(msgspec.json.encode(row))
            names_in_turn += len(node.topics)
            if names_in_turn >= NAMES_PER_TURN:
                names_in_turn = 0
                await asyncio.sleep(0)
        return Reply(200, b'{"producers":[' + b",".join(parts) + b"]}", JSON_TYPE)

    async def handle_debug(self, request: Request) -> Reply:
        """GET /debug: the whole table, as nsqlookupd keys it; for one at a time, and others have turns meanwhile."""
        async with self._debugging:
            return Reply(200, await self._write_table(), JSON_TYPE)

    async def _write_table(self) -> bytes:
        now_ms = self.clock.monotonic_ms()
        to_wall_ms = self.clock.now_ms() - now_ms
        parts: list[bytes] = []
        size = rows_in_turn = 0
        for key, entries in groupby(self.table.entries(), key=_debug_key):
            rows = [_debug_row(entry, now_ms, to_wall_ms) for entry in entries]
            parts.append(msgspec.json.encode(key) + b":" + msgspec.json.encode(rows))
            size += len(parts[-1])
            if size > MAX_DEBUG_BYTES:
                raise QuotaExceededError(f"the table is too long for /debug, which answers {MAX_DEBUG_BYTES} bytes")
            rows_in_turn += len(rows)
            if rows_in_turn >= ROWS_PER_TURN:
                rows_in_turn = 0
                await asyncio.sleep(0)
        return b"{" + b",".join(parts) + b"}"

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
    if not is_valid_name(name.encode("utf-8", "surrogateescape")):
        raise HttpRefusal(400, f"INVALID_ARG_{kind.upper()}")
    return name


def _debug_key(entry: Entry) -> str:
    return f"{entry.category}:{entry.topic}:{entry.channel}"


def _debug_row(entry: Entry, now_ms: int, to_wall_ms: int) -> dict[str, Any]:
    producer, info = entry.producer, entry.producer.info
    is_tombstoned = entry.tombstoned_ms != NEVER_MS
    return {
        "id": info.remote_address,
        "hostname": info.hostname,
        "broadcast_address": info.broadcast_address,
        "tcp_port": info.tcp_port,
        "http_port": info.http_port,
        "version": info.version,
        "last_update": (min(producer.seen_ms, now_ms) + to_wall_ms) * 1_000_000,
        "tombstoned": is_tombstoned,
        "tombstoned_at": (entry.tombstoned_ms + to_wall_ms) * 1_000_000 if is_tombstoned else NEVER_NS,
    }
