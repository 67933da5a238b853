"""A topic with one channel over a log in memory, driven by hand: what channel tests share."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from headrace.batch import PublishBatch, RecordBatch, SettleBatch
from headrace.broker.channels.channel import Channel, Subscription

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("scripted_log.pyx")
NODE_ID = 7
FINISH, REQUEUE, TOUCH = 0, 1, 2
OK, NOT_IN_FLIGHT, NOT_OWNER = 0, 1, 2
DAMAGED, COLD, GONE = 1, 2, 3


def _load_scripted_log() -> Any:
    """Compile scripted_log.pyx once per version of what it is made from, and import it."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    for header in sorted((ROOT / "src/headrace").rglob("*.pxd")):
        digest.update(header.read_bytes())
    directory = ROOT / ".cache" / "tests" / f"scripted_log-{digest.hexdigest()[:16]}"
    library = directory / f"scripted_log{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes beside each other want it at the same moment
        if not library.exists():
            _compile(directory / "work", library)
    spec = importlib.util.spec_from_file_location("scripted_log", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(work: Path, library: Path) -> None:
    work.mkdir(exist_ok=True)
    shutil.copy(SOURCE, work / SOURCE.name)
    extension = Extension("scripted_log", [str(work / SOURCE.name)], extra_compile_args=["-O1"])
    modules = cythonize([extension], include_path=[str(ROOT / "src")], language_level=3, quiet=True)
    command = build_ext(Distribution({"name": "scripted_log", "ext_modules": modules}))
    command.build_lib = str(work)
    command.build_temp = str(work)
    command.ensure_finalized()
    command.run()
    (work / library.name).replace(library)


scripted_log = _load_scripted_log()


class Bench:
    """One topic of ``queues`` queues and one channel; ``now`` is both clocks, in ms."""

    def __init__(self, *, queues: int = 1, now: int = 1_000_000, **options: Any) -> None:
        self.now = now
        self.log = scripted_log.ScriptedLog()
        self.queues = [scripted_log.ScriptedQueue("t", queue_id, self.log) for queue_id in range(queues)]
        self.options: dict[str, Any] = {"node_id": NODE_ID, "max_msg_timeout_ms": 900_000} | options
        self.channel = self.new_channel()

    def new_channel(self, states: list[bytes] | None = None, start_offset: int = 0) -> Channel:
        channel = Channel("c", "t", **self.options)
        if states is not None:
            channel.restore(states, now_ms=self.now)
        self.clamped = [channel.add_queue(queue, start_offset) for queue in self.queues]
        return channel

    def publish(self, count: int = 1, *, queue_id: int = 0, deliver_at_ms: int = 0, body: bytes = b"body") -> list[int]:
        """Append messages; return their message ids."""
        batch = PublishBatch()
        batch.destinations, batch.queues = ["t"], [self.queues[queue_id]]
        for _ in range(count):
            batch.append(body, deliver_at_ms=deliver_at_ms)
        self.log.append(batch, self.now)
        return [NODE_ID << 48 | batch.placed(i)[0] for i in range(count)]

    def subscribe(self, ready_count: int = 10, msg_timeout_ms: int = 60_000, sample_rate: int = 0) -> Subscription:
        subscription = self.channel.subscribe(object(), msg_timeout_ms, sample_rate)
        subscription.ready_count = ready_count
        return subscription

    def take(
        self, subscription: Subscription, most: int = 1_000, max_bytes: int = 1 << 30
    ) -> list[tuple[int, int, int]]:
        """Deliver; return (message id, queue offset, attempts) of each message."""
        batch = RecordBatch()
        count = self.channel.deliver(subscription, self.now, self.now, most, max_bytes, batch)
        assert count == len(batch)
        taken = []
        for i in range(count):
            _, queue_offset, physical_offset, attempts = batch.position(i)
            taken.append((NODE_ID << 48 | physical_offset, queue_offset, attempts))
        return taken

    def offsets(self, subscription: Subscription, most: int = 1_000) -> list[int]:
        return [queue_offset for _, queue_offset, _ in self.take(subscription, most)]

    def settle(self, subscription: Subscription, *operations: tuple[int, int] | tuple[int, int, int]) -> list[int]:
        """Apply (kind, message id[, delay_ms]) operations; return their results."""
        batch = SettleBatch()
        for operation in operations:
            batch.append(*operation)
        failed = self.channel.settle(subscription, batch, self.now, self.now)
        results = [batch.result(i)[2] for i in range(len(batch))]
        assert failed == sum(result != OK for result in results)
        return results

    def finish(self, subscription: Subscription, *message_ids: int) -> list[int]:
        return self.settle(subscription, *((FINISH, message_id) for message_id in message_ids))

    def requeue(self, subscription: Subscription, message_id: int, delay_ms: int = 0) -> int:
        return self.settle(subscription, (REQUEUE, message_id, delay_ms))[0]

    def touch(self, subscription: Subscription, message_id: int) -> int:
        return self.settle(subscription, (TOUCH, message_id))[0]

    def advance(self, ms: int) -> int:
        """Let time pass and timers fire; return how many messages became ready."""
        self.now += ms
        return self.expire()

    def expire(self, most: int = 1_000) -> int:
        total = 0
        while True:
            moved = self.channel.expire(self.now, self.now, most)
            total += moved
            if moved < most and not 0 <= self.channel.next_due_ms() <= self.now - 1_000_000:
                return total

    def restart(self, states: list[bytes]) -> None:
        self.channel = self.new_channel(states)
