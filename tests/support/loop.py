"""The part of an event loop that connections ask for: what is to run when it comes round."""

from __future__ import annotations

from collections.abc import Callable


class FakeHandle:
    """What ``call_soon`` returns."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Forget the callback."""
        self.is_cancelled = True


class FakeLoop:
    """A loop that comes round when it is told to."""

    def __init__(self) -> None:
        self._soon: list[FakeHandle] = []

    def call_soon(self, callback: Callable[[], None]) -> FakeHandle:
        """Have ``callback`` run when the loop comes round."""
        self._soon.append(FakeHandle(callback))
        return self._soon[-1]

    def come_round(self) -> int:
        """Run what was to run; return how much that was."""
        soon, self._soon = self._soon, []
        ready = [handle for handle in soon if not handle.is_cancelled]
        for handle in ready:
            handle.callback()
        return len(ready)
