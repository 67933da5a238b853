"""Registry and registration as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.admin.families import counter, gauge, labelled

if TYPE_CHECKING:
    from headrace.remoting.registration import Registrar
    from headrace.remoting.registry.server import RegistryServer, RegistryStats

LISTENER = "registry"


def registry_families(registry: RegistryServer) -> Iterator[Metric]:
    """Yield what a registry in this process counts, but for connections and refusals; see ``add_to_listeners``."""
    stats = registry.stats()
    yield gauge("headrace_registry_brokers", "Broker processes thought to be alive.", stats.brokers)
    yield gauge("headrace_registry_topics", "Topics with a route.", stats.topics)
    yield labelled("headrace_registry_requests", "Requests taken.", "request", stats.requests)
    dropped = {"connection": stats.brokers_lost, "silence": stats.brokers_expired}
    yield labelled("headrace_registry_dropped_brokers", "Brokers dropped without a goodbye.", "cause", dropped)
    if registry.guard is not None:
        denied, unsigned = registry.guard.refusals, registry.guard.unsigned
        yield labelled("headrace_registry_denied_requests", "Requests denied by access control.", "reason", denied)
        yield labelled(
            "headrace_registry_unsigned_requests", "Requests taken because of their address.", "user", unsigned
        )
    for name, text, value in (
        ("registrations", "Registrations taken.", stats.registrations),
        ("late_words", "Registrations and goodbyes over a replaced connection, not taken.", stats.late_words),
        ("held_routes", "Requests for routes held after the start, for brokers to come.", stats.routes_held),
        ("unready_routes", "Requests for routes refused after the start instead.", stats.routes_refused),
        ("kv_write_errors", "Failed writes of the key-value configuration.", stats.kv_write_errors),
        ("received_bytes", "Bytes received.", stats.bytes_in),
        ("sent_bytes", "Bytes sent.", stats.bytes_out),
    ):
        yield counter(f"headrace_registry_{name}", text, value)


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


def add_to_listeners(stats: RegistryStats, connections: GaugeMetricFamily, refusals: CounterMetricFamily) -> None:
    """Add the registry's listener to the families of all listeners."""
    connections.add_metric((LISTENER,), stats.connections_open)
    refusals.add_metric((LISTENER, "too_many_connections"), stats.connections_refused)
    refusals.add_metric((LISTENER, "bad_frame"), stats.bad_frames)
    refusals.add_metric((LISTENER, "REQUEST_CODE_NOT_SUPPORTED"), stats.unsupported)
    for code, count in sorted(stats.refusals.items()):
        if code != "REQUEST_CODE_NOT_SUPPORTED":
            refusals.add_metric((LISTENER, code), count)
