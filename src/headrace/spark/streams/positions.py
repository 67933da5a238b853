"""Where a stream has come to: the offset that Spark writes into its checkpoint.

Spark compares offsets as text, so there is one spelling: sorted keys, plain numbers, nothing that is not needed. All
ends are exclusive. Besides the positions an offset carries what planning the batch that ends there depends on, so that
a batch that is planned again, in another process and later, has the same partitions. Ref: docs/spark/source.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError

VERSION: Final = 1

Queues = dict[str, dict[str, dict[int, int]]]
"""A number by topic, broker and queue id."""


class QueueKey(NamedTuple):
    """One queue, in the order of checkpoints. As text it is what sentences call it."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic {self.topic!r} queue {self.queue_id} of broker {self.broker!r}"


class PositionError(HeadraceError):
    """A checkpoint's offset is not one of ours."""


@dataclass(slots=True)
class Position:
    """One offset of a stream.

    Attributes:
        queues: Next queue offset to read, by topic, broker and queue id (``q``).
        logs: Next physical offset to read, by broker (``log``); one of the two is empty.
        is_log: Which of the two it is.
        creations: Identity of each topic's creation, by topic and broker (``topics``).
        stores: Identity and epoch of each broker's store (``stores``).
        record_bytes: About how large a record of a topic is, for cutting the batch that ends here (``bytes``).
        first: Where the batch that ends here begins in queues of which that is not the end of the batch before:
            those that are new, and those that no longer fitted (``first``).
        lost: Messages that were gone before they were read, since the stream began (``lost``).
        segments: Size of the files of each broker's log (``segments``).
        start_ms: Rows of logs stored before it are not the stream's, in ms since 1970 (``since``).
    """

    is_log: bool = False
    queues: Queues = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)
    creations: dict[str, dict[str, int]] = field(default_factory=dict)
    stores: dict[str, tuple[str, int]] = field(default_factory=dict)
    record_bytes: dict[str, int] = field(default_factory=dict)
    first: Queues = field(default_factory=dict)
    lost: int = 0
    segments: dict[str, int] = field(default_factory=dict)
    start_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what goes into the checkpoint."""
        found: dict[str, Any] = {}
        if self.record_bytes:
            found["bytes"] = dict(sorted(self.record_bytes.items()))
        if any(self.first.values()):
            found["first"] = _texts(self.first)
        if self.is_log:
            found["log"] = dict(sorted(self.logs.items()))
        if self.lost:
            found["lost"] = self.lost
        if not self.is_log:
            found["q"] = _texts(self.queues)
        if self.segments:
            found["segments"] = dict(sorted(self.segments.items()))
        if self.start_ms is not None:
            found["since"] = self.start_ms
        if self.stores:
            found["stores"] = {broker: list(store) for broker, store in sorted(self.stores.items())}
        if self.creations:
            found["topics"] = {
                topic: dict(sorted(brokers.items())) for topic, brokers in sorted(self.creations.items())
            }
        found["v"] = VERSION
        return found

    @classmethod
    def from_json(cls, found: Any) -> Position:
        """Return the position of a checkpoint's offset.

        Raises:
            PositionError: it is none, or of a newer version.
        """
        if not isinstance(found, dict) or not isinstance(found.get("v"), int):
            raise PositionError(f"the checkpoint's offset is not one of format headrace: {found!r}")
        if found["v"] > VERSION:
            raise PositionError(
                f"the checkpoint was written by a newer Headrace (offset version {found['v']}, this one reads "
                f"{VERSION})"
            )
        try:
            return cls(
                is_log="log" in found,
                queues=_numbers(found.get("q", {})),
                logs=_by_name(found.get("log", {})),
                creations={topic: _by_name(brokers) for topic, brokers in found.get("topics", {}).items()},
                stores={broker: (str(row[0]), int(row[1])) for broker, row in found.get("stores", {}).items()},
                record_bytes=_by_name(found.get("bytes", {})),
                first=_numbers(found.get("first", {})),
                lost=int(found.get("lost", 0)),
                segments=_by_name(found.get("segments", {})),
                start_ms=None if found.get("since") is None else int(found["since"]),
            )
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise PositionError(f"the checkpoint's offset is not one of format headrace: {found!r}") from error

    @property
    def brokers(self) -> set[str]:
        """Names of the brokers whose queues or logs these are."""
        return {*self.logs, *(broker for brokers in self.queues.values() for broker in brokers)}

    def each(self) -> Iterator[tuple[QueueKey, int]]:
        """Yield each queue and its offset, sorted."""
        return each_queue(self.queues)

    def get(self, key: QueueKey) -> int | None:
        """Return a queue's offset, None if the queue is not there."""
        return get_queue(self.queues, key)

    def put(self, key: QueueKey, offset: int) -> None:
        """Set a queue's offset."""
        put_queue(self.queues, key, offset)


def each_queue(queues: Queues) -> Iterator[tuple[QueueKey, int]]:
    """Yield each queue and its number, sorted."""
    for topic, brokers in sorted(queues.items()):
        for broker, rows in sorted(brokers.items()):
            for queue_id, offset in sorted(rows.items()):
                yield QueueKey(topic, broker, queue_id), offset


def get_queue(queues: Queues, key: QueueKey) -> int | None:
    """Return the number of one queue, None if the queue is not there."""
    return queues.get(key.topic, {}).get(key.broker, {}).get(key.queue_id)


def put_queue(queues: Queues, key: QueueKey, number: int) -> None:
    """Set the number of one queue."""
    queues.setdefault(key.topic, {}).setdefault(key.broker, {})[key.queue_id] = number


def _texts(queues: Queues) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key, number in each_queue(queues):
        found.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue_id)] = number
    return found


def _numbers(queues: Any) -> Queues:
    found: Queues = {}
    for topic, brokers in queues.items():
        for broker, rows in brokers.items():
            for queue_id, number in rows.items():
                put_queue(found, QueueKey(topic, broker, int(queue_id)), int(number))
    return found


def _by_name(numbers: Any) -> dict[str, int]:
    return {name: int(number) for name, number in numbers.items()}
