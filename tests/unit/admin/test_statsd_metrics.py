"""The pushing to a statsd as Prometheus families."""

from __future__ import annotations

from prometheus_client import generate_latest

from headrace.admin.metrics import _OneFamily
from headrace.admin.statsd_metrics import statsd_families
from headrace.nsq.statsd.counters import StatsdCounters


def test_statsd_families() -> None:
    """Addresses are no labels."""
    counters = StatsdCounters(pushes=1, skipped_pushes=2, packets=3)
    counters.failed_pushes["name"] = 4
    counters.lost_packets["refused"] = 5
    text = "".join(generate_latest(_OneFamily(family)).decode() for family in statsd_families(counters))
    for line in (
        "headrace_nsq_statsd_pushes_total 1.0",
        "headrace_nsq_statsd_skipped_pushes_total 2.0",
        "headrace_nsq_statsd_packets_total 3.0",
        'headrace_nsq_statsd_failed_pushes_total{cause="name"} 4.0',
        'headrace_nsq_statsd_lost_packets_total{cause="refused"} 5.0',
    ):
        assert line + "\n" in text
