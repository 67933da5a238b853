"""Messages that waited in an internal topic, appended where they belong: what every kind of delay ends in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.batch import RecordBatch
from headrace.broker.copies import add_copies
from headrace.broker.gathering import Joint
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
    try:
        return _append(broker, records, 0, count)
    except RequestError:
        pass  # one of them cannot be stored: alone it cannot hold up the others
    left_out: Counter[str] = Counter()
    for index in range(count):
        try:
            left_out += _append(broker, records, index, index + 1)
        except RequestError as error:
            left_out[str(error)] += 1
    return left_out


def _append(broker: Broker, records: RecordBatch, first: int, end: int) -> Counter[str]:
    joint = Joint()

    def resolve(name: str, queue_id: int) -> int:
        # What names an internal topic was not written by us.
        topic = None if name in INTERNAL_TOPICS else broker.topics.get(name)
        if topic is None:
            return -1
        return joint.destination(topic, topic.queue_or_other(queue_id))

    nowhere = add_copies(records, first, end, joint.batch, resolve)
    try:
        if joint.batch.count:
            joint.publish(broker)
    finally:
        joint.batch.clear()
    return Counter({NOWHERE: nowhere} if nowhere else {})
