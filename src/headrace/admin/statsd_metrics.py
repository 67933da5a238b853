"""How the pushing to a statsd goes, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from headrace.admin.families import counter, labelled

if TYPE_CHECKING:
    from headrace.nsq.statsd.counters import StatsdCounters


def statsd_families(counters: StatsdCounters) -> Iterator[Metric]:
    """Yield what became of the pushes; there are no addresses in it."""
    yield labelled(
        "headrace_nsq_statsd_failed_pushes",
        "Pushes to the statsd that were not made; the next has their figures.",
        "cause",
        counters.failed_pushes,
    )
    yield labelled(
        "headrace_nsq_statsd_lost_packets",
        "Packets for the statsd that the system did not take, or that nobody did.",
        "cause",
        counters.lost_packets,
    )
    for name, text, value in (
        ("pushes", "Pushes to the statsd that were made.", counters.pushes),
        ("skipped_pushes", "Pushes left out because their time had passed.", counters.skipped_pushes),
        ("packets", "Packets for the statsd that the system took.", counters.packets),
    ):
        yield counter(f"headrace_nsq_statsd_{name}", text, value)
