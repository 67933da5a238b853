"""A gate that a test opens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.errors import FlushError


class FakeGate:
    """Opens at once while ``open_all`` is set, else when the test says so."""

    def __init__(self) -> None:
        self.open_all = True
        self.opened_offset = 0
        self.waiting: deque[tuple[int, Callable[[FlushError | None], None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def wait(self, offset: int, opened: Callable[[FlushError | None], None]) -> None:
        if self.open_all or offset <= self.opened_offset:
            opened(None)
        else:
            self.waiting.append((offset, opened))

    def open(self, offset: int) -> None:
        self.opened_offset = offset
        while self.waiting and self.waiting[0][0] <= offset:
            self.waiting.popleft()[1](None)

    def fail(self) -> None:
        error = FlushError("/data/commitlog/0", 5)
        while self.waiting:
            self.waiting.popleft()[1](error)
