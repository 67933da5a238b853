"""Queue locks of groups that consume in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.broker.consumers.locks import LOCKS_AT_ONCE, QueueLocks
from headrace.errors import QuotaExceededError
from headrace.settings import BrokerSettings

SETTINGS = BrokerSettings()
Q0, Q1, Q2 = ("T", 0), ("T", 1), ("T", 2)


def test_a_queue_belongs_to_one_client_of_a_group() -> None:
    """remoting.md 4.4: LOCK_BATCH_MQ answers the queues now held by this client."""
    locks = QueueLocks(SETTINGS)
    assert locks.lock("G", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("G", "b", [Q1, Q2, Q2], 0) == [Q2]
    assert locks.lock("H", "b", [Q1], 0) == [Q1]
    assert locks.holder("G", Q1, 0) == "a"
    assert locks.holder("G", ("U", 0), 0) is None
    assert len(locks) == 4


def test_a_lock_that_is_not_renewed_goes_to_the_next_after_a_minute() -> None:
    """remoting.md 4.4: expires after 60 s without renewal."""
    locks = QueueLocks(SETTINGS)
    locks.lock("G", "a", [Q0, Q1], 0)
    assert locks.lock("G", "a", [Q1], 20_000) == [Q1]
    assert locks.lock("G", "b", [Q0, Q1], 60_000) == []
    assert locks.lock("G", "b", [Q0, Q1], 60_001) == [Q0]
    assert locks.holder("G", Q0, 60_001) == "b"
    assert locks.holder("G", Q1, 80_001) is None


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks(SETTINGS)
    locks.lock("G", "a", [Q0], 0)
    locks.unlock("G", "b", [Q0])
    locks.unlock("none", "b", [Q0])
    assert locks.holder("G", Q0, 0) == "a"
    locks.unlock("G", "a", [Q0, Q1])
    assert locks.lock("G", "b", [Q0], 0) == [Q0]
    locks.remove_group("G")
    locks.remove_group("G")
    assert len(locks) == 0


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks(SETTINGS)
    locks.lock("G", "a", [Q0], 0)
    locks.lock("H", "a", [Q0, Q1], 0)
    locks.tick(0)
    locks.lock("H", "a", [Q1], 50_000)
    locks.tick(61_000)
    assert len(locks) == 1
    assert locks.holder("H", Q1, 61_000) == "a"


def test_the_bound_refuses_a_request_whole() -> None:
    locks = QueueLocks(replace(SETTINGS, max_queue_locks=2))
    locks.lock("G", "a", [Q0], 0)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_queue_locks"):
        locks.lock("G", "a", [Q0, Q1, Q2], 0)
    assert len(locks) == 1
    assert locks.lock("G", "a", [Q0, Q1], 0) == [Q0, Q1]
    with pytest.raises(QuotaExceededError):
        locks.lock("H", "a", [Q0], 0)
    assert len(locks) == 2


def test_a_client_that_leaves_its_group_gives_up_its_locks() -> None:
    """remoting.md 4.4: others would wait a minute; found with the 3.2.6 client, which locks what it gave up again."""
    locks = QueueLocks(SETTINGS)
    locks.lock("G", "a", [Q0, Q1], 0)
    locks.lock("G", "b", [Q2], 0)
    for group in ("G", "none"):
        assert list(locks.unlock_client(group, "a")) == []
    assert locks.lock("G", "b", [Q0, Q1, Q2], 1) == [Q0, Q1, Q2]
    assert len(locks) == 3


def test_many_locks_are_looked_at_in_parts() -> None:
    """A million held the loop for 170 to 280 ms every 10 s, and for 55 ms and more when a client left its group."""
    locks = QueueLocks(SETTINGS)
    many = [("T", number) for number in range(2 * LOCKS_AT_ONCE)]
    locks.lock("G", "a", many, 0)
    locks.lock("G", "b", [Q0, ("U", 0)], 0)
    sizes = [len(locks) for _ in locks.unlock_client("G", "a")]
    assert sizes == [LOCKS_AT_ONCE + 1, 1]
    assert len(locks) == 1
    locks.lock("G", "a", many, 0)
    for number in range(LOCKS_AT_ONCE):
        locks.lock(f"H{number}", "a", [Q0], 0)
    locks.tick(61_000)
    assert len(locks) == 2 * LOCKS_AT_ONCE + 1
    assert locks.lock("G", "a", many[-1:], 61_000) == many[-1:]  # renewed in between
    sizes = []
    for mono_ms in range(61_050, 61_400, 50):
        locks.tick(mono_ms)
        sizes.append(len(locks))
        locks.remove_group(f"H{LOCKS_AT_ONCE - 1}")
    assert sizes[:2] == [LOCKS_AT_ONCE + 1, 1]
    assert set(sizes[2:]) == {1}
