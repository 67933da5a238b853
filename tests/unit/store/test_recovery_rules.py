"""The store's rules that a start keeps: holes, torn tails, epochs, views, identity, lock."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.batch import RecordBatch
from headrace.broker.pull import read_queue
from headrace.clock import ManualClock
from headrace.errors import (
    FlushError,
    ForeignStoreError,
    FormatVersionError,
    SideFileError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from headrace.format.side_file import write_side_file
from headrace.spark.files import StoreFiles
from headrace.store import opening
from headrace.store.check import check_store
from headrace.store.segment import Segment
from headrace.store.segment_supply import SegmentSupply
from headrace.store.store import Store
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench, small_settings

PAGE_BYTES = 4096
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def punch_hole(path: Path, size: int) -> None:
    """Take the blocks of the first bytes from a file, which keeps its length."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file:
        if libc.fallocate(file.fileno(), FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, *map(ctypes.c_int64, (0, size))):
            pytest.skip(f"the file system punches no holes: {os.strerror(ctypes.get_errno())}")


def note_beginning(bench: StoreBench, offset: int) -> None:
    """Note what an import does of a log whose oldest files retention took."""
    epochs = [{"epoch": 1, "first_physical_offset": offset}]
    write_side_file(bench.root / "headrace/epochs.json", "epochs", epochs)


@pytest.mark.parametrize("messages", [20, 150])
def test_a_refused_batch_does_not_come_back(make_bench: MakeBench, messages: int) -> None:
    """A-STORE-51: StoreFull by budget: a batch that was refused at a segment roll is never delivered."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    bench.append("t", b"kept")
    before: dict[int, bytes] = {}

    def fill() -> None:
        nonlocal before
        for _ in range(100):
            before = bench.messages("t")
            bench.append("t", *(b"%03d" % n + b"x" * 1000 for n in range(messages)))

    with pytest.raises(StoreFullError, match=r"raise store\.budget_bytes"):
        fill()
    assert bench.messages("t") == before
    bench.append("t", b"small")
    expected = bench.messages("t")
    bench.crash_and_open()
    assert bench.messages("t") == expected
    bench.restart()
    assert bench.messages("t") == expected


def put_numbered(bench: StoreBench, at: int, numbered: list[tuple[int, bytes]]) -> None:
    """Write records with these queue offsets into the log, one behind the other."""
    for offset, body in numbered:
        made = layouts.Record(queue_offset=offset, physical_offset=at, body=body, topic=b"r", store_ms=1)
        raw = made.encode_checked()
        bench.overwrite(at, raw)
        at += len(raw)


@pytest.mark.parametrize("news", [1, 2, 10])
@pytest.mark.parametrize("before", [range(50, 60), range(30), range(5), range(1), range(3, 12)])
@pytest.mark.parametrize("verified_back", [0, 1 << 28])
def test_a_topic_that_rocketmq_numbered_anew_is_the_new_one(
    tmp_path: Path,
    before: range,
    news: int,
    verified_back: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It numbers a topic from 0 again that was deleted and made again; the old records stay in the log."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", verified_back)
    bench = StoreBench(tmp_path / "store")
    bench.append("t", b"x")
    at = bench.store.log.end_offset
    bench.crash()
    old = [(offset, b"old %d" % offset) for offset in before]
    put_numbered(bench, at, [*old, (0, b"between"), *((offset, b"new %d" % offset) for offset in range(news))])
    bench.open()
    wanted = {offset: b"new %d" % offset for offset in range(news)}
    for _ in range(3):
        assert bench.messages("r") == wanted
        bench.store.close()
        bench.open()
    assert "queue numbered anew in the log" in caplog.text
    bench.append("r", b"next")
    bench.crash_and_open()
    assert bench.messages("r") == wanted | {news: b"next"}
    bench.store.close()
    report = check_store(bench.root)
    assert report.damage == [], report.to_json()


@pytest.mark.parametrize("low", [0, 3, 6])
def test_a_damaged_number_is_no_topic_made_again(tmp_path: Path, low: int) -> None:
    """RocketMQ 4 has no checksum over a record's queue offset: one that steps back and is alone costs its message."""
    bench = StoreBench(tmp_path / "store")
    bench.append("t", b"x")
    at = bench.store.log.end_offset
    bench.crash()
    put_numbered(bench, at, [(low if offset == 7 else offset, b"%d" % offset) for offset in range(10)])
    bench.open()
    for _ in range(2):
        assert bench.messages("r") == {offset: b"%d" % offset for offset in range(10) if offset != 7}
        bench.store.close()
        bench.open()
    bench.store.close()


@pytest.mark.parametrize(("at", "size"), [(0, 8), (8, 4), (12, 8)])
@pytest.mark.parametrize("offset", [0, 4, 9])
def test_an_entry_that_the_log_contradicts_is_made_anew(bench: StoreBench, offset: int, at: int, size: int) -> None:
    """A-STORE-08, design.md 7: a damaged side file is rebuilt where the log can give it: place, size and tag hash."""
    bench.append("t", *(b"%d" % n for n in range(10)), tag_hash=layouts.java_hash("a"), properties=b"TAGS\x01a\x02")
    expected = bench.store.queue("t", 0).entries(0, 10)
    bench.close()
    with (bench.root / "consumequeue/t/0" / f"{0:020d}").open("r+b") as file:
        file.seek(offset * 20 + at)
        file.write((33).to_bytes(size, "big"))
    bench.open()
    for _ in range(2):
        assert bench.store.queue("t", 0).entries(0, 10) == expected
        bench.restart()


