"""A nsqlookupd that does what a test wants, and topics to announce to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import uvloop

from headrace.broker.topic import Topic, TopicConfig
from headrace.clock import Clock
from headrace.net.address import format_address
from headrace.nsq.lookup_peers.codec import NsqdIdentity
from headrace.nsq.lookup_peers.peers import LookupPeers

IDENTITY = NsqdIdentity(broadcast_address="b", hostname="h", http_port=4151, tcp_port=4150, version="1.3.0")

Reply = Callable[[str], bytes | None]
"""Returns the reply to a command, None for none."""


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on the broker's event loop, with an end in time."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), 40))


def address_of(server: asyncio.Server) -> str:
    return format_address(server.sockets[0].getsockname())


def framed(reply: bytes) -> bytes:
    return len(reply).to_bytes(4, "big") + reply


def reply_ok(command: str) -> bytes:
    return b"OK"


class ScriptedLookupd:
    """Notes each command, with its connection's number, and replies.

    Attributes:
        commands: What came, without IDENTIFY.
        by_connection: The same for each connection.
        identities: The body of each IDENTIFY.
        reply: Gives the replies to commands.
        identity: The reply to IDENTIFY.
        channels: What it answers over HTTP, by topic.
        questions: Topics that were asked for over HTTP.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.identities: list[dict[str, Any]] = []
        self.reply: Reply = reply_ok
        self.identity = b""
        self.channels: dict[str, list[str]] = {}
        self.questions: list[str] = []
        self.answering: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
        self.connections = 0
        self.by_connection: list[list[str]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.address = ""
        self.http_address = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        tcp = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 20)
        http = await asyncio.start_server(self._serve_http, "127.0.0.1", 0)
        self.address, self.http_address = address_of(tcp), address_of(http)
        http_port = int(self.http_address.split(":")[1])
        self.identity = json.dumps({"broadcast_address": "127.0.0.1", "http_port": http_port, "version": "1"}).encode()
        self._servers = [tcp, http]

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self.hang_up()
        await asyncio.gather(*self._tasks)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def hang_up_gently(self) -> None:
        """Close, behind what was written."""
        for writer in self._writers:
            writer.close()

    @property
    def is_connected(self) -> bool:
        return bool(self._writers)

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        of_connection: list[str] = []
        self.by_connection.append(of_connection)
        self._begin(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            assert await reader.readexactly(4) == b"  V1"
            while line := (await reader.readline()).decode().rstrip("\n"):
                if line == "IDENTIFY":
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    self.identities.append(json.loads(await reader.readexactly(size)))
                    writer.write(framed(self.identity))
                    continue
                self.commands.append(line)
                of_connection.append(line)
                reply = self.reply(line)
                if reply is not None:
                    writer.write(framed(reply))
        await self._end(writer)

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            topic = head.split(" ")[1].partition("topic=")[2].replace("%23", "#")
            self.questions.append(topic)
            if self.answering is not None:
                await self.answering(writer)
            body = json.dumps({"channels": self.channels.get(topic, [])}).encode()
            if writer.is_closing():
                raise ConnectionError
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        self.at_once -= 1
        await self._end(writer)


class Topics:
    """A broker's topics, and who listens."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.presence_listeners: list[Callable[[Topic, str], None]] = []

    def put(self, name: str, *channels: str, is_system: bool = False) -> Topic:
        """Make a topic and its channels."""
        topic = self.topics.get(name)
        if topic is None:
            topic = Topic(
                name, [], ephemeral=False, paused=False, frozen=None, config=TopicConfig(1, 1), is_system=is_system
            )
            self.topics[name] = topic
            self._tell(topic, "")
        for channel in channels:
            topic.channels[channel] = SimpleNamespace(name=channel)  # type: ignore[assignment]
            self._tell(topic, channel)
        return topic

    def drop(self, name: str, channel: str = "") -> None:
        """Delete a channel, or a topic and its channels."""
        topic = self.topics[name]
        for gone in [channel] if channel else list(topic.channels):
            del topic.channels[gone]
            self._tell(topic, gone)
        if not channel:
            del self.topics[name]
            self._tell(topic, "")

    def _tell(self, topic: Topic, channel: str) -> None:
        for listener in self.presence_listeners:
            listener(topic, channel)


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedLookupd]:
    lookupd = ScriptedLookupd()
    await lookupd.start()
    try:
        yield lookupd
    finally:
        await lookupd.stop()


@contextlib.asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[str]:
    """Serve connections while the block runs; give the address."""
    tasks: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(OSError):
            await handle(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield address_of(server)
    finally:
        server.close()
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def announcing(broker: Any, *addresses: str, **options: Any) -> AsyncIterator[LookupPeers]:
    """Announce a broker while the block runs."""
    peers = LookupPeers(broker, IDENTITY, Clock(), addresses, **options)
    peers.start()
    try:
        yield peers
    finally:
        await peers.stop()


async def wait_until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Return when ``condition`` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # of anything
            await asyncio.sleep(0.002)
