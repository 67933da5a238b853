"""Read coalescing: FINs of a consumer that has plenty in flight are read many at once.

A client that has messages at hand does not wait for the broker to learn what it has finished. Where each FIN is read as
it comes, and answered with one more message, both sides spend most of their time on small reads and writes. So the
socket of a consumer that finishes many messages, and has many more, becomes readable only when a quarter of what it
has in flight may be finished, or half of what it finishes in an interval (``SO_RCVLOWAT``): it has enough to go on
with, and gets the next ones in one piece. What has come and is less than that is read when no more is added to it, for
the client may wait for that: it is looked at a few times in an interval. It waits for two of them at most.

Not every client goes on: it may keep most of its window, or its kernel may hold small segments back until what was sent
before is acknowledged, which a read does. Such pauses cost it part of its time. So each consumer is tried both ways,
read from at once for some intervals, then many FINs at once for as many, and waits for many as long as it keeps most of
its rate: for longer each time that the trial says the same.

Ref: docs/adr/0012-read-coalescing.md.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import sys
import termios
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from headrace.net.fine_timer import FineTimer

if TYPE_CHECKING:
    import asyncio

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
TRIAL: Final = 8
"""Intervals for which a consumer is tried each way."""
KEPT_IN_TRIAL: Final = 0.5
"""The part of its rate that a consumer must keep when it begins to wait: its congestion window may have to grow."""
KEPT_RATE: Final = 0.8
"""The part that it must keep afterwards: rates of some milliseconds differ by as much."""
IDLE: Final = 16
"""Intervals without a read after which a consumer had nothing to do: no time in which it is judged."""
FIRST_STAY: Final = 64
"""Intervals for which it stays as the trial said, the first time; twice as many each time that it says the same."""
LONGEST_STAY: Final = 4096
LOOKS: Final = 5
"""Looks in two intervals at what has come and was not read."""
MOST_LOOKED_AT: Final = 16
"""Waiting consumers up to which it is looked at that of each: a system call. Of more it only counts, once an interval,
whether they were read from."""


class ConsumerReads:
    """How one consumer is read from.

    Attributes:
        low_water_bytes: What the socket waits for before it is readable; 1: for anything.
        was_read: There was a read since the last look.
    """

    __slots__ = (
        "_at_once", "_finished", "_may_wait", "_measured", "_period", "_period_began", "_stay", "_transport",
        "_unread_bytes", "_unread_looks", "_was_better", "low_water_bytes", "was_read",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self.low_water_bytes = 1
        self.was_read = False
        self._transport = transport
        self._finished = 0.0  # messages in an interval, when that was measured last
        self._measured = (0, 0)  # then: ns, messages finished in all
        self._period_began = (0, 0)  # the same
        self._period = TRIAL  # intervals
        self._may_wait = False  # in this period
        self._at_once = 0.0  # messages finished in an interval, in the last period in which it did not
        self._stay = FIRST_STAY
        self._was_better: bool | None = None  # to wait, in the last trial
        self._unread_bytes = 0  # what had come and was not read, at the last look
        self._unread_looks = 0  # since the last read

    def note(self, subscription: Subscription, interval_ns: int) -> None:
        """Note a read, and have the socket wait for as much as pays now.

        Raises: OSError where the socket refuses that.
        """
        self.was_read = True
        now = (perf_counter_ns(), subscription.finish_count)
        pause_ns = now[0] - self._measured[0]
        if pause_ns >= interval_ns:
            if pause_ns > IDLE * interval_ns:
                began_ns, finished = self._period_began
                self._period_began = (began_ns + pause_ns, finished)
            self._finished = _rate(self._measured, now, interval_ns)
            self._measured = now
            if now[0] - self._period_began[0] >= self._period * interval_ns:
                self._begin_period(_rate(self._period_began, now, interval_ns))
                self._period_began = now
        in_flight = subscription.in_flight_count
        if not self._may_wait or in_flight < MIN_IN_FLIGHT or self._finished < MIN_FINISHED:
            self.set_low_water(1)
            return
        best = min(min(in_flight // SHARE, int(self._finished) // 2) * FIN_BYTES, MAX_LOW_WATER_BYTES)
        # A call of the kernel each time it differs a little would cost what it saves.
        if not best // 2 <= self.low_water_bytes <= best * 3 // 2:
            self.set_low_water(best)

    def _begin_period(self, finished: float) -> None:
        """Decide how the consumer is read from next, which finished so many an interval in the period before."""
        if not self._may_wait:
            self._at_once = finished
            self._may_wait = finished >= MIN_FINISHED
            self._period = TRIAL
            return
        kept = KEPT_IN_TRIAL if self._period == TRIAL else KEPT_RATE
        is_better = finished >= kept * self._at_once
        if is_better and self._period > TRIAL:
            self._may_wait = False
            self._period = TRIAL
            return
        self._stay = min(2 * self._stay, LONGEST_STAY) if is_better == self._was_better else FIRST_STAY
        self._may_wait = self._was_better = is_better
        self._period = self._stay

    def is_over(self, *, is_looked_at: bool) -> bool:
        """Return whether what has come has waited for more long enough.

        Args:
            is_looked_at: Whether to count how much has come; else all that counts is that nothing was read.
        """
        was_read, self.was_read = self.was_read, False
        if not is_looked_at:
            return not was_read
        before, self._unread_bytes = self._unread_bytes, self._count_unread()
        self._unread_looks = 1 if was_read else self._unread_looks + 1
        return not was_read and (0 < self._unread_bytes == before or self._unread_looks >= LOOKS)

    def _count_unread(self) -> int:
        if self._transport.is_closing():
            return 0
        fd = self._transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    def cut(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def set_low_water(self, size: int) -> None:
        """Have the socket be readable from ``size`` bytes on, or at its end.

        Raises: OSError where the socket refuses that.
        """
        # A socket that is closing may have given its number to another already.
        if size != self.low_water_bytes and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self.low_water_bytes = size


def _rate(before: tuple[int, int], now: tuple[int, int], interval_ns: int) -> float:
    return (now[1] - before[1]) * interval_ns / (now[0] - before[0])


class ReadCoalescing:
    """One server's. Invariant: while a socket waits for more than one byte, its consumer is in ``_waiting``.

    Attributes:
        reads: Reads that waited for many FINs.
        misses: Times that waiting for many was in vain: the timer had to end it.
    """

    def __init__(self, interval_ms: int) -> None:
        """Let an interval take ``interval_ms``; 0: every read is done at once."""
        self.reads = 0
        self.misses = 0
        self._interval_ms = interval_ms
        self._waiting: dict[ConsumerReads, None] = {}
        self._timer = FineTimer(self._look)
        self._is_looking = False

    def note(self, consumer: ConsumerReads, subscription: Subscription) -> bool:
        """Note a read that nothing answers; return whether the next waits for many FINs."""
        if not self._interval_ms:
            return False
        if consumer.low_water_bytes > 1:
            self.reads += 1
        try:
            consumer.note(subscription, self._interval_ms * 1_000_000)
        except OSError as error:
            self._switch_off(error)
        if consumer.low_water_bytes == 1:
            self._waiting.pop(consumer, None)
            return False
        self._waiting[consumer] = None
        if not self._is_looking:
            self._look_later()
        return True

    def end(self, consumer: ConsumerReads) -> None:
        """Read whatever comes from this one, which consumes no more."""
        self._waiting.pop(consumer, None)
        try:
            consumer.set_low_water(1)
        except OSError as error:
            self._switch_off(error)
            consumer.cut()  # what is below the mark would never be read

    def end_all(self) -> None:
        """Have everything be readable that has come."""
        for consumer in list(self._waiting):
            self.end(consumer)

    def _switch_off(self, error: OSError) -> None:
        if self._interval_ms:
            logger.warning("every FIN is read as it comes, the system refuses SO_RCVLOWAT error=%s", error)
        self._interval_ms = 0

    def close(self) -> None:
        """Give back the timer's descriptor."""
        self._timer.close()

    def _look_later(self) -> None:
        self._is_looking = True
        interval_ns = self._interval_ms * 1_000_000
        self._timer.start(2 * interval_ns // LOOKS if len(self._waiting) <= MOST_LOOKED_AT else interval_ns)

    def _look(self) -> None:
        """Have those be readable of which what has come has waited long enough."""
        self._is_looking = False
        is_looked_at = len(self._waiting) <= MOST_LOOKED_AT
        for consumer in list(self._waiting):
            if consumer.is_over(is_looked_at=is_looked_at):
                self.misses += 1
                self.end(consumer)
        if self._waiting:
            self._look_later()
