"""What a connection does with each read and each write, in compiled code; all else is ``connection``'s and ``turns``'.

A small command costs less than the calls of Python around it. So the loop's two calls for a read come here, and reads
that are nothing but what a protocol does all day are done by its ``ReadTaker``s without a step through its connection.

Ref: docs/adr/0016-fins-in-compiled-code.md, "What every read and write passes".
"""

import asyncio

from headrace.clock import Clock
from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import StreamInput
from headrace.net.turns import Turns

class TrafficCounters:
    """What all connections of one listener count together."""

    bytes_in: int
    bytes_out: int
    heartbeats_missed: int
    read_pauses: int
    """Times reading from a connection stopped because the store or the client was behind."""
    write_pauses: int
    """Times a client was so slow that delivery to it stopped."""

class ReadTaker:
    """What does reads of one connection that are nothing but what it knows."""

    def take_read(self, nbytes: int) -> bool:
        """Do what ``nbytes`` in the receive buffer ask for.

        Return False, with nothing of them parsed, where they are something else.
        """

class Wire:
    """Base of ``Connection``, which it is only part of.

    Attributes:
        cause: Why the connection is ending; empty while it is served.
        takers: Asked, one after the other, whether a read is theirs, before ``take_read`` gets it.
    """

    cause: str
    takers: tuple[ReadTaker, ...]
    _input: StreamInput
    _receive: ReceiveBuffer
    _turns: Turns
    _rest: bytes
    _turn: asyncio.Handle | None
    _turn_began_ms: int
    _transport: asyncio.Transport
    _shut_at_ms: int
    _written_bytes: int
    _last_bytes: int

    def __init__(self, clock: Clock, traffic: TrafficCounters) -> None: ...
    @property
    def _clock(self) -> Clock: ...
    @property
    def _traffic(self) -> TrafficCounters: ...
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket is read to: the loop's buffer, or that of a large command."""
    def buffer_updated(self, nbytes: int) -> None:
        """Do what the bytes just read ask for; nothing keeps a view of them after this call."""
    def begin_turn(self, now_ms: int) -> None:
        """Note that the connection is served from ``now_ms`` on, unless it has been since the loop came round."""
    def write(self, data: bytes | memoryview) -> None:
        """Hand ``data`` to the transport."""
    def is_closing(self) -> bool:
        """Return whether nothing can be written any more: what a thread or a later turn answers may come too late."""
