"""One message as an object: what is delayed or prepared, or the first of its topic, passes through here.

Ordinary messages never do: they stay in batches. What is stored a second time is copied from its record (``copies``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.gathering import Joint
from headrace.broker.topic import Topic, TopicConfig
from headrace.errors import RequestError, TopicNotFoundError
from headrace.format import record
from headrace.format.names import MAX_QUEUES

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.store.queue_base import QueueBase

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"


@dataclass(slots=True)
class Message:
    """A message on its way into the log. Its sender's hosts and times are the batch's where they are 0 or None."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: int = 0
    born_v6: bytes | None = None
    reconsume_times: int = 0
    prepared_offset: int = 0

    def with_properties(self, **changes: str | None) -> dict[str, str]:
        """Return the properties with some set, and some (None) removed."""
        removed = {name for name, value in changes.items() if value is None}
        kept = {name: value for name, value in self.properties.items() if name not in removed}
        return kept | {name: value for name, value in changes.items() if value is not None}

    def diverted(self, topic: str, queue_id: int, **changes: str | None) -> Message:
        """Return the message as it waits in an internal topic: where it belongs is in its properties."""
        places = {REAL_TOPIC: self.topic, REAL_QUEUE: str(self.queue_id)}
        properties = self.with_properties(**changes) | places
        return replace(self, topic=topic, queue_id=queue_id, properties=properties)

    def restored(self) -> Message | None:
        """Undo ``diverted``; None when the properties do not say where the message belongs."""
        topic = self.properties.get(REAL_TOPIC, "")
        number = self.properties.get(REAL_QUEUE, "")
        if not topic or not number.isdecimal() or len(number) > 5 or int(number) >= MAX_QUEUES:
            return None
        return replace(self, topic=topic, queue_id=int(number))


class Placed(NamedTuple):
    """Where a message went."""

    queue_id: int
    physical_offset: int
    queue_offset: int
    record_bytes: int


class Outbox:
    """Messages that are appended together, all or none: ``add`` each, then ``publish``.

    Attributes:
        joint: They and where they go, for whoever appends them instead of ``publish``.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.joint = Joint()
        self._queue_ids: list[int] = []

    def __len__(self) -> int:
        return len(self._queue_ids)

    def add(self, message: Message, *, deliver_at_ms: int = 0, command_entries: int = 1) -> None:
        """Add one message.

        Args:
            deliver_at_ms: Channels deliver it then (ms since 1970); 0 at once.
            command_entries: How many messages, from this one on, a crash leaves all or none of; 0 inside such a run.

        Raises:
            TopicNotFoundError: its topic was deleted; nothing was added.
            RequestError: a property holds a byte that parts properties; nothing was added.
        """
        topic = self._broker.topics.get(message.topic)
        if topic is None:
            raise TopicNotFoundError(message.topic)
        queue = topic.queue_or_other(message.queue_id)
        try:
            properties = record.encode_properties(message.properties)
        except ValueError as error:
            raise RequestError(f"message properties are not valid: {error}") from error
        tag = message.properties.get("TAGS")
        self.joint.batch.append(
            message.body,
            self.joint.destination(topic, queue),
            properties=properties or None,
            tag_hash=record.tag_hash(tag) if tag else 0,
            deliver_at_ms=deliver_at_ms,
            command_entries=command_entries,
            born_ms=message.born_ms,
            flag=message.flag & 0xFFFFFFFF,
            sys_flag=message.sys_flag & 0xFFFFFFFF,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
            born_host=message.born_host,
            born_v6=message.born_v6,
        )
        self._queue_ids.append(queue.queue_id)
        if REAL_TOPIC in message.properties:
            self.joint.is_waited_for |= self._awaits_flush(message)

    def _awaits_flush(self, message: Message) -> bool:
        meant = message.restored()
        topic = None if meant is None else self._broker.topics.get(meant.topic)
        if meant is None or topic is None:
            return False
        return topic.queue_or_other(meant.queue_id).awaits_flush

    def add_record(self, queue: QueueBase, body: bytes, *, command_entries: int = 1) -> None:
        """Add a record to a queue that belongs to no topic."""
        self.joint.batch.append(body, self.joint.destination(None, queue), command_entries=command_entries)
        self._queue_ids.append(queue.queue_id)

    def publish(self) -> int:
        """Append everything; return the physical offset to wait for, 0 for none.

        Raises:
            RequestError, StoreError: nothing was appended.
        """
        return self.joint.publish(self._broker)

    def placed(self, index: int) -> Placed:
        """Say where ``publish`` put a message."""
        return Placed(self._queue_ids[index], *self.joint.batch.placed(index))


def put(broker: Broker, message: Message, *, deliver_at_ms: int = 0) -> tuple[Placed, int]:
    """Append one message; return where it went and the offset to wait for.

    Raises:
        RequestError, StoreError: it was not appended.
    """
    outbox = Outbox(broker)
    outbox.add(message, deliver_at_ms=deliver_at_ms)
    wait = outbox.publish()
    return outbox.placed(0), wait


def need_system_topic(broker: Broker, name: str, queues: int = 1) -> Topic:
    """Return an internal topic, made now if the composition root has not."""
    return broker.add_system_topic(name, TopicConfig(queues, queues))
