"""What the NSQ TCP server counts. Plain integers; ``admin`` turns them into Prometheus metrics."""

from __future__ import annotations

from collections import Counter

from headrace.net.wire import TrafficCounters


class NsqCounters(TrafficCounters):
    """Counters of one server since its start; the codec's Intake holds those of commands.

    Attributes:
        inflate_failures: Compressed bodies (of RocketMQ clients) that could not be decompressed and were delivered as
            stored.
        refusals: Error frames sent, by code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inflate_failures = 0
        self.messages_out = 0
        self.refusals: Counter[str] = Counter()
