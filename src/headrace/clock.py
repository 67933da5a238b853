"""The time source. The core never asks it: it is given ``now`` with each call."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

logger = logging.getLogger(__name__)

STANDSTILL_MS: Final = 250
"""Time between two looks at the clock after which the loop is taken to stand still."""
_STANDSTILL_NS: Final = STANDSTILL_MS * 1_000_000
_TOLD_NS: Final = 1_000_000_000


class Clock:
    """The system's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock time in ms since 1970: for what is stored and for due times that survive a restart."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in ms: for deadlines inside one process."""
        return time.monotonic_ns() // 1_000_000


class LoopClock(Clock):
    """The clocks of an event loop, which may stand still: the disk blocks it, or the process is stopped or starved.

    What was sent in time lies unread meanwhile, and what is to be sent does not leave. So monotonic time goes on by
    ``STANDSTILL_MS`` only: no message times out, and no client is cut off, for what happened while nobody was served.
    It is told from the time between two calls of the loop's thread, of which a loop at work makes many: its ticks alone
    make twenty a second. Other threads may ask as well.
    """

    def __init__(self) -> None:
        self._looked_ns = 0
        self._left_out_ns = 0
        self._thread = 0

    def begin(self) -> None:
        """Leave out standstills from now on: the loop runs, in the calling thread."""
        self._thread = threading.get_ident()
        self._looked_ns = time.monotonic_ns()

    def monotonic_ms(self) -> int:
        """Return monotonic time in ms, without what the loop stood still."""
        now = time.monotonic_ns()
        if threading.get_ident() == self._thread:
            looked, self._looked_ns = self._looked_ns, now
            if now - looked > _STANDSTILL_NS:
                self._leave_out(now - looked - _STANDSTILL_NS)
        return (now - self._left_out_ns) // 1_000_000

    def _leave_out(self, standstill_ns: int) -> None:
        self._left_out_ns += standstill_ns
        if standstill_ns >= _TOLD_NS:
            logger.warning(
                "event loop stood still ms=%d effect=%s",
                standstill_ns // 1_000_000,
                "deadlines of clients and messages are put off by that; the disk blocked it, or the machine was busy",
            )

    @property
    def left_out_seconds(self) -> float:
        """How long the loop stood still so far, without the first ``STANDSTILL_MS`` each time."""
        return self._left_out_ns / 1e9


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
