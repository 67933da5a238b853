"""The time source. The core never asks it: it is given ``now`` with each call."""

from __future__ import annotations

import time


class Clock:
    """The system's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock time in ms since 1970: for what is stored and for due times that survive a restart."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in ms: for deadlines inside one process."""
        return time.monotonic_ns() // 1_000_000


class ManualClock(Clock):
    """A clock for tests that moves only when told."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        """Return the wall-clock time it was told."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic time it was told."""
        return self._monotonic_ms

    def advance_ms(self, milliseconds: int) -> None:
        """Move both clocks forward."""
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds
