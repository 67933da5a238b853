"""When channels next have a time-out or a due message.

One heap for all channels, with at most one live entry each, so that ten thousand idle channels cost nothing and a busy
one costs a heap operation per time-out period. A channel whose next time comes closer gets another entry; the old one
is stale, as are those of deleted channels. Stale ones are passed over when they come up, which may be in a month, and
dropped together when they are the greater part of the heap.

Messages are due by the wall clock, the heap is in monotonic time. Where one clock moves against the other (somebody
sets the time, a machine sleeps) every channel in the heap is looked at anew.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from headrace.broker.channels.channel import Channel
from headrace.clock import Clock

EXPIRE_AT_ONCE: Final = 5000
"""Messages that one channel may make ready in one call: about a millisecond."""

SLICE_MS: Final = 5
"""Time after which one call leaves the other channels to the next."""

CLOCK_STEP_MS: Final = 10
"""How far the clocks may move apart before the heap is taken to be wrong: more than rounding makes."""

MAX_STALE: Final = 1000
"""Stale entries that the heap may have beside as many as there are live ones."""


class ChannelTimers:
    """The heap of next times. Invariant: ``_due`` has a channel exactly while one heap entry of it is live."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Channel]] = []
        self._due: dict[Channel, int] = {}
        self._unscheduled: set[Channel] = set()
        self._sequence = 0
        self._clocks_apart_ms = clock.now_ms() - clock.monotonic_ms()

    def __len__(self) -> int:
        """Return how many entries the heap has, stale ones included."""
        return len(self._heap)

    def look_at(self, channel: Channel) -> None:
        """Note that a channel's next time may have changed."""
        self._unscheduled.add(channel)

    def forget(self, channel: Channel) -> None:
        """Drop a channel that is deleted."""
        self._unscheduled.discard(channel)
        self._due.pop(channel, None)
        self._drop_stale()

    def expire(self, read_ms: int | None = None) -> list[Channel]:
        """Make timed-out and due messages ready again; return the channels that have some.

        Args:
            read_ms: Monotonic time by which messages are late: their FINs that were sent before have been done. None:
                now.
        """
        now, mono = self._clock.now_ms(), self._clock.monotonic_ms()
        if abs(now - mono - self._clocks_apart_ms) > CLOCK_STEP_MS:
            self._clocks_apart_ms = now - mono
            self._unscheduled.update(self._due)
        for channel in self._unscheduled:
            self._schedule(channel, now, mono)
        self._unscheduled.clear()
        grown: list[Channel] = []
        while self._heap and self._heap[0][0] <= mono:
            due, _, channel = heappop(self._heap)
            if self._due.get(channel) != due:
                continue  # scheduled anew for an earlier time, or gone
            del self._due[channel]
            if channel.expire(now, mono if read_ms is None else read_ms, EXPIRE_AT_ONCE):
                grown.append(channel)
            self._unscheduled.add(channel)
            if self._clock.monotonic_ms() - mono >= SLICE_MS:
                break  # the others stay on the heap for the next call
        return grown

    def _schedule(self, channel: Channel, now: int, mono: int) -> None:
        """Put a channel's next time-out or due message on the heap, unless an earlier time is there already."""
        deadline = channel.next_deadline_ms()
        due = channel.next_due_ms()
        if due >= 0:
            due = mono + max(0, due - now)
            deadline = due if deadline < 0 else min(deadline, due)
        if deadline < 0:
            return
        known = self._due.get(channel)
        if known is None or deadline < known:
            self._due[channel] = deadline
            self._sequence += 1
            heappush(self._heap, (deadline, self._sequence, channel))
            self._drop_stale()

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._due) + MAX_STALE:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)
