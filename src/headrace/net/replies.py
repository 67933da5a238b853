"""The replies of one connection, in the order of its commands.

Clients match replies to commands first in, first out, so nothing may overtake: one that waits for a flush holds up
every reply behind it. Messages and heartbeats do not come through here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from headrace.errors import StoreError

MAX_WAITING_BYTES: Final = 4 << 20
"""Replies of a client that wait for the disk, from which on it is not read from. The default of
``store.max_unflushed_bytes`` is fewer replies where each is for a message that goes to the disk."""
REPLY_BYTES: Final = 128
"""Memory of a waiting reply beside its data."""


class Durability(Protocol):
    """Tells when an offset is durable: the store's gate."""

    def wait(self, offset: int, opened: Callable[[StoreError | None], None], /) -> None:
        """Call ``opened(None)`` once it is, or ``opened(error)`` when it never will be; at once where that is known."""


@dataclass(slots=True)
class Reply:
    """Frames that may leave when ``physical_offset`` is durable (0: at once)."""

    data: bytes
    physical_offset: int = 0
    command: str = ""
    """The command that it answers, and that is refused if the flush fails."""
    sent: Callable[[], None] | None = None
    """Called when the frames have been handed to the transport."""


class ReplyQueue:
    """Waiting replies; only the first of them waits at the gate.

    Attributes:
        waiting: Those that may not leave yet.
        waiting_bytes: Their memory.

    Args:
        gate: Where replies wait for durability.
        write: Takes the frames that may leave, joined.
        failed: Called with the reply whose flush failed; nothing leaves any more.
        emptied: Called when the last waiting reply has left.
        overfull: Called with each further reply that has to wait when MAX_WAITING_BYTES do.
    """

    __slots__ = (
        "_asked", "_emptied", "_failed", "_gate", "_moving", "_overfull", "_write", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        gate: Durability,
        *,
        write: Callable[[bytes], None],
        failed: Callable[[Reply, StoreError], None],
        emptied: Callable[[], None],
        overfull: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._write = write
        self._failed = failed
        self._emptied = emptied
        self._overfull = overfull
        self.waiting: deque[Reply] = deque()
        self.waiting_bytes = 0
        self._asked = False  # the first one waits at the gate
        self._moving = False  # _move is on the stack

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, reply: Reply) -> None:
        """Send ``reply``, or keep it until everything before it and its own flush are done."""
        if not self.waiting and reply.physical_offset == 0:
            self._write(reply.data)
            if reply.sent is not None:
                reply.sent()
            return
        self.waiting.append(reply)
        self.waiting_bytes += REPLY_BYTES + len(reply.data)
        self._move()
        if self.waiting_bytes > MAX_WAITING_BYTES:
            self._overfull()

    def drop(self) -> None:
        """Forget what waits: the connection is gone."""
        self.waiting.clear()
        self.waiting_bytes = 0

    def _move(self) -> None:
        """Send from the front as far as the gate lets through.

        A loop, not a recursion: the gate may call back at once, and thousands of replies may be ready together.
        """
        if self._moving:
            return
        self._moving = True
        ready: list[Reply] = []
        waiting = self.waiting
        while waiting and not self._asked:
            first = waiting[0]
            if first.physical_offset:
                self._asked = True
                self._gate.wait(first.physical_offset, self._opened)
            else:
                ready.append(waiting.popleft())
            # Opened at once: _opened has cleared the offset.
        self._moving = False
        if ready:
            data = b"".join([reply.data for reply in ready])
            self.waiting_bytes -= REPLY_BYTES * len(ready) + len(data)
            self._write(data)
            for reply in ready:
                if reply.sent is not None:
                    reply.sent()
            if not waiting:
                self._emptied()

    def _opened(self, error: StoreError | None) -> None:
        self._asked = False
        if not self.waiting:
            return  # dropped meanwhile
        first = self.waiting[0]
        if error is not None:
            self.drop()
            self._failed(first, error)
            return
        first.physical_offset = 0
        self._move()
