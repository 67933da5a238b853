"""A full disk under both loads at once. ``make crash`` runs it behind its kills."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from tests.crash.both_load import BothLoad
from tests.crash.failures import Rig, fill, rigs, small_disk
from tests.crash.history import History
from tests.crash.rocketmq_failures import assert_refusals
from tests.crash.rocketmq_load import ARGUMENTS

__all__ = ["rigs", "small_disk"]


class BothRig(Rig):
    """The same with both loads and their checkers."""

    load: Any

    def __init__(self, folder: Path, *arguments: str, data_dir: Path | None = None) -> None:
        super().__init__(folder, *ARGUMENTS, *arguments, data_dir=data_dir)
        self.checker: Any = BothLoad.checker()
        self.history = History()
        self.history.observers.append(self.checker.observe)
        self.state: dict[str, Any] = {}

    def start(self, rate: float = 800) -> None:
        self.broker.start()
        self.load = BothLoad(self.history, self.checker, random.Random(1), self.state)
        self.load.nsq.rates.messages_per_s = self.load.rocketmq.messages_per_s = rate
        self.load.nsq.rates.changes_per_s = 0.001
        self.load.connect(self.broker.listeners)


def test_killed_on_a_full_disk(small_disk: Path, tmp_path: Path, rigs: list[Rig]) -> None:
    """A start without room serves or is refused in one sentence; with room again nothing is missing."""
    rig = BothRig(tmp_path, data_dir=small_disk / "store")
    rigs.append(rig)
    rig.start()
    rig.publish(seconds=0.5)
    others = fill(small_disk)
    assert_refusals(rig.publish(seconds=20, until_refused=True), b"no room", b"No space")
    rig.load.run(time.monotonic() + 1.5)  # offsets, cursors, journal and queues find no room either
    rig.check()
    rig.kill()
    rig.try_start()
    others.unlink()
    rig.start()
    assert rig.publish(seconds=0.5) == []
    rig.finish()
