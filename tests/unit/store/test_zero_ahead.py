"""Zeros ahead of the log: when they are written, and that none ever replaces a record. Ref: ADR 0006."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Callable

import pytest

from headrace.store import zero_ahead
from headrace.store.commit_log import NEVER_ZEROING
from headrace.store.segment import write_zeros
from tests.support.stores import MakeBench, StoreBench

MIB = 1 << 20
STRETCH = 4 * MIB
FOLIO = 128 << 10


@pytest.fixture
def wide(make_bench: MakeBench) -> StoreBench:
    """A store with segments that have room for zeros, on any file system."""
    bench = make_bench(segment_bytes=16 * MIB)
    bench.store.zero_ahead.is_enabled = True
    return bench


def publish(bench: StoreBench, *bodies: bytes) -> None:
    """Append a batch whose publisher waits for the flush."""
    bench.append("t", *bodies, flush=False)
    bench.store.gate.wait(bench.store.log.end_offset, lambda error: None)
    bench.store.flush()


def publish_until(bench: StoreBench, condition: Callable[[], bool], body: bytes = b"x" * 1000) -> None:
    for _ in range(100_000):
        if condition():
            return
        publish(bench, body)
    raise AssertionError("it did not come to that")


def publish_to(bench: StoreBench, physical_offset: int) -> None:
    publish_until(bench, lambda: bench.store.log.end_offset >= physical_offset, b"x" * 30_000)


def wait_for_job(bench: StoreBench) -> None:
    job = bench.store.zero_ahead._job
    if job is not None:
        job.exception()


def test_zeros_are_written_while_small_flushes_are_waited_for(wide: StoreBench) -> None:
    """One stretch is begun, well behind the end; the next only when half of it is used up."""
    publish_until(wide, lambda: wide.store.zero_ahead._job is not None)
    assert MIB <= wide.store.log.zeroing_from - wide.store.log.end_offset <= MIB + (64 << 10)
    wait_for_job(wide)
    publish_until(wide, lambda: wide.store.zero_ahead.zeroed_offset > 0)
    assert wide.store.counters.zeroed_bytes >= STRETCH
    ahead = wide.store.zero_ahead.zeroed_offset - wide.store.log.end_offset
    assert STRETCH <= ahead <= STRETCH + MIB + (64 << 10)
    assert wide.store.log.zeroing_from == NEVER_ZEROING
    for _ in range(50):
        publish(wide, b"x")
    assert wide.store.counters.zeroed_bytes == STRETCH, "nothing more while there is enough"


def test_a_broker_with_little_to_do_writes_none(wide: StoreBench) -> None:
    """A start, a topic and a few messages must not cost megabytes."""
    for _ in range(zero_ahead._FLUSHES_BETWEEN - 1):
        publish(wide, b"x")
    assert wide.store.zero_ahead._job is None


def test_nobody_waits_so_none_are_written(wide: StoreBench) -> None:
    """Level async: the time of a flush is nobody's."""
    for _ in range(100):
        wide.append("t", b"x")
    assert wide.store.zero_ahead._job is None


def test_large_flushes_need_none(wide: StoreBench) -> None:
    """From a mean of 192 KiB on the bytes written twice cost more than the journal."""
    for _ in range(20):
        publish(wide, *(b"x" * 60_000 for _ in range(10)))
    assert wide.store.zero_ahead._job is None
    assert wide.store.counters.zeroed_bytes == 0


def test_a_file_system_that_moves_what_is_overwritten_gets_none(wide: StoreBench) -> None:
    """There zeros would use up the blocks that were allocated for records."""
    wide.store.zero_ahead.is_enabled = False
    for _ in range(100):
        publish(wide, b"x")
    assert wide.store.zero_ahead._job is None


