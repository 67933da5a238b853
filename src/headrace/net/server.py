"""What the servers share: listeners, their open connections, the one timer these have, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headrace.net.busy_poll import BusyPoll
from headrace.net.connection import Connection, Pause
from headrace.net.connections import OpenConnections
from headrace.net.deadlines import call_behind_reads
from headrace.net.listener import listen
from headrace.net.receive import ReceiveBuffer
from headrace.net.refusal_log import RefusalLog
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.net.timer_wheel import TICK_MS, TimerWheel
from headrace.net.turns import TurnConnection, Turns
from headrace.net.unread_bound import UnreadBound

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.net.deadlines import Deadlines
    from headrace.net.stream_input import StreamInput
    from headrace.net.wire import TrafficCounters

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
MAX_REFUSED: Final = 64
"""Peers refused at the limit of connections that may stay to read why; more are closed at once. Their files come on top
of those that the limit counts, out of what it leaves to the store."""
_STOPPED: Final = "server stopped"
"""Cause of an end."""
_UNREAD: Final = "unread"
"""Cause of an end: all peers together had too much waiting, and this one most."""

C = TypeVar("C", bound="ServerConnection")


class ServerConnection(TurnConnection):
    """A connection of a server, from its taking up to its end."""

    def __init__(self, server: StreamServer[Any], reader: StreamInput, deadlines: Deadlines) -> None:
        super().__init__(
            reader,
            server.receive,
            server.turns,
            clock=server.clock,
            wheel=server.wheel,
            traffic=server.counters,
            deadlines=deadlines,
            high_water_bytes=server.settings.write_high_water_bytes,
        )
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection, or refuse it at the limit."""
        super().connection_made(transport)
        if not self.server.take_up(self):
            self.on_full()
            self.server.turn_away(self)
            return
        self.look_again(self._clock.monotonic_ms())
        if self.server.is_stopping:
            self.stop(_STOPPED)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up everything this connection holds."""
        super().connection_lost(exc)
        self.server.connection_lost(self)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("connection closed client=%s cause=%s error=%s", self.remote_address, self.cause, exc)

    def pause_writing(self) -> None:
        """Note that the peer does not read as fast as it is sent to; all such peers together may have too much."""
        super().pause_writing()
        self.server.cut_unread()

    def fail(self, error: Exception) -> None:
        """Close at once, for want of memory or by a bug; from where the error is handled."""
        self.on_bug()
        if isinstance(error, MemoryError):
            self.server.refusal_log.note_no_memory(self.remote_address, "commands of one read")
            self.abort("no memory")
        else:
            logger.exception("connection failed by a bug client=%s", self.remote_address)
            self.abort("internal error")

    def on_full(self) -> None:
        """Leave: the server has as many connections as may be."""
        self.leave("too many connections")

    def on_bug(self) -> None:
        """Forget what the read that is being taken has brought."""


class StreamServer(Generic[C]):
    """Connections of one protocol.

    Attributes:
        clock: Of their deadlines.
        settings: Those of the protocol; ``write_high_water_bytes`` is what all have.
        counters: What is counted of their traffic.
        busy_poll: To be told of every read that was served, unless its answer waits for the disk.
        connections: Every open one.
        held_back: Connections not read from because the store is behind.
        logs_commands: The log level is ``debug``, at which each command is a line; looked at with every tick.
        refusal_log: Tells of connections that were turned away.
        receive: Where sockets are read to. One for all connections: a read is over before the next begins.
        turns: What connections that have more to do than a turn know of each other.
        unread_bound: On what all of them hold for peers that do not read.
        wheel: When a connection's deadline may be due.
    """

    settings: Any
    counters: TrafficCounters

    def __init__(
        self,
        protocol: str,
        clock: Clock,
        limit: int,
        counters: TrafficCounters,
        *,
        max_unread_bytes: int,
        busy_poll_us: int = 0,
    ) -> None:
        """Take up to ``limit`` connections; after a read, look for the next one for up to ``busy_poll_us``.

        Args:
            max_unread_bytes: What may wait for all peers together.
        """
        self.clock = clock
        self.counters = counters
        self.connections: OpenConnections[C] = OpenConnections(limit)
        self.held_back: set[C] = set()
        self.logs_commands = logger.isEnabledFor(logging.DEBUG)
        self.refusal_log = RefusalLog(clock)
        self.receive = ReceiveBuffer(HEADROOM_BYTES)
        self.turns = Turns(self.receive)
        self.unread_bound = UnreadBound(max_unread_bytes)
        self.wheel: TimerWheel[Connection] = TimerWheel(clock.monotonic_ms())
        self.busy_poll = BusyPoll(busy_poll_us)
        self._protocol = protocol
        self._refused: set[C] = set()  # those at the limit which may still read why
        self._listeners: list[asyncio.AbstractServer] = []
        self._tick_handle: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    async def listen(
        self, where: str | socket.socket, accept: Callable[[], asyncio.BaseProtocol], *, is_guarded: bool = False
    ) -> str:
        """Take connections at a bound socket or an address; return where, as bound.

        Raises: as ``headrace.net.listener.listen``.
        """
        listener, address = await listen(where, accept, protocol=self._protocol, is_guarded=is_guarded)
        self._listeners.append(listener)
        if self._tick_handle is None:
            self._tick()
        return address

    async def stop(self) -> None:
        """Stop accepting and reading, let answers out, close all connections."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._all_closed = asyncio.Event()
        for connection in self.connections:
            connection.stop(_STOPPED)
        if len(self.connections):
            try:
                await asyncio.wait_for(self._all_closed.wait(), STOP_SECONDS)
            except TimeoutError:
                logger.warning(
                    "connections did not close in time protocol=%s count=%d", self._protocol, len(self.connections)
                )
        for connection in self.connections:
            connection.abort(_STOPPED)
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None

    @property
    def is_stopping(self) -> bool:
        """Whether all connections were told to end: one accepted just before that is taken up in the next turn."""
        return self._all_closed is not None

    def take_up(self, connection: C) -> bool:
        """Give a connection its number, or return False: there are as many as may be, which is logged."""
        number = self.connections.add(connection)
        if number is None:
            self.refusal_log.note_full(
                connection.remote_address,
                f"{self._protocol}.max_connections",
                self.connections.limit,
                self.connections.refused,
            )
            return False
        connection.id = number
        return True

    def turn_away(self, connection: C) -> None:
        """Let a connection that was refused at the limit stay for its moment, unless many do."""
        if len(self._refused) < MAX_REFUSED:
            self._refused.add(connection)
        else:
            connection.close()

    def connection_lost(self, connection: C) -> None:
        """Forget a connection."""
        self._refused.discard(connection)
        self.connections.remove(connection.id, connection.cause)
        if self._all_closed is not None and not len(self.connections):
            self._all_closed.set()

    def hold_back(self, connection: C) -> None:
        """Read no more from a connection until ``relieve``, unless it is ending: the store is behind."""
        if not connection.cause:
            connection.pause(Pause.STORE)
            self.held_back.add(connection)

    def relieve(self) -> None:
        """Read again from connections that waited for the store; the broker calls this."""
        for connection in list(self.held_back):
            self.held_back.discard(connection)
            connection.resume(Pause.STORE)

    def check_timers(self, now_ms: int) -> None:
        """Have every connection whose deadline may be due look at its clocks.

        Args:
            now_ms: Who is late is told by this time: all that was sent before it has been read.
        """
        self.logs_commands = logger.isEnabledFor(logging.DEBUG)
        for connection in self.wheel.take_due(now_ms):
            try:
                connection.on_timer(now_ms)
            except Exception:
                logger.exception("timer failed by a bug client=%s", connection.remote_address)
                connection.abort("internal error")

    def cut_unread(self) -> None:
        """Cut the connections with most output that waits for its peer, while all together have too much."""
        bound = self.unread_bound
        for connection, size in bound.excess(self.counters.bytes_out, self._uncut()):
            self.refusal_log.note_unread(
                connection.remote_address, size, f"{self._protocol}.max_unread_bytes", bound.most_bytes
            )
            connection.abort(_UNREAD)

    def _uncut(self) -> Iterator[C]:
        """Walk the connections that were not cut yet; the copy of them is made when the walk begins."""
        for connection in self.connections:
            if connection.cause != _UNREAD:
                yield connection

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_handle = loop.call_later(TICK_MS / 1000, self._tick)
        call_behind_reads(loop, self._look_at_all, self.clock.monotonic_ms())

    def _look_at_all(self, now_ms: int) -> None:
        if self._tick_handle is None:
            return
        try:
            self.check_timers(now_ms)
            self.cut_unread()
        except Exception:
            logger.exception("tick failed by a bug")
