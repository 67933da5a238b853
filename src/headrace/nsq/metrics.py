"""What the NSQ TCP server counts. Plain integers; ``admin`` turns them into Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.net.wire import TrafficCounters


class NsqCounters(TrafficCounters):
    """Counters of one server since its start; the codec's Intake holds those of commands."""

    __slots__ = ("inflate_failures", "messages_out", "refusals")

    def __init__(self) -> None:
        super().__init__()
        self.inflate_failures = 0
        self.messages_out = 0
        self.refusals: Counter[str] = Counter()


@dataclass(frozen=True, kw_only=True, slots=True)
class NsqStats:
    """One look at the server."""

    connections_open: int
    connections_total: int
    """Accepted since the start, refused ones included."""
    connections_refused: int
    """Turned away at ``nsq.max_connections``."""
    connections_closed: Mapping[str, int]
    """Ended connections by cause."""
    joint_publishes: int
    """Reads whose publishes were appended with those of other clients."""
    coalesced_reads: int
    """Reads from consumers with plenty in flight that waited until many FINs had come."""
    delivery_holds: int
    """Times that a busy channel had delivered all it had and gathered what came next."""
    delivery_interval_s: float
    """For how long a busy channel gathers now, in seconds."""
    coalescing_misses: int
    """Times that waiting for many FINs was in vain: a timer ended it."""
    commands: Mapping[str, int]
    """Commands taken, by name."""
    refusals: Mapping[str, int]
    """Error frames sent, by code."""
    requeues_clamped: int
    """REQ delays cut to ``nsq.max_req_timeout_ms``."""
    inflate_failures: int
    """Compressed bodies (of RocketMQ clients) that could not be decompressed and were delivered as stored."""
    bytes_in: int
    bytes_out: int
    messages_out: int
    heartbeats_sent: int
    heartbeats_missed: int
    """Connections closed because nothing came for two heartbeat intervals."""
    read_pauses: int
    """Times reading from a connection stopped because the store or the client was behind."""
    write_pauses: int
    """Times a client was so slow that delivery to it stopped."""
    busy_poll_s: float
    """How long the event loop stayed awake for clients' next requests, in seconds."""
