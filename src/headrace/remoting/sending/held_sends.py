"""Where sends wait that are not delivered at once: delayed, timed and half messages on the fast path.

The codec has stored in their properties where they belong; here is the internal queue that each waits in, and what has
to be noted when they stand there. One by one they go through ``handlers.send``, with the same result.

Ref: remoting.md 2.6, 3.9, 3.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.remoting.sending.send_intake import HOLD_HALF, HOLD_TIMED

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.broker.withheld.schedule import DelayLevels
    from headrace.broker.withheld.timed import TimedMessages
    from headrace.broker.withheld.transactions import Transactions
    from headrace.store.queue_base import QueueBase


class HeldSends:
    """What messages may be held for.

    Attributes:
        delay_levels: How many there are, at least 1; a higher one means the last.
        max_delay_ms: How far away a time of its own may be.
        most_half_properties: Bytes of properties of a half message, where it belongs included; with more it is not
            plain.
        most_half_bytes: Bytes of its properties and body.
    """

    def __init__(self, broker: Broker, delays: DelayLevels, timed: TimedMessages, transactions: Transactions) -> None:
        self.delay_levels = delays.count
        self.max_delay_ms = broker.settings.max_delay_ms
        self.most_half_properties = transactions.half_limits.properties_bytes
        self.most_half_bytes = transactions.half_limits.message_bytes
        self._clock = broker.clock
        self._delays = delays
        self._timed = timed
        self._transactions = transactions

    def now_ms(self) -> int:
        """Return the time, ms since 1970."""
        return self._clock.now_ms()

    def half_room(self) -> int:
        """Return how many half messages may still be stored."""
        return self._transactions.room

    def waiting_place(self, hold: int) -> tuple[Topic, QueueBase]:
        """Return where messages wait that are held for ``hold``.

        Raises:
            RequestError, StoreError: nothing can wait there now.
        """
        if hold == HOLD_HALF:
            return self._transactions.half_place
        if hold == HOLD_TIMED:
            return self._timed.waiting_place()
        return self._delays.waiting_place(hold)

    def note_halves(self, places: list[tuple[int, int]]) -> None:
        """Take half messages at (physical offset, queue offset) for open transactions."""
        self._transactions.note_prepared(places, self._clock.now_ms())
