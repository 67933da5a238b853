"""Messages that waited in an internal topic, appended where they belong: what every kind of delay ends in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.copies import add_copies
from headrace.broker.message import Outbox, StoredMessage
from headrace.errors import RequestError
from headrace.format.names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.store.consume_queue import QueueBase

NOWHERE: Final = "its topic was deleted, or it does not say where it belongs"


class _Places:
    """The queues that one batch of copies goes to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topics: list[Topic] = []
        self.queues: list[QueueBase] = []
        self._index_of: dict[QueueBase, int] = {}

    def resolve(self, name: str, queue_id: int) -> int:
        # What names an internal topic was not written by us.
        topic = None if name in INTERNAL_TOPICS else self._broker.topics.get(name)
        if topic is None:
            return -1
        # Queues never go, so the number fits unless somebody else's store says otherwise.
        queue = topic.queue(queue_id) or topic.pick_queue()
        index = self._index_of.setdefault(queue, len(self.queues))
        if index == len(self.queues):
            self.topics.append(topic)
            self.queues.append(queue)
        return index


def redeliver(broker: Broker, records: RecordBatch, count: int) -> list[str]:
    """Append a copy of each of the first ``count`` records where it belongs.

    Returns:
        The reason for each that was left out.

    Raises:
        StoreError: the store takes no writes; what was appended before it said so is appended again another time.
    """
    places = _Places(broker)
    batch = PublishBatch()
    nowhere = add_copies(records, count, batch, places.resolve)
    batch.destinations = [topic.name for topic in places.topics]
    batch.queues = list(places.queues)
    if not batch.count:
        return [NOWHERE] * nowhere
    try:
        broker.publish_placed(batch, places.topics)
    except RequestError:
        # One of them cannot be stored: alone it cannot hold up the others.
        return _redeliver_singly(broker, records, count)
    finally:
        batch.clear()
    return [NOWHERE] * nowhere


def _redeliver_singly(broker: Broker, records: RecordBatch, count: int) -> list[str]:
    reasons = []
    for index in range(count):
        message = StoredMessage.from_record(records.record(index)).restored()
        if message is None or message.topic in INTERNAL_TOPICS:
            reasons.append(NOWHERE)
            continue
        outbox = Outbox(broker)
        try:
            outbox.add(message)
            outbox.publish()
        except RequestError as error:
            reasons.append(str(error))
    return reasons
