"""Segments: a bounded number mapped, views that outlive them, queue files that outnumber descriptors."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import pytest

from headrace.batch import RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.errors import SideFileError
from headrace.store.segment import Segment, SegmentSet, create_segment_file
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench

SIZE = 8192


def mapped_files(root: Path) -> set[str]:
    """The commit-log files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if f"{root}/commitlog" in line}


def drain(bench: StoreBench) -> None:
    """Wait for the store's threads: segments that left are let go of there."""
    wait(bench.store._executor.submit(int) for _ in range(8))


def make_set(tmp_path: Path, count: int, most_mapped: int) -> SegmentSet:
    for index in range(count):
        path = tmp_path / f"{index * SIZE:020d}"
        create_segment_file(str(path), SIZE)
        path.write_bytes(bytes([index]) * SIZE)
    segments = SegmentSet(str(tmp_path), SIZE, most_mapped)
    segments.load()
    return segments


def test_the_least_recently_used_segment_leaves(tmp_path: Path) -> None:
    """Setting store.open_segments: commit log files kept mapped at once."""
    segments = make_set(tmp_path, 5, 2)
    retired: list[int] = []
    segments.on_retired = lambda segment: retired.append(segment.first_offset // SIZE)
    assert (list(segments), len(segments), segments.mapped_count) == ([0, 1, 2, 3, 4], 5, 0)
    for index in (0, 1, 0, 2, 0, 3):
        assert segments[index].read(0, 1) == bytes([index])
    assert retired == [1, 2]
    assert segments.mapped_count == 2
    assert segments.get(9) is None
    assert 9 not in segments
    with pytest.raises(KeyError):
        segments[9]


def test_the_active_segment_always_stays(tmp_path: Path) -> None:
    """Appends go on however many cold segments are read."""
    segments = make_set(tmp_path, 6, 2)
    active = Segment(segments.path_of(5), 5 * SIZE, SIZE, writable=True)
    segments[5] = active
    for index in (0, 1, 2, 3, 4):
        assert segments.get(index) is not None
    assert segments.get(5) is active
    assert segments.mapped_count == 2


def test_a_segment_of_another_length_is_named(tmp_path: Path) -> None:
    """remoting.md 3.2: a file of another length makes the loader refuse to start."""
    segments = make_set(tmp_path, 2, 2)
    (tmp_path / f"{SIZE:020d}").write_bytes(b"short")
    with pytest.raises(SideFileError, match="is 5 bytes long instead of 8192"):
        segments.load()


def test_a_file_between_two_segments_is_named(tmp_path: Path) -> None:
    """The start missed the segment that it was taken for, and named that; one beside a whole segment went unnoticed."""
    segments = make_set(tmp_path, 2, 2)
    (tmp_path / f"{SIZE:020d}").rename(tmp_path / f"{SIZE + 1:020d}")
    with pytest.raises(SideFileError, match=f"{SIZE + 1:020d}: is no file of this log.* multiples of {SIZE}; "):
        segments.load()


def test_a_log_of_many_segments_maps_few(make_bench: MakeBench) -> None:
    """Setting store.open_segments, while appending, reading and starting."""
    bench = make_bench(open_segments=3)
    for n in range(120):
        bench.append("t", b"%03d" % n + b"x" * 5000)
    expected = bench.messages("t")
    assert len(expected) == 120
    assert len(bench.store.log.segments) > 9
    # The set's, one that the log read last, and those the flusher still holds.
    assert bench.store.log.segments.mapped_count <= 3
    bench.restart()
    assert bench.messages("t") == expected
    assert bench.store.log.segments.mapped_count <= 3
    drain(bench)
    assert len(mapped_files(bench.root)) <= 5


def view_all(bench: StoreBench, topic: str) -> RecordBatch:
    """Views of a topic's messages, as a channel gives them to a codec."""
    channel = Channel("c", topic, node_id=1)
    channel.add_queue(bench.store.queue(topic, 0), 0)
    subscription = channel.subscribe(object(), 60_000)
    subscription.ready_count = 1000
    batch = RecordBatch()
    channel.deliver(subscription, bench.clock.now_ms(), bench.clock.monotonic_ms(), 1000, 1 << 30, batch)
    return batch


def test_a_view_keeps_its_segment_mapped(make_bench: MakeBench) -> None:
    """A segment that goes away is unlinked first and unmapped when its last pin goes. A-STORE-03."""
    bench = make_bench(open_segments=2)
    bodies = [b"%03d" % n + b"x" * 5000 for n in range(60)]
    for body in bodies:
        bench.append("t", body)
    batch = view_all(bench, "t")
    assert len(batch) == 60
    segments = bench.store.log.segments
    for index in list(segments):
        if index * SEGMENT_BYTES < bench.store.log.end_offset - 2 * SEGMENT_BYTES:
            Path(segments.path_of(index)).unlink()
            segments.leave_out(index)
    bench.append("t", *(b"y" * 5000 for _ in range(30)))
    assert [batch.body(n) for n in range(60)] == bodies
    assert any("(deleted)" in name for name in mapped_files(bench.root))
    batch.clear()
    view_all(bench, "none").clear()
    bench.messages("none")
    bench.store.log.read(bench.store.log.end_offset - 5100)
    drain(bench)
    deleted = [name for name in mapped_files(bench.root) if "(deleted)" in name]
    assert deleted == []
    bench.crash()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_ten_thousand_queues_need_few_open_files(make_bench: MakeBench) -> None:
    """Setting store.open_queue_files: a bounded number of open files, however many queues."""
    bench = make_bench(open_queue_files=16, segment_bytes=16 << 20)
    before = open_files()
    from headrace.batch import PublishBatch

    batch = PublishBatch()
    batch.queues = [bench.store.queue(f"t{n}", 0) for n in range(10_000)]
    batch.destinations = [queue.topic for queue in batch.queues]
    for n in range(10_000):
        batch.append(b"%d" % n, n)
    bench.store.append(batch)
    bench.store.flush()
    for queue in batch.queues:
        queue.write_out()
    assert open_files() <= before + 16 + 4
    assert [bench.messages(f"t{n}") for n in (0, 5000, 9999)] == [{0: b"0"}, {0: b"5000"}, {0: b"9999"}]
    bench.crash_and_open()
    assert open_files() <= before + 16 + 4
    assert len(bench.store.queues) == 10_000
    assert bench.messages("t7777") == {0: b"7777"}
