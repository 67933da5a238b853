"""Which client of a group may consume which queue, for groups that consume in order.

A lock is in memory only: a restart frees them, and so does time when the client does not renew (it does every 20 s and
trusts a lock for 30 s, so it stops before another begins). Times are ms of a clock that never jumps.

There may be a million: whatever looks at all of a group does so in parts, with others served in between. Only the list
of them is made at once, which takes 1 ms for 100,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.errors import QuotaExceededError
from headrace.settings import BrokerSettings

QueueKey = tuple[str, int]
"""Topic and queue id."""

_SWEEP_MS = 10_000

LOCKS_AT_ONCE: Final = 5_000
"""Locks that one part looks at: 1 to 2 ms. A sweep has one part each tick, so a million take 10 s."""


@dataclass(slots=True)
class QueueLock:
    """Who holds a queue, and since when it was renewed."""

    client_id: str
    renewed_ms: int


class QueueLocks:
    """The locks of every group. Invariant: no group is empty; ``_size`` counts all locks, expired ones included."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._groups: dict[str, dict[QueueKey, QueueLock]] = {}
        self._size = 0
        self._next_sweep_ms = 0
        self._sweep: Iterator[None] | None = None  # what is under way

    def __len__(self) -> int:
        return self._size

    def unknown(self, group: str, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return those of ``keys`` that need room, as they have no lock, nor had one that was not forgotten yet."""
        locks = self._groups.get(group, {})
        return {key for key in keys if key not in locks}

    def require_room(self, more: int) -> None:
        """Refuse so many more locks if not all of them can be given.

        Raises:
            QuotaExceededError: there would be more than ``broker.max_queue_locks``.
        """
        most = self._settings.max_queue_locks
        if self._size + more > most:
            raise QuotaExceededError(f"the broker has its limit of {most} queue locks (broker.max_queue_locks)")

    def lock(self, group: str, client_id: str, keys: Iterable[QueueKey], mono_ms: int) -> list[QueueKey]:
        """Lock queues for a client, or renew its locks; return those of ``keys`` that it now holds.

        Raises:
            QuotaExceededError: there would be more than ``broker.max_queue_locks``; none was given.
        """
        wanted = dict.fromkeys(keys)
        self.require_room(len(self.unknown(group, wanted)))
        locks = self._groups.get(group, {})
        held = []
        for key in wanted:
            known = locks.get(key)
            if known is None:
                self._size += 1
                locks[key] = QueueLock(client_id, mono_ms)
            elif known.client_id == client_id:
                known.renewed_ms = mono_ms
            elif self._has_expired(known, mono_ms):
                locks[key] = QueueLock(client_id, mono_ms)
            else:
                continue
            held.append(key)
        if locks:
            self._groups[group] = locks
        return held

    def unlock(self, group: str, client_id: str, keys: Iterable[QueueKey]) -> None:
        """Free the queues that a client holds; those of others stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for key in keys:
            known = locks.get(key)
            if known is not None and known.client_id == client_id:
                del locks[key]
                self._size -= 1
        if not locks:
            del self._groups[group]

    def unlock_client(self, group: str, client_id: str) -> Iterator[None]:
        """Free whatever a client holds that has left its group: nobody should wait for its locks to expire.

        A client of RocketMQ 3.2.6 locks queues again that it has just given up, and leaves without a word of them.
        Behind each ``yield`` comes another part.
        """
        for number, keys in enumerate(self._parts(group)):
            if number:
                yield
            self.unlock(group, client_id, keys)

    def _parts(self, group: str) -> Iterator[list[QueueKey]]:
        keys = list(self._groups.get(group, ()))
        return (keys[at : at + LOCKS_AT_ONCE] for at in range(0, len(keys), LOCKS_AT_ONCE))

    def holder(self, group: str, key: QueueKey, mono_ms: int) -> str | None:
        """Return the client that holds a queue; None when it is free."""
        known = self._groups.get(group, {}).get(key)
        return None if known is None or self._has_expired(known, mono_ms) else known.client_id

    def remove_group(self, group: str) -> None:
        """Free every queue of a group that is deleted."""
        self._size -= len(self._groups.pop(group, ()))

    def _has_expired(self, lock: QueueLock, mono_ms: int) -> bool:
        return mono_ms - lock.renewed_ms > self._settings.queue_lock_ms

    def tick(self, mono_ms: int) -> None:
        """Forget expired locks now and then, so that groups that are gone take no memory."""
        if self._sweep is None:
            if mono_ms < self._next_sweep_ms:
                return
            self._next_sweep_ms = mono_ms + _SWEEP_MS
            self._sweep = self._forget_expired(mono_ms)
        try:
            next(self._sweep)
        except StopIteration:
            self._sweep = None

    def _forget_expired(self, mono_ms: int) -> Iterator[None]:
        """Forget the locks that have expired by ``mono_ms``; behind each ``yield`` comes another part."""
        looked_at = 0
        for group in list(self._groups):
            for keys in self._parts(group):
                locks = self._groups.get(group, {})
                over = [key for key in keys if key in locks and self._has_expired(locks[key], mono_ms)]
                for key in over:
                    del locks[key]
                self._size -= len(over)
                if not locks:
                    self._groups.pop(group, None)
                looked_at += len(keys)
                if looked_at >= LOCKS_AT_ONCE:
                    looked_at = 0
                    yield
