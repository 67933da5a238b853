"""The announcing at nsqlookupds as Prometheus families."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client import generate_latest

from headrace.admin.lookup_metrics import lookup_families
from headrace.admin.metrics import _OneFamily
from headrace.nsq.lookup_peers.counters import LookupCounters


def test_lookup_families() -> None:
    """Addresses are no labels."""
    counters = LookupCounters(registrations=7, unregistrations=2, pings=3, queries=4, channels=5)
    counters.failures["timeout"] = 6
    counters.query_failures["dropped"] = 8
    states = ((True, False), (False, False), (False, True))
    links = [SimpleNamespace(is_connected=is_connected, is_own=is_own) for is_connected, is_own in states]
    families = lookup_families(SimpleNamespace(counters=counters, links=links))  # type: ignore[arg-type]
    text = "".join(generate_latest(_OneFamily(family)).decode() for family in families)
    for line in (
        'headrace_nsq_lookupd_peers{state="configured"} 3.0',
        'headrace_nsq_lookupd_peers{state="connected"} 2.0',
        'headrace_nsq_lookupd_failures_total{cause="timeout"} 6.0',
        'headrace_nsq_lookupd_channel_query_failures_total{cause="dropped"} 8.0',
        "headrace_nsq_lookupd_registrations_total 7.0",
        "headrace_nsq_lookupd_unregistrations_total 2.0",
        "headrace_nsq_lookupd_pings_total 3.0",
        "headrace_nsq_lookupd_channel_queries_total 4.0",
        "headrace_nsq_lookupd_created_channels_total 5.0",
    ):
        assert line + "\n" in text
