"""How often the same thing is logged: whoever causes it again and again, or tries again, does not fill the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.clock import Clock

INTERVAL_MS: Final = 60_000
"""Between two lines about the same thing; what comes meanwhile is only counted, by the caller."""
LINES_A_MINUTE: Final = 200
"""About all things of a kind together: a cluster of a hundred nodes may be started again and be seen whole."""
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


class LineLimit:
    """When lines about things that come and go under any names may be logged: as ``LogPace``, and so many of them all.

    ``on_more`` is called once a minute, when the first line too many was due.
    """

    def __init__(self, clock: Clock, on_more: Callable[[], None], most: int = LINES_A_MINUTE) -> None:
        self._clock = clock
        self._pace = LogPace(clock)
        self._on_more = on_more
        self._most = most
        self._lines = 0
        self._minute_ends_ms = 0

    def is_due(self, what: str) -> bool:
        """Return whether to log ``what`` now; it then has had its line."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._minute_ends_ms:
            self._lines, self._minute_ends_ms = 0, now_ms + INTERVAL_MS
        if self._lines > self._most or not self._pace.is_due(what):
            return False
        self._lines += 1
        if self._lines > self._most:
            self._on_more()
            return False
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
