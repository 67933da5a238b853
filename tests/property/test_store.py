"""A store against a plain dict: append, flush, restart, kill and power cut in any order.

Ref: A-STORE-01, A-STORE-16.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.batch import PublishBatch
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, StoreBench

TOPICS = ("a", "b", "%RETRY%c")


@dataclass(frozen=True)
class Kept:
    """One message that the model knows."""

    topic: str
    queue_offset: int
    first: int
    end: int
    body: bytes
    command: int
    """Number of its command; -1 when it is a command of its own."""


class StoreMachine(RuleBasedStateMachine):
    """``kept`` is everything appended and not lost; ``issued`` and ``places`` everything ever given out."""

    @initialize(durability=st.sampled_from(["fsync", "async"]))
    def start(self, durability: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-test-"))
        self.bench = StoreBench(self.folder / "store", durability=durability, open_segments=2, open_queue_files=2)
        self.kept: list[Kept] = []
        self.issued: dict[tuple[str, int], bytes] = {}
        self.places: dict[int, bytes] = {}
        self.commands = 0
        self.size = 0

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)

    def durable(self) -> int:
        return self.bench.store.durable_offset

    @rule(
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=2, unique=True),
        sizes=st.lists(st.sampled_from([0, 1, 100, 3000, 20_000]), min_size=1, max_size=6),
        command=st.booleans(),
    )
    def append(self, topics: list[str], sizes: list[int], command: bool) -> None:
        """Append a batch to one or two queues; ``command`` makes what one queue gets one MPUB."""
        batch = PublishBatch()
        batch.destinations = topics
        batch.queues = [self.bench.store.queue(topic, 0) for topic in topics]
        entries: list[tuple[str, bytes, int]] = []
        for destination, topic in enumerate(topics):
            self.commands += 1
            for number, size in enumerate(sizes):
                body = b"%d.%d " % (self.commands, number) + b"x" * size
                count = (len(sizes) if number == 0 else 0) if command else 1
                batch.append(body, destination, command_entries=count)
                entries.append((topic, body, self.commands if command and len(sizes) > 1 else -1))
        self.bench.store.append(batch)
        for index, (topic, body, number) in enumerate(entries):
            first, queue_offset, size = batch.placed(index)
            assert (topic, queue_offset) not in self.issued, "queue offset issued twice"
            assert first not in self.places, "physical offset issued twice"
            self.issued[topic, queue_offset] = body
            self.places[first] = body
            self.kept.append(Kept(topic, queue_offset, first, first + size, body, number))

    @rule()
    def flush(self) -> None:
        self.bench.store.flush()
        assert self.durable() == self.bench.store.log.end_offset

    @rule()
    def write_views(self) -> None:
        for queue in self.bench.store.queues.values():
            queue.write_out()

    @rule(ms=st.sampled_from([100, 600, 2000]))
    def tick(self, ms: int) -> None:
        self.bench.clock.advance_ms(ms)
        self.bench.store.tick()
        while self.bench.store.commits._in_flight:
            self.bench.store.finish_flush()
        if self.bench.store.checkpoints.job is not None:
            self.bench.store.checkpoints.job.result()

    @rule()
    def restart(self) -> None:
        self.bench.restart()

    @rule()
    def kill(self) -> None:
        """A killed process loses nothing that it handed to the kernel."""
        self.bench.crash_and_open()

    @precondition(lambda self: self.bench.store.unflushed_bytes > 0)
    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        """What was not durable is gone from some point on; what the views knew may be there or not."""
        durable, end = self.durable(), self.bench.store.log.end_offset
        cut = data.draw(st.integers(durable, end - 1), label="cut")
        garbage = data.draw(st.sampled_from([b"\0", b"\xda", b"x"]), label="garbage")
        written = {topic: self.bench.store.queue(topic, 0).written_offset for topic in TOPICS}
        epoch = self.bench.store.epoch
        self.bench.crash()
        for segment in sorted((self.bench.root / "commitlog").iterdir()):
            first = int(segment.name)
            if first + SEGMENT_BYTES > cut:
                at = max(cut - first, 0)
                with segment.open("r+b") as file:
                    file.seek(at)
                    file.write(garbage * min(100, SEGMENT_BYTES - at) if first <= cut else b"")
                    file.write(bytes(SEGMENT_BYTES - file.tell()) if first <= cut else bytes(SEGMENT_BYTES))
        whole = [kept for kept in self.kept if kept.end <= cut]
        if whole and whole[-1].command >= 0:
            last = whole[-1].command
            if sum(kept.command == last for kept in whole) < sum(kept.command == last for kept in self.kept):
                whole = [kept for kept in whole if kept.command != last]
        lost, self.kept = [kept for kept in self.kept if kept not in whole], whole
        report = self.bench.check()
        assert report.exit_code == 0, report.to_json()
        self.bench.open()
        # What left no trace at all may be issued again; nobody can have seen it at level fsync.
        for kept in lost:
            if kept.queue_offset >= written[kept.topic]:
                del self.issued[kept.topic, kept.queue_offset]
            if self.bench.store.epoch == epoch:
                assert kept.queue_offset >= written[kept.topic]
                del self.places[kept.first]

    @invariant()
    def reads_what_it_should(self) -> None:
        if not hasattr(self, "bench"):
            return
        store = self.bench.store
        for topic in TOPICS:
            queue = store.queue(topic, 0)
            expected = {
                kept.queue_offset: kept.body
                for kept in self.kept
                if kept.topic == topic and kept.queue_offset < queue.visible_offset
            }
            assert self.bench.messages(topic) == expected
            assert queue.next_offset > max((offset for name, offset in self.issued if name == topic), default=-1)
        visible = [kept for kept in self.kept if kept.queue_offset < store.queue(kept.topic, 0).visible_offset]
        assert all(kept.end <= self.durable() for kept in visible) or self.bench.settings.durability == "async"
        assert all(kept in visible for kept in self.kept if kept.end <= self.durable())
        assert store.log.segments.mapped_count <= 2

    @invariant()
    def records_are_the_references(self) -> None:
        if not hasattr(self, "bench"):
            return
        for kept in self.kept[-3:]:
            raw = self.bench.store.log.read(kept.first)
            assert raw is not None
            record = layouts.decode_record(raw)
            assert (record.topic.decode(), record.queue_offset, record.body, record.physical_offset) == (
                kept.topic, kept.queue_offset, kept.body, kept.first,
            )  # fmt: skip
            assert record.encode() == raw


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStore = StoreMachine.TestCase
