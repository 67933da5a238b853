"""Calls to other RocketMQ servers: registries and brokers.

One connection per address, made when it is first needed and again after it was lost; any number of requests are under
way on it, and a response is matched by its number. A request whose time is over is forgotten, so its late response is
dropped. What a server asks on the connection is not supported, and answered so; its numbers are a space of
their own (remoting.md 1.4).

Nothing is sent twice: whether a request that failed is tried again is for the caller, who knows what it does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from headrace.errors import ConnectionLostError, ProtocolError, RequestTimeoutError
from headrace.net.dialing import connect
from headrace.net.names import Names
from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.net.unacknowledged import unacknowledged_bytes
from headrace.remoting.codec import (
    Command,
    Limits,
    PullRequest,
    Reader,
    SendIntake,
    encode_request,
    encode_response,
)
from headrace.remoting.codes import ResponseCode, request_name

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
_READ_BYTES: Final = 64 * 1024
_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
_MAX_OPAQUE: Final = 0x7FFFFFFF
_LOOKS: Final = 4
"""Looks at how much has arrived, in the time that a request has."""


class RemotingClient:
    """Connections to any number of servers.

    Attributes:
        on_lost: Called with the address of a connection that was lost; not by ``close``.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[str], None] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.on_lost = on_lost
        # No topics: whatever a server sends is handed out as a command.
        self.limits = Limits((), max_frame_bytes=_MAX_FRAME_BYTES)
        self.intake = SendIntake()
        self.receive = ReceiveBuffer(HEADROOM_BYTES, _READ_BYTES)
        self._connect_timeout_s = connect_timeout_s
        self._names = Names()
        self._numbers = itertools.count(1)
        self._connections: dict[str, asyncio.Task[_Connection]] = {}
        self._is_closed = False

    async def call(
        self, address: str, command: Command, timeout_s: float = 3.0, *, is_patient: bool = False
    ) -> Command:
        """Send a request and return the response, whatever its code.

        Args:
            address: ``host:port``.
            command: Its code, ext and body are sent; its number is chosen here.
            timeout_s: For all of it, the connecting included.
            is_patient: That time begins anew whenever more of the request has arrived: a slow link takes long for much.

        Raises:
            RequestTimeoutError: no response came in time.
            ConnectionLostError: the connection was lost; NotConnectedError: it could not be made.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                connection = await self._connect(address)
                opaque = next(self._numbers) & _MAX_OPAQUE
                return await connection.call(command, opaque, limit if is_patient else None, timeout_s)
        except TimeoutError:
            raise RequestTimeoutError(address, request_name(command.code), timeout_s) from None

    def hang_up(self, address: str, reason: str) -> None:
        """Give up the connection to a server, and what it did not take; the next call makes another."""
        task = self._connections.get(address)
        connection = _result_of(task) if task is not None else None
        if connection is not None:
            connection.reset(reason)

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        self._is_closed = True
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            connection = _result_of(task)
            if connection is not None:
                connection.close("client closed")
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, address: str) -> _Connection:
        """Return the connection to an address; callers at the same time wait for the same one."""
        if self._is_closed:
            raise ConnectionLostError(address, "client closed")
        task = self._connections.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address))
            self._connections[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        # A caller who gives up does not take the others' connection away.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectionLostError(address, "client closed") from None
            raise

    async def _open(self, address: str) -> _Connection:
        return await connect(address, self._names, lambda: _Connection(self, address), self._connect_timeout_s)

    def _opened(self, address: str, task: asyncio.Task[_Connection]) -> None:
        """Forget a connection that was not made, so that the next call tries again."""
        if (task.cancelled() or task.exception() is not None) and self._connections.get(address) is task:
            del self._connections[address]

    def forget(self, address: str, connection: _Connection) -> None:
        """Make a new connection at the next call: this one is lost."""
        task = self._connections.get(address)
        if task is not None and _result_of(task) is connection:
            del self._connections[address]
            if self.on_lost is not None:
                self.on_lost(address)


def _result_of(task: asyncio.Task[_Connection]) -> _Connection | None:
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


class _Connection(asyncio.BufferedProtocol):
    """One connection to a server."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.address = address
        self._client = client
        self._transport = cast(asyncio.Transport, None)
        self._reader = Reader(client.limits)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._reason = ""
        self._sent_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()

    # -- requests ------------------------------------------------------------------------------------------------

    async def call(self, command: Command, opaque: int, limit: asyncio.Timeout | None, timeout_s: float) -> Command:
        """Send a request and wait for its response; ``limit`` is put off by ``timeout_s`` as long as it arrives."""
        await self._send(command, opaque)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        self._waiting[opaque] = future
        try:
            arrived = self._arrived_bytes()
            while limit is not None:
                done, _ = await asyncio.wait((future,), timeout=timeout_s / _LOOKS)
                if done:
                    break
                before, arrived = arrived, self._arrived_bytes()
                if arrived != before:
                    limit.reschedule(loop.time() + timeout_s)
            return await future
        finally:
            self._waiting.pop(opaque, None)

    async def _send(self, command: Command, opaque: int) -> None:
        """Hand a request to the transport, once the server takes what was sent before."""
        await self._writable.wait()
        if self._reason:
            raise ConnectionLostError(self.address, self._reason)
        frame = encode_request(0, command.code, opaque, ext=command.ext or None, body=command.body)
        self._sent_bytes += len(frame)
        self._transport.write(frame)

    def _arrived_bytes(self) -> int:
        """Return how much of what was sent the server's system has acknowledged."""
        return self._sent_bytes - unacknowledged_bytes(self._transport)

    # -- the transport's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell everybody who waits."""
        self.close(str(exc) if exc else "closed by the server")

    def close(self, reason: str) -> None:
        """Close; calls under way fail with ``reason``."""
        if self._reason:
            return
        self._reason = reason
        self._reader.discard()
        self._client.forget(self.address, self)
        self._writable.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLostError(self.address, reason))
        self._transport.close()

    def reset(self, reason: str) -> None:
        """Close without what was sent and not acknowledged: the system would deliver it when the network is back."""
        if not self._transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        self.close(reason)

    def pause_writing(self) -> None:
        """Let requests wait until the server reads."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let them go on."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket is read to."""
        return self._reader.room() or self._client.receive.view

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what has arrived."""
        if self._reason:
            return
        client = self._client
        self._reader.received(client.receive.memory, nbytes)
        try:
            while (command := self._reader.next_command(client.intake)) is not None:
                self._take(command)
        except ProtocolError as error:
            logger.warning("frame refused, connection closed server=%s error=%s", self.address, error)
            self.close(f"bad frame: {error}")

    def _take(self, command: Command | PullRequest) -> None:
        if isinstance(command, Command) and command.is_response:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():  # else nobody waits for it any more
                future.set_result(command)
            return
        if not command.is_oneway and not self._reason:
            remark = f" request type {command.code} not supported"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._transport.write(encode_response(command.serialize, command.opaque, code, remark))
