"""Families of one sample, or of one for each value of a label."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a figure that rises and falls."""
    return GaugeMetricFamily(name, text, value=value)


def labelled(name: str, text: str, label: str, rows: Mapping[str, int]) -> Metric:
    """Return a counter for each value of a label, sorted by these."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, figure in sorted(rows.items()):
        family.add_metric((value,), figure)
    return family
