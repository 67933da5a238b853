"""One coarse timer for all connections of a listener.

A heartbeat and a deadline per connection as event-loop timers would cost a heap operation per read at 10,000
connections. Here a read costs nothing: an item sits in the bucket of its earliest possible due time, and when that
bucket comes up, the item looks at its clocks and says when it wants to be asked again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

TICK_MS: Final = 100

Item = TypeVar("Item", bound=Hashable)


class TimerWheel(Generic[Item]):
    """Items by due time, to TICK_MS.

    Invariant: an item is in at most one bucket, the one ``_place`` names.
    """

    def __init__(self, now_ms: int) -> None:
        self._buckets: dict[int, dict[Item, None]] = {}
        self._place: dict[Item, int] = {}
        self._done = now_ms // TICK_MS

    def __len__(self) -> int:
        return len(self._place)

    def schedule(self, item: Item, due_ms: int) -> None:
        """Have ``item`` come up at the first tick at or after ``due_ms``, and not at its earlier date if it had one."""
        # Rounded up, so that nothing comes up before it is due; and never into a bucket that has passed.
        tick = max(-(-due_ms // TICK_MS), self._done + 1)
        if self._place.get(item) == tick:
            return
        self.cancel(item)
        self._place[item] = tick
        self._buckets.setdefault(tick, {})[item] = None

    def cancel(self, item: Item) -> None:
        """Forget ``item``."""
        tick = self._place.pop(item, None)
        if tick is None:
            return
        bucket = self._buckets[tick]
        del bucket[item]
        if not bucket:
            del self._buckets[tick]

    def take_due(self, now_ms: int) -> list[Item]:
        """Remove and return what is due, earliest first."""
        now = now_ms // TICK_MS
        if now <= self._done:
            return []
        passed = now - self._done
        ticks = (
            range(self._done + 1, now + 1)
            if passed <= len(self._buckets)
            else sorted(tick for tick in self._buckets if tick <= now)
        )
        self._done = now
        due: list[Item] = []
        for tick in ticks:
            due.extend(self._buckets.pop(tick, ()))
        for item in due:
            del self._place[item]
        return due
