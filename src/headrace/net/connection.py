"""The life of one connection, whatever it speaks: accounted writes, reasons for not reading, and a decent end.

Output. What the peer does not take waits in the transport. Above the high-water mark the connection is blocked:
``on_blocked`` stops what produces output, ``on_writable`` starts it again, and a peer that takes nothing for the write
deadline is cut.

Input. A connection is read from while no ``Pause`` is set; each reason is set and lifted by itself.

The end. ``leave`` stops serving at once, lets pending output out, shuts the write side and throws away what still comes
in for a moment: closing a socket with unread input resets it, and the reset would overtake the last words. ``abort``
does without. ``cause`` says why, from the first moment on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from headrace.net.address import format_address, peer_of
from headrace.net.unacknowledged import unacknowledged_bytes
from headrace.net.wire import TrafficCounters, Wire

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.net.deadlines import Deadlines
    from headrace.net.timer_wheel import TimerWheel

LINGER_MS: Final = 1000
"""How long a peer that is left may take to read the last words."""
LONGEST_LINGER_MS: Final = 60_000
"""How long it may take to read what stands before them, as long as it goes on reading."""
CLIENT_CLOSED: Final = "client closed"


class Pause:
    """Why a connection is not read from: bits of ``Connection.pauses``. Plain numbers: every command looks at them."""

    STORE: Final = 1  # more bytes await the disk than the store allows
    REPLIES: Final = 2  # the peer does not read its replies
    LEAVING: Final = 4  # the server stops
    TURN: Final = 8  # it had its time, others are first
    LINE: Final = 16  # its next request takes long and waits for those of others
    OTHERS: Final = TURN | LINE  # these say nothing of the peer or the store


class Connection(Wire, asyncio.BufferedProtocol):
    """Base of a protocol's connection; the protocol overrides the ``on_`` methods.

    Attributes:
        peer_address: Host and port of the peer; None for a socket that is not TCP's.
        remote_address: The same as text.
        host: The peer's host; empty where it is not known.
        is_blocked: The peer has more waiting for it than the high-water mark.
        pauses: Why it is not read from: bits of ``Pause``.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        wheel: TimerWheel[Connection],
        traffic: TrafficCounters,
        deadlines: Deadlines,
        high_water_bytes: int,
    ) -> None:
        super().__init__(clock, traffic)
        self.peer_address: tuple[str, int] | None = None
        self.remote_address = ""
        self.host = ""
        self.is_blocked = False
        self.pauses = 0
        self._wheel = wheel
        self._deadlines = deadlines
        self._high_water_bytes = high_water_bytes
        self._unread_replies_bytes = 0  # of replies, written since the peer is behind
        self._blocking_bytes = 0  # of the write behind which it was
        # Where views that may wait begin and end in what was written; None: there was no view, as with most.
        self._borrowed: deque[tuple[int, int]] | None = None

    # -- what a protocol overrides -------------------------------------------------------------------------------

    def on_ending(self) -> None:
        """Give up what the connection holds; called when it is left and again when it is lost."""

    def on_blocked(self) -> None:
        """Stop producing output."""

    def on_writable(self) -> None:
        """Go on producing output."""

    def on_heartbeat(self) -> None:
        """Send a heartbeat."""

    def has_pending_output(self) -> bool:
        """Return whether there is output that waits for something else than the peer."""
        return False

    def held_bytes(self) -> int:
        """Return how many bytes of an unfinished command there are."""
        return 0

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high_water_bytes)
        name = transport.get_extra_info("peername")
        self.peer_address = peer_of(name)
        self.remote_address = format_address(self.peer_address or name)
        self.host = self.peer_address[0] if self.peer_address else ""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up everything."""
        self.cause = self.cause or ("connection lost" if exc else CLIENT_CLOSED)
        self._wheel.cancel(self)
        self.on_ending()

    def eof_received(self) -> bool:
        """Close, but not before output that waits for something is out."""
        self.leave(CLIENT_CLOSED)
        return self.has_pending_output()

    def leave(self, cause: str) -> None:
        """Stop serving; shut the connection behind the output that is pending."""
        if self.cause:
            return
        self.cause = cause
        self.on_ending()
        if not self.has_pending_output():
            self.shut()

    def shut(self) -> None:
        """Shut the write side and give the peer a moment to read; its end of file or the wheel closes."""
        transport = self._transport
        if transport.is_closing():
            return
        self._shut_at_ms = self._clock.monotonic_ms() + LINGER_MS
        self._wheel.schedule(self, self._shut_at_ms)
        if self.cause == CLIENT_CLOSED:
            transport.close()
            return
        if self.pauses:
            self.pauses = 0
            transport.resume_reading()
        transport.write_eof()

    def close(self) -> None:
        """Close when what was written is out; with input unread its end may be lost. Only behind ``leave``."""
        self._transport.close()

    def abort(self, cause: str) -> None:
        """Close at once."""
        self.cause = self.cause or cause
        # Also when it is closing already: that waits for output which the peer may never take.
        self._transport.abort()

    # -- output --------------------------------------------------------------------------------------------------

    def write_reply(self, data: bytes) -> None:
        """Write what must be kept for a peer that does not read it: so what leads to more of it is read no more."""
        if self.is_closing():
            return
        was_blocked = self.is_blocked
        self.write(data)
        if self.is_blocked:
            most = self._high_water_bytes
            # One reply may be larger than all that may wait: only what comes on top of it puts the peer behind.
            self._unread_replies_bytes += len(data) if was_blocked else min(len(data), most + 1)
            if self._unread_replies_bytes > most:
                self.pause(Pause.REPLIES)

    def write_view(self, data: memoryview) -> None:
        """Write what is borrowed from elsewhere, and takes no memory of this connection while it waits."""
        size = len(data)
        if self._borrowed is None:
            self._borrowed = deque()
        _forget_below(self._written_bytes - self._transport.get_write_buffer_size(), self._borrowed)
        self._borrowed.append((self._written_bytes, self._written_bytes + size))
        self._written_bytes += size
        self._last_bytes = 0
        self._traffic.bytes_out += size
        self._transport.write(data)

    def pause_writing(self) -> None:
        """Note that the peer does not read as fast as it is sent to; the transport calls this."""
        self._traffic.write_pauses += 1
        self.is_blocked = True
        self._blocking_bytes = self._last_bytes
        self._unread_replies_bytes = 0
        self.on_blocked()
        now_ms = self._clock.monotonic_ms()
        self._is_write_overdue(now_ms)  # its time runs from here
        self.look_again(now_ms)

    def resume_writing(self) -> None:
        """Note that the peer has caught up; the transport calls this."""
        self.is_blocked = False
        self.resume(Pause.REPLIES)
        self.on_writable()

    def waiting_bytes(self) -> int:
        """Return how many bytes wait in memory for the peer to take them, without those that are borrowed.

        What was written at once stays there until all of it is taken.
        """
        left_bytes = self._transport.get_write_buffer_size()
        write_bytes = self._blocking_bytes if self.is_blocked else self._last_bytes
        return max(left_bytes - self._borrowed_bytes(left_bytes), write_bytes) if left_bytes else 0

    def _borrowed_bytes(self, left_bytes: int) -> int:
        """Return how much of the last ``left_bytes`` that were written is borrowed."""
        if not self._borrowed:
            return 0
        taken_bytes = self._written_bytes - left_bytes
        _forget_below(taken_bytes, self._borrowed)
        return sum(end - max(start, taken_bytes) for start, end in self._borrowed)

    # -- input ---------------------------------------------------------------------------------------------------

    def pause(self, reason: int) -> None:
        """Stop reading for ``reason``, unless the connection is ending."""
        if self.cause or self._transport.is_closing():
            return
        if not self.pauses:
            self._transport.pause_reading()
        # Others may come before what is counted.
        if not reason & Pause.OTHERS and not self.pauses & ~Pause.OTHERS:
            self._traffic.read_pauses += 1
        self.pauses |= reason

    def resume(self, reason: int) -> None:
        """Lift ``reason``; read again if it was the last one."""
        if not self.pauses & reason:
            return
        self.pauses &= ~reason
        if not self.pauses and not self._transport.is_closing():
            # It could not send meanwhile, so its deadline starts anew.
            self._deadlines.last_command_ms = self._clock.monotonic_ms()
            self._transport.resume_reading()

    # -- time ----------------------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Send a heartbeat or enforce a deadline, whichever is due; the wheel brings the connection here."""
        if self.cause:
            self._linger(now_ms)
            return
        # A peer that is not read from cannot be late.
        if not self.pauses and self._deadlines.is_read_overdue(now_ms, self.held_bytes()):
            self._traffic.heartbeats_missed += 1
            self.abort("read timeout")
            return
        if self._is_write_overdue(now_ms):
            self.abort("write timeout")
            return
        if self._deadlines.take_heartbeat(now_ms) and not self.is_blocked:
            self.on_heartbeat()
        self.look_again(now_ms)

    def look_again(self, now_ms: int) -> None:
        """Have the wheel bring the connection up when something may be due."""
        self._wheel.schedule(self, self._deadlines.next_look_ms(now_ms))

    def _linger(self, now_ms: int) -> None:
        """Cut a connection that was left when it had its moment and takes no more of what waits for it."""
        waiting = self._transport.get_write_buffer_size() > 0 and now_ms < self._shut_at_ms + LONGEST_LINGER_MS
        if self._shut_at_ms and now_ms >= self._shut_at_ms and (not waiting or self._is_write_overdue(now_ms)):
            self.abort(self.cause)
        else:
            self._wheel.schedule(self, now_ms + LINGER_MS)

    def _is_write_overdue(self, now_ms: int) -> bool:
        transport = self._transport
        waiting_bytes = unacknowledged_bytes(transport) if transport.get_write_buffer_size() else 0
        return self._deadlines.is_write_overdue(now_ms, self._written_bytes, waiting_bytes)


def _forget_below(taken_bytes: int, borrowed: deque[tuple[int, int]]) -> None:
    """Forget the views that are out."""
    while borrowed and borrowed[0][1] <= taken_bytes:
        borrowed.popleft()
