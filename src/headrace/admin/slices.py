"""Families with many samples, in parts: the text of each takes about a millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SAMPLES_PER_SLICE: Final = 80
"""The library formats one in some 10 us."""


def family_slices(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float]],
) -> Iterator[Metric]:
    """Yield one family in parts, the first of which may be empty.

    Args:
        samples: The values of the labels, and the figure. Read part by part, with other work in between: what it goes
            over must not change meanwhile.
    """
    rest = iter(samples)
    is_first = True
    while (some := list(islice(rest, SAMPLES_PER_SLICE))) or is_first:
        family = kind(name, text, labels=labels)
        for values, figure in some:
            family.add_metric(values, figure)
        yield family
        is_first = False
