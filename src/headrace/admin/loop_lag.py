"""How late the event loop runs its timers.

One timer every 100 ms; what it is late is what every connection waited at that moment. A loop that is blocked for long
gives one large value, not many, so read the upper buckets as "how often", not "how long in total".
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from headrace.histogram import LOOP_LAG_BOUNDS_SECONDS, Histogram

SAMPLE_SECONDS: Final = 0.1


class LoopLagSampler:
    """Observes the loop's lag from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self.histogram = Histogram(LOOP_LAG_BOUNDS_SECONDS)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sample ``loop`` from now on."""
        self._loop = loop
        self._schedule(loop)

    def stop(self) -> None:
        """Sample no more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        # perf_counter, because uvloop's own clock counts whole ms and stands still within one iteration.
        self._due = time.perf_counter() + SAMPLE_SECONDS
        self._timer = loop.call_later(SAMPLE_SECONDS, self._tick)

    def _tick(self) -> None:
        self.histogram.observe(max(time.perf_counter() - self._due, 0.0))
        if self._loop is not None:
            self._schedule(self._loop)
