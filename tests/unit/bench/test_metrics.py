"""Medians of samples, and how figures are written."""

from __future__ import annotations

import pytest

from bench.metrics import METRICS, medians


@pytest.mark.parametrize(
    ("rates", "expected"), [([3.0], 3.0), ([9.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 9.0], 3.0), ([1, 1, 1, 1, 99], 1)]
)
def test_a_figure_is_the_median_of_its_samples(rates: list[float], expected: float) -> None:
    """Medians of several runs; one outlier changes nothing."""
    assert medians([{"messages_per_s": rate} for rate in rates]) == {"messages_per_s": expected}


def test_figures_have_medians_of_their_own() -> None:
    samples = [{"messages_per_s": 1.0, "server_cpu_us": 9.0}, {"messages_per_s": 2.0, "server_cpu_us": 8.0}]
    assert medians([*samples, {"messages_per_s": 3.0, "server_cpu_us": 1.0}]) == {
        "messages_per_s": 2.0,
        "server_cpu_us": 8.0,
    }


def test_figures_are_written_with_their_digits() -> None:
    assert METRICS["messages_per_s"].show(1234567.8) == "1,234,568"
    assert METRICS["server_cpu_us"].show(0.4567) == "0.457"
