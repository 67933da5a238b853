"""What the requests of bulk readers (Spark) share: who waits for news, the threads that read the log in, counters.

A reader asks for the state of many queues at once and may have the answer wait until one of them has grown. Such a wait
costs nothing while nothing happens; where a queue grows for which nobody waits, it costs one look at two dictionaries.

Ref: docs/protocols/extensions.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.batch import RecordBatch
from headrace.errors import StoreClosedError
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
"""READER_STATE requests that wait; one more is answered at once."""


@dataclass
class ReaderCounters:
    """Events since the start."""

    log_requests: int = 0
    log_bytes: int = 0
    log_paced: int = 0
    """READ_LOG answers that had to wait for ``remoting.read_log_bytes_per_s``."""
    queue_requests: int = 0
    queue_messages: int = 0
    queue_bytes: int = 0
    queue_cold: int = 0
    """READ_QUEUE answers that had to wait for the disk."""
    cold_records: int = 0
    """Single records that had to come from the disk: viewed, queried, sent back."""
    refused: int = 0
    """Reads refused because too many of one connection wait, or too many wait for the disk."""
    held_states: int = 0
    unheld_states: int = 0
    """READER_STATE requests answered at once because too many wait."""


@dataclass(slots=True, eq=False)
class StateWait:
    """A READER_STATE request that waits; ``log_known`` -1: not for the log.

    ``topics`` None: for those of which ``wants`` says so, given the owner of a queue.
    """

    topics: frozenset[str] | None
    wants: Callable[[Any], bool]
    log_known: int
    due_ms: int
    wake: Callable[[], object]
    owner: object
    is_over: bool = False


class StateWaits:
    """The READER_STATE requests that wait for something new. Times are ms of the monotonic clock."""

    def __init__(self, counters: ReaderCounters) -> None:
        self._counters = counters
        # Invariant: each wait is in _all, and in the rows of _by_topic of its topics or in _any.
        self._all: dict[StateWait, None] = {}
        self._any: dict[StateWait, None] = {}
        self._by_topic: dict[str, dict[StateWait, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def hold(self, wait: StateWait) -> bool:
        """Have a request wait; return False at the bound: it is answered now."""
        if len(self._all) >= MAX_WAITING:
            self._counters.unheld_states += 1
            return False
        self._all[wait] = None
        if wait.topics is None:
            self._any[wait] = None
        for topic in wait.topics or ():
            self._by_topic.setdefault(topic, {})[wait] = None
        return True

    def grown(self, queue: QueueBase) -> None:
        """Wake who waits for a queue that has new messages."""
        if not self._all:
            return
        wanted = [wait for wait in self._any if wait.wants(queue.owner)] if self._any else []
        for wait in [*wanted, *self._by_topic.get(queue.topic, ())]:
            self._wake(wait)

    def tick(self, mono_ms: int, log_end: int) -> None:
        """Wake those whose time is over or for whom the log has grown."""
        if not self._all:
            return
        for wait in [wait for wait in self._all if mono_ms >= wait.due_ms or -1 < wait.log_known < log_end]:
            self._wake(wait)

    def drop(self, owner: object) -> None:
        """Forget the requests of a connection that ends."""
        if self._all:
            for wait in [wait for wait in self._all if wait.owner is owner]:
                self.cancel(wait)

    def _wake(self, wait: StateWait) -> None:
        if wait.is_over:
            return  # one woken before it has dropped this one
        self.cancel(wait)
        try:
            wait.wake()
        except Exception:
            # The caller is another client's publish, or the clock: a bug here must not become theirs.
            logger.exception("reader's wait failed by a bug")

    def cancel(self, wait: StateWait) -> None:
        """Forget a request without waking it; nothing happens when it was woken before."""
        if wait.is_over:
            return
        wait.is_over = True
        del self._all[wait]
        self._any.pop(wait, None)
        for topic in wait.topics or ():
            row = self._by_topic.get(topic)
            if row is not None:
                row.pop(wait, None)
                if not row:
                    del self._by_topic[topic]


class Readers:
    """The shared part of all bulk readers of one broker; a ``Ticker`` of it.

    Attributes:
        records: Where READ_QUEUE gathers an answer; empty between two of them.
        waiting_records: Requests that wait for single records to be read in.
    """

    def __init__(self, broker: Broker) -> None:
        self.counters = ReaderCounters()
        self.waits = StateWaits(self.counters)
        self.records = RecordBatch()
        self.waiting_records = 0
        self._broker = broker
        # Two: a reader of what lies on the disk must not hold up one of what is in memory.
        self._executor = Threads("headrace-reader", 2)
        broker.add_tickers(self)
        broker.queue_listeners.append(self.waits.grown)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Have something done that waits for the disk, in a thread.

        Raises:
            StoreClosedError: the broker is closed.
        """
        try:
            return self._executor.submit(work)
        except RuntimeError as error:
            raise StoreClosedError("the broker is closed") from error

    def tick(self, now_ms: int) -> None:
        """Wake the requests whose time is over."""
        self.waits.tick(self._broker.clock.monotonic_ms(), self._broker.store.durable_offset)

    def close(self) -> None:
        """End the threads. Blocks."""
        self._executor.shutdown(wait=True, cancel_futures=True)
