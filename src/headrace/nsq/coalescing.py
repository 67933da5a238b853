"""Read coalescing: FINs of a consumer that has plenty in flight are read many at once.

A client that has messages at hand does not wait for the broker to learn what it has finished. Where each FIN is read as
it comes, and answered with one more message, both sides spend most of their time on small reads and writes. So the
socket of a consumer that finishes many messages, and has many more, becomes readable only when a quarter of what it has
in flight may be finished (``SO_RCVLOWAT``): it has enough to go on with, and gets the next ones in one piece. What is
less than that waits for at most two intervals.

Ref: docs/adr/0012-read-coalescing.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.broker.channels.channel import Subscription

logger = logging.getLogger(__name__)

MIN_FINISHED: Final = 16
"""Messages finished in an interval from which waiting costs less than the reads it saves."""
MIN_IN_FLIGHT: Final = 16
"""Messages in flight below which a consumer is read from at once: it may soon be without."""
SHARE: Final = 4
"""The part of what is in flight that is finished before the socket is read: one in so many."""
FIN_BYTES: Final = 21
"""``FIN``, a message id, and what stands around them."""
MAX_LOW_WATER_BYTES: Final = 16 * 1024


class ConsumerReads:
    """How one consumer is read from.

    Attributes:
        low_water_bytes: What the socket waits for before it is readable; 1: for anything.
        was_read: There was a read in this interval.
    """

    __slots__ = ("_began_ns", "_finished", "_finished_before", "_transport", "low_water_bytes", "was_read")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.low_water_bytes = 1
        self.was_read = False
        self._transport = transport
        self._finished = 0.0  # messages in an interval, when that was measured last
        self._began_ns = 0
        self._finished_before = 0  # messages in all, then

    def note(self, subscription: Subscription, interval_ns: int) -> None:
        """Note a read, and have the socket wait for as much as pays now.

        Raises: OSError where the socket refuses that.
        """
        self.was_read = True
        now_ns = perf_counter_ns()
        elapsed_ns = now_ns - self._began_ns
        if elapsed_ns >= interval_ns:
            count = subscription.finish_count
            self._finished = (count - self._finished_before) * interval_ns / elapsed_ns
            self._began_ns = now_ns
            self._finished_before = count
        in_flight = subscription.in_flight_count
        if in_flight < MIN_IN_FLIGHT or self._finished < MIN_FINISHED:
            self.set_low_water(1)
            return
        best = min(in_flight // SHARE * FIN_BYTES, MAX_LOW_WATER_BYTES)
        # A call of the kernel each time it differs a little would cost what it saves.
        if not best // 2 <= self.low_water_bytes <= best * 3 // 2:
            self.set_low_water(best)

    def set_low_water(self, size: int) -> None:
        """Have the socket be readable from ``size`` bytes on, or at its end.

        Raises: OSError where the socket refuses that.
        """
        # A socket that is closing may have given its number to another already.
        if size != self.low_water_bytes and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self.low_water_bytes = size


class ReadCoalescing:
    """One server's. Invariant: while a socket waits for more than one byte, its consumer is in ``_waiting``.

    Attributes:
        reads: Reads that waited for many FINs.
    """

    __slots__ = ("_interval_ms", "_timer", "_waiting", "reads")

    def __init__(self, interval_ms: int) -> None:
        """Let an interval take ``interval_ms``; 0: every read is done at once."""
        self.reads = 0
        self._interval_ms = interval_ms
        self._waiting: dict[ConsumerReads, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, consumer: ConsumerReads, subscription: Subscription) -> bool:
        """Note a read that nothing answers; return whether the next waits for many FINs."""
        if not self._interval_ms:
            return False
        if consumer.low_water_bytes > 1:
            self.reads += 1
        try:
            consumer.note(subscription, self._interval_ms * 1_000_000)
        except OSError as error:
            logger.warning("every FIN is read as it comes, the system refuses SO_RCVLOWAT error=%s", error)
            self._interval_ms = 0
            return False
        if consumer.low_water_bytes == 1:
            self._waiting.pop(consumer, None)
            return False
        self._waiting[consumer] = None
        if self._timer is None:
            self._start_interval()
        return True

    def end(self, consumer: ConsumerReads) -> None:
        """Read whatever comes from this one, which consumes no more."""
        consumer.set_low_water(1)
        self._waiting.pop(consumer, None)

    def end_all(self) -> None:
        """Have everything be readable that has come."""
        for consumer in list(self._waiting):
            self.end(consumer)

    def _start_interval(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._end_interval)

    def _end_interval(self) -> None:
        """Have those be readable of which nothing was read meanwhile: what they sent has waited for long enough."""
        self._timer = None
        for consumer in list(self._waiting):
            if not consumer.was_read:
                self.end(consumer)
            consumer.was_read = False
        if self._waiting:
            self._start_interval()
