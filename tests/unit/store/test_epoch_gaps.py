"""What lies between two epochs: blank files, so that RocketMQ finds none missing. Ref: docs/formats/side-files.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.cli.program import run
from headrace.spark.files import StoreFiles
from headrace.store import opening
from headrace.store.foreign import look_at_foreign
from headrace.store.inspect import inspect_store
from headrace.store.log_ranges import find_range, next_file
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench

CUT = 2 * SEGMENT_BYTES
"""Where the log goes on once its first file was cut off: behind the file that was made ahead."""


def tear(bench: StoreBench) -> int:
    """Tear the last message, which its queue knows, and crash; return where it begins."""
    torn = bench.append("t", b"torn", flush=False)[0][2]
    bench.store.queue("t", 0).write_out()
    bench.settle()
    bench.crash()
    bench.overwrite(torn + 50, b"\xff" * 20)
    return torn


def cut_off(bench: StoreBench) -> int:
    """Tear the last message, start over; return where the log was cut."""
    torn = tear(bench)
    bench.open()
    return torn


def files(bench: StoreBench) -> list[int]:
    """Return where the files of the log begin, in files."""
    return sorted(int(path.name) // SEGMENT_BYTES for path in (bench.root / "commitlog").iterdir())


def is_blank(bench: StoreBench, index: int) -> bool:
    raw = bench.bytes_at(index * SEGMENT_BYTES, SEGMENT_BYTES)
    return raw == layouts.encode_blank(SEGMENT_BYTES).ljust(SEGMENT_BYTES, b"\0")


def test_the_file_made_ahead_stays_as_one_blank_record(bench: StoreBench) -> None:
    bench.append("t", b"one")
    cut_off(bench)
    assert bench.append("t", b"new")[0][2] == CUT
    for _ in range(3):
        bench.settle()
        assert files(bench) == [0, 1, 2, 3]
        assert is_blank(bench, 1)
        assert bench.store.missing == []
        assert bench.messages("t") == {0: b"one", 2: b"new"}
        bench.restart()
    bench.crash_and_open()
    assert (files(bench), is_blank(bench, 1)) == ([0, 1, 2, 3], True)


def test_a_gap_takes_no_room(bench: StoreBench) -> None:
    """Neither on the disk nor of the budget, which is of messages."""
    bench.append("t", b"one")
    torn = cut_off(bench)
    for physical_offset in (torn, SEGMENT_BYTES):
        room = bench.segment(physical_offset).stat().st_blocks * 512
        assert room <= 2 * os.statvfs(bench.root).f_bsize < SEGMENT_BYTES
    assert list(bench.store.log.segments) == [0, 2]


def test_a_file_system_without_holes_gets_zeros(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append("t", b"one")
    tear(bench)
    bench.overwrite(SEGMENT_BYTES, b"\xff" * 5000)
    monkeypatch.setattr(opening, "punch_hole", lambda *_: False)
    bench.open()
    assert is_blank(bench, 1)
    assert bench.messages("t") == {0: b"one"}


def test_files_that_were_lost_behind_the_end_are_made_blank(bench: StoreBench) -> None:
    """The durable mark knows how far the log reached; it goes on above, and a person may miss nothing in between."""
    bench.append("t", b"one")
    while bench.store.log.end_offset < 4 * SEGMENT_BYTES:
        bench.append("t", bytes(1000))
    bench.settle()
    bench.crash()
    for index in range(1, 6):
        (bench.root / "commitlog" / f"{index * SEGMENT_BYTES:020d}").unlink(missing_ok=True)
    bench.open()
    assert bench.store.epochs.newest.first_offset == 5 * SEGMENT_BYTES
    bench.settle()
    assert files(bench) == [0, 1, 2, 3, 4, 5, 6]
    assert all(is_blank(bench, index) for index in range(1, 5))
    assert bench.segment(SEGMENT_BYTES).stat().st_blocks * 512 <= os.statvfs(bench.root).f_bsize
    assert bench.messages("t")[0] == b"one"


def test_a_log_without_any_file_begins_where_it_goes_on(bench: StoreBench) -> None:
    """What comes first is no gap to RocketMQ: its retention takes the oldest files."""
    while bench.store.log.end_offset < 2 * SEGMENT_BYTES:
        bench.append("t", bytes(1000))
    bench.settle()
    bench.crash()
    for path in (bench.root / "commitlog").iterdir():
        path.unlink()
    bench.open()
    bench.settle()
    first = bench.store.epochs.newest.first_offset // SEGMENT_BYTES
    assert files(bench) == [first, first + 1]


def close_without_its_gap_file(bench: StoreBench) -> None:
    """Leave a store whose log lacks the file between its two epochs, as earlier builds did."""
    bench.append("t", b"one")
    cut_off(bench)
    bench.append("t", b"new")
    bench.settle()
    bench.close()
    bench.segment(SEGMENT_BYTES).unlink()


def test_a_gap_of_an_earlier_build_is_filled(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """It removed the file that was made ahead."""
    close_without_its_gap_file(bench)
    caplog.clear()
    bench.open()
    assert (is_blank(bench, 1), bench.store.missing, caplog.messages) == (True, [], [])
    assert bench.messages("t") == {0: b"one", 2: b"new"}


def test_a_gap_that_cannot_be_filled_is_no_reason_not_to_start(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close_without_its_gap_file(bench)

    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "replacing", refuse)
        bench.open()
    assert any("RocketMQ cannot read this log" in message for message in caplog.messages)
    assert bench.messages("t") == {0: b"one", 2: b"new"}
    bench.restart()
    assert is_blank(bench, 1)


@pytest.mark.parametrize("step", ["_leave_out_gaps", "_blank_rest", "_fill_gaps", "_sync_log"])
def test_a_start_that_is_killed_leaves_the_next_one_the_gap(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    bench.append("t", b"one")
    tear(bench)
    bench.overwrite(SEGMENT_BYTES, b"\xff" * 5000)
    real, calls = getattr(opening.Opening, step), 0

    def killed(*given: object) -> None:
        nonlocal calls
        calls += 1
        if step == "_leave_out_gaps" and calls == 1:
            real(*given)  # there are none yet
            return
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opening.Opening, step, killed)
        with pytest.raises(KeyboardInterrupt):
            bench.open()
    bench.open()
    assert (is_blank(bench, 1), bench.store.epoch, list(bench.store.log.segments)) == (True, 2, [0, 2])
    assert bench.append("t", b"new")[0][1:3] == (2, CUT)


def test_several_epochs_in_a_row_leave_a_whole_log(bench: StoreBench) -> None:
    bench.append("t", b"one")
    for number in range(4):
        cut_off(bench)
        if number % 2:
            bench.append("t", b"between %d" % number)
    bench.settle()
    found = files(bench)
    assert found == list(range(found[-1] + 1))
    bench.restart()
    assert list(bench.messages("t").values()) == [b"one", b"between 1", b"between 3"]


def test_tools_and_readers_step_over_the_gap(bench: StoreBench, capsys: pytest.CaptureFixture[str]) -> None:
    """As over one without a file: readers of the whole log, over the network and in the folder, are sent none of it."""
    bench.append("t", b"one")
    torn = cut_off(bench)
    bench.append("t", b"new")
    log = bench.store.log
    assert find_range(log, SEGMENT_BYTES + 1000, 100) is None
    assert next_file(log, SEGMENT_BYTES + 1000) == CUT
    bench.close()
    assert StoreFiles(bench.root).extent().runs == ((0, SEGMENT_BYTES), (CUT, log.end_offset or CUT + 1))
    assert torn < SEGMENT_BYTES
    assert run(["store", "dump", str(bench.root)]) == 0
    assert capsys.readouterr().out.count("physical_offset") == 2
    assert len(inspect_store(bench.root)[0]["segments"]) >= 3


def test_a_store_with_gaps_is_imported_once_rocketmq_has_had_it(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = make_bench(segment_bytes=1 << 20)
    bench.append("t", b"one")
    cut_off(bench)
    bench.append("t", b"new")
    bench.settle()
    bench.close()
    copy = tmp_path / "rocketmq"
    shutil.copytree(bench.root, copy)
    shutil.rmtree(copy / "headrace")
    assert len(look_at_foreign(copy).segments) == 3
    assert run(["store", "import", str(copy), "--data-dir", str(tmp_path / "again")]) == 0
    again = make_bench("again")
    assert list(again.messages("t").values()) == [b"one", b"new"]


def test_a_log_that_has_lost_what_lies_before_a_gap_begins_behind_it(bench: StoreBench) -> None:
    """Where it begins decides which entries of a queue may point at what is there."""
    bench.append("t", b"one")
    cut_off(bench)
    bench.append("t", b"new")
    bench.settle()
    bench.close()
    bench.segment(0).unlink()
    bench.open()
    assert (bench.store.log.first_offset, bench.store.missing) == (CUT, [(0, CUT)])
    assert bench.messages("t") == {2: b"new"}
    bench.close(whole=False)


@pytest.mark.parametrize("is_filled", [True, False])
def test_what_is_missing_behind_a_gap_is_told_alike(bench: StoreBench, is_filled: bool) -> None:
    """The gap itself is not: its file is blank, or was never made by an earlier build."""
    bench.append("t", b"one")
    cut_off(bench)
    bench.append("t", *[bytes(1000)] * 100)
    bench.close()
    bench.segment(CUT).unlink()
    if not is_filled:
        bench.segment(SEGMENT_BYTES).unlink()
    missing = [(CUT, CUT + SEGMENT_BYTES)]
    found = [(f.physical_offset, f.end_offset) for f in bench.check().damage if f.kind in ("missing_segment", "hole")]
    assert found == missing * 2
    assert list(StoreFiles(bench.root).extent().missing) == missing
    bench.open()
    assert bench.store.missing == missing
    bench.store.close()
