"""A start finds out which transactions are open: what the queues of half messages and op records say.

An op record counts where all that was written with it is there. A power cut may have taken any part of what was not
durable, and damage any record; then the same transaction is asked about again rather than lost, but never one whose
message was delivered. Ref: remoting.md 4.6; docs/formats/transactions.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.copies import RecordCopy
from headrace.broker.queue_search import NO_RECORD, places_from
from headrace.broker.torn_commands import find_torn, records_from
from headrace.broker.withheld.half_message import FIRST_OFFSET, number_or
from headrace.format import record
from headrace.format.names import HALF_TOPIC
from headrace.format.record import SYS_COMMITTED, SYS_TRANSACTION

if TYPE_CHECKING:
    from headrace.broker.withheld.decided_floors import DecidedFloors
    from headrace.broker.withheld.given_up import GivenUp
    from headrace.broker.withheld.open_halves import OpenHalves
    from headrace.broker.withheld.transaction_end import TransactionCounters
    from headrace.store.queue_base import QueueBase
    from headrace.store.store import Store

logger = logging.getLogger(__name__)


class TransactionOpening:
    """One start's look at both queues."""

    def __init__(
        self,
        store: Store,
        half_queue: QueueBase,
        op_queue: QueueBase,
        open_halves: OpenHalves,
        given_up: GivenUp,
        counters: TransactionCounters,
    ) -> None:
        self._store = store
        self._half_queue = half_queue
        self._op_queue = op_queue
        self._open = open_halves
        self._given_up = given_up
        self._counters = counters

    def load(self, floors: DecidedFloors, take_up: Callable[[RecordCopy, int], None]) -> None:
        """Fill the table of open half messages, and the floors with the op records from them on.

        Args:
            take_up: Takes a half message, whose first copy has a queue offset, for an open one.
        """
        decided = self._read_ops(floors)  # where the newest op record stands, by half message
        may_lack_ops = bool(self._store.holes)  # then what was decided may say of an older copy that it was
        without_half = dict(decided) if may_lack_ops else {}
        for offset, at, raw in self._read_from(self._half_queue, floors.half):
            # An op record before it is about another one, which a power cut took before its queue offset was synced.
            is_decided = decided.get(offset, -1) > at
            if is_decided and not may_lack_ops:
                continue
            half = RecordCopy(raw)
            first = number_or(half.property(FIRST_OFFSET.encode()), offset)
            # A power cut may have kept this copy and not the op record before it.
            self._open.supersede(offset, first)
            if is_decided:
                without_half.pop(offset, None)
            else:
                take_up(half, first)
        self._leave_out_delivered(without_half.values())
        if len(self._open):
            logger.info("open transactions found count=%d", len(self._open))

    def _read_ops(self, floors: DecidedFloors) -> dict[int, int]:
        torn = find_torn(
            self._store, lambda: [(offset, at) for offset, at, _ in self._read_from(self._op_queue, floors.op)]
        )
        decided: dict[int, int] = {}
        for offset, at, raw in self._read_from(self._op_queue, floors.op):
            if offset in torn:
                self._counters.torn += 1
                logger.error("what followed from a decision is lost, it is asked for again queue_offset=%d", offset)
                continue
            for number in record.decode(raw)["body"].decode("ascii", "replace").split(","):
                half_offset = number_or(number.strip(), -1)
                if half_offset >= 0:
                    floors.add_op(offset, half_offset)
                    decided[half_offset] = at
        return decided

    def _read_from(self, queue: QueueBase, offset: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield queue offset, physical offset and record of what can be read."""
        for found, physical_offset in places_from(queue, offset):
            if physical_offset == NO_RECORD and not self._store.has_losses:
                continue  # cut off by a recovery, and nobody was answered
            raw = self._store.log.read(physical_offset)
            if raw is None:
                self._counters.dropped += 1
                logger.error("record of a transaction lost topic=%s queue_offset=%d", queue.topic, found)
            else:
                yield found, physical_offset, raw

    def _leave_out_delivered(self, ops: Iterable[int]) -> None:
        """Take out the transactions whose messages were delivered, where a hole took what else says so.

        Args:
            ops: Where the op records stand whose half message is lost.
        """
        for first, at in self._find_delivered(ops).items():
            current = self._open.newest_of(first, first)
            entry = self._open.get(current)
            if entry is not None and entry.physical_offset > at:
                continue  # another one, which has its queue offset since
            self._given_up.discard(first)
            if entry is not None and entry.first_offset == first:
                self._open.remove(current)

    def _find_delivered(self, ops: Iterable[int]) -> dict[int, int]:
        """Return where messages stand that were delivered, by the queue offset of the first half message."""
        found = {}
        log = self._store.log
        for start in [*(hole.end_offset for hole in self._store.holes), *ops]:
            # The op record, the record of a late decision, the message: what is left of them.
            for at, raw in islice(records_from(log, start), 3):
                message = RecordCopy(raw)
                if message.sys_flag & SYS_TRANSACTION != SYS_COMMITTED:
                    continue
                first = number_or(message.property(FIRST_OFFSET.encode()), -1)
                half = log.read(message.prepared_offset) if first < 0 else None
                if half is not None and RecordCopy(half).topic == HALF_TOPIC:
                    first = RecordCopy(half).queue_offset
                if first >= 0:
                    found[first] = at
        return found
