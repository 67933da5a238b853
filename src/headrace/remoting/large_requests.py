"""Requests with large bodies: as many in one turn of the event loop as it has time for, whoever sends them.

A heartbeat with a thousand subscriptions takes some 5 ms, and after a restart all clients send theirs at once. Such a
request waits here for its turn, and what its connection sent behind it waits with it: the requests of each are done in
the order they came. One that takes long for what it asks, as that for 50,000 queue locks, is done in parts, others in
between. A turn of ``net.turns`` is one connection's, and does not cut a command; this one is shared by all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.net.turns import TURN_MS
from headrace.remoting.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.clock import Clock
    from headrace.remoting.codec import Command
    from headrace.remoting.connection import RemotingConnection
    from headrace.remoting.reply import Parts

LARGE_BODY_BYTES: Final = 4 * 1024
"""Of JSON, which take some 0.1 ms as a heartbeat."""
MESSAGE_BODIES: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.SEND_SEQUENCED,
    )
)
"""Requests whose bodies are messages, of which many bytes take little time."""


def is_large(command: Command) -> bool:
    """Whether a request is one of these."""
    return len(command.body) >= LARGE_BODY_BYTES and not command.is_response and command.code not in MESSAGE_BODIES


class LargeRequests:
    """Those of one server that wait, in the order they came.

    Attributes:
        call_soon: The loop's, asked for when it is first needed.
    """

    def __init__(self, clock: Clock) -> None:
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self._clock = clock
        self._waiting: deque[tuple[RemotingConnection, Command, Parts | None]] = deque()  # None: not begun

    def add(self, connection: RemotingConnection, command: Command, parts: Parts | None = None) -> None:
        """Have a request, or what is left of it, done in later turns; its connection must take no other before."""
        self._waiting.append((connection, command, parts))
        if len(self._waiting) == 1:
            self._come_back()

    def _come_back(self) -> None:
        if self.call_soon is None:
            self.call_soon = asyncio.get_running_loop().call_soon
        self.call_soon(self._go_on)

    def _go_on(self) -> None:
        until_ms = self._clock.monotonic_ms() + TURN_MS
        while self._waiting:
            connection, command, parts = self._waiting.popleft()
            parts = connection.do_large(command, parts)
            if parts is not None:
                self._waiting.append((connection, command, parts))
            if self._clock.monotonic_ms() >= until_ms:
                break
        if self._waiting:
            self._come_back()
