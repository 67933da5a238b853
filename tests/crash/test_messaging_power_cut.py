"""Delays, transactions, messages sent back and committed offsets through random kills and power cuts.

No process and no socket: the core's services on a store whose log loses what was not durable. Acknowledged is what a
sender would have been answered: its offset was durable while the process lived. Ref:
docs/formats/delayed-messages.md.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.broker.topic import TopicConfig
from headrace.broker.withheld.retry import RetryRules
from headrace.broker.withheld.transaction_end import Decision
from headrace.broker.withheld.transactions import TransactionCheck
from headrace.errors import MessageNotFoundError
from tests.crash.damage import fast_folder
from tests.support.messaging import MessagingRig

TOPIC, GROUP, PRODUCERS = "T", "G", "P"
RULES = RetryRules(GROUP, retry_max_times=16)
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
STEPS = 60


@dataclass
class Send:
    """Something that must not be lost once ``wait`` is durable."""

    body: bytes
    wait: int
    topic: str = TOPIC
    is_acknowledged: bool = False


@dataclass
class Half:
    """A transaction."""

    body: bytes
    wait: int
    queue_offset: int
    physical_offset: int
    is_committed: bool
    is_acknowledged: bool = False


class World:
    """Random steps on a rig, and what follows from them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = MessagingRig(
            folder,
            transaction_timeout_ms=300,
            transaction_check_interval_ms=500,
            transaction_check_max=10_000,
            delay_levels="1s 2s 3s",
            delay_offsets_interval_ms=1_000,
            offsets_interval_ms=1_000,
        )
        for topic in (TOPIC, RETRY, DEAD):
            self.rig.broker.create_topic(topic, TopicConfig(1, 1))
        self.rig.store.flush()
        self.sends: list[Send] = []
        self.dead_letters: Counter[bytes] = Counter()  # acknowledged or not
        self.halves: dict[bytes, Half] = {}
        self.committed = 0
        self.number = 0

    def body(self, what: str) -> bytes:
        self.number += 1
        return f"{what}-{self.number}.".encode()  # none is a part of another

    # -- steps ------------------------------------------------------------------------------------------------------

    def delay(self) -> None:
        body = self.body("level")
        _, wait = self.rig.levels.put(self.rig.message(TOPIC, body), self.rng.randint(1, 3))
        self.sends.append(Send(body, wait))

    def time(self) -> None:
        body = self.body("time")
        due_ms = self.rig.clock.now_ms() + self.rng.choice((10, 400, 2_000))
        _, wait = self.rig.timed.put(self.rig.message(TOPIC, body), due_ms)
        self.sends.append(Send(body, wait))

    def prepare(self) -> None:
        body = self.body("half")
        message = self.rig.message(TOPIC, body, PGROUP=PRODUCERS, TRAN_MSG="true")
        placed, wait = self.rig.transactions.prepare(message, self.rig.clock.now_ms())
        half = Half(body, wait, placed.queue_offset, placed.physical_offset, self.rng.random() < 0.6)
        self.halves[body] = half
        if self.rng.random() < 0.5:
            self._end(half.queue_offset, half.physical_offset, half)

    def _end(self, queue_offset: int, physical_offset: int, half: Half) -> None:
        decision = Decision.COMMIT if half.is_committed else Decision.ROLLBACK
        try:
            self.rig.end(PRODUCERS, queue_offset, physical_offset, decision)
        except MessageNotFoundError:
            assert not half.is_acknowledged, f"{half.body!r} is acknowledged and gone"

    def send_back(self) -> None:
        messages = [message for topic in (TOPIC, RETRY) for message in self.rig.read(topic)]
        if not messages:
            return
        original = self.rng.choice(messages)
        level = self.rng.choice((-1, 1, 2))
        wait = self.rig.send_back(RULES, original.physical_offset, level)
        assert wait is not None
        self.sends.append(Send(original.body, wait, DEAD if level < 0 else RETRY))
        if level < 0:
            self.dead_letters[original.body] += 1

    def consume(self) -> None:
        """A group reads a part of what is visible, and says so."""
        self.committed = self.rng.randint(self.committed, len(self.rig.read(TOPIC)))
        self.rig.offsets.commit(GROUP, TOPIC, 0, self.committed)

    def answer(self) -> None:
        """The producer is asked, and mostly answers."""
        checks: list[TransactionCheck] = list(self.rig.checks)
        self.rig.checks.clear()
        for check in checks:
            half = next(half for body, half in self.halves.items() if body in check.record)
            if self.rng.random() < 0.7:
                self._end(check.half_offset, check.physical_offset, half)

    def pass_time(self) -> None:
        self.rig.pass_time(self.rng.choice((50, 300, 900)), flush=self.rng.random() < 0.6)

    def kill(self) -> None:
        self._crash(self.rig.crash)

    def cut_power(self) -> None:
        self._crash(self.rig.cut_power)

    def _crash(self, how: Callable[[], None]) -> None:
        self.note_acknowledged()
        before = self.committed
        how()
        self.rig.checks.clear()
        found = self.rig.offsets.committed(GROUP, TOPIC, 0) or 0
        assert found <= before, "a committed offset ahead of what was consumed"
        assert self.rig.offsets.counters.clamped == 0
        assert self.rig.levels.counters.clamped == 0
        self.committed = found

    def note_acknowledged(self) -> None:
        durable = self.rig.store.durable_offset
        for send in self.sends:
            send.is_acknowledged |= send.wait <= durable
        for half in self.halves.values():
            half.is_acknowledged |= half.wait <= durable
        # What was not answered before the crash never will be: its offset means nothing in the next life.
        self.sends = [send for send in self.sends if send.is_acknowledged]
        for half in self.halves.values():
            if not half.is_acknowledged:
                half.wait = 1 << 62

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let everything become due and every question be answered."""
        self.rig.store.flush()
        self.note_acknowledged()
        for _ in range(12):
            self.rig.pass_time(600)
            for check in self.rig.checks:
                half = next(half for body, half in self.halves.items() if body in check.record)
                self._end(check.half_offset, check.physical_offset, half)
            self.rig.checks.clear()
        assert self.rig.transactions.open_count == 0

    def verify(self) -> None:
        there = {topic: Counter(self.rig.bodies(topic)) for topic in (TOPIC, RETRY, DEAD)}
        wanted = Counter((send.topic, send.body) for send in self.sends)
        for (topic, body), count in wanted.items():
            assert there[topic][body] >= count, f"{body!r} lost in {topic}"
        # What waited may come again after a crash; a dead letter does not wait.
        assert there[DEAD] <= self.dead_letters, "a dead letter came twice"
        for half in self.halves.values():
            count = there[TOPIC][half.body]
            if half.is_committed and half.is_acknowledged:
                assert count == 1, f"{half.body!r} committed, there {count} times"
            assert count <= half.is_committed, f"{half.body!r} is there {count} times"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fast_folder(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_acknowledged_is_lost(folder: Path, seed: int) -> None:
    """0 acknowledged lost, committed transactions once, rolled back never, offsets never ahead."""
    world = World(folder / "store", seed)
    steps = [
        *[world.delay, world.time, world.prepare, world.send_back, world.consume, world.answer] * 3,
        *[world.pass_time] * 6,
        world.kill,
        world.cut_power,
    ]
    try:
        for _ in range(STEPS):
            world.rng.choice(steps)()
        world.finish()
        world.verify()
        world.rig.close()
    finally:
        if folder.is_relative_to("/dev/shm"):
            shutil.rmtree(folder, ignore_errors=True)
