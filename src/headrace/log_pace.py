"""How often the same thing is logged: whoever causes it again and again, or tries again, does not fill the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.clock import Clock

INTERVAL_MS: Final = 60_000
"""Between two lines about the same thing; what comes meanwhile is only counted, by the caller."""
MAX_KNOWN: Final = 1_000
"""Things of which it is known when they had their line; beyond it all are forgotten."""


class LogPace:
    """When each thing was logged."""

    def __init__(self, clock: Clock, max_known: int = MAX_KNOWN) -> None:
        self._clock = clock
        self._max_known = max_known
        self._next_ms: dict[bytes | str, int] = {}

    def is_due(self, what: bytes | str = "") -> bool:
        """Return whether to log ``what`` now; it then has had its line."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms.get(what, now_ms):
            return False
        if len(self._next_ms) >= self._max_known:
            self._next_ms.clear()
        self._next_ms[what] = now_ms + INTERVAL_MS
        return True


class Trouble:
    """Something that is tried again and again until it works: the first failure is logged, and those that follow not.

    What fails again behind a success is new trouble.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._is_there = False

    def note(self, message: str, *facts: object) -> None:
        """Log a failure, if it is the first."""
        if not self._is_there:
            self._logger.error(message, *facts)
        self._is_there = True

    def end(self) -> None:
        """Note that it works."""
        self._is_there = False
