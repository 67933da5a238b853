"""How often a server logs the same thing: whoever causes it again and again does not fill the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.clock import Clock

INTERVAL_MS: Final = 60_000
"""Between two lines about the same thing; what comes meanwhile is only counted, by the caller."""
MAX_KNOWN: Final = 1_000
"""Things of which it is known when they had their line; beyond it all are forgotten."""


class LogPace:
    """When each thing was logged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ms: dict[bytes | str, int] = {}

    def is_due(self, what: bytes | str) -> bool:
        """Return whether to log ``what`` now; it then has had its line."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms.get(what, now_ms):
            return False
        if len(self._next_ms) >= MAX_KNOWN:
            self._next_ms.clear()
        self._next_ms[what] = now_ms + INTERVAL_MS
        return True
