"""What POP consumers of RocketMQ 5 have taken of an imported store and not acknowledged: it is counted.

RocketMQ writes a checkpoint of what it hands out, and an ack of what is acknowledged. Both wait in the timer topic
until the time to acknowledge is over, and go to the cluster's revive topic then. Of that a reader of RocketMQ's own
brings back what was not acknowledged; Headrace has no such reader, and the group's offset stands behind these messages.

All is read in the order of the log, where an ack comes behind its checkpoint: in memory are those not yet brought back.

Of what is consumed in order nothing is counted: of that RocketMQ writes no checkpoint, and the group's offset stands at
the first message that is not acknowledged, where any consumer goes on.

Ref: PopCheckPoint, AckMsg, BatchAckMsg, PopReviveService in RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Annotated, Final, NamedTuple

import msgspec

from headrace.broker.message import REAL_TOPIC
from headrace.format.names import TIMER_TOPIC
from headrace.format.record import decode, properties_of, tag_hash
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.store import Store

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECKPOINT: Final = "ck"
_HASHES: Final = frozenset(map(tag_hash, (_CHECKPOINT, "ack", "bAck")))
_ENTRIES_AT_ONCE: Final = 10_000


class _Body(msgspec.Struct):
    """Of a checkpoint or an ack, as RocketMQ spells it: both name what was handed out at once."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    queue_id: int = msgspec.field(name="q")
    first_offset: int = msgspec.field(name="so")
    popped_ms: int = msgspec.field(name="pt")
    count: Annotated[int, msgspec.Meta(ge=0, le=127)] = msgspec.field(name="n", default=0)  # a byte of Java's
    acked_bits: int = msgspec.field(name="bm", default=0)
    places: list[int] | None = msgspec.field(name="d", default=None)  # of each, behind the first
    acked: int = msgspec.field(name="ao", default=-1)
    all_acked: list[int] = msgspec.field(name="aol", default_factory=list)

    def handed_out(self) -> set[int]:
        """Return the queue offsets of a checkpoint that are not acknowledged in it."""
        places = enumerate(self.places or range(self.count))
        return {self.first_offset + place for number, place in places if not self.acked_bits >> number & 1}


class Popped(NamedTuple):
    """What is handed out, not acknowledged and not brought back."""

    messages: dict[tuple[str, str], int]
    """How many, by group and topic."""
    unread: int
    """Checkpoints and acks that are damaged: what they say is not in ``messages``."""


def count_popped(store: Store, offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> Popped:
    """Count what POP consumers have not acknowledged.

    Args:
        offsets: Committed ones of each (group, topic).
    """
    done_up_to = {
        (topic, queue_id): offset
        for (group, topic), queues in offsets.items()
        if group == REVIVE_GROUP
        for queue_id, offset in queues.items()
    }
    entries = merge(
        *(
            _entries(queue, done_up_to.get(key, -1))
            for key, queue in store.queues.items()
            if key[0] == TIMER_TOPIC or key[0].startswith(REVIVE_PREFIX)
        )
    )
    unread = 0
    open_: dict[tuple[str, str, int, int, int], set[int]] = {}
    for physical_offset, is_done in entries:
        raw = store.log.read(physical_offset)
        try:
            fields = decode(raw or b"")
            properties = properties_of(fields["properties"])
            if not properties.get(REAL_TOPIC, fields["topic"]).startswith(REVIVE_PREFIX):
                continue
            body = msgspec.json.decode(fields["body"], type=_Body)
        except (ValueError, msgspec.DecodeError):
            unread += not is_done
            continue
        key = (body.group, body.topic, body.queue_id, body.first_offset, body.popped_ms)
        if properties.get("TAGS") != _CHECKPOINT:
            open_.get(key, set()).difference_update((body.acked, *body.all_acked))
        elif is_done:
            open_.pop(key, None)
        else:
            open_.setdefault(key, body.handed_out())
    counts: Counter[tuple[str, str]] = Counter()
    for (group, topic, *_), left in open_.items():
        counts[group, topic] += len(left)
    return Popped(dict(+counts), unread)


def _entries(queue: ConsumeQueue, done_up_to: int) -> Iterator[tuple[int, bool]]:
    """Yield where each checkpoint and ack of a queue is, and whether RocketMQ's reader was through with it."""
    number = queue.min_offset
    while entries := queue.entries(number, _ENTRIES_AT_ONCE):
        for physical_offset, _, tags in entries:
            if tags in _HASHES:
                yield physical_offset, number <= done_up_to
            number += 1
