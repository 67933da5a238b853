"""Single records by their physical offset, as far as clients may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import MessageNotFoundError
from headrace.format import record

if TYPE_CHECKING:
    from headrace.remoting.services import Services


def read_visible(services: Services, physical_offset: int) -> bytes:
    """Return the record at a physical offset.

    Raises:
        MessageNotFoundError: there is none, its topic is gone or the broker's own, or it is not durable yet.
    """
    raw = services.broker.store.log.read(physical_offset) if physical_offset >= 0 else None
    if raw is None:
        raise MessageNotFoundError(physical_offset)
    fields = record.decode(raw)
    topic = services.broker.topics.get(fields["topic"])
    queue = None if topic is None else topic.queue(fields["queue_id"])
    if queue is None or not queue.min_offset <= fields["queue_offset"] < queue.visible_offset:
        raise MessageNotFoundError(physical_offset)
    return raw
