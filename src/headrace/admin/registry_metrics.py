"""Registry and registration as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.admin.families import counter, gauge, labelled
from headrace.admin.remoting_metrics import by_name, guard_families

if TYPE_CHECKING:
    from headrace.nsq.lookupd.service import LookupdService
    from headrace.remoting.registration import Registrar
    from headrace.remoting.registry.server import RegistryServer


def registry_families(registry: RegistryServer) -> Iterator[Metric]:
    """Yield what a registry in this process counts, but for connections and refusals of its listener."""
    counters, routes = registry.counters, registry.routes
    yield gauge("headrace_registry_brokers", "Broker processes thought to be alive.", len(routes.live))
    yield gauge("headrace_registry_topics", "Topics with a route.", len(routes.topics))
    yield gauge("headrace_registry_routes", "Routes: one for each topic and broker that has it.", routes.route_count)
    yield labelled("headrace_registry_requests", "Requests taken.", "request", by_name(counters.requests))
    dropped = {"connection": counters.brokers_lost, "silence": counters.brokers_expired}
    yield labelled("headrace_registry_dropped_brokers", "Brokers dropped without a goodbye.", "cause", dropped)
    if registry.guard is not None:
        yield from guard_families("headrace_registry", registry.guard)
    for name, text, value in (
        ("registrations", "Registrations taken.", counters.registrations),
        ("late_words", "Registrations and goodbyes over a replaced connection, not taken.", counters.late_words),
        ("held_routes", "Requests for routes held after the start, for brokers to come.", counters.routes_held),
        ("unready_routes", "Requests for routes refused after the start instead.", counters.routes_refused),
        ("kv_write_errors", "Failed writes of the key-value configuration.", registry.kv_write_errors),
        ("brokers_write_errors", "Failed writes of which brokers there are.", registry.brokers_write_errors),
        ("received_bytes", "Bytes received.", counters.bytes_in),
        ("sent_bytes", "Bytes sent.", counters.bytes_out),
        ("internal_errors", "Requests that failed by a bug.", counters.internal_errors),
        ("idle_connections", "Connections closed because nothing came from them.", counters.heartbeats_missed),
        ("read_pauses", "Times reading stopped because the client was behind.", counters.read_pauses),
        ("write_pauses", "Times output waited because a client was slow.", counters.write_pauses),
    ):
        yield counter(f"headrace_registry_{name}", text, value)


def lookupd_families(lookupd: LookupdService) -> Iterator[Metric]:
    """Yield what the registry's NSQ side counts, but for connections and refusals."""
    counters, log, table = lookupd.server.counters, lookupd.server.producer_log, lookupd.table
    for name, text, value in (
        ("producers", "NSQ producers that are connected.", table.producer_count),
        ("topics", "NSQ topics that are known.", table.topic_count),
        ("channels", "NSQ channels that are known.", table.channel_count),
    ):
        yield gauge(f"headrace_registry_nsq_{name}", text, value)
    yield labelled("headrace_registry_nsq_requests", "Commands of producers taken.", "command", counters.requests)
    for name, text, value in (
        ("producers_registered", "NSQ producers that have registered.", log.came),
        ("producers_gone", "Those of them that have gone.", log.went),
        ("received_bytes", "Bytes received from producers.", counters.bytes_in),
        ("sent_bytes", "Bytes sent to producers.", counters.bytes_out),
    ):
        yield counter(f"headrace_registry_nsq_{name}", text, value)


def registration_families(registrar: Registrar) -> Iterator[Metric]:
    """Yield how the registration of this broker goes; a registry is named by its place in broker.registries."""
    registered = GaugeMetricFamily(
        "headrace_remoting_registered", "1 while a registry has taken the last registration.", labels=("registry",)
    )
    taken = CounterMetricFamily("headrace_remoting_registrations", "Registrations taken.", labels=("registry",))
    failed = CounterMetricFamily("headrace_remoting_registration_failures", "Those that failed.", labels=("registry",))
    for number, link in enumerate(registrar.links, 1):
        registered.add_metric((str(number),), link.is_registered)
        taken.add_metric((str(number),), link.registrations)
        failed.add_metric((str(number),), link.failures)
    yield from (registered, taken, failed)
