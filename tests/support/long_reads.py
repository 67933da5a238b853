"""A loop that is long at its reads, and does not read meanwhile what has come."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable


class LongReads(asyncio.Protocol):
    """Every connection's protocol: it is long at two reads in a row, in the second of which something comes.

    Attributes:
        is_over: That was read.
        sent_ms: When it was sent.
    """

    def __init__(self, now_ms: Callable[[], int], seconds: float) -> None:
        """Take so many seconds for each of the two."""
        self.is_over = asyncio.Event()
        self.sent_ms = 0
        self._now_ms = now_ms
        self._seconds = seconds
        self._one: socket.socket
        self._other: socket.socket

    def __call__(self) -> LongReads:
        return self

    async def run(self, address: tuple[str, int]) -> None:
        """Connect to where this is served, and have all that happen."""
        with socket.create_connection(address) as self._one, socket.create_connection(address) as self._other:
            await asyncio.sleep(self._seconds / 4)
            self._one.send(b"long")
            await asyncio.wait_for(self.is_over.wait(), 10)

    def data_received(self, data: bytes) -> None:
        if data == b"long":
            time.sleep(self._seconds)  # timers are due
            self._other.send(b"long, too")
        elif data == b"long, too":
            self.sent_ms = self._now_ms()
            self._one.send(b"meanwhile")
            time.sleep(self._seconds)
        elif data == b"meanwhile":
            self.is_over.set()
