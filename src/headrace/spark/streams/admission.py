"""How much of a backlog one micro-batch takes. Pure: the caller knows the state, the clock and the options.

One share of everything: each queue gives the same part of its backlog, but at least one message, so that no queue
starves and none runs ahead. Bytes are counted by the average size of a topic's records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.spark.streams.positions import QueueKey

UNKNOWN_RECORD_BYTES = 1024
SAMPLED_ROWS = 64
"""Of a topic without a queue that has so many messages to read, records are not looked at for their size: even if each
had the 4 MiB of the largest message, they would be about a batch (``maxBytesPerTrigger``)."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages [start, end) of one queue that could be read; for logs, bytes."""

    key: QueueKey
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.end - self.start


def admit(
    backlogs: Sequence[Backlog],
    record_bytes: Mapping[str, int],
    *,
    max_bytes: int = 0,
    max_rows: int = 0,
) -> list[tuple[Backlog, int]]:
    """Return each backlog with the offset at which the batch ends in it, exclusive.

    Args:
        record_bytes: Average size of a record by topic.
        max_bytes: Most bytes of records, about; 0: no limit.
        max_rows: Most messages; 0: no limit. One of each queue is always taken.
    """
    total_rows = sum(backlog.rows for backlog in backlogs)
    total_bytes = sum(b.rows * record_bytes.get(b.key.topic, UNKNOWN_RECORD_BYTES) for b in backlogs)
    # As a fraction, since floats would not be the same on every machine: rows * numerator // denominator.
    numerator, denominator = 1, 1
    if max_bytes and total_bytes > max_bytes:
        numerator, denominator = max_bytes, total_bytes
    if max_rows and total_rows > max_rows and max_rows * denominator < numerator * total_rows:
        numerator, denominator = max_rows, total_rows
    ends = []
    for backlog in backlogs:
        taken = backlog.rows * numerator // denominator
        ends.append((backlog, backlog.start + min(max(taken, 1), backlog.rows) if backlog.rows > 0 else backlog.start))
    return ends
