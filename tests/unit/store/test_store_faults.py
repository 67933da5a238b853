"""What the store does when the disk fails, is full, or has less than the views say."""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.errors import (
    FlushError,
    NoMemoryError,
    ReplacedStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    UnreadableError,
)
from headrace.format.side_file import read_side_file
from headrace.store.checkpoint import DOUBTFUL, SYNC_AS_A_WHOLE, Checkpoints
from headrace.store.gate import Gate
from headrace.store.key_query import KeyQuery
from headrace.store.opening import Opening
from headrace.store.segment import Segment
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench
from tests.support.toolchain import cannot_run

SYNC_FILE_SYSTEM = "headrace.store.checkpoint.sync_file_system"
TELLS_OF_ERRORS = "headrace.store.checkpoint.is_syncfs_told_of_errors"


class _BrokenDisk:
    """Stands in for the flusher: the given answers, in order."""

    done_read = -1

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors
        self.requests: list[int] = []

    def request(self, target: int, fd: int) -> bool:
        self.requests.append(target)
        return True

    def take_result(self) -> tuple[int, int, float]:
        return self.requests.pop(0), self.errors.pop(0), 0.001

    def close(self) -> None:
        pass


def test_nothing_is_durable_behind_a_failed_fdatasync(bench: StoreBench) -> None:
    """A failed fsync stops writes for good, also where the same flush's second file was synced."""
    store = bench.store
    bench.append("t", b"durable")
    durable, noted = store.durable_offset, store.mark.noted_offset
    while not store.commits._rolled:
        bench.append("t", b"x" * 4000, flush=False)
    real, store.commits.flusher = store.commits.flusher, _BrokenDisk([errno.EIO, 0])  # type: ignore[assignment]
    store.request_flush()
    store.finish_flush()
    store.finish_flush()
    assert isinstance(store.failure, FlushError)
    assert (store.durable_offset, store.mark.noted_offset) == (durable, noted)
    assert store.queue("t", 0).visible_offset == 1
    store.commits.flusher = real
    bench.crash()
    bench.open()


def test_refusals_after_a_failure_do_not_grow(bench: StoreBench) -> None:
    """One error answers every publisher for days: it must not gather a traceback from each."""
    bench.store._fail(FlushError("x", errno.EIO))
    for _ in range(50):
        with pytest.raises(FlushError) as caught:
            bench.append("t", b"x")
    depth, traceback = 0, caught.value.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth < 10


