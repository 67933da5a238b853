"""A counter of durations in fixed buckets.

``observe`` is a bisection and two additions and allocates nothing that stays, so the flusher and the loop can call it
for each event. One thread observes; others may read at any time and at worst see an event in a bucket that is not in
the sum yet. Who reads (``/metrics``) turns the counts into a Prometheus histogram.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

# 100 us to 10 s: an fdatasync of a fast NVMe drive, of a tired disk, and of one that is about to fail.
FLUSH_BOUNDS_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    10.0,
)
# 100 us to 5 s: how late a timer fires on a healthy loop, a busy one and a blocked one.
LOOP_LAG_BOUNDS_SECONDS: Final = (
    0.0001,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    5.0,
)


class Histogram:
    """How many observed values fell at or below each bound.

    Attributes:
        bounds: Upper bounds of the buckets in ascending order; values above the last one fall into a bucket more.
        counts: Values per bucket, not cumulated; one item more than ``bounds``.
        total: Sum of all values, in the unit of ``bounds``.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds must be ascending and not empty: {bounds!r}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound, values at or below it) for each bucket; the last bound is infinity."""
        rows = []
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            rows.append((bound, below))
        return rows
