"""The half messages that nobody decided yet, and when each is looked at next.

Nothing of this is written down: a start finds it in the log (``transaction_opening``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

MAX_STALE: Final = 10_000
"""Times of decided transactions that may be left in the heap beside as many as are open."""


@dataclass(slots=True)
class OpenHalf:
    """One open transaction: its newest half message.

    Attributes:
        first_offset: Queue offset of the first one.
        checks: Questions to its producer so far.
        since_ms: Since when it waits for an answer, ms since 1970.
        check_ms: When it is looked at next, ms since 1970.
    """

    physical_offset: int
    first_offset: int
    checks: int
    since_ms: int
    check_ms: int


class OpenHalves:
    """Those of one broker, by the queue offset of the newest half message of each.

    Invariants: each is in ``_heap`` with its ``check_ms``; ``_newest`` has the first offset of each that has a newer
    copy.
    """

    def __init__(self) -> None:
        self._entries: dict[int, OpenHalf] = {}
        self._newest: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, half_offset: int) -> bool:
        return half_offset in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def get(self, half_offset: int) -> OpenHalf | None:
        """Return the one whose newest half message has this queue offset."""
        return self._entries.get(half_offset)

    def newest_of(self, first_offset: int, default: int) -> int:
        """Return the newest copy's queue offset, by that of the first half message; ``default``: it has no copy."""
        return self._newest.get(first_offset, default)

    def add(self, half_offset: int, entry: OpenHalf) -> None:
        """Take one up, or what became of it with its newer copy."""
        self._entries[half_offset] = entry
        if entry.first_offset != half_offset:
            self._newest[entry.first_offset] = half_offset
        heappush(self._heap, (entry.check_ms, half_offset))

    def remove(self, half_offset: int) -> OpenHalf:
        """Take out one that is decided."""
        entry = self._entries.pop(half_offset)
        self._newest.pop(entry.first_offset, None)
        if len(self._heap) > 2 * len(self._entries) + MAX_STALE:
            self._make_heap()
        return entry

    def supersede(self, half_offset: int, first_offset: int) -> None:
        """Take out the copy before this one, if it is there."""
        older = self._newest.pop(first_offset, first_offset)
        entry = self._entries.get(older)
        if older != half_offset and entry is not None and entry.first_offset == first_offset:
            del self._entries[older]

    # -- time -------------------------------------------------------------------------------------------------------

    def pop_due(self, now_ms: int) -> tuple[int, OpenHalf | None] | None:
        """Take the next that is due out of the heap; one that is open must be put back with ``look_again``.

        Returns:
            Its queue offset, and the entry, None where it was decided meanwhile; None where nothing is due.
        """
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        check_ms, half_offset = heappop(self._heap)
        entry = self._entries.get(half_offset)
        return half_offset, entry if entry is not None and entry.check_ms == check_ms else None

    def look_again(self, half_offset: int, entry: OpenHalf, check_ms: int) -> None:
        """Have one be due at another time."""
        entry.check_ms = check_ms
        heappush(self._heap, (check_ms, half_offset))

    def set_back(self, now_ms: int, back_ms: int, longest_ms: int) -> None:
        """Follow a clock that was set back: bring down the times that are further away than they were meant to be.

        Args:
            back_ms: By how much.
            longest_ms: The longest of the ordinary waits: a time within it stays, for the new clock may have set it.
        """
        latest_ms = now_ms + longest_ms
        for entry in self._entries.values():
            entry.since_ms = min(entry.since_ms, now_ms)
            if entry.check_ms > latest_ms:
                entry.check_ms = max(latest_ms, entry.check_ms - back_ms)
        self._make_heap()

    def _make_heap(self) -> None:
        self._heap = [(entry.check_ms, half_offset) for half_offset, entry in self._entries.items()]
        heapify(self._heap)
