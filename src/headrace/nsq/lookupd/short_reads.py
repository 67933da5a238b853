"""What producers that wait for their replies may ask for in a turn of the event loop, all of them together.

One PING costs little, and is answered at once. Thousands of connections with as many commands as fit into a short read
would hold up everybody else in the process for a second: beyond ``TURN_BYTES`` they wait for the next turn, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

TURN_BYTES: Final = 8 << 10
"""Of commands: some four milliseconds."""


class ShortReads:
    """One server's."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait_turn(self, size: int) -> None:
        """Return when a read of so many bytes may be taken: mostly at once."""
        loop = asyncio.get_running_loop()
        if self._waiting or self._taken >= TURN_BYTES:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append((size, turn))
            await turn
            return
        if not self._taken:
            loop.call_soon(self._begin_turn)
        self._taken += max(size, 1)

    def _begin_turn(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < TURN_BYTES:
            size, turn = self._waiting.popleft()
            if not turn.done():  # else its connection has ended
                self._taken += max(size, 1)
                turn.set_result(None)
        if self._taken:  # behind those that go on now
            asyncio.get_running_loop().call_soon(self._begin_turn)
