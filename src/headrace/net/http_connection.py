"""What Headrace changes in uvicorn's connections: bounds on every one.

- uvicorn waits without limit for a first request, for a request's head, and for a peer to read its answer;
  ``BoundedConnection`` gives them a deadline (slow loris).
- uvicorn closes a connection that it refuses at once, and with input unread that resets it: the peer may see the reset
  instead of the answer; ``BoundedConnection`` gives it a moment to read.
- uvicorn closes a connection whose peer has shut down its sending side, although a complete request waits for its
  answer; ``BoundedConnection`` answers first, as Go's server does.
- uvicorn answers 400 to whatever h11 refuses; ``BoundedConnection`` says which limit or rule it was, where that helps.
- a loop that has no memory to read with logs a traceback, and closes; ``on_loop_error`` counts it as a refusal.
- uvicorn has a task, and h11, for each request, and makes ready for them when a client connects; ``BoundedConnection``
  shows what is read to a ``Shortcut`` first, and makes ready when that leaves a request to the general code.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from headrace.clock import Clock
from headrace.net.address import format_address, peer_of
from headrace.net.deadlines import call_behind_reads
from headrace.net.http import INCOMPLETE, LEFT, MAX_HEAD_BYTES, TAKEN
from headrace.net.refusal_log import RefusalLog
from headrace.net.request_parser import RequestParser
from headrace.net.unacknowledged import unacknowledged_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uvicorn.server import ServerState

    from headrace.net.http import HttpCounters, HttpLimits, HttpListener, Shortcut

logger = logging.getLogger(__name__)

BUSY_RESPONSE: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
REFUSAL_TEXTS: Final = {
    400: "Invalid HTTP request received.",
    431: f"431 Request Header Fields Too Large: at most {MAX_HEAD_BYTES} bytes before the body",
}
SLOW_RESPONSE: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
LINGER_SECONDS: Final = 1.0
"""How long a peer that is refused may take to read why; what it sends meanwhile is thrown away."""
MAX_REFUSED: Final = 64
"""Refused peers of one listener that may read why; more are closed at once. They come on top of those served, and must
fit into the open files that the servers leave to the listeners."""
LOOKS_PER_LIMIT: Final = 10
"""How often deadlines are looked at in the shortest time that one allows: so much of it a peer may be late."""


def _refusal(status: int) -> bytes:
    reason = f"{status} {HTTPStatus(status).phrase}"
    text = REFUSAL_TEXTS.get(status, reason)
    return (
        f"HTTP/1.1 {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode()


class DeadlineSweep:
    """Looks at the deadlines of a listener's connections, while there are any.

    A timer for each would take a twentieth of what a client costs that connects for one request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: HttpLimits) -> None:
        self._loop = loop
        shortest = min(limits.request_seconds, limits.idle_seconds, limits.body_seconds)
        self._interval_seconds = shortest / LOOKS_PER_LIMIT
        self._connections: set[BoundedConnection] = set()  # uvicorn's own, when there is one
        self.is_running = False

    def run(self, connections: set[Any]) -> None:
        """Look at these until there are none."""
        self._connections = connections
        self.is_running = bool(connections)
        if self.is_running:
            self._loop.call_later(self._interval_seconds, self._tick)

    def _tick(self) -> None:
        call_behind_reads(self._loop, self._look, self._loop.time())

    def _look(self, now_s: float) -> None:
        try:
            for connection in list(self._connections):
                if 0.0 < connection.deadline_s <= now_s:
                    connection.on_deadline()
        finally:
            self.run(self._connections)


