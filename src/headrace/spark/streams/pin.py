"""The start pin: where a stream began, remembered by the brokers until its first batch is committed.

Spark asks for the initial offset twice, and again after a crash in batch 0, but remembers only ends. A start of
"latest" that moved between two questions would lose what came in between. So the first answer is kept as the committed
offsets of a group of its own, ``GROUP_start``, which works on any RocketMQ broker; on Headrace it is on disk before it
is answered. RocketMQ 4.9 says 0 for "nothing committed", so there offsets are kept plus one, and a pin is dropped by
committing 0; Headrace brings offsets beyond a queue's end back to it at a start, and forgets when it is told to.
Ref: docs/spark/source.md, "Start pin".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from headrace.errors import RemotingRefusedError
from headrace.format.names import TEMPLATE_TOPICS
from headrace.remoting.codes import ResponseCode
from headrace.spark.remote import ServersView, Snapshot
from headrace.spark.starts import each_state
from headrace.spark.streams.positions import QueueKey

MARK_TOPIC, LOG_TOPIC = TEMPLATE_TOPICS
"""Every broker has them, and nobody reads them. Physical offsets of logs are pinned in the second; in the first there
is an offset as long as a pin is being made or dropped: one that was not finished, as when a broker was away, does not
count."""

FORGET: Final = {"forget": "true"}
"""What a commit says besides that is to take an offset away."""


class StartPin:
    """The pin of one group."""

    def __init__(self, view: ServersView, group: str) -> None:
        self._view = view
        self.group = f"{group}_start"

    def load(self) -> tuple[dict[QueueKey, int], Snapshot]:
        """Return what is pinned, and the state of everything (committed offsets in it are the pin's)."""
        snapshot = self._view.snapshot(group=self.group)
        pinned: dict[QueueKey, int] = {}
        if self._is_unfinished():
            return pinned, snapshot
        for key, queue in each_state(snapshot):
            kept = queue.committed if key.topic else self._query(key.broker, LOG_TOPIC) or 0
            if kept >= self._shift(key):
                pinned[key] = kept - self._shift(key)
        return pinned, snapshot

    def _shift(self, key: QueueKey) -> int:
        """Return how much more than an offset is kept for it; physical ones are kept alike everywhere."""
        return 1 if not key.topic or self._view.is_foreign(key.broker) else 0

    def save(self, starts: Mapping[QueueKey, int], *, is_first: bool) -> None:
        """Keep offsets; ``is_first``: all of them, none was kept before. Raises: as ``ServersView.commit``."""
        rows = [(_place(key), at + self._shift(key)) for key, at in sorted(starts.items())]
        if is_first:
            self._replace(rows)
        else:
            self._view.commit(self.group, rows, is_durable=True)

    def _replace(self, rows: list[tuple[QueueKey, int]], more: Mapping[str, str] | None = None) -> None:
        """Keep or forget the whole pin. Each step is on disk before the next: a kill leaves what was, or nothing."""
        mark = [(QueueKey(MARK_TOPIC, broker, 0), 1) for broker in islice(self._markers(), 1)]
        try:
            self._view.commit(self.group, mark, is_durable=True)
        except RemotingRefusedError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            mark = []  # who may read these topics only has a pin without it
        self._view.commit(self.group, rows, is_durable=True, more=more)
        self._view.commit(self.group, mark, is_durable=True, more=FORGET)

    def _markers(self) -> Iterator[str]:
        """Yield the brokers that can have the mark: what RocketMQ is told is not on disk before what follows."""
        return (broker for broker in self._view.brokers() if not self._view.is_foreign(broker))

    def _is_unfinished(self) -> bool:
        return any(self._query(broker, MARK_TOPIC) is not None for broker in self._markers())

    def drop(self, keys: Iterable[QueueKey]) -> None:
        """Forget the offsets of these queues and logs. Raises: as ``ServersView.commit``."""
        self._replace([(_place(key), 0) for key in sorted(keys)], FORGET)

    def _query(self, broker: str, topic: str) -> int | None:
        ask = partial(self._view.cluster.query_offset, broker, self.group, topic, 0)
        try:
            return self._view.insist(broker, "the start pin", ask)
        except RemotingRefusedError:
            return None


def _place(key: QueueKey) -> QueueKey:
    """Return where the offset of a queue or a log is kept."""
    return key if key.topic else QueueKey(LOG_TOPIC, key.broker, 0)
