"""What the RocketMQ server counts. Plain integers; ``admin`` turns them into Prometheus metrics."""

from __future__ import annotations

from collections import Counter

from headrace.remoting.request_connection import RequestCounters


class RemotingCounters(RequestCounters):
    """Counters of one server since its start.

    Attributes:
        calls: Requests sent to clients, by code.
        calls_unanswered: Those without an answer in time.
        sends: Plain sends, which are not among the requests.
        held_pulls: Pulls that had to wait.
        late_sends: Sends answered FLUSH_DISK_TIMEOUT.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[int] = Counter()
        self.calls_unanswered = 0
        self.sends = 0
        self.messages_in = 0
        self.messages_out = 0
        self.held_pulls = 0
        self.late_sends = 0
