"""Families with many samples come in parts. Ref: docs/metrics.md."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.admin.remoting_metrics import remoting_families
from headrace.admin.slices import SAMPLES_PER_SLICE, family_slices, sample_lines
from headrace.broker.withheld.retry import DeadLetters
from tests.support.remoting import RemotingRig, subscription


def test_parts_have_all_samples_once() -> None:
    samples = [((str(number),), float(number)) for number in range(2 * SAMPLES_PER_SLICE)]
    parts = list(family_slices(GaugeMetricFamily, "name", "Text.", ("number",), iter(samples)))
    assert [len(part.samples) for part in parts] == [SAMPLES_PER_SLICE] * 2
    assert [sample.value for part in parts for sample in part.samples] == [figure for _, figure in samples]


def test_a_family_without_samples_is_there() -> None:
    (part,) = family_slices(GaugeMetricFamily, "name", "Text.", ("number",), ())
    assert part.samples == []


@pytest.mark.parametrize("kind", [GaugeMetricFamily, CounterMetricFamily])
def test_lines_are_those_of_the_library(kind: type[GaugeMetricFamily | CounterMetricFamily]) -> None:
    """A scrape of 10,000 channels took half a second of processor time, two thirds of it in the library's lines."""
    figures = (0, 1, 999_999, 1_234_567, 2**53, 0.25, 1e-9, 1e300, float("inf"), float("nan"))
    names = ("plain", 'a "quoted" one', "back\\slash", "two\nlines", "caf\u00e9", "%RETRY%g", "x#ephemeral", "")
    samples = [((name, f"t{number}"), figure) for name in names for number, figure in enumerate(figures)]
    (part,) = family_slices(kind, "name", "Text.", ("topic", "channel"), samples)
    registry: Any = SimpleNamespace(collect=lambda: [part])
    assert sample_lines(part) == generate_latest(registry).split(b"\n", 2)[2]


def test_groups_come_in_parts(tmp_path: Path) -> None:
    """18,000 groups, 20,000 are allowed, held the loop for 140 ms at every scrape."""
    rig = RemotingRig(tmp_path)
    count = 3 * SAMPLES_PER_SLICE
    for number in range(count):
        rig.peer(number + 1).heartbeat(f"c{number}", subscription(f"T{number}"), group=f"g{number}")
    letters: DeadLetters = rig.services.messages.letters
    letters.counts.update({f"g{number}": number for number in range(count)})
    assembly: Any = SimpleNamespace(server=None, services=rig.services)
    sizes: dict[str, list[int]] = {}
    for family in remoting_families(assembly):
        sizes.setdefault(family.name, []).append(len(family.samples))
    assert max(size for some in sizes.values() for size in some) == SAMPLES_PER_SLICE
    for name in ("group_consumers", "topic_consumers", "dead_letters"):
        assert sum(sizes[f"headrace_broker_{name}"]) >= count
    rig.close()
