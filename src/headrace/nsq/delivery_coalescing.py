"""Delivery coalescing: what is published to a busy channel is delivered some messages at a time.

To send one message costs a system call and its way through broker and client, and so does the FIN that comes back. A
consumer with a window of many messages does not ask for each of them at once: it has said for how long output may wait
in the server's buffer (``output_buffer_timeout``, 250 ms where it says nothing). So when a channel that delivers
thousands a second has delivered all it had, what is published next waits for the end of the interval, a fraction of
that time, and leaves together. On any other channel each message leaves at once.

While the loop has no time to spare the interval is longer (``delivery_interval``): channels with a few messages in one
are busy too then, and many of those cost less.

Nothing waits where a consumer that was sent something has a small window or one half full, or where any of the
channel's wants its output unbuffered, nor where the channel came to have many messages.

Ref: nsq.md 1.9, docs/adr/0014-delivery-coalescing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from headrace.nsq.delivery_interval import DeliveryInterval

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.channels.channel import Channel
    from headrace.nsq.connection import NsqConnection

MIN_WINDOW: Final = 16
"""RDY from which a consumer has enough to do meanwhile."""
BUSY: Final = 8
"""Messages that a channel delivers in an interval from which on it is held."""
MEASURED: Final = 8
"""Intervals over which that is measured, at least."""
GATHERED: Final = 1.5
"""The same where intervals are longer than they are set to: fewer would leave one by one anyway."""
SITS_OUT: Final = 16
"""Measurements for which it is not, once it had fewer while it was held."""
_NEVER: Final = (0, 0, 0)


class DeliveryCoalescing:
    """One server's. Invariant: while the broker holds channels, a call of ``_end_interval`` is due.

    A channel's ``pace`` is when it was measured last, what it had delivered then, and what was found: 1 that it is
    busy, 0 that it is not, -n that it is not to be held for n measurements more.

    Attributes:
        holds: Times that a channel was held.
        interval: How long an interval takes.
        call_later: Has something called after so many seconds.
        now_ns: Tells the time.
    """

    def __init__(self, broker: Broker, interval_ms: int, longest_ms: int = 0) -> None:
        """Let an interval take ``interval_ms``, up to ``longest_ms`` under load; 0: everything is delivered at once."""
        self.holds = 0
        self.interval = DeliveryInterval(interval_ms, longest_ms)
        self.now_ns: Callable[[], int] = perf_counter_ns
        self.call_later: Callable[[float, Callable[[], None]], object] = _call_later
        self._broker = broker
        self._is_on = interval_ms > 0
        self._is_due = False
        self._deliveries = 0  # since ``take_deliveries``

    def take_deliveries(self) -> int:
        """Return how many times a channel has delivered all it had since the last call."""
        deliveries, self._deliveries = self._deliveries, 0
        return deliveries

    def note(self, channel: Channel) -> None:
        """Note that a channel has delivered all it had; hold it for the rest of the interval if it is busy.

        Not if one of its consumers, whoever was sent something, wants its output unbuffered.
        """
        if not self._is_on:
            return
        self._deliveries += 1
        if not self._measure(channel):
            return
        if not all(cast("NsqConnection", subscription.owner).is_buffered for subscription in channel.subscriptions):
            return
        self.holds += 1
        self._broker.hold_channel(channel)
        if not self._is_due:
            self._is_due = True
            self.call_later(self.interval.ms / 1000, self._end_interval)

    def is_busy(self, channel: Channel) -> bool:
        """Return whether a channel delivers so many that it is held."""
        return self._is_on and self._measure(channel)

    def _measure(self, channel: Channel) -> bool:
        """Return whether a channel is busy, measured anew if that was long ago."""
        measured_ns, delivered, found = cast("tuple[int, int, int]", channel.pace or _NEVER)
        now_ns = self.now_ns()
        intervals = (now_ns - measured_ns) / (self.interval.ms * 1_000_000)
        if intervals < MEASURED:
            return found > 0
        count = channel.delivered_count
        is_longer = self.interval.is_longer
        if found < 0:
            found += 1
        elif count - delivered >= (GATHERED if is_longer else BUSY) * intervals:
            found = 1
        else:
            found = -SITS_OUT if found and is_longer else 0
        channel.pace = (now_ns, count, found)
        return found > 0

    def _end_interval(self) -> None:
        self._is_due = False
        self._broker.release_channels()


def _call_later(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)
