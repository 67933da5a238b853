"""The start pin: where a stream began, remembered by the brokers until its first batch is committed.

Spark asks for the initial offset twice, and again after a crash in batch 0, but remembers only ends. A start of
"latest" that moved between two questions would lose what came in between. So the first answer is kept as the committed
offsets of a group of its own, ``GROUP_start``, which works on any RocketMQ broker; on Headrace it is on disk before it
is answered. RocketMQ 4.9 says 0 for "nothing committed", so there offsets are kept plus one, and a pin is dropped by
committing 0; Headrace brings offsets beyond a queue's end back to it at a start, and forgets when it is told to.
Ref: docs/spark/source.md, "Start pin".
"""

from __future__ import annotations

from headrace.errors import RemotingRefusedError
from headrace.format.names import TEMPLATE_TOPICS
from headrace.spark.positions import Queues, each_queue, put_queue
from headrace.spark.remote import ServersView, Snapshot, insist
from headrace.spark.starts import each_state

LOG_TOPIC = TEMPLATE_TOPICS[1]
"""Every broker has it, and nobody reads it: physical offsets of logs are pinned there."""


class StartPin:
    """The pin of one group."""

    def __init__(self, view: ServersView, group: str) -> None:
        self._view = view
        self.group = f"{group}_start"

    def load(self) -> tuple[Queues, Snapshot]:
        """Return the pinned queue offsets, and the state of all queues (committed offsets in it are the pin's)."""
        snapshot = self._view.snapshot(group=self.group)
        pinned: Queues = {}
        for topic, broker, queue_id, queue in each_state(snapshot):
            shift = 0 if snapshot[broker].is_headrace else 1
            if queue.committed >= shift:
                put_queue(pinned, topic, broker, queue_id, queue.committed - shift)
        return pinned, snapshot

    def save(self, starts: Queues) -> None:
        """Keep queue offsets. Raises: as ``ServersView.commit``."""
        rows = []
        for topic, broker, queue_id, offset in each_queue(starts):
            rows.append((broker, topic, queue_id, offset + self._view.is_foreign(broker)))
        self._view.commit(self.group, rows, {"durable": "true"})

    def drop(self, queues: Queues) -> None:
        """Forget the offsets of these queues. Raises: as ``ServersView.commit``."""
        rows = [(broker, topic, queue_id, 0) for topic, broker, queue_id, _ in each_queue(queues)]
        self._view.commit(self.group, rows, {"forget": "true"})

    def load_logs(self) -> dict[str, int]:
        """Return the pinned physical offsets by broker."""
        found = {}
        for broker in self._view.brokers():
            pinned = insist(broker, "the start pin", self._view.source.retries, lambda b=broker: self._query(b))  # type: ignore[misc]
            if pinned:
                found[broker] = pinned - 1
        return found

    def _query(self, broker: str) -> int | None:
        self._view.calls += 1
        try:
            return self._view.cluster.query_offset(broker, self.group, LOG_TOPIC, 0)
        except RemotingRefusedError:
            return None

    def save_logs(self, starts: dict[str, int]) -> None:
        """Keep physical offsets. Raises: as ``ServersView.commit``."""
        self._view.commit(self.group, [(b, LOG_TOPIC, 0, at + 1) for b, at in starts.items()], {"durable": "true"})

    def drop_logs(self, brokers: list[str]) -> None:
        """Forget the offsets of these brokers. Raises: as ``ServersView.commit``."""
        self._view.commit(self.group, [(broker, LOG_TOPIC, 0, 0) for broker in brokers], {"forget": "true"})