@pytest.mark.parametrize("others", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_an_entry_whose_record_is_another_topic_s_shows_nobody_that(bench: StoreBench, others: set[int]) -> None:
    """Files of the log and of the queues from different copies: wherever in its queue such an entry stands."""
    placed = bench.append("t", b"0", b"1", b"2")
    bench.close()
    for number, offset in enumerate(sorted(others)):
        _, _, at, body = placed[offset]
        made = layouts.Record(queue_offset=number, physical_offset=at, body=body, topic=b"o", store_ms=1)
        bench.overwrite(at, made.encode_checked())
    bench.open()
    for _ in range(2):
        assert bench.messages("t") == {offset: body for _, offset, _, body in placed if offset not in others}
        assert list(bench.messages("o").values()) == [placed[offset][3] for offset in sorted(others)]
        assert bench.store.queue("t", 0).next_offset == 3
        bench.restart()


@pytest.mark.parametrize("body_bytes", [10, 30_000])
def test_what_a_start_cut_off_is_gone_also_when_that_start_was_killed(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, body_bytes: int
) -> None:
    """What was cut off stays in the gap between epochs until it is blanked; readers of the log step over none."""
    bench.append("t", b"first")
    bodies = [b"ghost %d" % number + bytes(body_bytes) for number in range(5)]
    cut = bench.append("t", *bodies, flush=False, command=True)
    bench.crash()
    bench.overwrite(cut[4][2], bytes(SEGMENT_BYTES - cut[4][2] % SEGMENT_BYTES))  # its last record is not on the disk

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(opening.Opening, "_blank_rest", staticmethod(fail))
        with pytest.raises(OSError, match="Input/output"):
            bench.open()
    report = bench.check()
    assert (report.damage, report.log.records) == ([], 1)
    bench.open()
    bench.append("t", b"after")
    bench.store.close()
    assert b"ghost" not in b"".join(path.read_bytes() for path in sorted((bench.root / "commitlog").iterdir()))
    bench.open()
    assert bench.messages("t") == {0: b"first", 5: b"after"}


def test_a_batch_of_many_pieces_is_there_or_is_not(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-STORE-22: what is written 1 MiB at a time is one batch; refused at its last piece it leaves none of them."""
    bench = make_bench(segment_bytes=4 << 20)
    bodies = [b"%02d" % number + b"x" * 99_990 for number in range(34)] + [b"y" * 1_300_000]
    bench.append("t", *bodies)  # into the second segment
    expected = dict(enumerate(bodies))
    assert bench.messages("t") == expected
    bench.crash_and_open()
    assert bench.messages("t") == expected

    def refuse(first_offset: int) -> None:
        raise StoreFullError("no room")

    end = bench.store.log.end_offset
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.log, "provide_segment", refuse)
        with pytest.raises(StoreFullError):
            bench.append("t", *bodies)
    assert not any((bench.root / "commitlog" / f"{4 << 20:020d}").read_bytes()[end - (4 << 20) :])
    bench.crash_and_open()
    assert bench.messages("t") == expected


def test_a_refused_batch_that_cannot_be_taken_back_ends_the_writes(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What were appended in front of its records would be followed by them at the next start."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    bench.append("t", b"kept")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fill() -> None:
        for _ in range(100):
            bench.append("t", *(b"%03d" % n + b"x" * 1000 for n in range(20)))

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", fail)
        with pytest.raises(FlushError, match=r"taking back a refused batch from .*: Input/output error"):
            fill()
    expected = bench.messages("t")
    with pytest.raises(FlushError, match="takes no more writes"):
        bench.append("t", b"small")
    bench.crash()
    assert bench.check().damage == []
    bench.open(budget_bytes=100 * SEGMENT_BYTES)
    assert bench.messages("t").items() >= expected.items()


@pytest.mark.parametrize("segments", [1, 2])
def test_a_refused_batch_that_is_taken_back_in_part_leaves_no_hole(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    """What is left of it is cut off as a torn tail: in front of its last records zeros would be damage for good."""
    bench = make_bench(segment_bytes=(4 << 20) // segments)
    bodies = [b"%02d" % number + b"x" * 99_990 for number in range(30)]
    bench.append("t", *bodies)
    write, pages = os.pwrite, 0

    def fail_later(fd: int, data: bytes, at: int) -> int:
        """As the system does: page by page, up to the first that is refused."""
        nonlocal pages
        done = 0
        while done < len(data) and pages < 50:
            done += write(fd, data[done : done + 4096 - (at + done) % 4096], at + done)
            pages += 1
        if not done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return done

    provide, last = bench.store.log.provide_segment, bench.store.log.end_offset + (segments - 1 << 21)

    def refuse(first_offset: int) -> Segment:
        if first_offset > last:
            raise StoreFullError("no room")
        return provide(first_offset)

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.log, "provide_segment", refuse)
        patch.setattr("os.pwrite", fail_later)
        with pytest.raises(FlushError, match=r"taking back a refused batch from .*: Input/output error"):
            bench.append("t", *bodies * segments, command=True)
    assert pages == 50
    bench.crash()
    assert bench.check().damage == []
    bench.open()
    assert bench.store.holes == []
    assert bench.messages("t") == dict(enumerate(bodies))


def test_offsets_that_only_the_views_know_are_not_issued_again(bench: StoreBench) -> None:
    """Offsets are never issued twice: a power cut took records whose queue entries reached the disk."""
    first = bench.append("t", b"durable")
    lost = bench.append("t", b"lost", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(lost[0][2], bytes(1000))
    for _ in range(2):
        shutil.copytree(bench.root, bench.root.with_name("killed"), dirs_exist_ok=True)
        bench.open()
        assert bench.store.epoch == 2
        bench.crash()
        # A start that is killed leaves the next one the same knowledge.
        shutil.rmtree(bench.root)
        bench.root.with_name("killed").rename(bench.root)
    bench.open()
    after = bench.append("t", b"new")
    assert after[0][2] > lost[0][2]
    assert after[0][1] > lost[0][1]
    assert bench.messages("t") == {first[0][1]: b"durable", after[0][1]: b"new"}


def test_a_damaged_entry_does_not_lead_the_log_far_away(bench: StoreBench) -> None:
    """What was issued lies in a segment that exists: an entry that points beyond all of them is damaged."""
    bench.append("t", b"one")
    bench.store.queue("t", 0).write_out()
    bench.crash()
    with (bench.root / "consumequeue/t/0" / f"{0:020d}").open("r+b") as file:
        file.seek(20)
        file.write(layouts.encode_entry(100 * SEGMENT_BYTES, 100, 0))
    bench.open()
    assert bench.store.log.end_offset <= 3 * SEGMENT_BYTES
    assert len(list((bench.root / "commitlog").iterdir())) <= 5  # the next segment may be there already
    assert bench.append("t", b"two")[0][1] == 2
    assert bench.messages("t") == {0: b"one", 2: b"two"}


def test_offsets_that_only_the_views_knew_outlive_a_start_killed_while_it_makes_them_anew(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are never issued twice: the files of the queues are removed before the log is read for new ones."""
    bench.append("t", b"durable")
    lost = bench.append("t", b"lost", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(lost[0][2], bytes(1000))
    note = {"physical_offset": lost[0][2], "queue_entries": 7, "clean": False, "written_ms": 0}
    write_side_file(bench.root / "headrace" / "checkpoint.json", "checkpoint", note)

    def killed(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.opening.scan_log", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.open()
    bench.open()
    assert bench.append("t", b"new")[0][1] > lost[0][1]


@pytest.mark.parametrize("torn_bytes", [20, 21, 22, 23, 30])
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize(("count", "torn"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_what_lies_in_place_of_a_checksum_does_not_make_a_record_of_another_broker(
    bench: StoreBench, before: int, count: int, torn: int, torn_bytes: int
) -> None:
    """A torn tail is cut off: without its checksum a last record was taken for RocketMQ's, the first of an MPUB too."""
    kept = [bench.append("t", b"%d" % number)[0] for number in range(before)]
    lost = bench.append("t", *[b"torn"] * count, flush=False, command=True, properties=b"TAGS\x01a tag\x02")
    end = (lost + bench.append("t", b"behind", flush=False))[torn + 1][2]
    bench.crash()
    path = bench.segment(end)
    size = path.stat().st_size
    os.truncate(path, end % SEGMENT_BYTES)
    os.truncate(path, size)
    bench.overwrite(end - torn_bytes, b"\xda" * torn_bytes)
    report = bench.check()
    assert report.exit_code == 0, report.to_json()
    assert "torn_tail" in [finding.kind for finding in report.info]
    bench.open()
    assert bench.store.epochs.newest.previous_end == report.log.end_offset
    assert bench.messages("t") == {offset: body for _, offset, _, body in kept}
    assert not bench.store.has_losses
    bench.append("t", b"new")
    assert list(bench.messages("t").values()) == [*(body for *_, body in kept), b"new"]


def test_what_is_no_record_in_front_of_one_that_lost_its_checksum_is_torn_too(bench: StoreBench) -> None:
    """Nothing valid is behind it; of the MPUB that was open there nothing is left."""
    bench.append("t", b"kept")
    first = bench.append("t", b"open", b"damaged", b"more", flush=False, command=True)
    lost = bench.append("t", b"torn", flush=False, properties=b"TAGS\x01a tag\x02")
    end = bench.append("t", b"behind", flush=False)[0][2]
    bench.crash()
    path = bench.segment(end)
    size = path.stat().st_size
    os.truncate(path, end % SEGMENT_BYTES)
    os.truncate(path, size)
    bench.overwrite(first[1][2] + 40, b"\xda" * (lost[0][2] - first[1][2] - 40))
    bench.overwrite(end - 22, b"\xda" * 22)
    report = bench.check()
    assert report.exit_code == 0, report.to_json()
    assert report.log.end_offset == first[0][2]
    bench.open()
    assert bench.messages("t") == {0: b"kept"}
    assert not bench.store.has_losses
    assert bench.store.epochs.newest.previous_end == first[0][2]


def test_what_lies_in_place_of_a_checksum_is_seen_in_the_first_record_of_a_scan(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads from the checkpoint on where that is far behind the beginning of its segment."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    bench.append("t", b"kept")
    bench.restart()
    lost = bench.append("t", *[b"torn"] * 3, flush=False, command=True, properties=b"TAGS\x01a tag\x02")
    bench.crash()
    path, end = bench.segment(lost[1][2]), lost[1][2]
    size = path.stat().st_size
    os.truncate(path, end % SEGMENT_BYTES)
    os.truncate(path, size)
    bench.overwrite(end - 22, b"\xda" * 22)
    bench.open()
    assert bench.messages("t") == {0: b"kept"}


def test_the_last_records_of_rocketmq_stay(bench: StoreBench) -> None:
    """They have no checksum of the whole, as none of those before them that RocketMQ wrote."""
    bench.append("t", b"ours")
    at = bench.append("t", b"replaced", flush=False)[0][2]
    bench.crash()
    for number in (1, 2):
        record = layouts.Record(queue_offset=number, physical_offset=at, body=b"theirs", topic=b"t", store_ms=1)
        bench.overwrite(at, record.encode() + bytes(500))
        at += len(record.encode())
    bench.open()
    assert list(bench.messages("t").values()) == [b"ours", b"theirs", b"theirs"]


def test_what_rocketmq_wrote_behind_a_clean_end_is_no_torn_tail(bench: StoreBench) -> None:
    """Nothing is torn there, also where it is one record alone: neither the checker nor a start takes it for that."""
    bench.append("t", b"ours")
    end = bench.store.log.end_offset
    bench.close()
    record = layouts.Record(queue_offset=1, physical_offset=end, body=b"theirs", topic=b"t", store_ms=1)
    bench.overwrite(end, record.encode())
    report = bench.check()
    assert (report.log.records, [finding for finding in report.info if finding.kind == "torn_tail"]) == (2, [])
    bench.open()
    assert bench.messages("t") == {0: b"ours", 1: b"theirs"}


def test_a_torn_tail_is_cut_off_and_its_offsets_stay_used(bench: StoreBench) -> None:
    """When recovery truncates, the epoch rises, the rest becomes a blank record, the log goes on above."""
    bench.append("t", b"one")
    torn = bench.append("t", b"two", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(torn[0][2] + 50, b"\xff" * 20)
    assert bench.check().exit_code == 0, "nothing durable was in it"
    assert [finding.kind for finding in bench.check().info if finding.kind == "torn_tail"] == ["torn_tail"]
    store = bench.open()
    assert store.epoch == 2
    assert store.epochs.newest.previous_end == torn[0][2]
    assert store.epochs.newest.first_offset == SEGMENT_BYTES * 2 > torn[0][2]
    assert bench.bytes_at(torn[0][2], 8) == layouts.encode_blank(SEGMENT_BYTES - torn[0][2])
    after = bench.append("t", b"three")
    assert after[0][2] == SEGMENT_BYTES * 2
    assert after[0][1] == torn[0][1] + 1
    assert store.queue("t", 0).entries(torn[0][1], 1) == [layouts.FILLER]
    assert bench.messages("t") == {0: b"one", 2: b"three"}
    bench.restart()
    assert bench.store.epoch == 2
    assert bench.messages("t") == {0: b"one", 2: b"three"}


@pytest.mark.parametrize("records", [2, 3])
def test_an_unfinished_command_is_cut_off_whole(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, records: int
) -> None:
    """docs/formats/commit-log.md, "Properties": a batch that was not answered is there whole or not at all."""
    bench.append("t", b"one")
    batch = bench.append("t", *(b"a", b"b", b"c")[:records], command=True, flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(batch[-1][2], bytes(500))
    unfinished = [finding for finding in bench.check().info if finding.kind == "unfinished_command"]
    assert [finding.count for finding in unfinished] == [records - 1]
    assert bench.check().exit_code == 0
    bench.open()
    assert bench.messages("t") == {0: b"one"}
    bench.crash_and_open()
    assert "rebuilt" not in caplog.text  # that there are fillers now is no reason to read the whole log
    after = bench.append("t", b"after")
    assert after[0][1] > batch[-1][1]
    assert bench.messages("t") == {0: b"one", after[0][1]: b"after"}


@pytest.mark.parametrize("crosses_segments", [False, True])
def test_an_unwritten_page_before_an_unfinished_command_is_torn_too(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, crosses_segments: bool
) -> None:
    """Nothing valid is behind it once the command is cut off: it was called a hole, and damage, for good."""
    if crosses_segments:
        bench.append("t", bytes(SEGMENT_BYTES - 2000))
    kept = dict(bench.messages("t")) | {bench.append("t", b"one")[0][1]: b"one"}
    unwritten = bench.append("t", b"A" * 3000, flush=False)[0]
    batch = bench.append("t", b"a", b"b", b"c", command=True, flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(unwritten[2], bytes(batch[0][2] - unwritten[2]))
    bench.overwrite(batch[2][2], bytes(500))
    report = bench.check()
    assert (report.exit_code, report.log.end_offset) == (0, unwritten[2])
    assert {"torn_tail", "unfinished_command"} <= {finding.kind for finding in report.info}
    bench.open()
    assert bench.store.holes == []
    assert bench.store.recovery.scan.torn_offset == unwritten[2]
    assert "hole" not in caplog.text
    assert bench.messages("t") == kept
    after = bench.append("t", b"after")
    assert after[0][1] > batch[2][1]
    bench.restart()
    assert bench.messages("t") == kept | {after[0][1]: b"after"}


def test_a_command_that_reaches_into_what_is_torn_goes_whole(bench: StoreBench) -> None:
    """The page with the end of one command and the end of the next are unwritten: nothing is there of either."""
    kept = {bench.append("t", b"one")[0][1]: b"one"}
    commands = [
        bench.append("t", *(name + number for number in (b"1", b"2", b"3")), command=True, flush=False)
        for name in (b"a", b"b", b"c")
    ]
    bench.store.queue("t", 0).write_out()
    bench.crash()
    ends = [*(command[0][2] for command in commands[1:]), commands[-1][2][2] + 500]
    for command, end in zip(commands, ends, strict=True):
        bench.overwrite(command[1][2], bytes(end - command[1][2]))
    report = bench.check()
    assert (report.exit_code, report.log.end_offset) == (0, commands[0][0][2])
    unfinished = [(f.physical_offset, f.count) for f in report.info if f.kind == "unfinished_command"]
    assert unfinished == [(command[0][2], 1) for command in reversed(commands)]
    bench.open()
    assert bench.store.holes == []
    scan = bench.store.recovery.scan
    assert (scan.torn_offset, scan.unfinished_records) == (commands[0][0][2], 3)
    assert bench.messages("t") == kept
    after = bench.append("t", b"after")
    bench.restart()
    assert bench.messages("t") == kept | {after[0][1]: b"after"}


def test_what_is_cut_off_is_gone_from_the_file(bench: StoreBench) -> None:
    """Who reads the log from the middle on, as Spark's tasks do, takes each whole record for one that counts."""
    bench.append("t", b"one")
    command = bench.append("t", b"a", b"b", b"c", command=True, flush=False)
    torn = command[0][2]
    bench.crash()
    bench.overwrite(command[2][2], bytes(500))
    bench.open()
    assert bench.store.recovery.scan.torn_offset == torn
    left = bench.bytes_at(torn, SEGMENT_BYTES - torn)
    assert left == layouts.encode_blank(SEGMENT_BYTES - torn).ljust(len(left), b"\0")


def test_a_durable_command_in_front_of_what_is_torn_stays(bench: StoreBench) -> None:
    """Below the durable mark nothing is hidden, even where it is half a command."""
    durable = bench.append("t", b"a1", b"a2", command=True)
    torn = bench.append("t", b"b1", b"b2", b"b3", command=True, flush=False)
    bench.crash()
    bench.overwrite(durable[1][2], bytes(torn[0][2] - durable[1][2]))
    bench.overwrite(torn[2][2], bytes(500))
    assert [f.physical_offset for f in bench.check().damage if f.kind == "hole"] == [durable[1][2]]
    bench.open()
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(durable[1][2], torn[0][2])]
    assert bench.messages("t") == {durable[0][1]: b"a1"}
    bench.close(whole=False)


@pytest.mark.parametrize("publishes", [False, True])
def test_a_durable_range_before_an_unfinished_command_stays_a_named_hole(bench: StoreBench, publishes: bool) -> None:
    """Below the durable mark nothing is hidden; check tells it as the start noted it, whatever is published later."""
    bench.append("t", b"one")
    lost = bench.append("t", b"A" * 3000)[0]
    batch = bench.append("t", b"a", b"b", b"c", command=True, flush=False)
    bench.crash()
    bench.overwrite(lost[2], bytes(batch[0][2] - lost[2]))
    bench.overwrite(batch[2][2], bytes(500))
    assert [finding.physical_offset for finding in bench.check().damage if finding.kind == "hole"] == [lost[2]]
    bench.open()
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(lost[2], batch[0][2])]
    if publishes:
        bench.append("t", b"after")
    bench.close(whole=False)
    for _ in range(2):
        report = bench.check()
        holes = [finding for finding in report.damage if finding.kind == "hole"]
        assert [(hole.physical_offset, hole.end_offset) for hole in holes] == [(lost[2], batch[0][2])]
        bench.open()
        bench.close(whole=False)


@pytest.mark.parametrize("at_end", ["damaged", "zeroed"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_durable_command_loses_only_what_is_damaged(bench: StoreBench, at_end: str, is_clean: bool) -> None:
    """No other record is lost: the batch was answered, so what is left of it counts."""
    bench.append("t", b"one")
    batch = bench.append("t", b"a", b"b", b"c", command=True)
    if is_clean:
        bench.close()
    else:
        bench.crash()
    _, _, last, _ = batch[2]
    bench.overwrite(last + (90 if at_end == "damaged" else 0), b"!" if at_end == "damaged" else bytes(500))
    report = bench.check()
    assert {finding.kind for finding in report.damage} >= {"durable_loss"}
    assert "unfinished_command" not in {finding.kind for finding in [*report.damage, *report.info]}
    assert report.log.end_offset == last
    bench.open()
    assert bench.messages("t") == {0: b"one", 1: b"a", 2: b"b"}
    assert bench.store.recovery.lost_bytes > 0
    after = bench.append("t", b"after")
    bench.close(whole=False)
    bench.open()
    assert bench.messages("t") == {0: b"one", 1: b"a", 2: b"b", after[0][1]: b"after"}


@pytest.mark.parametrize(("at", "bad"), [(90, b"!"), (0, bytes(90))], ids=["body", "head"])
def test_damage_with_valid_records_behind_it_is_a_hole(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, at: int, bad: bytes
) -> None:
    """It is quarantined and named, by its entry where it says nothing itself; what follows is kept and served.

    One line for each hole.
    """
    placed = bench.append("t", b"one", b"two", b"three")
    bench.close()
    bench.overwrite(placed[1][2] + at, bad)
    with caplog.at_level(logging.ERROR):
        bench.open()
    assert [hole.first_offset for hole in bench.store.holes] == [placed[1][2]]
    assert [hole.end_offset for hole in bench.store.holes] == [placed[2][2]]
    assert sum("hole in the log" in message for message in caplog.messages) == 1
    assert bench.messages("t") == {0: b"one", 2: b"three"}
    assert bench.bytes_at(placed[1][2] + at, len(bad)) == bad, "nothing is removed"
    bench.append("t", b"four")
    assert bench.store.epoch == 1
    bench.close(whole=False)
    damage = bench.check().damage
    assert {(finding.kind, finding.physical_offset) for finding in damage} == {
        ("hole", placed[1][2]), ("damaged_record", placed[1][2]),
    }  # fmt: skip
    bench.open()
    assert bench.messages("t") == {0: b"one", 2: b"three", 3: b"four"}
    bench.close(whole=False)
    assert bench.check().damage == damage


def test_damage_before_an_epoch_without_messages_is_a_hole(bench: StoreBench) -> None:
    """The log does not end below where its newest epoch begins: nothing of what is damaged there is cut off."""
    bench.append("t", b"one")
    _, _, damaged, _ = bench.append("t", b"two")[0]
    lost = bench.append("t", b"lost", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(lost[0][2], bytes(500))
    begins = bench.open().log.end_offset
    bench.crash()
    bench.overwrite(damaged + 90, b"!")
    for _ in range(2):
        bench.open()
        assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(damaged, begins)]
        assert (bench.store.epoch, bench.store.log.end_offset) == (2, begins)
        assert bench.messages("t") == {0: b"one"}
        bench.close(whole=False)
    assert bench.bytes_at(damaged + 90, 1) == b"!"


def test_loss_below_the_durable_mark_is_reported(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """A torn tail that begins below the durable mark is reported as loss; nothing is silent."""
    bench.append("t", b"one")
    lost = bench.append("t", b"two")
    end = bench.store.log.end_offset
    bench.close()
    bench.overwrite(lost[0][2], bytes(end - lost[0][2]))
    damage = bench.check().damage
    assert [(f.kind, f.physical_offset, f.end_offset) for f in damage if f.kind == "durable_loss"] == [
        ("durable_loss", lost[0][2], end)
    ]
    with caplog.at_level(logging.ERROR):
        bench.open()
    assert bench.store.recovery.lost_bytes == end - lost[0][2]
    assert any("durable messages lost" in message for message in caplog.messages)
    assert bench.messages("t") == {0: b"one"}
    assert bench.append("t", b"new")[0][2] >= end


def test_views_are_rebuilt_when_missing(bench: StoreBench) -> None:
    """A-STORE-25, E-STORE-07: delete the consume queues, restart: the same messages at the same offsets."""
    for n in range(50):
        bench.append(f"t{n % 3}", b"%d" % n)
    expected = {topic: bench.messages(topic) for topic in ("t0", "t1", "t2")}
    bench.close()
    shutil.rmtree(bench.root / "consumequeue/t1")
    assert {finding.kind for finding in bench.check().damage} == {"missing_entries"}
    bench.open()
    assert {topic: bench.messages(topic) for topic in expected} == expected
    bench.close()
    shutil.rmtree(bench.root / "consumequeue")
    (bench.root / "consumequeue").mkdir()
    bench.open()
    assert {topic: bench.messages(topic) for topic in expected} == expected


def test_queues_made_anew_promise_nothing_before_they_are_synced(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of before is not theirs: a power cut takes any page of them, and halving may not meet it."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    bench = make_bench(queue_file_bytes=6_000_000)
    bench.append("t", *(b"%d" % n for n in range(2000)))
    bench.store.go_on_above(bench.store.queue("t", 0), 2010)
    expected = bench.messages("t")
    bench.close()
    shutil.rmtree(bench.root / "consumequeue/t")
    bench.open()
    bench.store.queue("t", 0).write_out()
    bench.crash()
    with (bench.root / "consumequeue/t/0" / f"{0:020d}").open("r+b") as file:
        file.seek(2 * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))
    bench.open()
    assert bench.messages("t") == expected
    assert bench.store.queue("t", 0).next_offset == 2010, "what a clean end noted beside the files counts on"


def test_the_last_of_several_tags_counts_in_views_made_anew(bench: StoreBench) -> None:
    """remoting.md 2.5, 2.7: as for whoever sent the message and for whoever reads it."""
    properties = layouts.encode_properties({"TAGS": "first"}) + layouts.encode_properties({"TAGS": "last"})
    bench.append("t", b"x", properties=properties, tag_hash=layouts.java_hash("last"))
    bench.close()
    assert not bench.check().damage
    shutil.rmtree(bench.root / "consumequeue/t")
    bench.open()
    assert [entry[2] for entry in bench.store.queue("t", 0).entries(0, 1)] == [layouts.java_hash("last")]


def test_queues_made_anew_begin_where_the_log_does(bench: StoreBench) -> None:
    """A log that lost its beginning (to RocketMQ's retention): no fillers for all that was before.

    Ref: A-STORE-08.
    """
    bench.append("t", *(b"%03d" % n + b"x" * 1000 for n in range(200)))
    bench.close()
    for first in (0, SEGMENT_BYTES):
        bench.segment(first).unlink()
    note_beginning(bench, 2 * SEGMENT_BYTES)
    shutil.rmtree(bench.root / "consumequeue")
    bench.open()
    kept = bench.messages("t")
    first = min(kept)
    assert kept == {n: b"%03d" % n + b"x" * 1000 for n in range(first, 200)}
    assert first > 100
    for _ in range(2):
        queue = bench.store.queue("t", 0)
        assert (queue.min_offset, queue.next_offset) == (first // 20 * 20, 200)
        bench.restart()
        queue = bench.store.queue("t", 0)
        assert (queue.tail_offset, queue.mended_entries, queue.dirty_files) == (200, 0, set())  # as it was in the files
    assert min(path.name for path in (bench.root / "consumequeue/t/0").iterdir()) == f"{first // 20 * 400:020d}"


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_queue_that_lost_its_oldest_file_is_made_anew(bench: StoreBench, with_checkpoint: bool) -> None:
    """What the log has is shown, whichever file of a queue is missing."""
    bench.append("t", *(b"%d" % n for n in range(100)))
    expected = bench.messages("t")
    bench.close()
    (bench.root / "consumequeue/t/0" / f"{0:020d}").unlink()
    if not with_checkpoint:
        (bench.root / "headrace/checkpoint.json").unlink()
    bench.open()
    assert bench.messages("t") == expected
    assert bench.store.queue("t", 0).min_offset == 0


@pytest.mark.parametrize(
    "stranger", ["consumequeue/.DS_Store", "consumequeue/t/notes", "commitlog/notes", "index/notes"]
)
def test_files_of_others_do_not_stop_a_start(bench: StoreBench, stranger: str) -> None:
    """What a person left in a folder of ours is passed over; what a killed process left is still removed."""
    bench.append("t", b"one")
    bench.store.index.wait_live()
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.crash()
    (bench.root / "index").mkdir(exist_ok=True)
    (bench.root / stranger).write_text("x")
    unfinished = bench.root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}"
    unfinished.touch()
    bench.open()
    assert bench.messages("t") == {0: b"one"}
    bench.close()
    assert (bench.root / stranger).exists()


def test_a_folder_that_is_a_link_is_rebuilt_behind_it(bench: StoreBench, tmp_path: Path) -> None:
    """Queues on another disk: the link stays, and what lies there is not ours to remove."""
    bench.append("t", *(b"%d" % n for n in range(50)))
    expected = bench.messages("t")
    bench.close()
    elsewhere = tmp_path / "elsewhere"
    (bench.root / "consumequeue").rename(elsewhere)
    (bench.root / "consumequeue").symlink_to(elsewhere)
    (elsewhere / "lost+found").mkdir()
    shutil.rmtree(elsewhere / "t")
    bench.open()
    assert bench.messages("t") == expected
    bench.close()
    assert (bench.root / "consumequeue").is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["lost+found", "t"]


def test_a_checkpoint_that_is_damaged_or_gone_costs_a_longer_scan(bench: StoreBench) -> None:
    """A damaged side file is rebuilt where the log can give it."""
    bench.append("t", *(b"%d" % n for n in range(100)))
    expected = bench.messages("t")
    for change in (lambda path: path.write_bytes(b"noise"), lambda path: path.unlink()):
        bench.close()
        change(bench.root / "headrace/checkpoint.json")
        bench.open()
        assert bench.messages("t") == expected
        assert bench.store.recovery.scanned_from == 0


def test_a_damaged_list_of_holes_is_made_anew(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """docs/formats/side-files.md: also where there are none; the next start has nothing to warn of."""
    bench.append("t", b"x")
    bench.store.close()
    bench.store.directory.holes.write_bytes(b"noise")
    bench.open()
    assert "list of holes damaged, it is made anew" in caplog.text
    bench.store.close()
    assert check_store(bench.root).exit_code == 0
    caplog.clear()
    bench.open()
    assert "holes" not in caplog.text


def test_a_damaged_durable_mark_is_set_anew(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged side file is rebuilt where the log can give it."""
    bench.append("t", b"one")
    bench.close()
    (bench.root / "headrace/durable").write_bytes(b"\xff" * 48)
    assert [finding.file for finding in bench.check().damage] == ["headrace/durable"]
    bench.open()
    assert any("durable mark damaged" in message for message in caplog.messages)
    assert bench.messages("t") == {0: b"one"}


@pytest.mark.parametrize("name", ["store.json", "epochs.json"])
def test_a_damaged_side_file_that_the_log_cannot_give_refuses_the_start(bench: StoreBench, name: str) -> None:
    """Where the log cannot give it the start is refused and names file and remedy; nothing is changed."""
    bench.append("t", b"one")
    bench.crash()
    bench.overwrite(bench.store.mark.noted_offset, b"\xff" * 8)
    bench.open()
    bench.close()
    path = bench.root / "headrace" / name
    kept = path.read_bytes()
    path.write_bytes(kept[:-4] + b"?" + kept[-3:])
    with pytest.raises(SideFileError, match=name):
        Store.open(bench.settings, bench.clock)
    path.write_bytes(kept)
    bench.open()


def test_a_second_process_is_refused(bench: StoreBench) -> None:
    """A-STORE: one process owns a store; the error names the other's pid."""
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        Store.open(bench.settings, bench.clock)
    code = (
        "import sys; from pathlib import Path; from headrace.clock import Clock;"
        "from headrace.settings import StoreSettings;"
        "from headrace.store.store import Store; from headrace.errors import StoreLockedError\n"
        "try: Store.open(StoreSettings(data_dir=Path(sys.argv[1])), Clock())\n"
        "except StoreLockedError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bench.root)], capture_output=True, text=True, check=True, timeout=30
    )
    assert f"pid {os.getpid()}" in done.stdout
    assert bench.append("t", b"still ours")


def test_a_lock_file_that_was_removed_lets_nobody_in(bench: StoreBench) -> None:
    """A-STORE: one process owns a store, also where somebody took its lock file for a stale one."""
    (bench.root / "lock").unlink()
    with pytest.raises(StoreLockedError, match="another Headrace process, whose lock file was removed; stop that one"):
        Store.open(bench.settings, bench.clock)
    assert bench.append("t", b"still ours")
    bench.close()
    bench.open()


def test_a_file_system_that_locks_files_only(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file is enough where folders cannot be locked, as on some network file systems."""
    bench.close()
    lock = fcntl.flock

    def files_only(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(fd, operation)

    monkeypatch.setattr("fcntl.flock", files_only)
    bench.open()
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        Store.open(bench.settings, bench.clock)


def test_a_full_disk_names_the_file(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused without saying what and where; a start that failed holds no lock."""
    bench.append("t", b"one")
    bench.close()

    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.directory.os.pwrite", is_full)
        with pytest.raises(StoreError, match=r"store/lock: No space left"):
            Store.open(bench.settings, bench.clock)
        patch.setattr("headrace.format.side_file.os.fsync", is_full)
        with pytest.raises(OSError, match=r"No space left.*side\.json\.new"):
            write_side_file(bench.root / "side.json", "side", {})
    bench.open()
    assert bench.messages("t") == {0: b"one"}
    bench.close()


def test_a_disk_without_room_is_not_a_budget(
    bench: StoreBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What helps is said: a new store may have smaller segments, a budget that nobody set cannot be raised."""
    usage = shutil.disk_usage(tmp_path)._replace(free=SEGMENT_BYTES)
    monkeypatch.setattr("headrace.store.segment_supply.shutil.disk_usage", lambda path: usage)
    with pytest.raises(StoreFullError, match=r"free space on the disk, or .* a smaller store\.segment_bytes$"):
        Store.open(small_settings(tmp_path / "new"), ManualClock())

    def fill() -> None:
        for _ in range(1000):
            bench.append("t", b"x" * 1000)

    with pytest.raises(StoreFullError, match=r"the disk has free, \d+\); free space on the disk$"):
        fill()


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Nothing is removed silently; a folder of somebody else is not a store."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ForeignStoreError, match=r"thesis\.tex.*nothing was changed"):
        Store.open(small_settings(tmp_path), ManualClock())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("beside", ["config/topics.json", "index/20231114221320000", "namesrv/kvConfig.json", "notes"])
def test_a_lost_identity_is_told_whatever_stands_beside_the_messages(bench: StoreBench, beside: str) -> None:
    """A broker's folder has more than its store: it was called somebody else's, though the copy lies beside it."""
    bench.append("t", b"one")
    bench.close()
    path = bench.root / beside
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    identity = bench.root / "headrace/store.json"
    identity.unlink()
    with pytest.raises(SideFileError, match=r"store\.json: is missing; copy .*store\.json\.bak over it"):
        bench.open()
    shutil.copy(identity.with_name("store.json.bak"), identity)
    bench.open()
    assert bench.messages("t") == {0: b"one"}


@pytest.mark.parametrize("key", ["t", f"t/{1 << 31}"])
def test_queue_ends_that_name_no_queue(bench: StoreBench, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A start ended in an error of Python's. Without its checkpoint it scans the log; its epochs it needs."""
    bench.append("t", b"one")
    bench.close()
    path = bench.root / "headrace/checkpoint.json"
    kind, version, payload = layouts.decode_side_file(path.read_bytes())
    payload["queue_ends"] = {key: 1}
    path.write_bytes(layouts.encode_side_file(kind, version, json.dumps(payload).encode()))
    assert [finding.file for finding in bench.check().damage] == ["headrace/checkpoint.json"]
    bench.open()
    assert "the whole log is scanned" in caplog.text
    assert bench.messages("t") == {0: b"one"}
    bench.close()
    row = {"epoch": 1, "first_physical_offset": 0, "queue_ends": {key: 1}}
    write_side_file(bench.root / "headrace/epochs.json", "epochs", [row])
    with pytest.raises(SideFileError, match=r"epochs\.json: does not hold what it should.*nothing was changed"):
        Store.open(bench.settings, bench.clock)


@pytest.mark.parametrize("name", ["store.json", "epochs.json", "checkpoint.json"])
def test_a_newer_version_is_refused_and_left_alone(bench: StoreBench, name: str) -> None:
    """Exit 2, newer version; an older program must not guess."""
    bench.append("t", b"one")
    bench.close()
    path = bench.root / "headrace" / name
    kept = path.read_bytes() if path.exists() else None
    path.write_bytes(layouts.encode_side_file(name.partition(".")[0], 99, b"{}"))
    with pytest.raises(FormatVersionError, match="version 99"):
        Store.open(bench.settings, bench.clock)
    assert bench.check().exit_code == 2
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(kept)
    bench.open()
    assert bench.messages("t") == {0: b"one"}


def test_the_segment_size_of_the_store_wins_over_the_setting(bench: StoreBench) -> None:
    """A-STORE-06, X-STORE-10: files of one store have one size."""
    bench.append("t", b"one")
    bench.restart(segment_bytes=4 * SEGMENT_BYTES)
    assert bench.store.log.segment_bytes == SEGMENT_BYTES
    bench.settings = small_settings(bench.root)


def test_segments_and_queue_files_have_rocketmqs_names(bench: StoreBench) -> None:
    """A-STORE-05, A-STORE-07, A-STORE-14, A-STORE-21."""
    bench.append("orders", *(b"x" * 900 for _ in range(105)))
    bench.close()
    names = sorted(path.name for path in (bench.root / "commitlog").iterdir())
    assert names[:2] == ["00000000000000000000", f"{SEGMENT_BYTES:020d}"]
    files = sorted(path.name for path in (bench.root / "consumequeue/orders/0").iterdir())
    assert files == [f"{n * 400:020d}" for n in range(6)]
    first = (bench.root / "commitlog" / names[0]).read_bytes()
    at = 0
    while layouts.decode_entries(first[at : at + 20]) and first[at + 4 : at + 8] != layouts.encode_blank(0)[4:]:
        at += int.from_bytes(first[at : at + 4], "big")
    assert first[at : at + 8] == layouts.encode_blank(SEGMENT_BYTES - at)
    bench.open()
    assert len(bench.messages("orders")) == 105


@pytest.mark.parametrize(("left", "is_last"), [(8, True), (7, False), (0, False)])
def test_a_record_leaves_room_for_a_blank_one(bench: StoreBench, left: int, is_last: bool) -> None:
    """A-STORE-14, X-STORE-06: the last of its segment if 8 bytes stay free behind it, else the first of the next."""
    begin = bench.store.log.end_offset
    bench.append("t", b"")
    end = bench.store.log.end_offset
    body = b"x" * (SEGMENT_BYTES - end - (end - begin) - left)
    at = bench.append("t", body)[0][2]
    behind = bench.append("t", b"behind")[0][2]
    assert at == (end if is_last else SEGMENT_BYTES)
    assert (behind == SEGMENT_BYTES) == is_last
    bench.crash_and_open()
    assert bench.messages("t") == {0: b"", 1: body, 2: b"behind"}


def test_queue_files_hold_whole_entries(make_bench: MakeBench) -> None:
    """A-STORE-22: of 1024 bytes each becomes 1040, which 52 entries fill."""
    bench = make_bench(queue_file_bytes=1024)
    bench.append("orders", *(b"%d" % n for n in range(105)))
    expected = bench.messages("orders")
    bench.restart()
    files = sorted(path.name for path in (bench.root / "consumequeue/orders/0").iterdir())
    assert files == [f"{n * 1040:020d}" for n in range(3)]
    assert bench.messages("orders") == expected
    assert len(expected) == 105


def test_every_file_that_may_not_be_on_disk_is_synced_by_a_start(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What recovery accepts is durable from then on: also in the files before the newest, above the durable mark."""
    bench = make_bench(durability="async")
    bench.append("t", *[b"x" * 1000] * 200, flush=False)
    names = sorted(path.name for path in (bench.root / "commitlog").iterdir())[:4]
    bench.crash()
    synced: list[str] = []
    fdatasync = os.fdatasync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    bench.open()
    assert bench.store.durable_offset > 3 * SEGMENT_BYTES
    assert set(names) <= set(synced)


def test_a_damaged_record_that_recovery_saw_is_not_delivered(bench: StoreBench) -> None:
    """Readers leave the checksums of checked records out: those of holes, whose entries stay, they look at."""
    placed = [bench.append("t", body * 50)[0] for body in (b"a", b"b", b"c")]
    bench.close()
    bench.overwrite(placed[1][2] + 100, b"#")
    for _ in range(2):
        bench.open()
        assert [hole.first_offset for hole in bench.store.holes] == [placed[1][2]]
        records = RecordBatch()
        result = read_queue(bench.store.queue("t", 0), 0, 32, 1 << 20, None, None, records)
        assert [records.body(index) for index in range(len(records))] == [placed[0][3], placed[2][3]]
        assert (result.next_offset, result.skipped) == (3, 1)
        records.clear()
        bench.close(whole=False)


def test_a_missing_segment_is_a_hole(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is removed or left out silently; one line for each hole."""
    placed = [bench.append("t", b"%03d" % n + b"x" * 1000)[0] for n in range(200)]
    bench.close()
    bench.segment(SEGMENT_BYTES).unlink()
    with caplog.at_level(logging.ERROR):
        bench.open()
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    assert any(f"first_offset={SEGMENT_BYTES}" in message for message in caplog.messages)
    assert bench.messages("t") == {
        queue_offset: body for _, queue_offset, at, body in placed if not SEGMENT_BYTES <= at < 2 * SEGMENT_BYTES
    }
    assert bench.append("t", b"new")[0][1] == 200
    bench.close(whole=False)
    assert {finding.kind for finding in bench.check().damage} == {"missing_segment", "hole", "damaged_record"}


def test_a_missing_segment_before_an_unfinished_command_stays_a_named_hole(make_bench: MakeBench) -> None:
    """Its messages were written, so it is no torn tail, though nothing was durable and nothing valid is behind it."""
    bench = make_bench(durability="async")
    while bench.store.log.end_offset < 2 * SEGMENT_BYTES - 4_000:
        bench.append("t", b"x" * 1000, flush=False)
    command = bench.append("t", b"y" * 4_000, b"z", b"z", command=True, flush=False)
    assert command[0][2] == 2 * SEGMENT_BYTES
    bench.crash()
    bench.overwrite(command[1][2], bytes(1_000))
    bench.segment(SEGMENT_BYTES).unlink()
    bench.open()
    assert bench.store.recovery.scan.torn_offset == command[0][2]
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    assert bench.append("t", b"new")[0][2] > command[-1][2]
    bench.close(whole=False)
    assert "missing_segment" in {finding.kind for finding in bench.check().damage}


@pytest.mark.parametrize("before", [1, 3])
def test_a_record_is_found_whose_first_bytes_lie_in_a_page_that_is_not_there(bench: StoreBench, before: int) -> None:
    """A size begins with zeros: in a page that a power cut took with what else it held they are right all the same."""
    bench.append("t", b"")
    record_bytes = bench.store.log.end_offset
    bench.append("t", b"x" * (PAGE_BYTES - before - 2 * record_bytes))
    kept = bench.append("t", b"kept")[0]
    assert kept[2] == PAGE_BYTES - before
    bench.crash()
    punch_hole(bench.segment(0), PAGE_BYTES)
    report = bench.check()
    assert [finding.physical_offset for finding in report.damage if finding.kind == "hole"] == [0]
    assert report.log.records == 1
    bench.open()
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(0, kept[2])]
    assert bench.messages("t") == {kept[1]: b"kept"}
    bench.close(whole=False)


@pytest.mark.parametrize("files", [1, 3])
def test_a_log_without_its_beginning_is_told(bench: StoreBench, caplog: pytest.LogCaptureFixture, files: int) -> None:
    """Nothing is left out silently, not even where the checkpoint lies behind it."""
    placed = [bench.append("t", b"%03d" % n + b"x" * 1000)[0] for n in range(400)]
    bench.close()
    for number in range(files):
        bench.segment(number * SEGMENT_BYTES).unlink()
    report = bench.check()
    lost = [one for one in placed if one[2] < files * SEGMENT_BYTES]
    assert {finding.kind for finding in report.damage} == {"missing_segment", "hole", "damaged_record"}
    named = [finding.queue_offset for finding in report.damage if finding.kind == "damaged_record"]
    assert named == [queue_offset for _, queue_offset, _, _ in lost]
    for _ in range(2):
        caplog.clear()
        bench.open()
        assert bench.store.recovery.scanned_from == files * SEGMENT_BYTES
        assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(0, files * SEGMENT_BYTES)]
        assert f"hole in the log first_offset=0 end_offset={files * SEGMENT_BYTES} reason=the file is" in caplog.text
        assert bench.messages("t") == {queue_offset: body for _, queue_offset, _, body in placed[len(lost) :]}
        bench.close(whole=False)


@pytest.mark.parametrize("verified_back", [0, 1 << 28])
def test_a_log_without_its_end_is_told(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, verified_back: int
) -> None:
    """Its newest files are lost, and the checkpoint lies in them: nothing durable goes silently."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", verified_back)
    placed = [bench.append("t", b"%03d" % n + bytes(2000))[0] for n in range(50)]
    end = bench.store.log.end_offset
    bench.close()
    for path in sorted((bench.root / "commitlog").iterdir())[1:]:
        path.unlink()
    bench.open()
    assert bench.store.recovery.lost_bytes == end - bench.store.recovery.scan.end_offset > 0
    assert "durable messages lost" in caplog.text
    kept = {offset: body for _, offset, at, body in placed if at < bench.store.recovery.scan.end_offset}
    assert bench.messages("t") == kept
    assert 0 < len(kept) < 50
    after = bench.append("t", b"new")[0]
    assert after[1] >= 50
    assert after[2] >= end
    assert bench.messages("t") == kept | {after[1]: b"new"}


def test_a_missing_file_that_is_put_back_is_no_hole_any_more(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """What was moved away by mistake and came back is as if it had never been gone."""
    placed = [bench.append("t", b"%03d" % n + b"x" * 1000)[0] for n in range(200)]
    bench.close()
    away = bench.root / "away"
    bench.segment(SEGMENT_BYTES).rename(away)
    bench.open()
    assert len(bench.store.holes) == 1
    bench.close(whole=False)
    away.rename(bench.segment(SEGMENT_BYTES))
    for _ in range(2):
        caplog.clear()
        bench.open()
        assert bench.store.holes == []
        assert "hole" not in caplog.text
        assert bench.messages("t") == {queue_offset: body for _, queue_offset, _, body in placed}
        bench.close()


def test_what_was_shown_unsynced_before_counts_no_more_at_level_fsync(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/formats/side-files.md, "Boot note": a start has synced it, and from then on nothing is shown before."""
    bench = make_bench(durability="async")
    bench.append("t", b"one")
    bench.crash_and_open(durability="fsync")
    bench.append("t", b"two")
    bench.crash()
    monkeypatch.setattr("headrace.store.boot_note.current_boot_id", lambda: "another")
    bench.open()
    assert bench.store.epoch == 1
    assert bench.messages("t") == {0: b"one", 1: b"two"}


def test_an_epoch_without_a_file_is_no_missing_file(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Starts on a full disk, after two restarts of the machine, begin an epoch for each of these and no segment."""
    bench = make_bench(durability="async")
    kept = bench.append("t", b"kept")[0]
    bench.crash()

    def refuse(*_: object) -> None:
        raise StoreFullError("no room")

    for boot in ("b", "b", "c"):
        monkeypatch.setattr("headrace.store.boot_note.current_boot_id", lambda boot=boot: boot)
        with monkeypatch.context() as full:
            full.setattr(SegmentSupply, "take", refuse)
            with pytest.raises(StoreFullError):
                bench.open()
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    bench.open()
    assert bench.store.epoch == 3
    more = [bench.append("t", b"%03d" % n + b"x" * 1000)[0] for n in range(150)]
    bench.close()
    assert bench.check().exit_code == 0
    assert StoreFiles(bench.root).extent().missing == ()
    caplog.clear()
    bench.open()
    assert bench.store.holes == []
    assert "hole" not in caplog.text
    assert bench.messages("t") == {queue_offset: body for _, queue_offset, _, body in (kept, *more)}


def test_a_missing_segment_below_the_checkpoint_is_told(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not read there, but it sees which files there are."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    for n in range(400):
        bench.append("t", b"%03d" % n + b"x" * 1000)
    bench.close()
    bench.segment(SEGMENT_BYTES).unlink()
    bench.open()
    assert bench.store.recovery.scanned_from >= 2 * SEGMENT_BYTES
    assert [(hole.first_offset, hole.end_offset) for hole in bench.store.holes] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    assert f"hole in the log first_offset={SEGMENT_BYTES}" in caplog.text
    bench.close(whole=False)


def test_a_log_that_began_later_lacks_nothing(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """What is imported may have lost its oldest files to RocketMQ's retention: the import notes it."""
    for n in range(300):
        bench.append("t", b"%03d" % n + b"x" * 1000)
    bench.close()
    bench.segment(0).unlink()
    note_beginning(bench, SEGMENT_BYTES)
    assert bench.check().exit_code == 0
    bench.open()
    assert bench.store.holes == []
    assert "hole" not in caplog.text


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.new"])
def test_a_fifo_in_the_place_of_rocketmqs_checkpoint(bench: StoreBench, name: str) -> None:
    """Writing to it would wait for a reader, in a start and at an end; we never read it."""
    bench.append("t", b"one")
    bench.close()
    path = bench.root / "checkpoint"
    (bench.root / name).unlink(missing_ok=True)
    os.mkfifo(bench.root / name)
    bench.open()
    bench.close()
    assert path.is_file()
    assert not (bench.root / "checkpoint.new").exists()


def test_a_fifo_in_the_place_of_the_newest_segment(bench: StoreBench) -> None:
    """A start that looked into it would wait for who writes to it; it is passed over, like a missing file."""
    placed = [bench.append("t", b"%03d" % n + b"x" * 1000)[0] for n in range(100)]
    bench.close()
    path = max((bench.root / "commitlog").iterdir())
    path.unlink()
    os.mkfifo(path)
    bench.open()
    kept = {queue_offset for _, queue_offset, offset, _ in placed if offset < int(path.name)}
    assert kept
    assert kept <= bench.messages("t").keys()
    bench.close(whole=False)


def test_a_refused_queue_file_is_named(bench: StoreBench) -> None:
    """It said "Invalid argument" of no file."""
    bench.append("t", b"one")
    bench.close()
    path = bench.root / "consumequeue/t/0" / f"{0:020d}"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match=str(path)):
        bench.open()


def test_what_no_flush_confirmed_is_written_once_more(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a flush that failed the kernel may take for written what the disk never got, and a sync does nothing."""
    bench.append("t", b"durable")
    mark = bench.store.durable_offset
    bench.append("t", *[b"x" * 9000] * 9, flush=False)  # into the next segment
    bench.settle()
    end = bench.store.log.end_offset
    bench.crash()
    written: dict[str, bytearray] = {}
    write, forget = os.pwrite, os.posix_fadvise
    forgotten = []

    def note_write(fd: int, content: bytes, position: int) -> int:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if "commitlog" in path:
            file = written.setdefault(path, bytearray(SEGMENT_BYTES))
            file[position : position + len(content)] = content
        return write(fd, content, position)

    def note_forgotten(fd: int, position: int, size: int, advice: int) -> None:
        forgotten.append((position, advice))
        forget(fd, position, size, advice)

    monkeypatch.setattr(os, "pwrite", note_write)
    monkeypatch.setattr(os, "posix_fadvise", note_forgotten)
    bench.open()
    assert forgotten == [(0, os.POSIX_FADV_DONTNEED)] * 2
    log = b"".join(bench.segment(first).read_bytes() for first in (0, SEGMENT_BYTES))
    assert b"".join(bytes(written[path]) for path in sorted(written))[mark:end] == log[mark:end]
    assert len(bench.messages("t")) == 10
    bench.store.flush()
    written.clear()
    bench.restart()
    assert not written


@pytest.mark.parametrize("is_there", [True, False])
def test_what_cannot_be_written_once_more_is_there_or_ends_the_start(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_there: bool
) -> None:
    """Where writing takes new blocks a full disk has none: what was taken from memory before must not be missing."""
    bench.append("t", b"durable")
    bench.append("t", b"x" * 900, flush=False)
    bench.crash()
    write = os.pwrite

    def refuse(fd: int, content: bytes, position: int) -> int:
        if "commitlog" not in str(Path(f"/proc/self/fd/{fd}").readlink()):
            return write(fd, content, position)
        if not is_there:
            write(fd, bytes(len(content)), position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    if is_there:
        bench.open()
        assert len(bench.messages("t")) == 2
        assert sum("not written once more" in line for line in caplog.messages) == 1
    else:
        with pytest.raises(OSError, match="No space left"):
            bench.open()
