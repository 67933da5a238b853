"""How many messages the broker takes and gives: rates of the last 10 s, minute and ten minutes, and totals by day.

One sample of all counters each second, as RocketMQ's store statistics; the totals are since the start.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

SAMPLE_MS: Final = 1_000
SPANS_S: Final = (10, 60, 600)
_DAY_MS: Final = 86_400_000


class Sample(NamedTuple):
    """The counters at one moment."""

    mono_ms: int
    put: int
    found: int
    missed: int
    transferred: int


@dataclass(frozen=True, slots=True)
class DayTotals:
    """Messages since the start: until yesterday's midnight, until today's, and until now."""

    yesterday: int
    today: int
    now: int


class Throughput:
    """The broker's rates. Its counters are raised by whoever puts and gets."""

    def __init__(self, now_ms: int, mono_ms: int, utc_offset_ms: int = 0) -> None:
        """Begin to count.

        Args:
            utc_offset_ms: What to add to UTC for local time, whose midnight parts the days.
        """
        self.put = 0
        """Messages appended."""
        self.found = 0
        """Reads that brought something."""
        self.missed = 0
        """Reads that brought nothing."""
        self.transferred = 0
        """Messages given to consumers."""
        self._utc_offset_ms = utc_offset_ms
        self._day = (now_ms + utc_offset_ms) // _DAY_MS
        self._mornings = {"put": (0, 0), "transferred": (0, 0)}
        self._samples = deque([Sample(mono_ms, 0, 0, 0, 0)], maxlen=SPANS_S[-1] * 1000 // SAMPLE_MS + 1)

    def tick(self, now_ms: int, mono_ms: int) -> None:
        """Take a sample each second; note the totals at midnight."""
        if mono_ms - self._samples[-1].mono_ms >= SAMPLE_MS:
            self._samples.append(Sample(mono_ms, self.put, self.found, self.missed, self.transferred))
        day = (now_ms + self._utc_offset_ms) // _DAY_MS
        if day < self._day - 1:
            self._day = day  # the clock was far ahead; by less than a day it may be set back over midnight
        if day > self._day:
            # More than a day later, yesterday's morning was after the last message too.
            for name, (_, today) in self._mornings.items():
                total = getattr(self, name)
                self._mornings[name] = (today if day == self._day + 1 else total, total)
            self._day = day

    def rates(self, name: str) -> tuple[float, float, float]:
        """Return ``put``, ``found``, ``missed`` or ``transferred`` per second: over 10 s, a minute, ten minutes.

        Of the last whole seconds, or of the time since the start where that is shorter.
        """
        last = self._samples[-1]
        counted = []
        for span in SPANS_S:
            first = self._samples[max(0, len(self._samples) - 1 - span * 1000 // SAMPLE_MS)]
            elapsed_ms = last.mono_ms - first.mono_ms
            counted.append((getattr(last, name) - getattr(first, name)) * 1000 / elapsed_ms if elapsed_ms else 0.0)
        return counted[0], counted[1], counted[2]

    def totals(self, name: str) -> DayTotals:
        """Return the totals of ``put`` or ``transferred``."""
        yesterday, today = self._mornings[name]
        return DayTotals(yesterday, today, getattr(self, name))
