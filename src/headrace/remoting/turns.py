"""Requests in turns: one client's read of many costly requests must not hold up everybody else.

The requests of one socket read are done one after the other, until the turn has taken TURN_MS, or the client does not
take its responses, or the store is behind. What is left of the read is kept as bytes, nothing more is read, and the
connection goes on in a later turn of the event loop, behind the other clients.

Ref: remoting.md 1.1; docs/protocols/remoting.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.net.connection import Connection, Pause

if TYPE_CHECKING:
    from headrace.net.receive import ReceiveBuffer
    from headrace.remoting.codec import Reader

logger = logging.getLogger(__name__)

TURN_MS: Final = 10
"""Time after which a client's further requests wait; one request always fits."""


class TurnConnection(Connection):
    """A connection whose requests are done in turns; the protocol overrides ``take_read``."""

    def __init__(self, reader: Reader, receive: ReceiveBuffer, **rest: Any) -> None:
        super().__init__(**rest)
        self._reader = reader
        self._receive = receive
        self._rest = b""  # what is left of a read, after what the reader has already
        self._turn_ends_ms = 0
        self._turn: asyncio.Handle | None = None

    def take_read(self, nbytes: int) -> None:
        """Do what ``nbytes`` just read ask for; ``is_turn_over`` says when to ``put_off`` the rest."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket is read to: the loop's buffer, or that of a large frame."""
        return self._reader.room() or self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        """Do what the bytes just read ask for; nothing keeps a view of them after this call."""
        self._traffic.bytes_in += nbytes
        if self.cause:
            return
        if self._rest:  # it came although nothing was to be read: behind what waits
            buffer = self.get_buffer(-1)
            self._rest += bytes(buffer[:nbytes])
            return
        self._turn_ends_ms = self._clock.monotonic_ms() + TURN_MS
        self.take_read(nbytes)

    def is_turn_over(self) -> bool:
        """Return whether the next request has to wait."""
        return bool(self.pauses & ~Pause.TURN) or self._clock.monotonic_ms() >= self._turn_ends_ms

    def put_off(self) -> None:
        """Keep what the reader has not parsed yet for another turn."""
        self._rest = self._reader.take_rest() + self._rest
        if self._rest and not self.cause:
            self.pause(Pause.TURN)
            self._next_turn()

    def resume(self, reason: Pause) -> None:
        """Lift ``reason``; go on with what waits, before anything is read."""
        super().resume(reason)
        if self._rest and self.pauses == Pause.TURN:
            self._next_turn()

    def on_ending(self) -> None:
        """Forget what waits."""
        self._rest = b""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _next_turn(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Have another turn."""
        self._turn = None
        self._turn_ends_ms = self._clock.monotonic_ms() + TURN_MS
        while self._rest and self.pauses == Pause.TURN and not self.cause:
            buffer = self.get_buffer(-1)
            taken = min(len(buffer), len(self._rest))
            buffer[:taken] = self._rest[:taken]
            self._rest = self._rest[taken:]
            self.take_read(taken)
            if self._clock.monotonic_ms() >= self._turn_ends_ms:
                break
        if self._rest and self.pauses == Pause.TURN and not self.cause:
            self._next_turn()
        elif not self._rest:
            self.resume(Pause.TURN)
