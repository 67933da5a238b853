"""Fixed-bucket histograms."""

from __future__ import annotations

import math

import pytest

from headrace.histogram import FLUSH_BOUNDS_SECONDS, LOOP_LAG_BOUNDS_SECONDS, Histogram


def test_a_value_at_a_bound_counts_at_that_bound() -> None:
    """Prometheus: a bucket holds what is less than or equal to its bound."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [(1.0, 2), (2.0, 4), (math.inf, 5)]
    assert (histogram.count, histogram.total) == (5, 8.0)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_must_ascend(bounds: tuple[float, ...]) -> None:
    """A bisection over anything else would count wrongly."""
    with pytest.raises(ValueError, match="ascending"):
        Histogram(bounds)


def test_declared_bounds() -> None:
    """Both sets of buckets are valid and reach from far below a ms to seconds."""
    for bounds in (FLUSH_BOUNDS_SECONDS, LOOP_LAG_BOUNDS_SECONDS):
        Histogram(bounds)
        assert bounds[0] < 0.001
        assert bounds[-1] >= 1
