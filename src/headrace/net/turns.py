"""A connection that gives way: one client's costly input must not hold up everybody else.

A turn is what one connection may do before the others are looked at. uvloop reads up to 32 times from one socket in a
row, so a turn begins with a read and lasts until the event loop comes round again, however many reads that are. When
it has taken its time, nothing more is read, what is left of the read is kept as bytes, and the connection goes on in
the next turn of the loop, behind the other clients. A turn is TURN_MS long, and shorter where many connections have
turns: together they take ROUND_MS, so that a client that sends little, and a stop, do not wait for all of them.

What is left of the reads of all connections is MAX_KEPT_BYTES before reads become short: a thousand clients that wait
for the disk would keep 256 KiB each.

The protocol's part: ``begin_turn`` comes before what a read asks for is done; ``take_read`` does it, asks now and then,
behind a command that is not one of a batch, whether ``is_turn_over``, and calls ``put_off`` when it is. One command, or
one batch of the codec, is never cut, however long it takes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.net.connection import Connection, Pause
from headrace.net.receive import READ_BYTES, SHORT_READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.net.receive import ReceiveBuffer
    from headrace.net.stream_input import StreamInput

TURN_MS: Final = 10
"""Time after which a client's further input waits."""
ROUND_MS: Final = 50
"""What the turns of a server's connections may take together, as long as each has SHORTEST_TURN_MS."""
SHORTEST_TURN_MS: Final = 1
LARGE_READ_BYTES: Final = 64 * 1024
"""A read from which on there is probably more to read at once: the turn may have several."""
MAX_KEPT_BYTES: Final = 16 << 20
"""What a server's connections may keep together of their reads, before each reads SHORT_READ_BYTES at most."""


class Turns:
    """What the connections of one server have of each other.

    Attributes:
        waiting: Connections whose turn ends, and the next begins, when the loop comes round.
        kept_bytes: What is left of their reads.
        large_read_bytes: LARGE_READ_BYTES, or as much as a short read brings.
    """

    def __init__(self, receive: ReceiveBuffer) -> None:
        self.waiting = 0
        self.kept_bytes = 0
        self.large_read_bytes = LARGE_READ_BYTES
        self._receive = receive

    def note_kept(self, more_bytes: int) -> None:
        """Note that a connection keeps so much more of a read, or less."""
        was_short = self.kept_bytes > MAX_KEPT_BYTES
        self.kept_bytes += more_bytes
        is_short = self.kept_bytes > MAX_KEPT_BYTES
        if is_short != was_short:
            self._receive.limit(SHORT_READ_BYTES if is_short else READ_BYTES)
            self.large_read_bytes = SHORT_READ_BYTES if is_short else LARGE_READ_BYTES

    def length_ms(self) -> int:
        """Return how long a turn is now."""
        share_ms = ROUND_MS // (self.waiting or 1)
        return TURN_MS if share_ms >= TURN_MS else max(SHORTEST_TURN_MS, share_ms)


class TurnConnection(Connection):
    """A connection that is served in turns.

    Attributes:
        call_soon: The loop's, asked for when it is first needed.
        id: Its number on its server; 0 before it is taken up.
    """

    def __init__(self, reader: StreamInput, receive: ReceiveBuffer, turns: Turns, **life: Any) -> None:
        super().__init__(**life)
        self.id = 0
        self._turns = turns
        self.call_soon: Callable[[Callable[[], None]], asyncio.Handle] | None = None
        self._input = reader
        self._receive = receive

    def stop(self, cause: str) -> None:
        """Read no more, let out the answers that are pending, then close; one that leaves already is left alone."""
        if not self.cause:  # else reading shows when the peer has closed
            self.pause(Pause.LEAVING)
            self.leave(cause)

    def held_bytes(self) -> int:
        """Return how many bytes of an unfinished command there are."""
        return self._input.held_bytes

    def take_read(self, nbytes: int) -> None:
        """Do what ``nbytes`` just read ask for."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Close at once, for want of memory or by a bug; from where the error is handled."""
        raise NotImplementedError

    def is_turn_over(self) -> bool:
        """Return whether the next command has to wait."""
        return self._clock.monotonic_ms() >= self._turn_began_ms + self._turns.length_ms()

    def note_large_read(self) -> None:
        """Have the next read wait if the turn is over; for one of ``large_read_bytes`` or more that has been taken."""
        if self.cause or self.pauses:
            return
        self._end_turn_soon()
        if self.is_turn_over():
            self.pause(Pause.TURN)

    def keep_behind(self, nbytes: int) -> None:
        """Put a read that came although nothing was to be read behind what waits."""
        self._keep(self._rest + bytes(self.get_buffer(-1)[:nbytes]))

    def _keep(self, rest: bytes) -> None:
        self._turns.note_kept(len(rest) - len(self._rest))
        self._rest = rest

    def put_off(self) -> None:
        """Keep what the reader has not parsed yet for another turn."""
        self._keep(self._input.take_rest() + self._rest)
        if self._rest and not self.cause:
            self.pause(Pause.TURN)
            self._end_turn_soon()

    def resume(self, reason: int) -> None:
        """Lift ``reason``; go on with what waits, before anything is read."""
        super().resume(reason)
        if self._rest and self.pauses == Pause.TURN:
            self._end_turn_soon()

    def on_ending(self) -> None:
        """Take no more input, and forget what waits for its turn."""
        self._keep(b"")
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self._turns.waiting -= 1
        self._input.discard()

    def _end_turn_soon(self) -> None:
        """Have the turn end when the loop comes round, and the next begin."""
        if self._turn is None:
            if self.call_soon is None:  # to ask for the loop each turn costs a system call
                self.call_soon = asyncio.get_running_loop().call_soon
            self._turn = self.call_soon(self._go_on)
            self._turns.waiting += 1

    def _go_on(self) -> None:
        """Begin another turn: with what waits, or by reading again."""
        self._turn = None
        self._turns.waiting -= 1
        if not self._rest:
            self.resume(Pause.TURN)
            return
        if self.pauses != Pause.TURN:
            return  # ``resume`` comes back here
        self.begin_turn(self._clock.monotonic_ms())
        self._end_turn_soon()  # what is read in this round of the loop is of the same turn
        while self._rest and self.pauses == Pause.TURN and not self.cause:
            buffer = self.get_buffer(-1)
            taken = min(len(buffer), len(self._rest))
            buffer[:taken] = self._rest[:taken]
            self._keep(self._rest[taken:])
            self.take_read(taken)
            if self.is_turn_over():
                return
        if not self._rest:
            self.resume(Pause.TURN)
