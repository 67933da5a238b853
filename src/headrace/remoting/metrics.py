"""What the RocketMQ server counts. Plain integers; ``admin`` turns them into Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.remoting.request_connection import RequestCounters


class RemotingCounters(RequestCounters):
    """Counters of one server since its start."""

    __slots__ = ("calls", "calls_unanswered", "held_pulls", "late_sends", "messages_in", "messages_out", "sends")

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[int] = Counter()
        self.calls_unanswered = 0
        self.sends = 0
        self.messages_in = 0
        self.messages_out = 0
        self.held_pulls = 0
        self.late_sends = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotingStats:
    """One look at the server."""

    connections_open: int
    connections_total: int
    """Accepted since the start, refused ones included."""
    connections_refused: int
    """Turned away at ``remoting.max_connections``."""
    connections_closed: Mapping[str, int]
    """Ended connections by cause."""
    requests: Mapping[str, int]
    """Requests taken, by name."""
    refusals: Mapping[str, int]
    """Responses with an error code, by name of the code."""
    unsupported: Mapping[str, int]
    """Requests answered REQUEST_CODE_NOT_SUPPORTED, by number; numbers beyond the first hundred as ``other``."""
    calls: Mapping[str, int]
    """Requests sent to clients, by name."""
    calls_unanswered: int
    """Those without an answer in time."""
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    pulls_waiting: int
    """Pulls that wait for a message now."""
    held_pulls: int
    """Pulls that had to wait, since the start."""
    late_sends: int
    """Sends answered FLUSH_DISK_TIMEOUT."""
    joint_sends: int
    """Reads whose sends were appended together with those of other clients."""
    bad_frames: int
    """Connections closed because a frame was malformed or too large."""
    internal_errors: int
    """Requests answered ``internal error``: bugs of ours, logged with a traceback."""
    idle_closed: int
    """Connections closed because nothing came for ``remoting.idle_timeout_ms``."""
    read_pauses: int
    """Times reading from a connection stopped because the store or the client was behind."""
    write_pauses: int
    """Times a client was so slow that output to it had to wait."""
    busy_poll_s: float
    """How long the event loop stayed awake for clients' next requests, in seconds."""
