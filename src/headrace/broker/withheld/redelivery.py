"""Messages that waited in an internal topic, appended where they belong: what every kind of delay ends in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.batch import RecordBatch
from headrace.broker.copies import add_copies
from headrace.broker.gathering import Joint
from headrace.broker.message import Outbox, StoredMessage
from headrace.errors import RequestError
from headrace.format.names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

NOWHERE: Final = "its topic was deleted, or it does not say where it belongs"


def redeliver(broker: Broker, records: RecordBatch, count: int) -> Counter[str]:
    """Append a copy of each of the first ``count`` records where it belongs.

    Returns:
        How many were left out, by the reason.

    Raises:
        StoreError: the store takes no writes; what was appended before it said so is appended again another time.
    """
    joint = Joint()

    def resolve(name: str, queue_id: int) -> int:
        # What names an internal topic was not written by us.
        topic = None if name in INTERNAL_TOPICS else broker.topics.get(name)
        if topic is None:
            return -1
        return joint.destination(topic, topic.queue_or_other(queue_id))

    nowhere = add_copies(records, count, joint.batch, resolve)
    left_out = Counter({NOWHERE: nowhere} if nowhere else {})
    if not joint.batch.count:
        return left_out
    try:
        joint.publish(broker)
    except RequestError:
        # One of them cannot be stored: alone it cannot hold up the others.
        return _redeliver_singly(broker, records, count)
    finally:
        joint.batch.clear()
    return left_out


def _redeliver_singly(broker: Broker, records: RecordBatch, count: int) -> Counter[str]:
    left_out: Counter[str] = Counter()
    for index in range(count):
        message = StoredMessage.from_record(records.record(index)).restored()
        if message is None or message.topic in INTERNAL_TOPICS:
            left_out[NOWHERE] += 1
            continue
        outbox = Outbox(broker)
        try:
            outbox.add(message)
            outbox.publish()
        except RequestError as error:
            left_out[str(error)] += 1
    return left_out
