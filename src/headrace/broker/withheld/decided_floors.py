"""Up to where all transactions are decided: where a start begins to read half messages and op records.

Both are committed offsets of the group that RocketMQ uses for it, moved on when what they pass is durable.
Ref: docs/formats/transactions.md.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from headrace.errors import RequestError
from headrace.format.names import DECIDED_GROUP, HALF_TOPIC, OP_TOPIC

if TYPE_CHECKING:
    from headrace.broker.consumers.offsets import OffsetTable
    from headrace.broker.withheld.open_halves import OpenHalves
    from headrace.store.queue_base import QueueBase
    from headrace.store.store import Store

logger = logging.getLogger(__name__)


class DecidedFloors:
    """The two offsets of one broker.

    Attributes:
        half: Queue offset below which no half message is open.
        op: Queue offset from which on the op records say something about half messages at or above ``half``.
    """

    def __init__(self, store: Store, offsets: OffsetTable, half_queue: QueueBase, op_queue: QueueBase) -> None:
        self._store = store
        self._offsets = offsets
        self._half_queue = half_queue
        self.half = self._start_of(half_queue, HALF_TOPIC)
        self.op = self._start_of(op_queue, OP_TOPIC)
        # Invariant: the op records from ``op`` on, in order: where each stands, and what it decides.
        self._ops: deque[tuple[int, int]] = deque()
        self._noted = (self.half, self.op)
        self._to_note: tuple[int, int, int] | None = None  # physical offset to wait for, and both floors

    def _start_of(self, queue: QueueBase, topic: str) -> int:
        return min(max(self._offsets.committed(DECIDED_GROUP, topic, 0) or 0, queue.min_offset), queue.next_offset)

    def add_op(self, op_offset: int, half_offset: int) -> None:
        """Note an op record, behind all others, and the half message that it decides."""
        self._ops.append((op_offset, half_offset))

    def raise_over(self, open_halves: OpenHalves) -> None:
        """Move both on as far as nothing is open."""
        while self.half < self._half_queue.next_offset and self.half not in open_halves:
            self.half += 1
        while self._ops and self._ops[0][1] < self.half:
            op_offset, _ = self._ops.popleft()
            if not self._ops or self._ops[0][0] != op_offset:  # a record of RocketMQ 5 decides several
                self.op = op_offset + 1

    def note(self, open_halves: OpenHalves) -> None:
        """Commit both, once the op records that say so are durable."""
        if self._to_note is not None:
            end, half, op = self._to_note
            if end > self._store.durable_offset:
                return
            self._to_note = None
            self._noted = (half, op)
            try:
                self._offsets.commit(DECIDED_GROUP, HALF_TOPIC, 0, half)
                self._offsets.commit(DECIDED_GROUP, OP_TOPIC, 0, op)
            except RequestError as error:
                logger.warning("decided transactions not noted, a start reads them again error=%s", error)
        self.raise_over(open_halves)
        if (self.half, self.op) != self._noted:
            self._to_note = (self._store.log.end_offset, self.half, self.op)
