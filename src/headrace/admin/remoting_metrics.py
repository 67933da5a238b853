"""Figures of the RocketMQ side: its server, consumer groups, delays and transactions.

Ref: docs/metrics.md lists the families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.broker.clients import Role

if TYPE_CHECKING:
    from headrace.remoting.assembly import RemotingAssembly
    from headrace.remoting.server import RemotingServer
    from headrace.remoting.services import Services


LISTENER: Final = "remoting"


def remoting_families(assembly: RemotingAssembly) -> Iterator[Metric]:
    """Yield every family of one node's RocketMQ side."""
    if assembly.server is not None:
        yield from _server_families(assembly.server)
    yield from _group_families(assembly.services)
    yield from _message_families(assembly.services)


def _server_families(server: RemotingServer) -> Iterator[Metric]:
    stats = server.stats()
    yield _labelled("headrace_remoting_requests", "Requests taken; plain sends together.", "request", stats.requests)
    yield _labelled("headrace_remoting_unsupported", "Requests of codes not served.", "code", stats.unsupported)
    yield _labelled("headrace_remoting_calls", "Requests sent to clients.", "request", stats.calls)
    yield _labelled("headrace_remoting_closed_connections", "Connections ended.", "cause", stats.connections_closed)
    yield _gauge("headrace_remoting_waiting_pulls", "Pulls that wait for a message.", stats.pulls_waiting)
    for name, text, count in (
        ("accepted_connections", "Connections accepted, refused ones included.", stats.connections_total),
        ("received_messages", "Messages of plain sends.", stats.messages_in),
        ("delivered_messages", "Messages given to pulls.", stats.messages_out),
        ("received_bytes", "Bytes received.", stats.bytes_in),
        ("sent_bytes", "Bytes sent.", stats.bytes_out),
        ("held_pulls", "Pulls that had to wait.", stats.held_pulls),
        ("unanswered_calls", "Requests to clients without an answer in time.", stats.calls_unanswered),
        ("internal_errors", "Requests that failed by a bug.", stats.internal_errors),
        ("idle_connections", "Connections closed because nothing came from them.", stats.idle_closed),
        ("read_pauses", "Times reading stopped because the store or the client was behind.", stats.read_pauses),
        ("write_pauses", "Times output waited because a client was slow.", stats.write_pauses),
    ):
        yield _count(f"headrace_remoting_{name}", text, count)
    if server.guard is not None:
        refused, unsigned = server.guard.refusals, server.guard.unsigned
        yield _labelled("headrace_remoting_denied_requests", "Requests denied by access control.", "reason", refused)
        yield _labelled(
            "headrace_remoting_unsigned_requests", "Requests taken because of their address.", "user", unsigned
        )


def _group_families(services: Services) -> Iterator[Metric]:
    clients = services.clients
    members = GaugeMetricFamily("headrace_broker_group_members", "Clients in groups.", labels=("role",))
    for role in Role:
        members.add_metric((role.name.lower(),), clients.role_members(role))
    yield members
    yield _gauge("headrace_broker_groups", "Consumer groups, those of tools included.", len(services.groups))
    yield _gauge("headrace_broker_group_offsets", "Committed offsets.", len(services.offsets))
    yield _gauge("headrace_broker_waiting_resets", "Resets no consumer knows of.", services.offsets.waiting_resets)
    yield _gauge("headrace_broker_queue_locks", "Queues locked by orderly consumers.", len(services.locks))
    for name, text, count in (
        ("heartbeats", "Heartbeats taken.", clients.counters.heartbeats),
        ("refused_heartbeats", "Heartbeats refused at a bound.", clients.counters.refused),
        ("expired_members", "Members dropped because they were silent.", clients.counters.expired),
        ("offset_commits", "Offsets committed.", services.offsets.counters.commits),
        ("ignored_commits", "Commits from before a reset.", services.offsets.counters.ignored),
        ("refused_commits", "Commits refused at a bound.", services.offsets.counters.refused),
        ("refused_holds", "Pulls above broker.max_held_pulls.", services.holds.counters.refused),
        ("uncounted_statistics", "Counts not taken at broker.max_statistics.", services.statistics.refused),
        ("config_file_errors", "Failed writes of config files.", services.core.write_errors),
    ):
        yield _count(f"headrace_broker_{name}", text, count)


def _message_families(services: Services) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "headrace_broker_delayed_messages", "Messages that wait for their time.", labels=("level",)
    )
    for level, count in services.delays.waiting.items():
        waiting.add_metric((str(level),), count)
    waiting.add_metric(("timer",), services.timed.waiting)
    yield waiting
    delays, timed = services.delays.counters, services.timed.counters
    yield _count(
        "headrace_broker_delayed_deliveries", "Delayed messages delivered.", delays.delivered + timed.delivered
    )
    yield _count(
        "headrace_broker_dropped_delays", "Delayed messages without a topic any more.", delays.dropped + timed.dropped
    )
    transactions = services.transactions
    yield _gauge("headrace_broker_open_transactions", "Transactions that are open.", transactions.open_count)
    counters = transactions.counters
    outcomes = {
        "committed": counters.committed,
        "rolled_back": counters.rolled_back,
        "discarded": counters.discarded,
        "dropped": counters.dropped,
    }
    yield _labelled("headrace_broker_transactions", "Transactions that ended.", "outcome", outcomes)
    yield _count("headrace_broker_transaction_checks", "Questions to producers.", counters.checks)
    yield _count("headrace_broker_retries", "Messages sent back to be tried again.", services.retries.counters.retried)
    if services.webhook is not None:
        hook = services.webhook
        outcomes = {"sent": hook.sent, "failed": hook.failed, "dropped": hook.dropped}
        yield _labelled("headrace_broker_webhook_calls", "Calls of the webhook.", "outcome", outcomes)
    yield _labelled("headrace_broker_dead_letters", "Messages a group gave up.", "group", services.letters.counts)


def add_to_listeners(server: RemotingServer, connections: GaugeMetricFamily, refusals: CounterMetricFamily) -> None:
    """Add the listener to the families of all listeners."""
    stats = server.stats()
    connections.add_metric((LISTENER,), stats.connections_open)
    refusals.add_metric((LISTENER, "too_many_connections"), stats.connections_refused)
    refusals.add_metric((LISTENER, "bad_frame"), stats.bad_frames)
    for code, count in sorted(stats.refusals.items()):
        refusals.add_metric((LISTENER, code), count)


def _labelled(name: str, text: str, label: str, rows: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(rows.items()):
        family.add_metric((value,), count)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _count(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(name, text, value=value)
