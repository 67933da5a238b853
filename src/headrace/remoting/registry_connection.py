"""One connection of a registry: a client, a tool or a broker.

Requests are done in the order they come, one handler each. The connection is also what a broker's life hangs on: when
it ends, by the peer, by an error or because nothing came, the routes of the brokers that registered through it go.

Ref: remoting.md 1, 4.8; requirements A-REG-16, X-NET-02.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import ProtocolError, RequestError
from headrace.net.connection import Pause
from headrace.net.deadlines import Deadlines
from headrace.remoting.codec import Command, PullRequest, Reader
from headrace.remoting.codes import ResponseCode
from headrace.remoting.registry_handlers import HANDLERS
from headrace.remoting.reply import INTERNAL_ERROR, Reply, refuse
from headrace.remoting.turns import TurnConnection

if TYPE_CHECKING:
    import asyncio

    from headrace.remoting.registry_server import RegistryServer

logger = logging.getLogger(__name__)

_MOST_UNSUPPORTED: Final = 100
"""Unknown request codes that are counted one by one; those beyond share the number -1."""


class RegistryConnection(TurnConnection):
    """One peer; two are equal only if they are one connection.

    Attributes:
        id: Its number on this server; 0 before it is taken up.
    """

    def __init__(self, server: RegistryServer) -> None:
        settings = server.settings
        self.id = 0
        self.server = server
        self._host = ""
        self._owed = 0  # answers that wait for the disk
        self._blocked_bytes = 0  # written since the peer is behind
        deadlines = Deadlines(
            interval_ms=settings.idle_timeout_ms // 2,
            now_ms=server.clock.monotonic_ms(),
            patience_ms=settings.idle_timeout_ms,
        )
        super().__init__(
            Reader(server.limits),
            server.receive,
            clock=server.clock,
            wheel=server.wheel,
            traffic=server.counters,
            deadlines=deadlines,
            high_water_bytes=settings.write_high_water_bytes,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection, or close it at the limit."""
        super().connection_made(transport)
        server = self.server
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) else ""
        number = server.connections.add(self)
        if number is None:
            logger.warning(
                "connection refused at the limit client=%s limit=%d setting=registry.max_connections",
                self.remote_address,
                server.connections.limit,
            )
            self.leave("too many connections")
            return
        self.id = number
        self.look_again(server.clock.monotonic_ms())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Drop the brokers that registered through this connection."""
        super().connection_lost(exc)
        self.server.connection_lost(self)

    def stop(self, cause: str) -> None:
        """Read no more, let answers out, then close."""
        self.pause(Pause.LEAVING)
        self.leave(cause)

    def on_ending(self) -> None:
        """Take no more requests. A broker that hangs on this connection is gone from now on, not from its last byte."""
        super().on_ending()
        self._reader.discard()
        self.server.drop_brokers(self)

    def has_pending_output(self) -> bool:
        """Return whether answers wait for the disk."""
        return self._owed > 0

    def held_bytes(self) -> int:
        """Return how many bytes of an unfinished request there are."""
        return self._reader.held_bytes

    # -- reading -------------------------------------------------------------------------------------------------

    def take_read(self, nbytes: int) -> None:
        """Do what the bytes just read ask for."""
        try:
            self._reader.received(self.server.receive.memory, nbytes)
            self._take_commands()
        except Exception:
            logger.exception("connection failed by a bug client=%s", self.remote_address)
            self.server.counters.internal_errors += 1
            self.abort("internal error")

    def _take_commands(self) -> None:
        server = self.server
        before = self._reader.commands
        while not self.cause:
            try:
                command = self._reader.next_command(server.intake)
            except ProtocolError as error:
                server.counters.bad_frames += 1
                logger.warning("frame refused, connection closed client=%s error=%s", self.remote_address, error)
                self.leave("bad frame")
                break
            if command is None:
                break
            self._execute(command)
            if self.is_turn_over():
                self.put_off()
                break
        if self._reader.commands != before:
            self._deadlines.last_command_ms = server.clock.monotonic_ms()

    def _execute(self, command: Command | PullRequest) -> None:
        """Have a handler do what one request asks for, and answer it."""
        counters = self.server.counters
        if isinstance(command, Command) and command.is_response:
            return  # a registry asks for nothing
        try:
            reply = self._handle(command)
        except RequestError as error:
            reply = refuse(error)
        except Exception:
            counters.internal_errors += 1
            logger.exception("request failed by a bug client=%s code=%d", self.remote_address, command.code)
            reply = Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR)
        if reply is not None:
            self.answer(command, reply)

    def _handle(self, command: Command | PullRequest) -> Reply | None:
        counters = self.server.counters
        handler = HANDLERS.get(command.code)
        if handler is None or isinstance(command, PullRequest):
            code = command.code
            known = code in counters.unsupported or len(counters.unsupported) < _MOST_UNSUPPORTED
            counters.unsupported[code if known else -1] += 1
            return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        counters.requests[command.code] += 1
        if self.server.guard is not None:
            self.server.guard.admit(command, self._host)
        return handler(self, command)

    # -- answering -----------------------------------------------------------------------------------------------

    def answer(self, command: Command | PullRequest, reply: Reply) -> None:
        """Send a response; a one-way request gets none, and a peer that does not take them is not read from."""
        if reply.code:
            self.server.counters.refusals[reply.code] += 1
        if command.is_oneway or self.is_closing():
            return
        data = reply.encode(command.serialize, command.opaque)
        if not self.is_blocked:
            self._blocked_bytes = 0
        self.write(data)
        if self.is_blocked:
            self._blocked_bytes += len(data)
            if self._blocked_bytes > self.server.settings.write_high_water_bytes:
                self.pause(Pause.REPLIES)

    def save_kv(self, command: Command, *, is_changed: bool) -> None:
        """Have the key-value configuration written; answer ``command`` when it is on the disk, or could not be.

        Where ``command`` changed nothing, what it wants may not be there yet: that is waited for, or tried again.
        """

        def saved(error: OSError | None) -> None:
            self._owed -= 1
            if error is None:
                self.answer(command, Reply())
            else:
                # It counts until the restart, and is tried again: whoever asked must know that it may not last.
                text = f"not written to {self.server.kv_path}: {error.strerror or error}"
                self.answer(command, Reply(ResponseCode.SYSTEM_ERROR, text))
            if self.cause and not self._owed:
                self.shut()

        self._owed += 1
        self.server.save_kv(saved, is_changed=is_changed)
