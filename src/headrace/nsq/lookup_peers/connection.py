"""One TCP connection to a nsqlookupd: commands go out many at once, their replies come in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, cast

from headrace.errors import ConnectionLostError, HeadraceError, ProtocolError, RequestTimeoutError
from headrace.net.address import leads_to, peer_of
from headrace.nsq.lookup_peers.codec import MAGIC, LookupdIdentity, ReplyReader, decode_identity, require_ok, shown

ANSWER_S: Final = 1.0
"""Longest time without another reply, while any is awaited: nsqd's."""
LAST_LOOK_S: Final = 0.02


class LookupConnection(asyncio.Protocol):
    """One connection; one caller at a time asks.

    ``_error`` is why it is of no use any more. What came before that is looked at first: a nsqlookupd that refuses says
    why, and closes.
    """

    def __init__(self, address: str, on_lost: Callable[[], None]) -> None:
        """Make one that is not connected yet.

        Args:
            on_lost: Called when it is of no use any more.
        """
        self.address = address
        self._on_lost = on_lost
        self._transport = cast(asyncio.Transport, None)
        self._reader = ReplyReader()
        self._awaited = 0
        self._replies: list[bytes] = []
        self._came = asyncio.Event()
        self._error: HeadraceError | None = None

    async def identify(self, command: bytes) -> LookupdIdentity:
        """Send IDENTIFY and return who answers.

        Raises:
            ClientError, ProtocolError: nobody did, or it refused.
        """
        replies = await self._exchange((command,))
        self.require(has=len(replies) == 1)
        return decode_identity(replies[0])

    async def say(self, commands: Sequence[bytes]) -> None:
        """Send commands, a bounded number; return when all are answered with OK.

        Raises:
            ClientError, ProtocolError: one was not.
        """
        replies = await self._exchange(commands)
        for reply, command in zip(replies, commands, strict=False):
            require_ok(reply, command)
        self.require(has=len(replies) == len(commands))

    async def _exchange(self, commands: Sequence[bytes]) -> list[bytes]:
        """Send commands and return their replies, fewer where the connection broke.

        Raises:
            RequestTimeoutError: nothing came for ``ANSWER_S``.
        """
        self.require()
        self._awaited = len(commands)
        if not self._transport.is_closing():  # else it is about to say so
            self._transport.write(b"".join(commands))
        while self._awaited and self._error is None:
            self._came.clear()
            if not await self._wait_came():
                late = commands[len(commands) - self._awaited].partition(b"\n")[0]
                raise RequestTimeoutError(self.address, shown(late), ANSWER_S)
        replies, self._replies = self._replies, []
        return replies

    async def _wait_came(self) -> bool:
        """Return whether something came in time.

        Where the event loop stood still the time is over before what came is read: that is looked for once more.
        """
        for patience_s in (ANSWER_S, LAST_LOOK_S):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._came.wait()
                    return True
        return False

    def leads_to(self, listener: str) -> bool:
        """Return whether it leads to a listener of this machine, as bound."""
        peer, local = (peer_of(self._transport.get_extra_info(end)) for end in ("peername", "sockname"))
        return peer is not None and local is not None and leads_to(listener, peer, local)

    def require(self, *, has: bool = False) -> None:
        """Raise what the connection broke by, if it did, and if it does not have what was wanted."""
        if self._error is not None and not has:
            raise self._error

    def close(self) -> None:
        """Close it; nothing has to be said first."""
        self._error = self._error or ConnectionLostError(self.address, "closed by this broker")
        self._transport.abort()

    # -- the transport's calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with what says which protocol it is."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(MAGIC)

    def data_received(self, data: bytes) -> None:
        """Take replies; more than are awaited are none."""
        if self._error is not None:
            return
        try:
            replies = self._reader.feed(data)
            if len(replies) > self._awaited:
                raise ProtocolError(f"sends what nobody asked for: {shown(replies[self._awaited])}")
        except ProtocolError as error:
            self.fail(error)
            return
        if replies:
            self._awaited -= len(replies)
            self._replies += replies
            self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the other side, or the network, ended it."""
        self.fail(ConnectionLostError(self.address, str(exc) if exc else "closed by the nsqlookupd"))

    def fail(self, error: HeadraceError) -> None:
        """Note that it is of no use any more, and close it."""
        if self._error is None:
            self._error = error
            self._transport.abort()
            self._came.set()
            self._on_lost()
