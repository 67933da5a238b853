"""What topics and channels exist: the state that control records build up.

Every change is one record of the internal topic ``%SYS%CONTROL``, applied here by the same code when it is made and
when it is replayed, so the catalog can always be rebuilt from the log. ``headrace/catalog.json`` only saves replaying
from the beginning. Knows no store and no live objects. Ref: docs/formats/control-records.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from itertools import islice, zip_longest
from typing import Any, Final

import msgspec

from headrace.broker.data_version import DataVersion

Positions = list[int]
"""One queue offset per queue of a topic."""

ABOVE_ALL: Final = (1 << 63) - 1
"""A physical offset that no record has."""
UNKNOWN: Final = -1
"""Where a queue began whose record was lost: with the first message that is younger than the topic."""

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ChannelEntry:
    """One durable channel.

    ``key`` names its delivery state for ever: the physical offset of its creation record. ``gaps`` are ranges that
    were dropped while they waited in the paused topic, as (start, end) positions; no two of them touch.
    """

    key: int
    start: Positions
    paused: bool = False
    empty_below: Positions = field(default_factory=list)
    gaps: list[tuple[Positions, Positions]] = field(default_factory=list)

    def add_gap(self, start: Positions, end: Positions) -> None:
        """Note a dropped range: one that begins where the last one ends, as in a topic that stays paused, joins it."""
        if self.gaps and self.gaps[-1][1] == start:
            start = self.gaps.pop()[0]
        self.gaps.append((start, end))


@dataclass(slots=True)
class TopicEntry:
    """One durable topic.

    ``frozen`` is the fan-out position while nothing moves to channels (paused, or no channel yet): the first channel
    starts there. None means that the fan-out follows the end of the log. ``config`` holds the fields of a
    ``TopicConfig``; None stands for the default with as many queues as there are. ``key`` is the physical offset of the
    creation record: a topic that is deleted and made again has another one.
    """

    queues: int
    start: Positions
    frozen: Positions | None
    paused: bool = False
    channels: dict[str, ChannelEntry] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    key: int = -1  # of a topic in a catalog that was saved before there were keys

    @property
    def issued(self) -> Positions:
        """How far each queue went at least, as the changes say: a power cut may have taken the messages."""
        named = [self.start, self.frozen or []]
        for channel in self.channels.values():
            named += [channel.start, channel.empty_below, *(end for _, end in channel.gaps)]
        return [max(ends) for ends in zip_longest(*named, fillvalue=0)]

    def freeze(self, positions: Positions | None) -> None:
        """Hold back what lies behind some positions; nothing with None."""
        self.frozen = None if positions is None else self.fit(positions)

    def fit(self, positions: Positions) -> Positions:
        """Return positions of all queues, of which a record names more or fewer where one before it was lost."""
        missing = len(positions) - self.queues
        if missing > 0:
            self.configure(self.config, [*self.start, *[0] * missing])
            self.start[-missing:] = [UNKNOWN] * missing
        return [*positions, *(max(0, start) for start in self.start[len(positions) :])]

    def configure(self, config: dict[str, Any] | None, start: Positions) -> None:
        """Take a new configuration; queues behind the present ones begin where ``start`` says."""
        added = start[self.queues :]
        self.config = config
        self.queues += len(added)
        self.start += added
        if self.frozen is not None:
            self.frozen = [*self.frozen, *added]
        for channel in self.channels.values():
            channel.start += added
            channel.gaps = [([*first, *added], [*last, *added]) for first, last in channel.gaps]
            if channel.empty_below:
                channel.empty_below += added


_TOPIC_FIELDS: Final = tuple(at for at in dataclass_fields(TopicEntry) if at.name != "channels")


class Catalog:
    """All topics and channels, and how far the control records are applied.

    ``version`` rises with each topic that is made, configured or deleted.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicEntry] = {}
        self.deleted: dict[str, int] = {}
        """Topics that are no more, and where the record stands that says so."""
        self.applied_offset = 0
        self.version = DataVersion()

    def apply(self, change: dict[str, Any], key: int) -> None:
        """Apply one control record that lies at physical offset ``key``.

        A change of something that no longer exists is ignored: a record before it was damaged. But a channel of a topic
        whose creation is lost brings the topic back, and a deletion is noted.
        """
        name: str = change["topic"]
        operation: str = change["op"]
        if operation == "create_topic":
            if name not in self.topics:
                start = list(change["start"])
                self.topics[name] = TopicEntry(
                    int(change["queues"]), start, list(start), config=change.get("config"), key=key
                )
                self.deleted.pop(name, None)
                self._raise_version(change)
            return
        topic = self.topics.get(name)
        if topic is None and operation == "create_channel":
            # It is younger than the last one of its name; which queues it has the channel says.
            topic = self.topics[name] = TopicEntry(0, [], None, key=self.deleted.pop(name, UNKNOWN))
            self._raise_version(change)
        if operation == "delete_topic":
            self.topics.pop(name, None)
            self.deleted[name] = key
            self._raise_version(change)
            return
        if topic is None:
            return
        if operation == "configure_topic":
            topic.configure(change["config"], change["start"])
            self._raise_version(change)
        elif operation == "pause_topic":
            topic.paused = change["paused"]
            topic.freeze(change["frozen"])
        elif operation == "freeze_topic":
            topic.freeze(change["frozen"])
        elif operation == "empty_topic":
            end = topic.fit(change["frozen"])
            if topic.frozen is not None:
                for channel in topic.channels.values():
                    channel.add_gap(topic.frozen, end)
            topic.frozen = end
        elif operation == "create_channel":
            start = topic.fit(change["start"])
            topic.channels.setdefault(change["channel"], ChannelEntry(key, start))
        elif operation in {"delete_channel", "pause_channel", "empty_channel"}:
            self._apply_to_channel(topic, operation, change)
        if topic.channels and (not topic.paused or topic.frozen is None):
            # The first channel has what was held back. Otherwise a power cut took the record of a pause, or of its end,
            # and left what was changed after it.
            topic.paused, topic.frozen = False, None

    def _raise_version(self, change: dict[str, Any]) -> None:
        # Stores from before RocketMQ's protocol have no times in their records.
        self.version = self.version.next(change.get("at_ms", self.version.timestamp_ms))

    @staticmethod
    def _apply_to_channel(topic: TopicEntry, operation: str, change: dict[str, Any]) -> None:
        channel = topic.channels.get(change["channel"])
        if channel is None:
            return
        if operation == "delete_channel":
            del topic.channels[change["channel"]]
            topic.freeze(change["frozen"])
        elif operation == "pause_channel":
            channel.paused = change["paused"]
        else:
            channel.empty_below = topic.fit(change["below"])
            channel.gaps = [
                gap for gap in channel.gaps if any(a > b for a, b in zip(gap[1], channel.empty_below, strict=True))
            ]

    def to_payload(self) -> dict[str, Any]:
        """Return what becomes, encoded as JSON and decoded again, what ``from_payload`` takes."""
        return {
            "applied_offset": self.applied_offset,
            "deleted": self.deleted,
            "version": self.version.to_fields(),
            "topics": self.topics,
        }

    def encode_slices(self, most: int) -> Iterator[tuple[bytes, bool]]:
        """Encode what ``from_payload`` takes as JSON, some ``most`` topics and channels at a time.

        Nothing may change until all is taken: ``applied_offset`` tells. Each part comes with whether it is the last.
        """
        head = {name: value for name, value in self.to_payload().items() if name != "topics"}
        parts = [_encode(head)[:-1], b',"topics":{']
        cost, comma = 0, b""
        for name, topic in self.topics.items():
            fields = {at.name: getattr(topic, at.name) for at in _TOPIC_FIELDS}
            parts += [comma, _encode(name), b":", _encode(fields)[:-1], b',"channels":{']
            comma = b","
            cost += 1
            channels = iter(topic.channels.items())
            between = b""
            while some := dict(islice(channels, max(1, most - cost))):
                parts += [between, _encode(some)[1:-1]]
                between = b","
                cost += len(some)
                if cost >= most:
                    yield b"".join(parts), False
                    parts, cost = [], 0
            parts.append(b"}}")
            if cost >= most:
                yield b"".join(parts), False
                parts, cost = [], 0
        yield b"".join((*parts, b"}}")), True

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Catalog:
        """Build a catalog from a snapshot's payload."""
        catalog = cls()
        catalog.applied_offset = payload["applied_offset"]
        deleted = payload["deleted"]
        # An earlier build noted the names alone.
        catalog.deleted = deleted if isinstance(deleted, dict) else dict.fromkeys(deleted, ABOVE_ALL)
        catalog.version = DataVersion.from_fields(payload.get("version", {}))
        for name, topic in payload["topics"].items():
            channels = {channel: _read_channel(entry) for channel, entry in topic.pop("channels").items()}
            catalog.topics[name] = TopicEntry(**topic, channels=channels)
        return catalog


def _read_channel(entry: dict[str, Any]) -> ChannelEntry:
    channel = ChannelEntry(**{**entry, "gaps": []})
    for start, end in entry.get("gaps", ()):  # an earlier build noted each apart
        channel.add_gap(start, end)
    return channel
