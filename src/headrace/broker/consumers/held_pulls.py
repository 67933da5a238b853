"""Pulls that found nothing and wait: for a message in their queue, or for their time to run out.

``grown`` is the broker's hook: with every queue that has new visible messages it looks up who waits there, one
dictionary access where nobody does. Woken pulls are answered by their protocol, which reads again; so waking one too
many costs a read and nothing else. With tag hashes given, messages of other tags do not wake.

Each pull is woken once: by a message, by ``tick`` at its deadline, by ``wake_all`` or ``wake_owner``; never after
``drop`` or ``cancel``. Times are ms of a clock that never jumps. Deadlines are kept in buckets of 50 ms, from which a
pull that was woken early is removed at once: a queue that grows a thousand times a second leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.settings import BrokerSettings
from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

Key = TypeVar("Key")

BUCKET_MS: Final = 50

_SCAN_ENTRIES: Final = 800
"""Entries that one look at a queue examines; beyond it pulls are woken to look themselves."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    ``examined_offset``: no message below it is for this pull. ``bucket``: the deadline's, -1 once it no longer waits.
    """

    queue: QueueBase
    examined_offset: int
    wake: Callable[[], None]
    owner: object
    codes: Set[int] | None
    bucket: int


@dataclass
class HoldCounters:
    """Events since the start."""

    refused: int = 0
    """Pulls above ``broker.max_held_pulls``, answered at once."""
    errors: int = 0


class HeldPulls:
    """All waiting pulls. Invariant: each is in all three of ``_by_queue``, ``_by_bucket`` and ``_by_owner``."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.counters = HoldCounters()
        self._most = settings.max_held_pulls
        self._by_queue: dict[QueueBase, dict[HeldPull, None]] = {}
        self._by_bucket: dict[int, dict[HeldPull, None]] = {}
        self._by_owner: dict[object, dict[HeldPull, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def hold(
        self,
        queue: QueueBase,
        from_offset: int,
        deadline_ms: int,
        wake: Callable[[], None],
        *,
        owner: object = None,
        codes: Set[int] | None = None,
    ) -> HeldPull | None:
        """Have a pull wait.

        Args:
            from_offset: Where it reads, the end of what readers see or beyond; a message from here on wakes it.
            wake: Called once, when there is something or the time is over. What it raises is logged and stops nothing.
            owner: The connection, for ``drop``.
            codes: Tag hashes it wants; None = every message.

        Returns:
            None when ``broker.max_held_pulls`` wait already: answer now.
        """
        if self._size >= self._most:
            self.counters.refused += 1
            return None
        bucket = -(-deadline_ms // BUCKET_MS)
        held = HeldPull(queue, from_offset, wake, owner, codes, bucket)
        self._by_queue.setdefault(queue, {})[held] = None
        self._by_bucket.setdefault(bucket, {})[held] = None
        self._by_owner.setdefault(owner, {})[held] = None
        self._size += 1
        return held

    def grown(self, queue: QueueBase) -> None:
        """Wake the pulls for which a queue's new messages may be. The broker calls it when they are visible."""
        waiting = self._by_queue.get(queue)
        if waiting is None:
            return
        end = queue.visible_offset
        found: dict[int, Set[int] | None] = {}  # the pulls have nearly always examined as much as each other
        woken = []
        for held in waiting:
            start = held.examined_offset
            if end <= start:
                continue
            if held.codes is not None:
                if start not in found:
                    found[start] = _codes_between(queue, start, end)
                codes = found[start]
                if codes is not None and codes.isdisjoint(held.codes):
                    held.examined_offset = end
                    continue
            woken.append(held)
        # Waking may hold again, in this same queue.
        for held in woken:
            self._wake(held)

    def tick(self, mono_ms: int) -> None:
        """Wake the pulls whose time is over."""
        now = mono_ms // BUCKET_MS
        for bucket in sorted(number for number in self._by_bucket if number <= now):
            for held in list(self._by_bucket.get(bucket, ())):
                self._wake(held)

    def drop(self, owner: object) -> None:
        """Forget the pulls of a connection that is closed (A-BROKER-48)."""
        for held in list(self._by_owner.get(owner, ())):
            self.cancel(held)

    def wake_all(self, queue: QueueBase | None = None) -> None:
        """Wake every pull, or every one of a queue that goes away: they read again and are told what became of it."""
        of_queue = (queue,) if queue is not None else tuple(self._by_queue)
        for held in [held for key in of_queue for held in self._by_queue.get(key, ())]:
            self._wake(held)

    def wake_owner(self, owner: object) -> None:
        """Wake the pulls of one connection, for what they want may have changed."""
        for held in list(self._by_owner.get(owner, ())):
            self._wake(held)

    def cancel(self, held: HeldPull) -> None:
        """Forget one pull without waking it; nothing happens when it was woken before."""
        if held.bucket < 0:
            return
        _take(self._by_queue, held.queue, held)
        _take(self._by_bucket, held.bucket, held)
        _take(self._by_owner, held.owner, held)
        held.bucket = -1
        self._size -= 1

    def _wake(self, held: HeldPull) -> None:
        if held.bucket < 0:
            return  # one woken before it has dropped or woken this one
        self.cancel(held)
        try:
            held.wake()
        except Exception:
            # The caller is another client's publish, or the clock: a bug here must not become theirs.
            self.counters.errors += 1
            logger.exception("held pull failed by a bug topic=%s", held.queue.topic)


def _codes_between(queue: QueueBase, start: int, end: int) -> Set[int] | None:
    """Return the tag hashes in [start, end) of a queue; None where whoever waits has to look itself."""
    if end - start > _SCAN_ENTRIES or start < queue.min_offset:
        return None
    entries = queue.entries(start, end - start)
    # Not all of them, when some cannot be read now: the pull itself says what is wrong.
    return {_int32(code) for _, _, code in entries} if len(entries) == end - start else None


def _int32(code: int) -> int:
    """Return a queue entry's tag hash as the signed 32 bits that subscriptions have."""
    return ((code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _take(table: dict[Key, dict[HeldPull, None]], key: Key, held: HeldPull) -> None:
    """Remove a pull from one table, and its row when it was the last one there."""
    held_there = table[key]
    del held_there[held]
    if not held_there:
        del table[key]
