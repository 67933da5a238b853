"""What the log does with entries that RocketMQ's protocol needs: refused ones, half messages, delay levels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.errors import MessageTooLargeError, StoreFullError
from headrace.format.names import SCHEDULE_TOPIC
from headrace.store.check import check_store
from headrace.store.memory_log import MemoryLog, MemoryQueue
from headrace.store.store import Store
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench

PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC


def test_a_refused_destination_is_passed_over(bench: StoreBench) -> None:
    """One bad request in a socket read must not fail the others."""
    memory = MemoryLog(10, 1 << 20)
    ephemeral = MemoryQueue("e#ephemeral", 0, memory)
    batch = PublishBatch()
    batch.destinations = ["refused", "t", "e#ephemeral"]
    batch.queues = [None, bench.store.queue("t", 0), ephemeral]
    batch.append(b"no", 0, deliver_at_ms=5)
    batch.append(b"yes", 1, deliver_at_ms=7)
    batch.append(b"no", 0)
    batch.append(b"memory", 2)
    bench.store.append(batch)
    assert memory.append(batch, bench.clock.now_ms()) == 0
    bench.store.flush()
    assert [batch.placed(i)[0] for i in (0, 2)] == [-1, -1]
    assert [batch.placed(i)[2] for i in (0, 2)] == [0, 0]
    assert bench.messages("t") == {0: b"yes"}
    assert ephemeral.next_offset == 1
    assert [destination for destination, _, _, _ in batch.delayed()] == [1]


def test_nothing_is_appended_when_all_are_refused(bench: StoreBench) -> None:
    """The end of the log stays where it is."""
    end = bench.store.log.end_offset
    batch = PublishBatch()
    batch.destinations, batch.queues = ["refused"], [None]
    batch.append(b"no")
    assert bench.store.append(batch) == end
    assert batch.placed(0)[0] == -1


def test_a_topic_s_name_ends_where_signed_readers_do(bench: StoreBench) -> None:
    """X-STORE-08, A-STORE-20: 127 bytes; one more, and nothing is written."""
    bench.append("t" * 127, b"fits")
    end = bench.store.log.end_offset
    with pytest.raises(MessageTooLargeError, match="topic name"):
        bench.append("t" * 128, b"no")
    assert bench.store.log.end_offset == end


@pytest.mark.parametrize("way", ["restart", "crash_and_open", "rebuild"])
def test_prepared_and_rolled_back_records_are_in_no_queue(bench: StoreBench, way: str) -> None:
    """remoting.md 3.3: only transaction type 0 and commit are dispatched, when written and when recovered."""
    for sys_flag in (0, PREPARED, COMMITTED, ROLLED_BACK):
        bench.append("t", b"%d" % sys_flag, sys_flag=sys_flag)
    expected = {0: b"0", 1: b"8"}
    assert bench.messages("t") == expected
    if way == "rebuild":
        bench.crash()
        shutil.rmtree(bench.root / "consumequeue")
        bench.open()
    else:
        getattr(bench, way)()
    assert bench.messages("t") == expected
    bench.append("t", b"next")
    assert bench.messages("t") == {**expected, 2: b"next"}


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_refused_batch_with_prepared_records_leaves_the_queue_as_it_was(
    make_bench: MakeBench, durability: str
) -> None:
    """X-STORE-22: only what was listed is taken back, also where readers see it before it is durable."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES, durability=durability)
    batch = PublishBatch()
    batch.destinations, batch.queues = ["t"], [bench.store.queue("t", 0)]
    for number in range(40):
        batch.append(b"x" * 1000, sys_flag=PREPARED if number % 3 else 0)

    def fill() -> None:
        for _ in range(100):
            bench.store.append(batch)

    with pytest.raises(StoreFullError):
        fill()
    bench.store.flush()
    queue = bench.store.queue("t", 0)
    assert queue.next_offset % 14 == 0
    assert len(bench.messages("t")) == queue.next_offset == queue.visible_offset
    bench.append("t", b"small")
    assert bench.messages("t")[queue.next_offset - 1] == b"small"


@pytest.mark.parametrize("way", ["clean", "crash", "rebuild", "damage"])
def test_entries_of_a_delay_level_hold_when_they_are_due(tmp_path: Path, way: str) -> None:
    """remoting.md 3.3, 3.11, 10.8: tagsCode = store time + delay of the level; a start makes the same entries."""
    bench = StoreBench(tmp_path / "store")

    def reopen() -> None:
        bench.store = Store.open(bench.settings, bench.clock, schedule_delays_ms=(1000, 10_000))

    bench.close()
    reopen()
    due = {}
    for level, delay_ms in ((0, 1000), (1, 10_000), (2, 0)):
        batch = PublishBatch()
        batch.destinations, batch.queues = ["s"], [bench.store.queue(SCHEDULE_TOPIC, level)]
        for _ in range(3):
            batch.append(b"x", properties=b"TAGS\x01TagA\x02", tag_hash=2598919)
        bench.store.append(batch)
        bench.store.flush()
        due[level] = bench.clock.now_ms() + delay_ms if delay_ms else 2598919
        bench.clock.advance_ms(100)
    if way == "clean":
        bench.store.close()
    else:
        bench.store.abandon()
    if way == "rebuild":
        shutil.rmtree(bench.root / "consumequeue")
    if way == "damage":
        for path in (bench.root / "consumequeue" / SCHEDULE_TOPIC / "1").glob("*"):
            path.write_bytes(path.read_bytes()[:12] + bytes(8) + path.read_bytes()[20:])
    reopen()
    for level, expected in due.items():
        entries = bench.store.queue(SCHEDULE_TOPIC, level).entries(0, 10)
        assert [tag_hash for _, _, tag_hash in entries] == [expected] * 3
    bench.store.close()
    report = check_store(bench.root)
    assert report.damage == [], report.to_json()


def test_readers_do_not_see_below_a_hidden_offset(bench: StoreBench) -> None:
    """A topic made again does not show what the deleted one had."""
    bench.append("t", b"old", b"older")
    queue = bench.store.queue("t", 0)
    queue.hide_below(1)
    assert (queue.min_offset, queue.next_offset) == (1, 2)
    queue.hide_below(0)
    assert queue.min_offset == 1
    queue.hide_below(99)
    assert queue.min_offset == 2
    bench.append("t", b"new")
    assert bench.messages("t") == {2: b"new"}
