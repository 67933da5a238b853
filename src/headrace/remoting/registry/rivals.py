"""Brokers that put each other out: two of one name and id, or two names under one address.

Each of their registrations takes the other's place, every half minute for as long as nobody mends it. So the first is
told, then the one that shows that they go on in turn, and no more until they have been quiet for as long as a broker
may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.clock import Clock

MAX_KNOWN: Final = 1_000
"""Pairs that are remembered; beyond it all are forgotten."""


class Rivals:
    """How often each two took each other's place, without a pause of ``quiet_ms``."""

    def __init__(self, clock: Clock, quiet_ms: int) -> None:
        self._clock = clock
        self._quiet_ms = quiet_ms
        self._known: dict[tuple[str, ...], tuple[int, int]] = {}  # times, and when the last one was (monotonic)

    def count(self, over: str, one: str, other: str) -> int:
        """Count that of two the one took the place of the other; return the how manieth time it is."""
        now_ms = self._clock.monotonic_ms()
        key = (over, *sorted((one, other)))
        times, last_ms = self._known.pop(key, (0, now_ms))
        if now_ms - last_ms > self._quiet_ms:
            times = 0
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = times + 1, now_ms
        return times + 1