def test_an_append_waits_until_no_zeros_can_follow(wide: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest thread there can be: it writes its zeros only when an append wants to go where they are.

    Without ``before_zeroed`` the records of that append would be zeros afterwards.
    """
    begun, asked = threading.Event(), threading.Event()
    ends: list[int] = []

    def write_late(fd: int, position: int, size: int) -> None:
        begun.set()
        assert asked.wait(30)
        ends.append(wide.store.log.end_offset)
        write_zeros(fd, position, size)

    monkeypatch.setattr(zero_ahead, "write_zeros", write_late)
    publish_until(wide, lambda: wide.store.zero_ahead._job is not None)
    assert begun.wait(30)
    first = wide.store.log.zeroing_from
    settle = wide.store.zero_ahead.settle

    def note_and_settle() -> None:
        asked.set()
        settle()

    wide.store.log.before_zeroed = note_and_settle
    number = 0
    while wide.store.log.end_offset < first + STRETCH + MIB:
        assert asked.is_set() == (wide.store.log.end_offset > first)
        wide.append("t", b"%08d" % number + b"y" * 50_000, flush=False)
        number += 1
    assert all(end <= first for end in ends), "zeros were written beside or over what was appended"
    assert len(ends) == 1, "a piece at most is waited for"
    assert wide.store.counters.zero_waits == 1
    assert_all_there(wide, number)


def assert_all_there(bench: StoreBench, numbered: int) -> None:
    """Read every numbered message back, before and after a crash."""
    bench.store.flush()
    for _ in range(2):
        found = [body[:8] for body in bench.messages("t").values() if body[8:9] == b"y"]
        assert found == [b"%08d" % number for number in range(numbered)]
        bench.crash_and_open()


def test_what_was_not_begun_is_not_waited_for(wide: StoreBench) -> None:
    """The store's threads may be busy for long: a stretch that is still in their line is dropped."""
    release = threading.Event()
    others = [wide.store._executor.submit(release.wait, 30) for _ in range(2)]
    publish_until(wide, lambda: wide.store.zero_ahead._job is not None)
    first = wide.store.log.zeroing_from
    number = 0
    while wide.store.log.end_offset <= first:
        wide.append("t", b"%08d" % number + b"y" * 50_000, flush=False)
        number += 1
    assert wide.store.log.zeroing_from == NEVER_ZEROING
    release.set()
    assert all(other.result() for other in others)
    assert (wide.store.counters.zeroed_bytes, wide.store.counters.zero_waits) == (0, 0)
    assert_all_there(wide, number)


def test_zeros_that_are_written_are_not_waited_for(wide: StoreBench) -> None:
    """Whoever reaches a stretch takes note of it first; where the thread was through with it, that is no wait."""
    publish_until(wide, lambda: wide.store.zero_ahead._job is not None)
    first = wide.store.log.zeroing_from
    wait_for_job(wide)
    number = 0
    while wide.store.log.end_offset <= first:
        wide.append("t", b"%08d" % number + b"y" * 50_000, flush=False)
        number += 1
    assert wide.store.log.zeroing_from == NEVER_ZEROING
    assert (wide.store.counters.zeroed_bytes, wide.store.counters.zero_waits) == (STRETCH, 0)
    assert wide.store.zero_ahead.zeroed_offset == first + STRETCH
    assert_all_there(wide, number)


def test_a_failed_write_of_zeros_only_ends_them(
    wide: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: one line, one count, and publishing goes on."""

    def fail(fd: int, position: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zero_ahead, "write_zeros", fail)
    with caplog.at_level(logging.WARNING):
        publish_until(wide, lambda: wide.store.counters.zero_errors > 0)
        for _ in range(100):
            publish(wide, b"x")
    assert [line.getMessage() for line in caplog.records if "zeros" in line.getMessage()] == [
        "no zeros ahead of the log any more error=[Errno 28] No space left on device"
    ]
    assert wide.store.counters.zero_errors == 1
    assert wide.store.failure is None
    assert wide.store.log.zeroing_from == NEVER_ZEROING


def test_zeros_end_with_the_segment(make_bench: MakeBench) -> None:
    """Nothing is written beyond the segment's length, and the next segment gets its own."""
    bench = make_bench(segment_bytes=3 * MIB)
    bench.store.zero_ahead.is_enabled = True
    size = bench.settings.segment_bytes
    for end in (size, 2 * size):
        publish_to(bench, end - MIB)
        wait_for_job(bench)
        assert bench.segment(end - size).stat().st_size == size
        publish_to(bench, end + 1)
    assert bench.store.counters.zeroed_bytes >= 2 * MIB
    bench.crash_and_open()


def test_recovery_takes_zeros_for_what_was_never_written(wide: StoreBench) -> None:
    """No torn tail, no hole, no new epoch: the log goes on where it ended."""
    publish_until(wide, lambda: wide.store.counters.zeroed_bytes >= STRETCH)
    end, epoch, messages = wide.store.log.end_offset, wide.store.epoch, wide.messages("t")
    for _ in range(2):
        wide.crash_and_open()
        assert wide.store.recovery.scan.torn_offset == -1
        assert (wide.store.log.end_offset, wide.store.epoch) == (end, epoch)
        assert wide.store.recovery.scan.holes == []
    assert wide.messages("t") == messages


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_lost_to_zeros(make_bench: MakeBench, seed: int) -> None:
    """Batches of all sizes beside the real thread, over several segments."""
    rng = random.Random(seed)
    bench = make_bench(segment_bytes=8 * MIB)
    bench.store.zero_ahead.is_enabled = True
    number = 0
    while bench.store.log.end_offset < 30 * MIB:
        many = rng.random() < 0.02
        bodies = []
        for _ in range(rng.randint(1, 40 if many else 3)):
            bodies.append(b"%08d" % number + b"y" * rng.choice([1, 100, 60_000 if many else 20_000]))
            number += 1
        publish(bench, *bodies)
    assert bench.store.counters.zeroed_bytes > 0
    assert_all_there(bench, number)


def test_zeros_go_on_when_files_can_be_opened_again(
    wide: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment without a descriptor must not make every flush slower until the next start."""

    def fail(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        publish_until(wide, lambda: wide.store.counters.zero_errors > 1)
    publish_until(wide, lambda: wide.store.counters.zeroed_bytes >= STRETCH)
    assert caplog.text.count("no zeros ahead of the log") == 1


def written_end(bench: StoreBench) -> int:
    """Return where what was ever written of the first segment ends."""
    segment = bench.store.log.segments[0]
    return segment.written_ranges(0)[-1][1]


@pytest.fixture
def filled(wide: StoreBench) -> StoreBench:
    """A store that fills the page cache in large folios, on any file system."""
    wide.store.log.fills_folios = True
    return wide


def test_a_write_goes_on_with_zeros_to_the_end_of_a_folio(filled: StoreBench) -> None:
    """Once per 128 KiB; what is written into them later adds nothing."""
    log = filled.store.log
    filled.append("t", b"x" * 1000, flush=False)
    assert log.filled_offset == written_end(filled) == FOLIO
    assert log.end_offset < 2000
    filled.append("t", b"x" * 1000, flush=False)
    assert log.filled_offset == written_end(filled) == FOLIO
    filled.append("t", b"x" * 2 * FOLIO, flush=False)
    assert log.filled_offset == written_end(filled) == 3 * FOLIO
    filled.store.flush()
    assert list(filled.messages("t").values()) == [b"x" * 1000, b"x" * 1000, b"x" * 2 * FOLIO]


def test_zeros_behind_a_write_end_with_the_segment(make_bench: MakeBench) -> None:
    """One whose size is no multiple of a folio's; the next begins with a folio of its own."""
    bench = make_bench(segment_bytes=FOLIO + 4096)
    log = bench.store.log
    log.fills_folios = True
    bench.append("t", b"x" * (FOLIO - 1000), flush=False)
    bench.append("t", b"x" * 2000, flush=False)
    assert log.filled_offset == FOLIO + 4096
    bench.append("t", b"y" * 4000, flush=False)
    assert log.end_offset > FOLIO + 4096
    assert log.filled_offset == 2 * (FOLIO + 4096) - 4096
    assert bench.segment(0).stat().st_size == FOLIO + 4096
    bench.store.flush()
    assert list(bench.messages("t").values()) == [b"x" * (FOLIO - 1000), b"x" * 2000, b"y" * 4000]


def test_zeros_keep_out_of_what_the_thread_writes(filled: StoreBench) -> None:
    """Only one of both is behind the log's end, so that none can come late over a record."""
    log = filled.store.log
    log.zeroing_from = FOLIO - 4096
    filled.append("t", b"x" * 1000, flush=False)
    assert log.filled_offset == written_end(filled) == FOLIO - 4096
    log.zeroing_from = NEVER_ZEROING
    filled.append("t", b"x" * FOLIO, flush=False)
    assert log.filled_offset == written_end(filled) == 2 * FOLIO


def test_small_flushes_that_are_waited_for_get_no_zeros(filled: StoreBench) -> None:
    """They would have more to write; large ones, and those that nobody waits for, do get them."""
    filled.store.zero_ahead._can_fill_folios = True
    log = filled.store.log
    publish(filled, b"x" * 1000)
    assert not log.fills_folios
    filled.append("t", b"x" * 1000)
    assert log.fills_folios
    for _ in range(20):
        publish(filled, *(b"x" * 60_000 for _ in range(10)))
    assert log.fills_folios


def test_what_the_thread_has_zeroed_is_not_written_again(filled: StoreBench) -> None:
    publish_until(filled, lambda: filled.store.zero_ahead.zeroed_offset > 0)
    assert filled.store.log.filled_offset == filled.store.zero_ahead.zeroed_offset


def test_a_store_with_zeros_behind_its_end_opens_as_it_was(filled: StoreBench) -> None:
    """A kill leaves them there; the next start finds the end in front of them."""
    filled.append("t", b"a" * 1000, flush=False)
    end_offset = filled.store.log.end_offset
    assert filled.crash_and_open().log.end_offset == end_offset
    assert filled.check().exit_code == 0
    filled.append("t", b"b" * 1000)
    assert list(filled.messages("t").values()) == [b"a" * 1000, b"b" * 1000]
