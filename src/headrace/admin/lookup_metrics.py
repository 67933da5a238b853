"""How the announcing at nsqlookupds goes, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from headrace.admin.families import counter, labelled

if TYPE_CHECKING:
    from headrace.nsq.lookup_peers.peers import LookupPeers


def lookup_families(peers: LookupPeers) -> Iterator[Metric]:
    """Yield what goes on with all nsqlookupds; there are no addresses in it."""
    counters, links = peers.counters, peers.links
    states = GaugeMetricFamily(
        "headrace_nsq_lookupd_peers", "nsqlookupds to announce to, and those of them that know all.", labels=("state",)
    )
    states.add_metric(("configured",), len(links))
    states.add_metric(("connected",), sum(link.is_connected or link.is_own for link in links))
    yield states
    yield labelled(
        "headrace_nsq_lookupd_failures", "Connections to nsqlookupds that failed.", "cause", counters.failures
    )
    yield labelled(
        "headrace_nsq_lookupd_channel_query_failures",
        "New topics whose channels a nsqlookupd did not tell.",
        "cause",
        counters.query_failures,
    )
    for name, text, value in (
        ("registrations", "Topics and channels that a nsqlookupd took (REGISTER).", counters.registrations),
        ("unregistrations", "Ends of such (UNREGISTER).", counters.unregistrations),
        ("pings", "PINGs that were answered.", counters.pings),
        ("channel_queries", "New topics whose channels a nsqlookupd told.", counters.queries),
        ("created_channels", "Channels made because a nsqlookupd told of them.", counters.channels),
    ):
        yield counter(f"headrace_nsq_lookupd_{name}", text, value)
