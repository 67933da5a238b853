"""Records that are not in memory: a reader is sent away, a thread reads them, and who reads on seldom meets another."""

from __future__ import annotations

import os
import time

import pytest

from headrace.batch import RecordBatch
from headrace.broker.pull import PullStatus, read_queue
from headrace.errors import StoreError
from headrace.store.segment import Segment
from tests.support.stores import MakeBench, StoreBench
from tests.support.toolchain import cannot_run

CHUNK = 2 << 20
BODY = b"m" * 8_000
HOT_BYTES = 64 << 20
"""What was appended last is not asked for."""


class ColdReader:
    """Reads a queue from the start; what the log wants from the disk is read when ``let_read`` says so."""

    def __init__(self, bench: StoreBench) -> None:
        self.bench = bench
        self.offset = 0
        self.asked: list[tuple[int, int]] = []
        bench.store.log.on_cold = self._note
        self._unread: list[tuple[Segment, int, int]] = []

    def _note(self, segment: Segment, position: int, size: int) -> None:
        if (segment, position, size) not in self._unread:
            self._unread.append((segment, position, size))
            self.asked.append((segment.first_offset + position, size))

    def read(self, most: int = 32) -> PullStatus:
        records = RecordBatch()
        result = read_queue(self.bench.store.queue("cold", 0), self.offset, most, 64 << 20, None, None, records)
        records.clear()
        self.offset = result.next_offset
        return result.status

    def let_read(self) -> None:
        for segment, position, size in self._unread:
            segment.touch(position, size)
            self.bench.store.log.mark_warm(segment.first_offset, position)
        self._unread.clear()


@pytest.fixture
def bench(make_bench: MakeBench) -> StoreBench:
    return make_bench(segment_bytes=128 << 20, queue_file_bytes=300_000)


def drop_pages(bench: StoreBench) -> None:
    segments = bench.store.log.segments
    for index in segments:
        segment = segments[index]
        os.fsync(segment.fd)
        segment.drop_pages()
        os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def drop_from_memory(bench: StoreBench) -> None:
    bench.settle()
    segment = bench.store.log.segments[0]
    end = min(bench.store.log.end_offset, 128 << 20)
    for _ in range(50):  # pages that are being written, or read ahead, stay
        drop_pages(bench)
        if not any(segment.is_resident(at, CHUNK) for at in range(0, end, CHUNK)):
            break
        time.sleep(0.1)
    bench.store.log.forget_warm()
    if segment.is_resident(0, 4_096):
        cannot_run("the file system of the temporary folder keeps pages in memory: choose another with TMPDIR")


def append_until(bench: StoreBench, end_offset: int, topic: str = "hot") -> None:
    while bench.store.log.end_offset < end_offset:
        bench.append(topic, *[BODY] * 100, flush=False)
    bench.store.flush()


def test_who_reads_on_waits_for_the_disk_once_only(bench: StoreBench) -> None:
    """A backlog behind memory: each chunk is read before it is wanted, and asked for once."""
    append_until(bench, 20 << 20, "cold")
    append_until(bench, (20 << 20) + HOT_BYTES)
    drop_from_memory(bench)
    reader = ColdReader(bench)
    end = bench.store.queue("cold", 0).visible_offset
    waits = []
    while reader.offset < end:
        if reader.read() is PullStatus.COLD:
            waits.append(reader.offset)
        reader.let_read()
    assert len(waits) <= 2  # at the start, and before it is known that the reader reads on
    assert len(set(reader.asked)) == len(reader.asked)
    assert {offset for offset, _ in reader.asked} >= set(range(0, 20 << 20, CHUNK))


def test_one_record_alone_reads_nothing_ahead(bench: StoreBench) -> None:
    """Who looks at a message here and one there has no use for what follows."""
    append_until(bench, 20 << 20, "cold")
    append_until(bench, (20 << 20) + HOT_BYTES)
    drop_from_memory(bench)
    reader = ColdReader(bench)
    for offset in (400, 1_400, 900):
        reader.offset = offset
        assert reader.read(1) is PullStatus.COLD
        reader.let_read()
        assert reader.read(1) is PullStatus.FOUND
    assert len(reader.asked) == 3


def test_a_record_of_several_chunks_is_asked_for_whole(bench: StoreBench) -> None:
    """The event loop must not wait for the disk in the middle of a long message."""
    bench.append("cold", b"s" * (CHUNK - 1_000), b"l" * (4 << 20))
    append_until(bench, (8 << 20) + HOT_BYTES)
    drop_from_memory(bench)
    reader = ColdReader(bench)
    reader.offset = 1
    rounds = 0
    while reader.read() is PullStatus.COLD:
        reader.let_read()
        rounds += 1
    assert (rounds, reader.offset > 1) == (2, True)  # the chunk of its head, then all of it
    assert reader.asked == [(0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, CHUNK)]


def test_what_was_there_at_the_start_is_not_taken_to_be_in_memory(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot also the newest messages lie on the disk only; nothing behind the log's end is read."""
    monkeypatch.setattr("headrace.store.opening._VERIFY_BACK_BYTES", 0)  # what a start checks is in memory then
    append_until(bench, 20 << 20, "cold")
    bench.restart()
    append_until(bench, 21 << 20)
    drop_from_memory(bench)
    reader = ColdReader(bench)
    end = bench.store.queue("cold", 0).visible_offset
    waits = 0
    while reader.offset < end:
        waits += reader.read() is PullStatus.COLD
        reader.let_read()
    assert 1 <= waits <= 2
    assert {offset for offset, _ in reader.asked} >= set(range(0, 20 << 20, CHUNK))
    assert max(offset + size for offset, size in reader.asked) <= bench.store.log.end_offset


def test_a_segment_that_is_in_memory_says_nothing_of_the_next(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments may be shorter than what is asked for at a time."""
    monkeypatch.setattr("headrace.store.opening._VERIFY_BACK_BYTES", 0)
    bench = make_bench(segment_bytes=1 << 20, queue_file_bytes=300_000)
    append_until(bench, 3 << 20, "cold")
    bench.restart()
    drop_from_memory(bench)
    reader = ColdReader(bench)
    first_of_second = next(
        offset
        for offset, (physical_offset, _, _) in enumerate(bench.store.queue("cold", 0).entries(0, 400))
        if physical_offset >= 1 << 20
    )
    assert reader.read(1) is PullStatus.COLD
    reader.let_read()
    assert reader.read(1) is PullStatus.FOUND
    reader.offset = first_of_second
    assert reader.read(1) is PullStatus.COLD


def test_what_was_in_memory_may_be_there_no_longer(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick forgets what was found there, also where the store takes no writes any more: readers go on."""
    monkeypatch.setattr("headrace.store.opening._VERIFY_BACK_BYTES", 0)
    bench = make_bench(segment_bytes=1 << 20, queue_file_bytes=300_000)
    append_until(bench, 1 << 20, "cold")
    bench.restart()
    drop_from_memory(bench)
    reader = ColdReader(bench)
    for failure in (None, StoreError("no more writes")):
        bench.store.failure = failure
        reader.offset = 0
        assert reader.read(1) is PullStatus.COLD
        reader.let_read()
        assert reader.read(1) is PullStatus.FOUND
        drop_pages(bench)
        bench.store.tick()
    reader.offset = 0
    assert reader.read(1) is PullStatus.COLD
    bench.store.failure = None