class BoundedConnection(H11Protocol):
    """One HTTP connection with a deadline for whatever the peer owes us.

    The deadline runs while no request is in work: from accept, and after each answer (which includes the time in
    which the rest of a refused body is read and thrown away). The application bounds the time for a body.

    A request that the shortcut takes over is in work until ``answer``; what comes behind it waits. The beginning of one
    (many clients write head and body apart) is held until the next read, and then goes to whoever takes the whole.

    What uvicorn keeps of a connection is made by ``_begin_general``: many clients connect for one request that the
    shortcut takes, and making it costs more than the request.

    Attributes:
        attached: The shortcut's own, kept for the connection; its ``end()`` is called when the connection is lost.
        deadline_s: On the loop's clock; 0: there is none.
        unread_bytes: Of an answer, when its peer fell behind; until it has caught up all of them are in memory.
    """

    loop: asyncio.AbstractEventLoop
    listener: str
    refusal_log: RefusalLog
    limits: HttpLimits
    counters: HttpCounters
    refused: set[BoundedConnection]
    """Those of the listener that were refused and may still read why."""
    shortcut: Shortcut | None
    sweep: DeadlineSweep
    attached: Any = None
    deadline_s = 0.0
    unread_bytes = 0
    _linger: asyncio.TimerHandle | None = None
    _taken = False  # the shortcut owes an answer
    _held = b""  # the beginning of a request that may be the shortcut's
    _behind = b""  # came while an answer was owed
    _is_leaving = False  # the connection ends behind the answer that is owed
    _stall: asyncio.TimerHandle | None = None
    _request_begun = False
    _peer_done = False
    # Until the general code is begun:
    cycle: RequestResponseCycle | None = None  # type: ignore[assignment]
    timeout_keep_alive_task = None
    _is_general = False

    def __init__(self, **made_from: Any) -> None:
        self._made_from = made_from
        self.server_state: ServerState = made_from["server_state"]
        self.connections = self.server_state.connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or refuse it when there are too many."""
        self.transport = transport
        self.client = peer_of(transport.get_extra_info("peername"))
        self.connections.add(self)
        if len(self.connections) - len(self.refused) > self.limits.connections:
            self._refuse("too_many_connections", BUSY_RESPONSE)
            refused = self.counters.refusals["too_many_connections"]
            address = format_address(self.client or ())
            self.refusal_log.note_full(address, f"none ({self.listener})", self.limits.connections, refused)
            return
        self._arm(self.limits.request_seconds)

    def _begin_general(self) -> None:
        """Make what uvicorn's code works with."""
        if self._is_general:
            return
        self._is_general = True
        transport, client = self.transport, self.client
        super().__init__(**self._made_from)
        self.conn: RequestParser = RequestParser()
        super().connection_made(transport)
        self.client = client  # uvicorn's has an IPv4 client of a listener for both by its mapped address

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._disarm()
        if self._linger is not None:
            self._linger.cancel()
        self._held = self._behind = b""
        if self.attached is not None:
            self.attached.end()
        self.refused.discard(self)
        self._end_stall()
        if not self._is_general:
            self.connections.discard(self)
            return
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; the first byte of a further request shortens the deadline."""
        if self.transport.is_closing() or self in self.refused:
            return
        if self._is_general and self.conn.their_state is h11.MUST_CLOSE:
            return  # behind the request that it called its last: h11 would refuse that one for it
        if self._taken:
            self._begin_general()
            self._behind += data
            self.flow.pause_reading()
            return
        held, self._held = self._held, b""
        data = held + data
        taken = LEFT
        if held or self._is_idle():
            if data[0] in b"\r\n":  # some clients send an empty line behind a body
                data = data.lstrip(b"\r\n")
                if not data:
                    return
            taken = self._offer(data)
        if taken == TAKEN:
            return
        if self.deadline_s and not self._request_begun:
            self._request_begun = True
            self._arm(self.limits.request_seconds)
        if taken == INCOMPLETE and not held:
            self._held = data
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Give what was read to the general code; a body for which there is no memory is refused."""
        self._begin_general()
        try:
            super().data_received(data)
        except MemoryError:
            self.note_no_memory()
            self._leave_unheard(503)

    def note_no_memory(self) -> None:
        """Log and count, once, that there was no memory for what the peer has sent."""
        if self not in self.refused:
            self.refusal_log.note_no_memory(format_address(self.client or ()), f"a request of {self.listener}")
            self.counters.refusals["no_memory"] += 1

    def _is_idle(self) -> bool:
        """Whether the next byte begins a request, and its answer will be read."""
        if not self._is_general:
            return True
        return (
            (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and self.conn.their_state is h11.IDLE
            and not self.conn.trailing_data[0]
        )

    def _offer(self, data: bytes) -> int:
        """Have the shortcut take over what has come, if it is a request of its kind."""
        if self.shortcut is None:
            return LEFT
        self._taken = True
        taken = self.shortcut.take(self, data)
        if taken != TAKEN:
            self._taken = False
            return taken
        self.counters.requests += 1
        self.counters.plain_requests += 1
        if self._taken:
            self._disarm()
        return TAKEN

    def _end_hold(self) -> None:
        """Give what is held to the general code."""
        held, self._held = self._held, b""
        if held:
            self._parse(held)

    @property
    def date(self) -> list[tuple[bytes, bytes]]:
        """The headers that every answer begins with: another object once a second."""
        return self.server_state.default_headers

    def encode(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, is_last: bool) -> bytes:
        """Return an answer's bytes, as the general code spells them."""
        lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"%s: %s" % header for header in (*self.date, *headers)]
        if is_last:
            lines.append(b"Connection: close")
        return b"\r\n".join((*lines, b"", body))

    def answer(self, data: bytes, *, is_last: bool) -> None:
        """Answer the request that the shortcut has taken over.

        Args:
            data: The whole answer.
            is_last: The client has asked for the end of the connection behind it.
        """
        self._taken = False
        if self.transport.is_closing():
            return
        self.transport.write(data)
        if is_last or self._is_leaving or (self._peer_done and not self._behind):
            self.transport.close()
            return
        self._request_begun = False
        self._arm(self.limits.idle_seconds)
        if self._behind:
            self._taken = True  # what comes now is behind that
            self.loop.call_soon(self._take_behind)

    def _take_behind(self) -> None:
        """Go on with what came while an answer was owed.

        In a turn of its own: the shortcut may be in the middle of answering many, and what it takes over now must not
        come among them.
        """
        self._taken = False
        behind, self._behind = self._behind, b""
        if self.transport.is_closing():
            return
        if self._is_leaving:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.data_received(behind)
        if self._peer_done and not self.eof_received():
            self.transport.close()

    def handle_events(self) -> None:
        """Run the parser; a request in work has no deadline here."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not before and not self.cycle.response_complete:
            if self not in self.refused:
                self._disarm()
            self.counters.requests += 1

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection while a complete request waits for its answer, then close it."""
        if self._taken:
            self._peer_done = True
            return True
        self._end_hold()
        cycle = self.cycle
        if self in self.refused or cycle is None or cycle.response_complete or cycle.more_body:
            return False
        self._peer_done = True
        return True

    def shutdown(self) -> None:
        """Close now, or after the answer that is being made."""
        if self._taken:
            self._is_leaving = True
            return
        if self in self.refused or not self._is_general:
            self.transport.close()
            return
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # the parser has failed and the transport is about to close
            self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, but not for ever."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        if self._peer_done and (self in self.refused or (cycle is not None and cycle.more_body)):
            self.transport.close()  # what the next pipelined request lacks does not come
        if self.transport.is_closing() or self in self.refused or cycle is None or not cycle.response_complete:
            return  # the next pipelined request is in work, or refused
        if self._peer_done:
            self.transport.close()
        else:
            body_left = self.conn.their_state is h11.SEND_BODY
            self._request_begun = not body_left and bool(self.conn.trailing_data[0])
            if self._request_begun:
                self._arm(self.limits.request_seconds)
            else:
                self._arm(self.limits.body_seconds if body_left else self.limits.idle_seconds)

    def pause_writing(self) -> None:
        """Watch a peer that does not read its answer as fast as it comes; all such peers together may have too much."""
        self._begin_general()
        super().pause_writing()
        self._watch_stall(unacknowledged_bytes(self.transport))
        self.unread_bytes = self.transport.get_write_buffer_size()
        self._cut_unread()

    def resume_writing(self) -> None:
        """Go on: the peer has read."""
        super().resume_writing()
        self.unread_bytes = 0
        self._end_stall()

    def _cut_unread(self) -> None:
        """Cut the connections with most unread, while those of the listener have too much together."""
        connections = cast("set[BoundedConnection]", self.connections)
        unread = sorted(
            (each for each in connections if each.unread_bytes), key=attrgetter("unread_bytes"), reverse=True
        )
        left = sum(each.unread_bytes for each in unread)
        for each in unread[:-1]:
            if left <= self.limits.unread_bytes:
                break
            left -= each.unread_bytes
            each.cut_unread()

    def cut_unread(self) -> None:
        """Close: of all peers that do not read this one has most."""
        self.counters.refusals["unread"] += 1
        self.refusal_log.note_unread(
            format_address(self.client or ()), self.unread_bytes, f"none ({self.listener})", self.limits.unread_bytes
        )
        self.unread_bytes = 0
        self.transport.abort()

    def _watch_stall(self, unread_bytes: int) -> None:
        self._end_stall()
        self._stall = self.loop.call_later(self.limits.body_seconds, self._check_stall, unread_bytes)

    def _check_stall(self, unread_bytes: int) -> None:
        left = unacknowledged_bytes(self.transport)
        if left < unread_bytes:
            self._watch_stall(left)
        else:
            self.counters.refusals["slow_reader"] += 1
            self.transport.abort()

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; nothing can be answered any more once a response has begun."""
        self.counters.refusals["malformed_request"] += 1
        self._leave_unheard(self.conn.refusal_status)

    def _leave_unheard(self, status: int) -> None:
        """Close behind an answer to a request that cannot be read to its end, unless one has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._leave(_refusal(status))
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the wish to upgrade, without a line in the log for each."""

    def _arm(self, seconds: float) -> None:
        """Set the deadline."""
        self.deadline_s = self.loop.time() + seconds
        if not self.sweep.is_running:
            self.sweep.run(self.connections)

    def _disarm(self) -> None:
        self.deadline_s = 0.0

    def on_deadline(self) -> None:
        """Close, or say why not: the deadline has passed."""
        self._disarm()
        if self._held:
            self._end_hold()  # its head is whole: the application bounds the time for the rest
            return
        if self._stall is not None:  # an answer is still on its way: _check_stall watches it
            self._arm(self.limits.idle_seconds)
        elif self.transport.get_write_buffer_size():  # closing would wait for the peer to read
            self.transport.abort()
        elif self._request_begun and self.conn.our_state is h11.IDLE:
            self._refuse("slow_request", SLOW_RESPONSE)
        else:
            self.transport.close()

    def _refuse(self, cause: str, response: bytes) -> None:
        self.counters.refusals[cause] += 1
        self._leave(response)

    def _leave(self, response: bytes) -> None:
        """Say the last words, and leave the peer a moment to read them; its end of file closes sooner."""
        self._disarm()
        self.transport.write(response)
        if len(self.refused) >= MAX_REFUSED:
            self.transport.close()
            return
        self.refused.add(self)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # its body is malformed: it is not answered twice
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write_eof()
        self._linger = self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the loop could not do, as it would itself, but for a read without memory, behind which it closes."""
    connection = context.get("protocol")
    if isinstance(context.get("exception"), MemoryError) and isinstance(connection, BoundedConnection):
        connection.note_no_memory()
    else:
        loop.default_exception_handler(context)


def connection_class(listener: HttpListener) -> type[Any]:
    """Return the class of a listener's connections.

    Each has its own: what its connections have of it costs none of them a step.
    """
    loop = asyncio.get_running_loop()
    own: dict[str, Any] = {
        "listener": listener.name,
        "limits": listener.limits,
        "counters": listener.counters,
        "shortcut": listener.shortcut,
        "loop": loop,
        "sweep": DeadlineSweep(loop, listener.limits),
        "refused": set(),
        "refusal_log": RefusalLog(Clock()),
    }
    return type("ListenerConnection", (BoundedConnection,), own)
