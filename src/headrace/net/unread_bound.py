"""A bound on what all connections of a server hold for peers that do not read, where each has one of its own besides.

One that holds all of it alone is left to that one: what it asked for may be larger than all that may wait.

What waits can grow by no more than what is written. So all connections are looked at, 0.1 us each, only when enough has
been written since the last look for the bound to be reached. Memory of one that is cut comes free when the loop comes
round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from headrace.net.connection import Connection

C = TypeVar("C", bound="Connection")

STEPS: Final = 16
"""At the bound, they are looked at once for each such part of it that is written."""


class UnreadBound:
    """Says which connections to cut when all of them together hold too much.

    Attributes:
        most_bytes: What they may hold. It is exceeded by a sixteenth, what is written between two questions, and what
            one of them holds alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._look_at_bytes = most_bytes

    def excess(self, written_bytes: int, connections: Iterable[C]) -> list[tuple[C, int]]:
        """Return the connections that hold most, and how many bytes each, without which the others keep the bound.

        Args:
            written_bytes: What all of them have written since the start, those that are closed included.
            connections: Looked at when they may hold too much.
        """
        if written_bytes < self._look_at_bytes:
            return []
        holding = [(connection, size) for connection in connections if (size := connection.waiting_bytes())]
        holding.sort(key=lambda each: each[1], reverse=True)
        held_bytes = sum(size for _, size in holding)
        cut = []
        for each in holding[:-1]:
            if held_bytes <= self.most_bytes:
                break
            cut.append(each)
            held_bytes -= each[1]
        self._look_at_bytes = written_bytes + max(self.most_bytes - held_bytes, self.most_bytes // STEPS)
        return cut
