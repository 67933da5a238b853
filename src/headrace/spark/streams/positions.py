"""Where a stream has come to: the offset that Spark writes into its checkpoint.

Spark compares offsets as text, so there is one spelling: sorted keys, plain numbers, nothing that is not needed. All
ends are exclusive. Besides the positions an offset carries what planning the batch that ends there depends on, so that
a batch that is planned again, in another process and later, has the same partitions. Ref: docs/spark/source.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError

VERSION: Final = 1


class QueueKey(NamedTuple):
    """One queue, or a broker's whole log, in the order of checkpoints. As text it is what sentences call it."""

    topic: str
    broker: str
    queue_id: int

    @classmethod
    def of_log(cls, broker: str) -> QueueKey:
        """Return what stands for a log, which has no topic: its offsets are physical ones."""
        return cls("", broker, -1)

    def __str__(self) -> str:
        if not self.topic:
            return f"the log of broker {self.broker!r}"
        return f"topic {self.topic!r} queue {self.queue_id} of broker {self.broker!r}"

    def span(self, first: int, end: int) -> str:
        """Return what sentences call some of its offsets."""
        if not self.topic:
            return f"physical offsets {first} to {end} of broker {self.broker!r}"
        return f"offsets {first} to {end} of {self}"


class PositionError(HeadraceError):
    """A checkpoint's offset is not one of ours."""


@dataclass(slots=True)
class Position:
    """One offset of a stream.

    Attributes:
        offsets: Next offset to read of each queue (``q``), or of each log (``log``).
        is_log: Which of the two it is.
        creations: Identity of each topic's creation, by topic and broker (``topics``).
        stores: Identity and epoch of each broker's store (``stores``).
        record_bytes: About how large a record of a topic is, for cutting the batch that ends here (``bytes``).
        first: Where the batch that ends here begins in queues and logs of which that is not the end of the batch
            before: those that are new, and those that no longer fitted (``first``).
        lost: Messages that were gone before they were read, since the stream began (``lost``).
        segments: Size of the files of each broker's log (``segments``).
        start_ms: Rows of logs stored before it are not the stream's, in ms since 1970 (``since``).
        names: Topics of the batch that ends here, where a pattern chose them among those of a folder (``names``).
    """

    is_log: bool = False
    offsets: dict[QueueKey, int] = field(default_factory=dict)
    creations: dict[str, dict[str, int]] = field(default_factory=dict)
    stores: dict[str, tuple[str, int]] = field(default_factory=dict)
    record_bytes: dict[str, int] = field(default_factory=dict)
    first: dict[QueueKey, int] = field(default_factory=dict)
    lost: int = 0
    segments: dict[str, int] = field(default_factory=dict)
    start_ms: int | None = None
    names: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what goes into the checkpoint."""
        found: dict[str, Any] = {}
        if self.record_bytes:
            found["bytes"] = dict(sorted(self.record_bytes.items()))
        if self.first:
            found["first"] = _nested(self.first)
        if self.is_log:
            found["log"] = {key.broker: offset for key, offset in sorted(self.offsets.items())}
        if self.lost:
            found["lost"] = self.lost
        if self.names is not None:
            found["names"] = list(self.names)
        if not self.is_log:
            found["q"] = _nested(self.offsets)
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
                offsets=_flat(found.get("q", {}))
                | {QueueKey.of_log(broker): int(offset) for broker, offset in found.get("log", {}).items()},
                creations={topic: _by_name(brokers) for topic, brokers in found.get("topics", {}).items()},
                stores={broker: (str(row[0]), int(row[1])) for broker, row in found.get("stores", {}).items()},
                record_bytes=_by_name(found.get("bytes", {})),
                first=_flat(found.get("first", {})),
                lost=int(found.get("lost", 0)),
                segments=_by_name(found.get("segments", {})),
                start_ms=None if found.get("since") is None else int(found["since"]),
                names=None if found.get("names") is None else tuple(map(str, found["names"])),
            )
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise PositionError(f"the checkpoint's offset is not one of format headrace: {found!r}") from error

    @property
    def brokers(self) -> set[str]:
        """Names of the brokers whose queues or logs these are."""
        return {key.broker for key in self.offsets}


def _nested(numbers: Mapping[QueueKey, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return numbers as JSON has them: by topic, broker and queue id; a log is queue 0 of the topic without a name."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), number in sorted(numbers.items()):
        found.setdefault(topic, {}).setdefault(broker, {})[str(max(queue_id, 0))] = number
    return found


def _flat(nested: Any) -> dict[QueueKey, int]:
    """Undo ``_nested``."""
    return {
        QueueKey(topic, broker, int(queue_id)) if topic else QueueKey.of_log(broker): int(number)
        for topic, brokers in nested.items()
        for broker, rows in brokers.items()
        for queue_id, number in rows.items()
    }


def _by_name(numbers: Any) -> dict[str, int]:
    return {name: int(number) for name, number in numbers.items()}
