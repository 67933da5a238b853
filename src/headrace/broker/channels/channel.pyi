"""Delivery state of one channel (NSQ's consumer group: every channel of a topic gets every message)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from headrace.batch import RecordBatch, SettleBatch
from headrace.store.queue_base import QueueBase

class Subscription:
    """One consumer of a channel and its window."""

    ready_count: int
    """How many messages it wants in flight at most (RDY: a sticky window, not a credit)."""
    writable: bool
    """False while its connection takes no more output."""
    @property
    def id(self) -> int: ...
    @property
    def owner(self) -> object:
        """The connection; None once the subscription has ended."""
    @property
    def closed(self) -> bool: ...
    @property
    def in_flight_count(self) -> int: ...
    @property
    def message_count(self) -> int:
        """Messages delivered to it."""
    @property
    def finish_count(self) -> int: ...
    @property
    def requeue_count(self) -> int: ...
    @property
    def msg_timeout_ms(self) -> int: ...
    @property
    def sample_rate(self) -> int: ...

class Channel:
    """Which messages of a topic are ready, in flight, deferred or finished, and for whom.

    Deterministic: it has no clock, socket or task. ``now_ms`` is wall time (delays), ``mono_ms`` monotonic time
    (time-outs). Nothing here waits, but writing to and reading from a spill file.
    """

    paused: bool
    pace: object
    """For whoever delivers: what is known of how fast that goes. The channel does not look at it; None at first."""
    @property
    def name(self) -> str: ...
    @property
    def topic_name(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def ephemeral(self) -> bool: ...
    @property
    def subscriptions(self) -> list[Subscription]: ...
    @property
    def stopped_cold(self) -> bool:
        """The last deliver() stopped at a record that is not in memory: try again when the log says so."""
    @property
    def depth(self) -> int:
        """Messages that could be delivered now: unread and ready again; neither in flight nor deferred."""
    @property
    def in_flight_count(self) -> int: ...
    @property
    def deferred_count(self) -> int: ...
    @property
    def message_count(self) -> int:
        """Messages that entered the channel since process start."""
    @property
    def delivered_count(self) -> int:
        """Deliveries, repeated ones included."""
    @property
    def redelivered_count(self) -> int:
        """Deliveries of a message that had been delivered before."""
    @property
    def finish_count(self) -> int: ...
    @property
    def requeue_count(self) -> int: ...
    @property
    def timeout_count(self) -> int: ...
    @property
    def damaged_count(self) -> int:
        """Messages that could not be read (damaged, or a hole in the log) and count as finished."""
    @property
    def evicted_count(self) -> int:
        """Messages that retention removed before they were finished."""
    @property
    def was_cut(self) -> bool:
        """Whether states given to restore(), or the end of a queue since, took back what states before them say."""
    @property
    def ready_subscriptions(self) -> list[Subscription]:
        """Subscriptions that can take a message now; a different one comes first each time."""
    @property
    def memory_bytes(self) -> int: ...
    def __init__(
        self,
        name: str,
        topic_name: str,
        *,
        node_id: int,
        ephemeral: bool = False,
        max_msg_timeout_ms: int = 900_000,
        max_deferred_in_memory: int = 10_000_000,
        seed: int = 1,
        spill_directory: Path | None = None,
    ) -> None: ...
    def restore(self, states: Iterable[bytes], *, now_ms: int = 0) -> None:
        """Take over recorded state, a snapshot's parts in order and then the changes; call it before add_queue().

        What lies between a queue's floor and its cursor, and is neither finished nor recorded as waiting, is
        deliverable again. A state that cannot be read to its end is logged; what it would have said is forgotten,
        which can only lead to redelivery.
        """
    def add_queue(self, queue: QueueBase, start_offset: int) -> int:
        """Read ``queue`` from ``start_offset``, or from where the restored state says when that is later.

        Returns:
            How many recorded positions lay beyond the end of the queue and were dropped. When it is not 0 the next
            take_changes() must be in the journal before the queue grows.

        Raises:
            ValueError: queues are not added in the order of their ids, from 0 on.
        """
    def set_limit(self, queue_id: int, limit: int) -> None:
        """Nothing at or above queue offset ``limit`` enters the channel (topic paused); -1 lifts it."""
    def position(self, queue_id: int) -> tuple[int, int]:
        """Return (floor, cursor) of one queue: all below the floor is finished, all below the cursor was read."""
    def subscribe(self, owner: object, msg_timeout_ms: int, sample_rate: int = 0) -> Subscription: ...
    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; what it has in flight comes back by time-out, as in nsqd."""
    def deliver(
        self,
        subscription: Subscription,
        now_ms: int,
        mono_ms: int,
        max_messages: int,
        max_bytes: int,
        into: RecordBatch,
    ) -> int:
        """Add messages for one subscription to ``into`` and register them in flight.

        At least one message is added whatever its size, if the window is open and one is ready. What is new and what
        came back (by time-out or REQ, or due now) get half of the window each, one or the other first by turns; what
        one of them does not use the other gets. A call looks at a bounded number of messages: has_ready() tells
        whether there is more.

        Returns:
            How many were added.
        """
    def settle(self, subscription: Subscription, batch: SettleBatch, now_ms: int, mono_ms: int) -> int:
        """Apply FIN, REQ and TOUCH; the results are in the batch.

        Returns:
            How many failed.
        """
    def defer(self, queue_id: int, queue_offset: int, physical_offset: int, due_ms: int, now_ms: int) -> bool:
        """Take note of a message with a delay as soon as it is readable, so that deferred_count shows it.

        Optional: deliver() finds it too. False when the cursor has passed it or it is not readable yet.
        """
    def expire(self, now_ms: int, mono_ms: int, most: int) -> int:
        """Make timed-out and due messages ready again, at most ``most``; return how many."""
    def next_deadline_ms(self) -> int:
        """Monotonic time of the next time-out, or -1."""
    def next_due_ms(self) -> int:
        """Wall time at which expire() next has deferred messages to move, or -1."""
    def has_ready(self) -> bool:
        """Whether anything is deliverable now."""
    def empty(self, limits: Mapping[int, int] | None = None, *, now_ms: int = 0) -> int:
        """Drop everything below ``limits`` (queue_id to queue offset; default: the readable end).

        A limit may lie beyond the readable end: what is appended and not yet readable then goes too.
        ``now_ms`` (wall clock) is for what stays deferred.

        Returns:
            How many messages were dropped.
        """
    def skip_range(self, queue_id: int, start: int, end: int) -> int:
        """Finish what is unread of [start, end) without delivering it; return how many."""
    def take_changes(self) -> bytes | None:
        """Return what changed since the last call, None for nothing; also gives back idle memory."""
    def snapshot_parts(self, entries: int = 65_536) -> Iterator[bytes]:
        """Yield the whole state in parts of about ``entries`` messages that wait.

        What is in flight is in the last one, recorded as ready, with its attempts.

        The channel may go on between the parts: restore() wants all parts, in order, and then the changes taken
        since before the first part. Beginning anew ends an older iteration's use.
        """
    def close(self) -> None:
        """Drop all state and spill files: the channel is being deleted or the process ends."""
