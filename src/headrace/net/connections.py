"""The open connections of one listener."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class OpenConnections(Generic[Connection]):
    """Numbers connections, bounds how many there are, and counts how they ended.

    Attributes:
        limit: Connections that may be open at once.
        total: Connections accepted since the start, refused ones included.
        refused: Those turned away at the limit.
        closed: Ended connections by cause.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.refused = 0
        self.closed: Counter[str] = Counter()
        self._open: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        """Walk a copy: connections close while they are walked over."""
        return iter(list(self._open.values()))

    def add(self, connection: Connection) -> int | None:
        """Return the connection's number, never given twice, or None when the limit is reached."""
        self.total += 1
        if len(self._open) >= self.limit:
            self.refused += 1
            return None
        number = self.total
        self._open[number] = connection
        return number

    def remove(self, number: int, cause: str) -> None:
        """Forget a connection; nothing happens if it is not there."""
        if self._open.pop(number, None) is not None:
            self.closed[cause] += 1
