"""HTTP listeners that live inside the broker's event loop.

uvicorn speaks HTTP/1.1 (with h11); this module gives it an already bound socket, keeps its hands off signals and
logs, and bounds what a peer can make it hold: connections, time for a request, bytes of bodies in memory. It knows
no path and no protocol above HTTP: an ASGI application does.

uvicorn takes a tenth of a second to import, so it is imported by ``start`` and not with this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.errors import InternalError, MessageTooLargeError, ProtocolError, QuotaExceededError
from headrace.net.listener import connection_limit

if TYPE_CHECKING:
    from headrace.net.http_connection import BoundedConnection
    from headrace.net.http_server import EmbeddedServer

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEAD_BYTES: Final = 64 << 10
"""Most bytes of a request before its body; h11 needs 40 ms for so many in the shortest header lines."""

LEFT: Final = 0
TAKEN: Final = 1
INCOMPLETE: Final = 2


class Shortcut(Protocol):
    """Does requests of one plain kind without the general code, which costs ten times as much as they do."""

    def take(self, connection: BoundedConnection, data: bytes) -> int:
        """Take over the request that ``data`` is; nothing else of the connection is in work.

        Returns:
            ``TAKEN``: it is answered by ``connection.answer``, at once or later. ``INCOMPLETE``: it is the beginning of
            such a request. ``LEFT``: it is something else, for the general code.
        """


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """What one HTTP listener lets its peers hold."""

    connections: int = 1_024
    """Connections at once; one more is answered 503 and closed."""

    request_seconds: float = 10.0
    """Time from accept, or from the first byte of a later request, until a request's head is complete."""

    idle_seconds: float = 75.0
    """Time a kept-alive connection may wait for its next request."""

    body_seconds: float = 30.0
    """Longest pause between two pieces of a request's body, and in reading an answer."""

    body_bytes: int = 64 << 20
    """Bytes of request bodies in memory over all connections."""

    unread_bytes: int = 256 << 20
    """Bytes of answers that peers have not read, over all connections; above it the one with most is closed, unless no
    other has any."""

    @classmethod
    def within_open_files(cls) -> HttpLimits:
        """Return the bounds of a server's listener: where open files are few, its peers get a share of them only."""
        return cls(connections=min(cls.connections, connection_limit(0, 0) // 16))


@dataclass
class HttpCounters:
    """What a listener counts since it was made; read by ``/metrics``."""

    requests: int = 0
    plain_requests: int = 0
    """Of them, those that the shortcut took over."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests and connections that were refused, by cause."""


class BodyReader:
    """Reads request bodies whole, within one bound for each body and one for all together."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.bytes_in_memory = 0

    @contextlib.asynccontextmanager
    async def read(self, receive: Receive, most_bytes: int) -> AsyncIterator[bytes]:
        """Give the request's body; it counts as in memory until the block ends.

        Args:
            receive: The request's ASGI ``receive``.
            most_bytes: Longest body that is accepted.

        Raises:
            MessageTooLargeError: the body is longer than ``most_bytes``; the rest of it is still to come.
            QuotaExceededError: the bodies of all requests together are above ``HttpLimits.body_bytes``.
            ProtocolError: the peer went away, or paused longer than ``HttpLimits.body_seconds``.
        """
        chunks: list[bytes] = []
        size = 0
        more = True
        try:
            while more:
                chunk, more = await self._receive(receive)
                size += len(chunk)
                self.bytes_in_memory += len(chunk)
                if size > most_bytes:
                    raise MessageTooLargeError("request body", size, most_bytes)
                if self.bytes_in_memory > self._limits.body_bytes:
                    raise QuotaExceededError(f"request bodies in memory are above {self._limits.body_bytes} bytes")
                chunks.append(chunk)
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.bytes_in_memory -= size

    async def _receive(self, receive: Receive) -> tuple[bytes, bool]:
        try:
            message = await asyncio.wait_for(receive(), self._limits.body_seconds)
        except TimeoutError:
            raise ProtocolError("request body paused too long") from None
        if message["type"] == "http.disconnect":
            raise ProtocolError("client went away before the end of its request")
        return message.get("body", b""), message.get("more_body", False)


class HttpListener:
    """One HTTP listener: ``start`` serves until ``stop``."""

    def __init__(
        self,
        name: str,
        app: Application,
        sock: socket.socket,
        *,
        limits: HttpLimits,
        counters: HttpCounters,
        shortcut: Shortcut | None = None,
    ) -> None:
        """Prepare to serve ``app`` on ``sock``, which is bound and belongs to the listener from now on.

        Args:
            name: Name in logs and metrics, such as ``nsq_http``.
            app: The ASGI application.
            sock: A bound, non-blocking stream socket.
            limits: Bounds that hold over all connections.
            counters: Where requests and refusals are counted.
            shortcut: Asked before ``app``.
        """
        self.name = name
        self.counters = counters
        self.app = app
        self.limits = limits
        self.shortcut = shortcut
        self._sock = sock
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    @property
    def open_connections(self) -> int:
        """Connections open now."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def start(self) -> None:
        """Accept connections; returns once the socket listens."""
        from headrace.net.http_connection import on_loop_error  # noqa: PLC0415  # slow, see above
        from headrace.net.http_server import EmbeddedServer  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        self._server = EmbeddedServer(self)
        self._task = loop.create_task(self._server.serve(sockets=[self._sock]), name=f"headrace-{self.name}")
        listening = asyncio.ensure_future(self._server.listening.wait())
        try:
            await asyncio.wait((listening, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if self._task.done():
            task, self._task = self._task, None  # there is nothing to stop
            task.result()
            raise InternalError(f"the HTTP server of {self.name} ended before it listened")

    async def stop(self) -> None:
        """Stop accepting, let requests in work finish for a few seconds, close every connection."""
        if self._server is None or self._task is None:
            self._sock.close()
            return
        self._server.should_exit = True
        self._server.ending.set()
        await self._task
        logger.debug("HTTP listener closed name=%s", self.name)
