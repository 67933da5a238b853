"""Writes of several requests, appended together: one batch and one flush for what one read brought.

A request that wants to write something adds a ``Work`` to a ``Gathering``. When the read is over all of them are
appended. Each then finds where it went, or why it did not: what cannot be stored is tried alone, so it does not touch
the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from headrace.batch import PublishBatch
from headrace.errors import RequestError, StoreError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.store.queue_base import QueueBase

MAX_WORKS: Final = 64
MAX_BYTES: Final = 256 << 10
"""Bodies from which on a gathering is full: what they cost is then more than what is saved."""


class Joint:
    """One batch on its way to several queues.

    Attributes:
        topics: Of each destination; None: it has none.
        queues: Of each destination.
    """

    def __init__(self) -> None:
        self.batch = PublishBatch()
        self.is_waited_for = False
        """Whether something is on its way to a queue whose producers wait for the disk."""
        self.topics: list[Topic | None] = []
        self.queues: list[QueueBase] = []
        self._index_of: dict[QueueBase, int] = {}

    def destination(self, topic: Topic | None, queue: QueueBase) -> int:
        """Return the index of a queue among the batch's destinations; ``topic`` None: it belongs to none."""
        index = self._index_of.setdefault(queue, len(self.queues))
        if index == len(self.queues):
            self.topics.append(topic)
            self.queues.append(queue)
        return index

    def publish(self, broker: Broker) -> int:
        """Append everything; return the physical offset to wait for, 0 for none.

        Raises:
            RequestError, StoreError: nothing was appended.
        """
        self.batch.destinations = [queue.topic for queue in self.queues]
        self.batch.queues = list(self.queues)
        return broker.publish_placed(self.batch, self.topics, is_waited_for=self.is_waited_for)


class Work(ABC):
    """What one request writes."""

    def __init__(self) -> None:
        self._first_entry = 0
        self._joint: Joint | None = None
        self._wait_offset = 0
        self._error: RequestError | StoreError | None = None

    @abstractmethod
    def add_to(self, joint: Joint) -> None:
        """Add entries; raises nothing, and may be called again with another batch."""

    def join(self, joint: Joint) -> None:
        """Add the entries, and note which they are."""
        self._joint, self._first_entry = joint, joint.batch.count
        self.add_to(joint)

    def end(self, wait_offset: int, error: RequestError | StoreError | None) -> None:
        """Note what became of the batch."""
        self._wait_offset, self._error = wait_offset, error

    def drop(self) -> None:
        """Forget what was to be written: a bug keeps its gathering from being published."""
        self._joint = None

    def placed(self, entry: int = 0) -> tuple[int, int, int]:
        """Return physical offset, queue offset and record bytes of one of its entries."""
        assert self._joint is not None
        return self._joint.batch.placed(self._first_entry + entry)

    def require_written(self) -> int:
        """Return the physical offset to wait for, 0 for none.

        Raises:
            RequestError, StoreError: it was not written.
        """
        if self._error is not None:
            raise self._error
        return self._wait_offset


class Gathering:
    """Works that are written together."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._joint = Joint()
        self._works: list[Work] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to ``publish``."""
        return len(self._works) >= MAX_WORKS or self._joint.batch.body_bytes >= MAX_BYTES

    def add(self, work: Work) -> None:
        """Add what one request writes."""
        work.join(self._joint)
        self._works.append(work)

    def drop(self) -> None:
        """Forget everything; nothing of it is written."""
        for work in self._works:
            work.drop()

    def publish(self) -> None:
        """Append everything; every work then knows what became of it. To be called once.

        Raises:
            Exception: by a bug; everything was dropped.
        """
        try:
            self._publish()
        except Exception:
            self.drop()
            raise

    def _publish(self) -> None:
        if not self._works:
            return
        wait_offset, error = self._try(self._joint)
        if error is None or len(self._works) == 1:
            for work in self._works:
                work.end(wait_offset, error)
            return
        for work in self._works:
            alone = Joint()
            work.join(alone)
            work.end(*self._try(alone))

    def _try(self, joint: Joint) -> tuple[int, RequestError | StoreError | None]:
        try:
            return joint.publish(self._broker), None
        except (RequestError, StoreError) as error:
            return 0, error