@pytest.mark.provokes_bugs
def test_gate_tells_everybody_though_one_of_them_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A bug behind one reply must not keep the others from theirs."""
    gate = Gate()
    told: list[object] = []

    def fails(failure: object) -> None:
        raise RuntimeError("a bug")

    for opened in (fails, told.append, fails, told.append):
        gate.wait(10, opened)
    gate.open_to(10)
    assert told == [None, None]
    for opened in (fails, told.append):
        gate.wait(20, opened)
    failure = FlushError("x", errno.EIO)
    gate.fail(failure)
    assert told == [None, None, failure]
    assert "a bug" in caplog.text


def test_what_is_durable_is_let_through_though_a_reply_finds_the_store_failed() -> None:
    """Who is answered may append again at once, and that may be what stops the store."""
    gate = Gate()
    told: list[object] = []
    failure = FlushError("x", errno.EIO)
    gate.wait(10, lambda _: gate.fail(failure))
    for offset in (10, 20, 30):
        gate.wait(offset, told.append)
    gate.open_to(20)
    assert told == [None, None, failure]


@pytest.mark.parametrize(("queues", "call"), [(1, "os.fdatasync"), (SYNC_AS_A_WHOLE, SYNC_FILE_SYSTEM)])
def test_no_checkpoint_after_a_view_could_not_be_synced(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, queues: int, call: str
) -> None:
    """A checkpoint promises that the views below it are on disk: after a failed sync nobody knows.

    In files where a sync has failed ext4 writes beside what it takes for written: the next start makes others.
    """
    bench.append("t", b"a")
    for number in range(1, queues):
        bench.append(f"t{number}", b"other")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(TELLS_OF_ERRORS, lambda _: True)  # overlayfs, in containers, is not known to
        patch.setattr(call, fail)
        _run_checkpoint(bench)
    bench.append("t", b"b")
    _run_checkpoint(bench)
    assert _noted_entries(bench) == DOUBTFUL
    bench.store.close()
    assert _noted_entries(bench) == DOUBTFUL
    with _queue_file(bench).open("rb") as doubtful:
        bench.open()
        assert list(bench.messages("t").values()) == [b"a", b"b"]
        bench.restart()
        assert not os.path.samestat(os.fstat(doubtful.fileno()), _queue_file(bench).stat())
    assert _noted_entries(bench) == queues + 1


def _noted_entries(bench: StoreBench) -> Any:
    return read_side_file(bench.store.directory.checkpoint, "checkpoint", "")["queue_entries"]


def _queue_file(bench: StoreBench) -> Path:
    return bench.root / "consumequeue" / "t" / "0" / f"{0:020d}"


def test_checkpoints_go_on_though_a_view_could_not_be_opened(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An open that failed left nothing unsynced that the next checkpoint does not sync."""
    opens = os.open
    synced: list[str] = []

    def fail(path: Any, *arguments: Any, **options: Any) -> int:
        if "consumequeue" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opens(path, *arguments, **options)

    bench.append("t", b"a")
    bench.store.checkpoints.write_queue(bench.store.queue("t", 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        _run_checkpoint(bench)
    deadline = time.monotonic() + 10
    while "checkpoint failed" not in caplog.text:  # logged when the job is done, by its thread
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert not bench.store.checkpoints.is_doubtful
    assert not bench.store.directory.checkpoint.exists()
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    _run_checkpoint(bench)
    assert synced == [str(bench.root / "consumequeue" / "t" / "0" / f"{0:020d}")]
    assert bench.store.directory.checkpoint.exists()


def test_a_checkpoint_waits_for_a_view_that_cannot_be_read(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a queue has more than a checkpoint counts, its file says how much: an I/O error there was told as a bug."""

    def fail(fd: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    queue = bench.store.queue("t", 0)
    for _ in range(5):
        bench.append("t", *(b"" for _ in range(1000)))
    bench.store.checkpoints.write_queue(queue)
    bench.append("t", *(b"" for _ in range(100)), flush=False)
    bench.store.checkpoints.write_queue(queue)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        for _ in range(3):
            _run_checkpoint(bench)
    assert caplog.text.count(f"consume queue not read, tried again path={queue.directory}/") == 1
    assert not bench.store.directory.checkpoint.exists()
    bench.store.flush()
    _run_checkpoint(bench)
    assert bench.store.directory.checkpoint.exists()


def test_a_checkpoint_that_finds_no_room_is_named_once(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One is due every 10 s, for as long as the disk is full. A-STORE-27."""

    def fail(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def run_checkpoint() -> None:
        ended = _checkpoint_ends(bench)
        bench.append("t", b"a")
        _run_checkpoint(bench)
        deadline = time.monotonic() + 10
        while _checkpoint_ends(bench) == ended:  # counted when the job is done, by its thread
            assert time.monotonic() < deadline
            time.sleep(0.001)

    for lines in (1, 2):
        errors = bench.store.counters.view_write_errors
        with monkeypatch.context() as patch:
            patch.setattr("headrace.store.checkpoint.write_side_file", fail)
            for _ in range(3):
                run_checkpoint()
        assert bench.store.counters.view_write_errors == errors + 3
        run_checkpoint()
        assert caplog.text.count("checkpoint failed, tried again") == lines
        assert bench.store.directory.checkpoint.exists()


def test_a_checkpoint_that_failed_is_tried_again_without_new_messages(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker that falls silent on a full disk has an old one until it stops, whatever room there is since."""
    bench = make_bench(checkpoint_interval_ms=10_000, checkpoint_bytes=1)
    tries: list[Path] = []

    def fail(path: Path, *_: object) -> None:
        tries.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def tick_after(wait_ms: int) -> None:
        bench.clock.advance_ms(wait_ms)
        bench.store.tick()
        bench.settle()

    bench.append("t", b"a")
    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.checkpoint.write_side_file", fail)
        for wait_ms, tried in ((0, 1), (9_999, 1), (1, 2), (100, 2)):
            tick_after(wait_ms)
            assert len(tries) == tried
        assert bench.store.checkpoints.offset == 0
    tick_after(9_900)
    assert read_side_file(bench.store.directory.checkpoint, "checkpoint", "")["queue_entries"] == 1
    assert bench.store.checkpoints.offset == bench.store.durable_offset


def _checkpoint_ends(bench: StoreBench) -> int:
    return bench.store.counters.checkpoints + bench.store.counters.view_write_errors


@pytest.mark.parametrize("knows_errors", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_views_of_many_queues_are_synced_at_once(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, knows_errors: bool, is_told: bool
) -> None:
    """Thousands of fdatasyncs made a stop take minutes; before Linux 5.8 they are the only ones that tell of errors.

    And on file systems that are not known to tell.
    """
    whole: list[int] = []
    each: list[int] = []
    monkeypatch.setattr(SYNC_FILE_SYSTEM, whole.append)
    monkeypatch.setattr("os.fdatasync", each.append)
    if not knows_errors:
        monkeypatch.setattr("os.uname", lambda: SimpleNamespace(release="5.7.19-generic"))
    monkeypatch.setattr(TELLS_OF_ERRORS, lambda _: is_told)
    for number in range(SYNC_AS_A_WHOLE):
        bench.append(f"t{number}", b"x")
    _run_checkpoint(bench)
    at_once = knows_errors and is_told
    assert (len(whole), len(each)) == ((1, 0) if at_once else (0, SYNC_AS_A_WHOLE))
    _run_checkpoint(bench)
    assert len(whole) + len(each) == (1 if at_once else SYNC_AS_A_WHOLE)
    bench.crash_and_open()
    assert bench.messages("t9") == {0: b"x"}


def _run_checkpoint(bench: StoreBench) -> None:
    bench.store.checkpoints.start()
    while bench.store.checkpoints._to_write:
        bench.store.tick()
    if bench.store.checkpoints.job is not None:
        bench.store.checkpoints.job.exception()


def test_views_that_cannot_be_written_are_named_once(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk under the consume queues costs one line and a count, not one line per publish. A-STORE-27.

    The next time that it is full there is a line again.
    """
    full = OSError(errno.ENOSPC, "No space left on device")
    bench.append("t", b"a")

    def fail(*_: object) -> int:
        raise full

    for times in (1, 2):
        bench.store.directory.checkpoint.unlink(missing_ok=True)
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(bench.store.files, "descriptor", fail)
            for _ in range(5):
                bench.append("t", b"b")
                _run_checkpoint(bench)
        assert sum("consume queue" in line.getMessage() for line in caplog.records) == times
        assert bench.store.counters.view_write_errors >= 5 * times
        assert not bench.store.directory.checkpoint.exists(), "it would promise entries that no file has"
        _run_checkpoint(bench)
        assert bench.store.directory.checkpoint.exists()
    assert list(bench.messages("t").values()) == [b"a"] + [b"b"] * 10


def test_checkpoints_come_by_time_and_by_bytes(make_bench: MakeBench) -> None:
    """A start reads the log from the newest one on; a store at rest has nothing to note."""
    bench = make_bench(checkpoint_interval_ms=10_000, checkpoint_bytes=100_000)

    def checkpoints_after(wait_ms: int) -> int:
        bench.clock.advance_ms(wait_ms)
        bench.store.tick()
        bench.settle()
        return bench.store.counters.checkpoints

    bench.append("t", b"a")
    assert checkpoints_after(9_999) == 0
    assert checkpoints_after(1) == 1
    assert checkpoints_after(60_000) == 1, "nothing is new"
    bench.append("t", b"b")
    assert checkpoints_after(0) == 2, "the last is long ago"
    bench.append("t", bytes(50_000))
    assert checkpoints_after(0) == 2
    bench.append("t", bytes(50_000))
    assert checkpoints_after(0) == 3


def test_a_queue_at_rest_keeps_nothing_in_memory(bench: StoreBench) -> None:
    """The last entries are kept for readers from one checkpoint to the next, not for thousands of queues for good."""
    queue = bench.store.queue("t", 0)
    kept = []
    for _ in range(3):
        bench.append("t", b"x", b"x")
        for topic in ("t", "other"):
            bench.append(topic, b"x")
            _run_checkpoint(bench)
            kept.append(queue.next_offset - queue.tail_offset)
    assert kept == [3, 0] * 3
    assert [body for _, body in sorted(bench.messages("t").items())] == [b"x"] * 9


def test_a_queue_file_that_cannot_be_read_is_named(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append("T", b"a")
    bench.restart()
    queue = bench.store.queue("T", 0)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("os.pread", refuse)
        with pytest.raises(UnreadableError, match=r"consumequeue/T/0/0{20}: Input/output error; see to the disk"):
            queue.entries(0, 1)
        with pytest.raises(UnreadableError, match=r"consumequeue/T/0/0{20}: Input/output error; see to the disk"):
            queue.position_of(0)
    assert bench.store.counters.read_errors == 2


@pytest.mark.parametrize("left_bytes", [0, 20, 399])
def test_a_queue_file_that_a_kill_left_short_gets_its_length(make_bench: MakeBench, left_bytes: int) -> None:
    """Killed between making the file and giving it its length: it stayed short, which RocketMQ refuses to open."""
    bench = make_bench()
    bench.append("t", b"a")
    bench.store.checkpoints.start()
    bench.store.abandon()
    path = bench.root / "consumequeue" / "t" / "0" / f"{0:020d}"
    os.truncate(path, left_bytes)
    bench.open()
    bench.append("t", b"b")
    bench.store.close()
    assert path.stat().st_size == 400
    bench.open()
    assert list(bench.messages("t").values()) == [b"a", b"b"]


def test_a_queue_file_whose_making_failed_gets_its_length(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full for a moment left it short for good."""

    def fail(fd: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench.append("t", b"a")
    with monkeypatch.context() as full:
        full.setattr(os, "ftruncate", fail)
        _run_checkpoint(bench)
    assert bench.store.counters.view_write_errors == 1
    _run_checkpoint(bench)
    assert (bench.root / "consumequeue" / "t" / "0" / f"{0:020d}").stat().st_size == 400


@pytest.mark.parametrize(
    ("number", "refusal", "remedy"),
    [
        (errno.ENOSPC, StoreFullError, "make room on its disk"),
        (errno.EDQUOT, StoreFullError, "make room on its disk"),
        (errno.EMFILE, StoreError, "raise the limit of open files"),
        (errno.EFBIG, StoreError, "raise the limit of file sizes"),
        (errno.ENOMEM, StoreError, "more memory, or address space"),
        (errno.EACCES, StoreError, "see to the disk and to whose the files are"),
        (errno.EIO, StoreError, "see to the disk and to whose the files are"),
    ],
)
def test_a_segment_that_cannot_be_made_says_what_helps(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, number: int, refusal: type[StoreError], remedy: str
) -> None:
    """Only a full disk is helped by room."""

    def fail(path: str, size_bytes: int) -> None:
        raise OSError(number, os.strerror(number), path)

    bench.settle()
    monkeypatch.setattr("headrace.store.segment_supply.create_segment_file", fail)
    with pytest.raises(StoreError, match=remedy) as raised:
        _append_past_the_segment(bench)
    assert type(raised.value) is refusal
    assert remedy in bench.store.last_write_error
    monkeypatch.undo()
    bench.append("t", bytes(5000))
    assert bench.store.last_write_error == ""


def test_a_segment_that_could_neither_be_made_nor_removed_is_made_when_there_is_room(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left of it refused every write until a restart."""

    def half(fd: int, first: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(path: str | Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    bench.settle()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", half)
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(StoreFullError, match="make room on its disk"):
            _append_past_the_segment(bench)
        with pytest.raises(StoreError, match="Input/output error"):
            _append_past_the_segment(bench)
    _append_past_the_segment(bench)
    bench.restart()


def test_a_refusal_of_large_batches_only_is_logged_once_a_minute(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What still fits into the last segment is taken in between."""

    def fail(path: str, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    bench.settle()
    monkeypatch.setattr("headrace.store.segment_supply.create_segment_file", fail)
    for wait_ms in (0, 10, 59_000, 2_000):
        bench.clock.advance_ms(wait_ms)
        for _ in range(3):
            with pytest.raises(StoreFullError):
                _append_past_the_segment(bench)
            bench.append("t", b"small")
    assert caplog.text.count("write refused") == 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_writes_go_on_once_the_next_segment_can_be_opened(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An open that failed lost nothing: what the batch wrote in front of it is taken back, the next write tries again.

    Taking back needs no descriptor that is not open already: too few of them stopped all writes until a restart.
    """
    bench = make_bench()
    bench.append("t", *[bytes(10_000)] * 5)
    bench.settle()
    opens = os.open

    def fail(path: Any, *arguments: Any, **options: Any) -> int:
        if "commitlog" in str(path):
            raise OSError(number, os.strerror(number), path)
        return opens(path, *arguments, **options)

    bench.store._supply.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(StoreError, match=f"cannot allocate .*: {os.strerror(number)}; ") as raised:
            bench.append("t", *[bytes(10_000)] * 5)
    assert type(raised.value) is StoreError
    assert bench.store.failure is None
    bench.append("t", b"after")
    assert list(bench.messages("t").values()) == [bytes(10_000)] * 5 + [b"after"]
    bench.crash_and_open()
    assert list(bench.messages("t").values()) == [bytes(10_000)] * 5 + [b"after"]


def test_a_write_that_the_system_refuses_is_taken_back(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of file sizes stands for any refusal that passes: nothing is left, and the next write tries again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    pwrite = os.pwrite

    def lift_and_write(*arguments: Any) -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return pwrite(*arguments)

    bench.append("t", b"before")
    bench.settle()
    end = bench.store.log.end_offset
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lift_and_write)  # what takes a batch back uses it, what writes one does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (end + 1500, hard))
        try:
            with pytest.raises(StoreError, match=f"cannot write to the log: .*{os.strerror(errno.EFBIG)}") as raised:
                bench.append("t", *[bytes([65]) * 1000] * 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert type(raised.value) is StoreError
    assert bench.store.failure is None
    assert bench.store.log.end_offset == end
    assert os.strerror(errno.EFBIG) in bench.store.last_write_error
    assert not any(bench.segment(0).read_bytes()[end:])
    bench.append("t", b"after")
    assert bench.store.last_write_error == ""
    bench.crash_and_open()
    assert bench.messages("t") == {0: b"before", 1: b"after"}


def test_a_clean_end_that_cannot_be_noted_is_recovered_from(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full at the end costs the next start some reading, no message."""

    def fail(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    bench.append("t", b"a")
    bench.restart()
    bench.append("t", b"b")
    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.checkpoint.write_side_file", fail)
        bench.store.close()
    assert "clean end not noted, the next start recovers" in caplog.text
    bench.open()
    assert not bench.store.recovery.was_clean
    assert bench.messages("t") == {0: b"a", 1: b"b"}
    bench.restart()
    assert bench.store.recovery.was_clean


def test_a_durable_mark_that_could_not_be_synced_is_tried_again(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def tick_a_second_later() -> None:
        bench.clock.advance_ms(1000)
        bench.store.tick()
        bench.settle()

    bench.append("t", b"a")
    synced = bench.store.mark.synced_offset
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        for _ in range(3):
            tick_a_second_later()
    assert caplog.text.count("durable mark not synced") == 1, "a broken disk may not fill the log with a line a second"
    assert bench.store.counters.mark_write_errors == 3
    assert bench.store.mark.synced_offset == synced
    bench.append("t", b"b")
    tick_a_second_later()
    assert bench.store.mark.synced_offset == bench.store.log.end_offset


def test_a_full_disk_that_takes_no_durable_mark_is_an_error_and_no_signal(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where blocks are not overwritten (btrfs, XFS copied by reference) a mapped mark without room was SIGBUS."""
    monkeypatch.setattr("headrace.store.durable_mark.is_overwritten_in_place", lambda path: False)
    bench = make_bench("cow")
    mark = bench.store.mark
    assert mark._map is None
    bench.append("t", b"before")
    noted = mark.noted_offset
    write = os.pwrite

    def refuse(fd: int, data: bytes, at: int) -> int:
        if fd == mark._fd:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refuse)
        for _ in range(3):
            bench.append("t", b"meanwhile")
    assert bench.store.durable_offset == bench.store.log.end_offset
    assert (mark.noted_offset, bench.store.counters.mark_write_errors) == (noted, 3)
    assert caplog.text.count("durable mark not written") == 1
    assert "headrace/durable error=No space left on device remedy=make room on its disk" in caplog.text
    bench.append("t", b"after")
    assert mark.noted_offset == bench.store.durable_offset
    end = mark.noted_offset
    bench.crash_and_open()
    assert bench.store.mark.physical_offset >= end


def test_a_closed_store_says_that_it_is(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.append("t", b"a")
    told: list[object] = []
    bench.append("t", b"made durable by the end", flush=False)
    bench.store.gate.wait(bench.store.log.end_offset, told.append)
    bench.store.close()
    bench.store.close()
    assert told == [None]
    with pytest.raises(StoreClosedError):
        bench.append("t", b"b", flush=False)
    with pytest.raises(StoreClosedError):
        bench.store.find_by_key(KeyQuery(topic="t", key="k"))
    bench.store.gate.wait(bench.store.log.end_offset + 1, told.append)
    assert isinstance(told[-1], StoreClosedError)
    bench.open()
    assert len(bench.messages("t")) == 2


def _append_past_the_segment(bench: StoreBench) -> None:
    for _ in range(3 * SEGMENT_BYTES // 17_000):
        bench.append("t", bytes(17_000))


def test_existing_next_segment_needs_no_room(make_bench: MakeBench) -> None:
    """A segment that was allocated before the disk filled up is used, not refused."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    bench.append("t", b"a")
    bench.store._executor.submit(lambda: None).result()
    bench.restart()
    held = len(bench.store.log.segments)
    assert held == 2
    for _ in range(2 * SEGMENT_BYTES // 4200):
        try:
            bench.append("t", b"x" * 4000)
        except StoreFullError:
            break
    else:
        pytest.fail("the budget was not kept")
    assert bench.store.log.active.first_offset == SEGMENT_BYTES


def test_a_full_store_with_a_torn_tail_starts(make_bench: MakeBench) -> None:
    """Its log has to go on in a new segment: the start was refused, and with it everybody who only reads."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    _fill(bench)
    bench.settle()
    count = bench.store.queue("t", 0).next_offset
    end = bench.store.log.end_offset
    bench.crash()
    bench.overwrite(end, b"torn")
    bench.open()
    assert bench.store.epoch == 2
    assert len(bench.messages("t")) == count
    _fill(bench)
    bench.restart()
    assert len(bench.messages("t")) > count


def test_a_full_log_has_room_for_what_an_operator_asks(make_bench: MakeBench) -> None:
    """Small messages filled it to the last byte: nobody could resume a channel, and publishing was writable again."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    _fill(bench, body=b"x")
    request = PublishBatch()
    request.destinations, request.queues = ["control"], [bench.store.queue("control", 0)]
    request.uses_reserve = True
    request.append(bytes(200))
    bench.store.append(request)
    assert "no room" in bench.store.last_write_error
    with pytest.raises(StoreFullError):
        bench.append("t", b"x")
    bench.restart()
    bench.settle()
    with pytest.raises(StoreFullError):
        bench.append("t", b"x")
    assert len(bench.messages("control")) == 1
    bench.restart(budget_bytes=6 * SEGMENT_BYTES)
    _fill(bench)
    assert bench.store.log.active.first_offset == 4 * SEGMENT_BYTES


def test_a_batch_that_reaches_the_last_segment_leaves_room_there(make_bench: MakeBench) -> None:
    """For what an operator asks, as one that begins in it does."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    bodies = [bytes(100)] * 616  # of 212 bytes each in the log: as many as two segments hold
    with pytest.raises(StoreFullError):
        bench.append("t", *bodies)
    assert bench.store.log.end_offset == 0
    bench.append("t", *bodies[:570])
    assert bench.store.log.active.first_offset == SEGMENT_BYTES
    request = PublishBatch()
    request.destinations, request.queues = ["control"], [bench.store.queue("control", 0)]
    request.uses_reserve = True
    for _ in range(10):
        request.append(bytes(200))
    bench.store.append(request)


def _fill(bench: StoreBench, body: bytes = bytes(5000)) -> None:
    """Append until the store is full."""
    with suppress(StoreFullError):
        while True:
            bench.append("t", body, flush=False)
    bench.store.flush()


def test_folders_of_a_new_store_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's own folder must survive a power cut, or no record in it does."""
    synced: set[str] = set()
    real = os.fsync

    def note(fd: int) -> None:
        synced.add(os.path.realpath(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr("os.fsync", note)
    StoreBench(tmp_path / "new").close()
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "commitlog")} <= synced


def test_a_power_cut_leaves_no_open_store_that_looks_closed(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``abort`` the checker calls damage what a power cut may leave: a torn tail, half a command."""
    bench.close()
    synced: list[bool] = []
    real = os.fsync

    def note(fd: int) -> None:
        real(fd)
        if os.path.samestat(os.fstat(fd), bench.root.stat()):
            synced.append((bench.root / "abort").exists())

    monkeypatch.setattr("os.fsync", note)
    bench.open()
    assert True in synced


def test_damage_is_named_up_to_a_bound(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """A log full of damage must neither fill memory nor the log file; the counter goes on."""
    with caplog.at_level(logging.ERROR):
        for offset in range(25_000):
            bench.store._name_damage(offset, "bad checksum")
    assert len(caplog.records) <= 10_001
    assert len(bench.store._named_damage) <= 10_000
    assert bench.store.counters.damaged_records == 25_000


def test_a_checkpoint_of_many_queues_holds_the_loop_shortly(make_bench: MakeBench) -> None:
    """Work over 1 ms does not stay on the loop in one piece; here, one slice writes a few queues."""
    bench = make_bench()
    clock = bench.store.clock
    for number in range(50):
        bench.append(f"t{number}", b"x", flush=False)
    bench.store.flush()
    calls = 0
    real = bench.store.checkpoints.write_queue

    def slow(queue: Any) -> None:
        nonlocal calls
        calls += 1
        clock.advance_ms(1)  # type: ignore[attr-defined]
        real(queue)

    bench.store.checkpoints.write_queue = slow  # type: ignore[method-assign]
    bench.store.checkpoints.start()
    assert calls < 10
    bench.append("late", b"appended while the views were being written")
    while bench.store.checkpoints._to_write:
        before = calls
        bench.store.tick()
        assert calls - before < 10
    assert bench.store.checkpoints.job is not None
    bench.store.checkpoints.job.result()
    bench.crash_and_open()
    assert bench.store.recovery.scanned_from <= bench.store.checkpoints.offset
    assert len(bench.store.queues) == 51


def test_files_of_new_queues_are_made_ahead_in_a_thread(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine thousand new topics made a stop 8 to 12 s long: each has two folders and a file, which it had to make."""
    monkeypatch.setattr("headrace.store.checkpoint.MADE_AT_ONCE", 20)
    made = [f"t{number}" for number in range(30)]
    for topic in made:
        bench.append(topic, b"x", flush=False)
    bench.store.flush()
    for _ in range(2):
        bench.store.tick()
        assert bench.store.checkpoints._making is not None
        bench.store.checkpoints._making.result()
    paths = [bench.root / "consumequeue" / topic / "0" / f"{0:020d}" for topic in made]
    assert {path.read_bytes() for path in paths} == {bytes(400)}
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.files, "make_first", None)  # once for each
        bench.store.tick()
    bench.crash_and_open()
    assert all(bench.messages(topic) == {0: b"x"} for topic in made)


@pytest.mark.parametrize("in_the_way", ["file", "away"])
def test_a_file_that_cannot_be_made_ahead_is_left_to_whoever_writes_the_queue(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, in_the_way: str
) -> None:
    """A full disk, or one that is not mounted: named once, when the entries are written, and mended behind it."""
    folder = bench.root / "consumequeue"
    bench.append("before", b"x")
    _run_checkpoint(bench)
    bench.append("t", b"x")
    if in_the_way == "file":
        (folder / "t").touch()
    else:
        folder.rename(bench.root / "away")
    bench.store.tick()
    assert bench.store.checkpoints._making is not None
    assert isinstance(bench.store.checkpoints._making.exception(), OSError)
    assert caplog.text == ""
    _run_checkpoint(bench)
    assert caplog.text.count("consume queue not written") == 1
    assert folder.exists() == (in_the_way == "file")
    if in_the_way == "file":
        (folder / "t").unlink()
    else:
        (bench.root / "away").rename(folder)
    bench.restart()
    assert bench.messages("t") == {0: b"x"}


def test_a_file_made_ahead_is_not_touched_where_there_is_one(bench: StoreBench) -> None:
    bench.append("t", b"x")
    _run_checkpoint(bench)
    folder = bench.root / "consumequeue" / "t" / "0"
    before = _content(folder)
    bench.store.files.make_first([str(folder), str(folder.with_name("1"))])
    assert _content(folder) == before
    assert _content(folder.with_name("1")) == {str(folder.with_name("1") / f"{0:020d}"): bytes(400)}


def test_epoch_gap_is_not_read_again(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that was killed between noting the epoch and cutting the log leaves half a command: it stays cut."""
    bench = make_bench()
    bench.append("t", b"whole")
    half = bench.append("t", b"1", b"2", b"3", command=True, flush=False)
    bench.crash()
    bench.overwrite(half[2][2], bytes(500))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Opening, "_blank_rest", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.open()
    bench.open()
    assert list(bench.messages("t").values()) == [b"whole"]
    assert bench.store.holes == []


@pytest.mark.parametrize("what", ["mended", "skipped", "forgotten"])
def test_a_start_that_changed_the_queues_notes_it(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Else the next one finds the files differ from their note and begins with the whole log."""
    bench = make_bench()
    placed = [bench.append("t", b"%d" % number)[0] for number in range(50)]
    lost = bench.append("t", b"lost")[0]
    if what == "skipped":
        bench.store.checkpoints.write_queue(bench.store.queue("t", 0))
        bench.crash()
        bench.overwrite(lost[2] + 50, b"\xff" * 40)
        bench.open()  # the epoch that begins knows an offset that the log has no record of
        bench.store.close()
        bench.open()  # its filler was taken out of the files
        bench.store.checkpoints.write_queue(bench.store.queue("t", 0))
        bench.crash()
    else:
        bench.store.close()
        if what == "mended":
            with (bench.root / "consumequeue/t/0" / f"{0:020d}").open("r+b") as file:
                file.write(bytes(5 * 20))
        else:
            bench.overwrite(lost[2] + 50, b"\xff" * 40)
    bench.open()
    report = bench.store.recovery
    bench.crash()
    caplog.clear()
    bench.open()
    assert "rebuilt" not in caplog.text, report
    assert "rewritten" not in caplog.text
    assert list(bench.messages("t")) == [offset for _, offset, _, _ in placed] + [50] * (what == "mended")
    assert bench.append("t", b"new")[0][1] == 51
    bench.store.close()


def test_entries_of_a_segment_that_a_power_cut_took_are_forgotten_for_good(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ends where its newest file does: only the entries behind that say that there was more."""
    monkeypatch.setattr("headrace.store.boot_note.current_boot_id", lambda: "first")
    bench = make_bench(durability="async")
    bench.append("t", *(b"%03d" % n + bytes(2000) for n in range(20)))
    bench.store.checkpoints.start()
    bench.settle()
    while bench.store.log.end_offset < SEGMENT_BYTES:
        bench.append("t", bytes(2000), flush=False)
    last_issued = bench.store.queue("t", 0).next_offset - 1
    bench.store.checkpoints.write_queue(bench.store.queue("t", 0))
    bench.settle()
    bench.crash()
    for path in sorted((bench.root / "commitlog").iterdir())[1:]:
        path.unlink()
    monkeypatch.setattr("headrace.store.boot_note.current_boot_id", lambda: "second")
    bench.open()
    assert last_issued not in bench.messages("t")
    assert bench.append("t", b"new")[0][1] == last_issued + 1
    bench.crash_and_open()
    assert bench.messages("t")[last_issued + 1] == b"new"
    assert last_issued not in bench.messages("t")
    bench.store.close()


@pytest.mark.parametrize("crash", ["at once", "while a checkpoint is written", "behind a checkpoint"])
def test_queues_behind_a_torn_tail_are_left_to_the_checkpoint(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """A start that cuts a torn record off does not wait for the queues: the next one knows as much without them."""
    bench = make_bench()
    kept = [bench.append(f"t{number % 7}", b"%d" % number)[0] for number in range(30)]
    torn = bench.append("t1", b"torn", flush=False)[0]
    bench.crash()
    bench.overwrite(torn[2] + 50, b"\xff" * 40)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write_all", None)
        bench.open()
    assert bench.store.epoch == 2
    new = [bench.append(f"t{number % 7}", b"new %d" % number)[0] for number in range(20)]
    if crash == "while a checkpoint is written":
        for number in range(0, 7, 2):
            bench.store.checkpoints.write_queue(bench.store.queue(f"t{number}", 0))
    elif crash == "behind a checkpoint":
        bench.store.checkpoints.start()
        assert bench.store.checkpoints.job is not None
        bench.store.checkpoints.job.result()
    bench.crash_and_open()
    assert bench.store.holes == []
    assert bench.store.epoch == 2
    placed = kept + new
    for number in range(7):
        expected = {offset: body for topic, offset, _, body in placed if topic == f"t{number}"}
        assert bench.messages(f"t{number}") == expected
        assert len(expected) == sum(topic == f"t{number}" for topic, *_ in placed)  # no offset twice


def test_a_start_behind_a_torn_tail_reads_only_what_was_written(tmp_path: Path) -> None:
    """A segment is a gigabyte of which most was never written: reading it all took a start seconds."""
    size = 128 << 20
    bench = StoreBench(tmp_path / "wide", segment_bytes=size)
    path = str(bench.segment(0))
    if sum(end - start for start, end in Segment(path, 0, size).written_ranges(0)) > size // 2:
        bench.close()
        cannot_run("this file system does not tell what was never written: choose another with TMPDIR")
    bench.append("t", b"kept")
    torn = bench.append("t", b"torn", flush=False)[0]
    bench.crash()
    bench.overwrite(torn[2] + 50, b"\xff" * 40)
    bench.open()
    assert bench.store.epoch == 2
    # A page that was read counts as written; one fault may read 16 MiB around it.
    assert sum(end - start for start, end in Segment(path, 0, size).written_ranges(0)) < size // 2
    bench.close()


def test_a_batch_without_memory_leaves_nothing_behind(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a full disk; what it had written is zeroed in small pieces, as there may be no memory for one of its size."""
    kept = bench.append("t", b"kept")

    def refuse(first_offset: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(bench.store._supply, "take", refuse)
        with pytest.raises(NoMemoryError, match="give the process more memory"):
            bench.append("t", *[b"x" * 10_000] * 8)
    assert bench.bytes_at(kept[0][2] + 2_000, 50_000) == bytes(50_000)
    kept += bench.append("t", b"behind")
    bench.crash_and_open()
    assert bench.messages("t") == {offset: body for _, offset, _, body in kept}


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _put_a_backup_in_place(bench: StoreBench) -> dict[str, bytes]:
    """Move the store's directory away and an older copy of it to its path; return what the copy holds."""
    bench.store.checkpoints.start()
    bench.settle()
    backup = bench.copy(bench.root.with_name("backup"))
    bench.append("t", b"behind the backup")
    bench.root.rename(bench.root.with_name("moved away"))
    backup.rename(bench.root)
    return _content(bench.root)


def _append_until_refused(bench: StoreBench, bodies: list[bytes]) -> None:
    """Append messages with a key, and note those that are taken, until the store refuses one."""
    for _ in range(100):
        bench.append("t", b"x" * 10_000, properties=b"KEYS\x01k\x02")
        bodies.append(b"x" * 10_000)


def _check_where_it_was_moved(bench: StoreBench, bodies: list[bytes]) -> None:
    """What was acknowledged is there; the backup goes with that."""
    shutil.rmtree(bench.root)
    bench.root.with_name("moved away").rename(bench.root)
    bench.open()
    assert list(bench.messages("t").values()) == bodies


def test_a_directory_in_the_place_of_the_store_is_left_alone(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup was restored before the restart: the broker wrote its last state into it, of messages it had not."""
    bench.append("t", b"a")
    before = _put_a_backup_in_place(bench)
    bench.clock.advance_ms(1_000)
    bench.store.tick()
    assert bench.store.is_replaced
    with pytest.raises(ReplacedStoreError, match=rf"{bench.root} is not the directory that this broker has opened"):
        bench.append("t", b"refused")
    bench.clock.advance_ms(60_000)
    bench.store.tick()
    bench.store.close()
    assert _content(bench.root) == before
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    _check_where_it_was_moved(bench, [b"a", b"behind the backup"])


def test_a_directory_in_the_place_of_the_store_is_found_at_its_end(bench: StoreBench) -> None:
    """As before, with the stop in the same second."""
    bench.append("t", b"a")
    before = _put_a_backup_in_place(bench)
    bench.store.close()
    assert bench.store.is_replaced
    assert _content(bench.root) == before
    _check_where_it_was_moved(bench, [b"a", b"behind the backup"])


def test_no_file_is_made_in_a_directory_that_was_put_in_the_place_of_the_store(bench: StoreBench) -> None:
    """Two brokers wrote to one directory: 2,053 of 3,000 messages that the second had acknowledged were left."""
    bodies = [b"a", b"behind the backup"]
    bench.append("t", b"a")
    before = _put_a_backup_in_place(bench)
    with pytest.raises(ReplacedStoreError):
        _append_until_refused(bench, bodies)
    assert bench.store.is_replaced
    bench.crash()
    assert _content(bench.root) == before
    _check_where_it_was_moved(bench, bodies)


@pytest.mark.parametrize("leaves_folder", [False, True])
def test_a_directory_that_is_away_for_a_moment_is_no_other_one(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, *, leaves_folder: bool
) -> None:
    """An unmounted disk, for seconds: its mount point is an empty folder, or is not there either."""
    bodies = [b"a"]
    bench.append("t", b"a")
    bench.settle()
    away = bench.root.with_name("away")
    bench.root.rename(away)
    if leaves_folder:
        bench.root.mkdir()
    for _ in range(3):
        bench.clock.advance_ms(1_000)
        bench.store.tick()
    assert bench.store.why_elsewhere == f"data directory not found: {bench.root}"
    with pytest.raises(StoreError, match=r"cannot allocate .*No such file or directory"):
        _append_until_refused(bench, bodies)
    assert bench.store.failure is None
    assert caplog.text.count("data directory not found, looked for again") == 1
    if leaves_folder:
        assert list(bench.root.iterdir()) == []
        bench.root.rmdir()
    away.rename(bench.root)
    bench.clock.advance_ms(1_000)
    bench.store.tick()
    assert not bench.store.why_elsewhere
    bench.append("t", b"x" * 10_000)
    bench.restart()
    assert list(bench.messages("t").values()) == [*bodies, b"x" * 10_000]


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_removed_segment_takes_no_more_writes(bench: StoreBench, *, is_moved: bool) -> None:
    """Up to a segment of messages was acknowledged at level fsync that no start could find; the process has them."""
    bench.append("t", b"a")
    bench.settle()
    path = bench.segment(0)
    if is_moved:
        path.rename(bench.root / "elsewhere")
    else:
        path.unlink()
    bench.append("t", b"b")
    bench.clock.advance_ms(1_000)
    bench.store.tick()
    if is_moved:
        assert bench.store.failure is None
        (bench.root / "elsewhere").rename(path)
    else:
        with pytest.raises(StoreError, match=r"was removed .*: copy /proc/\d+/fd/\d+ there before") as caught:
            bench.append("t", b"refused")
        shutil.copyfile(str(caught.value).split("copy ")[1].split(" there")[0], path)
    bench.restart()
    assert list(bench.messages("t").values()) == [b"a", b"b"]


def test_a_segment_that_cannot_be_looked_for_is_not_taken_for_removed(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that counts no names, and a folder that may not be looked into: writing goes on."""
    bench.append("t", b"a")
    path, stat, fstat = bench.segment(0), Path.stat, os.fstat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    def count_no_names(fd: int) -> os.stat_result:
        return os.stat_result((*fstat(fd)[:3], 0, *fstat(fd)[4:]))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refuse)
        patched.setattr(os, "fstat", count_no_names)
        bench.store.look_at_place()
    assert bench.store.failure is None
    bench.append("t", b"b")


def test_few_open_files_leave_some_for_all_the_rest(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more queues than files a broker refused the next segment, could not stop, and was never to start again."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    bench = make_bench()
    for number in range(100):
        bench.append(f"t{number}", bytes(40_000))
    bench.store.checkpoints.start()
    bench.settle()
    opened = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    assert 2 <= sum(path.startswith(str(bench.store.directory.consume_queues)) for path in opened) <= 64 // 4
    assert 2 <= sum(path.startswith(str(bench.store.directory.commit_log)) for path in opened) <= 64 // 16 + 1


@pytest.mark.parametrize(
    ("call", "part"),
    [("fdatasync", "commitlog/"), ("fsync", "/store"), ("pwrite", "/0/")],
)
def test_what_a_start_cannot_write_is_named(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, call: str, part: str
) -> None:
    """The system names only what is opened, renamed or removed; "Input/output error" alone helps nobody."""
    bench.append("t", b"a")
    bench.append("t", b"b")
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.store.abandon()
    (entries,) = bench.store.directory.consume_queues.glob("t/0/*")
    with entries.open("r+b") as file:
        file.write(bytes(8) + b"\0\0\0\7")  # what the start mends
    do = getattr(os, call)

    def refuse(fd: int, *arguments: object) -> object:
        if part in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return do(fd, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="Input/output error") as raised:
            bench.open()
    assert part in str(raised.value.filename)
    bench.open()
    assert bench.messages("t") == {0: b"a", 1: b"b"}


def test_an_entry_that_the_disk_takes_in_part_is_not_mended(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an entry reaches into a page that is not on the disk, a full disk takes the part before it."""
    bench.append("t", b"a")
    bench.append("t", b"b")
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.store.abandon()
    (entries,) = bench.store.directory.consume_queues.glob("t/0/*")
    with entries.open("r+b") as file:
        file.write(bytes(8) + b"\0\0\0\7")
    pwrite = os.pwrite

    def take_a_part(fd: int, data: bytes, at: int) -> int:
        is_entry = Path(f"/proc/self/fd/{fd}").readlink() == entries
        return pwrite(fd, data[:10] if is_entry else data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", take_a_part)
        with pytest.raises(OSError, match="No space left on device") as raised:
            bench.open()
    assert raised.value.filename == str(entries)
    bench.open()
    assert bench.messages("t") == {0: b"a", 1: b"b"}


def test_a_start_that_is_refused_leaves_no_file_open(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process tries again and again, as tests and tools do, it would have none left."""
    bench.append("t", b"a")
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.store.abandon()
    del bench.store

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Opening, "_sync_log", refuse)
        with pytest.raises(OSError, match="No space left on device") as raised:
            bench.open()
        del raised
    gc.collect()
    opened = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if path.startswith(str(bench.root))] == []
    bench.open()
