"""Figures of the NSQ side: its server.

Ref: docs/metrics.md lists the families.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from headrace.admin.families import counter, gauge, labelled

if TYPE_CHECKING:
    from headrace.nsq.server import NsqServer


def nsq_families(server: NsqServer) -> Iterator[Metric]:
    """Yield what the NSQ server counts, but for connections and refusals of its listener."""
    counters, coalescing, delivery = server.counters, server.coalescing, server.delivery_coalescing
    commands = server.intake.command_counts()
    yield labelled("headrace_nsq_commands", "Commands taken; FIN and REQ settle.", "command", commands)
    yield labelled("headrace_nsq_closed_connections", "Connections ended.", "cause", server.connections.closed)
    for name, text, value in (
        ("accepted_connections", "Connections accepted, refused ones included.", server.connections.total),
        ("delivered_messages", "Messages sent to consumers.", counters.messages_out),
        ("received_bytes", "Bytes received.", counters.bytes_in),
        ("sent_bytes", "Bytes sent.", counters.bytes_out),
        (
            "joint_publishes",
            "Reads whose publishes were appended with those of other clients.",
            server.joint_publishes.joined,
        ),
        ("coalesced_reads", "Reads that waited until many FINs had come.", coalescing.reads),
        ("delivery_holds", "Times that a busy channel gathered what it delivered next.", delivery.holds),
        ("coalescing_misses", "Times that many FINs were waited for in vain.", coalescing.misses),
        ("requeues_clamped", "REQ delays cut to nsq.max_req_timeout_ms.", server.intake.requeues_clamped),
        (
            "inflate_failures",
            "Compressed bodies delivered as stored: they are damaged or too large.",
            counters.inflate_failures,
        ),
        ("missed_heartbeats", "Connections closed because nothing came from them.", counters.heartbeats_missed),
        ("read_pauses", "Times reading stopped because the store or the client was behind.", counters.read_pauses),
        ("write_pauses", "Times delivery stopped because a client was slow.", counters.write_pauses),
        ("busy_poll_seconds", "Time spent awake between clients' commands.", server.busy_poll.seconds),
    ):
        yield counter(f"headrace_nsq_{name}", text, value)
    yield gauge(
        "headrace_nsq_delivery_interval_seconds",
        "For how long a busy channel gathers what it delivers next.",
        delivery.interval.ms / 1000,
    )


def nsq_refusals(server: NsqServer) -> dict[str, int]:
    """Return what the listener refused by cause, but for connections at the limit, which count as such."""
    refusals = server.counters.refusals
    return {cause: count for cause, count in refusals.items() if cause != "E_TOO_MANY_CONNECTIONS"}
