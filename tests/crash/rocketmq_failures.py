"""Full budgets, full disks and failed fsyncs under RocketMQ's load. ``make crash`` runs them behind its kills.

At 90 % of the budget writes are refused. A failed fsync stops writes for good; it is never retried. Ref: remoting.md
4.3, "Result mapping".
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from tests.crash.failures import Rig, fill, rigs, small_disk, strace
from tests.crash.history import History
from tests.crash.rocketmq_checker import RocketmqChecker
from tests.crash.rocketmq_load import ARGUMENTS, RocketmqLoad

__all__ = ["rigs", "small_disk"]


class RocketmqRig(Rig):
    """The same with RocketMQ's load and checker."""

    load: Any

    def __init__(
        self, folder: Path, *arguments: str, prefix: tuple[str, ...] = (), data_dir: Path | None = None
    ) -> None:
        super().__init__(folder, *ARGUMENTS, *arguments, prefix=prefix, data_dir=data_dir)
        self.checker: Any = RocketmqChecker()
        self.history = History()
        self.history.observers.append(self.checker.observe)
        self.state: dict[str, Any] = {}

    def start(self, rate: float = 3000) -> None:
        self.broker.start()
        self.load = RocketmqLoad(self.history, self.checker, random.Random(1), self.state)
        self.load.messages_per_s = rate
        self.load.backlog = 6000
        self.load.connect(self.broker.listeners)


def assert_refusals(refusals: list[bytes], *words: bytes) -> None:
    """Every sender was told why: 14, SERVICE_NOT_AVAILABLE, or NSQ's error."""
    assert refusals
    for refusal in refusals:
        assert refusal.startswith((b"code=14 ", b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED")), refusal
        assert any(word in refusal for word in words), refusal


def test_full_budget(tmp_path: Path, rigs: list[Rig]) -> None:
    """At the refuse mark senders get an error, consumers go on; with more room nothing acknowledged is missing."""
    rig = RocketmqRig(tmp_path, "--store.budget-bytes", "6MiB")
    rigs.append(rig)
    rig.start(rate=1e6)
    assert_refusals(rig.publish(seconds=20, until_refused=True), b"no room", b"budget")
    assert_refusals(rig.publish(seconds=5, until_refused=True), b"no room", b"budget")
    rig.check()
    rig.kill()
    rig.broker._arguments = (*ARGUMENTS, "--store.budget-bytes", "200MiB")
    rig.start()
    assert rig.publish(seconds=0.5) == []
    rig.finish()


def test_disk_full_by_others_and_room_made(small_disk: Path, tmp_path: Path, rigs: list[Rig]) -> None:
    """Not one free byte: refused, kept; when room is made delays and transactions go on without a restart."""
    rig = RocketmqRig(tmp_path, data_dir=small_disk / "store")
    rigs.append(rig)
    rig.start()
    rig.publish(seconds=0.5)
    others = fill(small_disk)
    assert_refusals(rig.publish(seconds=20, until_refused=True), b"no room", b"No space")
    rig.load.run(time.monotonic() + 1.5)  # offsets, cursors, queues and checkpoint find no room either
    rig.check()
    others.unlink()
    rig.load.refusals.clear()
    assert rig.publish(seconds=0.5) == []
    rig.drain()
    rig.check()
    rig.kill()
    rig.start()
    rig.finish()


def test_failed_fsync_stops_writes_for_good(tmp_path: Path, rigs: list[Rig]) -> None:
    """Nothing is acknowledged any more, though later fdatasyncs succeed; a start finds all that ever was."""
    rig = RocketmqRig(tmp_path, prefix=strace(60))
    rigs.append(rig)
    rig.start()
    assert_refusals(rig.publish(seconds=30, until_refused=True), b"fdatasync")
    acknowledged = rig.load.acknowledged
    assert acknowledged > 0
    assert rig.get("admin", "/healthz")[0] == 500
    for _ in range(2):
        assert_refusals(rig.publish(seconds=10, until_refused=True), b"fdatasync")
    assert rig.load.acknowledged == acknowledged
    rig.check()
    rig.kill()
    rig.broker._prefix = ()
    rig.start()
    assert rig.publish(seconds=0.5) == []
    rig.finish()
