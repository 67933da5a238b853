"""``headrace store check``, ``inspect`` and ``dump``: what they find, say and exit with."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.catalog import ABOVE_ALL
from headrace.broker.channels.journal_file import KIND_JOURNAL, encode_file_head
from headrace.broker.channels.stored_channels import StoredChannel, check_channels, read_journal
from headrace.cli.program import run
from headrace.errors import SideFileError, StoreError
from headrace.format.findings import Finding
from headrace.format.names import CONTROL_TOPIC
from headrace.settings import BrokerSettings
from headrace.store.check import check_store
from headrace.store.check_report import CheckReport
from headrace.store.dump import Selection, dump_entries, dump_records
from headrace.store.inspect import inspect_store
from headrace.store.log_check import LogCheck
from headrace.store.reader import SegmentFile, StoreReader
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench, count_reads


def kinds(report: CheckReport) -> set[str]:
    return {finding.kind for finding in report.damage}


def one(report: CheckReport, kind: str) -> Finding:
    (found,) = [finding for finding in report.damage if finding.kind == kind]
    return found


def closed(bench: StoreBench, count: int = 200) -> list[tuple[str, int, int, bytes]]:
    """Fill two topics over several segments and close."""
    placed = []
    for n in range(count):
        placed += bench.append(f"t{n % 2}", b"%03d" % n + b"x" * 1000, flush=False)
    bench.close()
    return placed


def refuse_to_look_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the disk fail where somebody looks for bytes behind the end of a log; other reads are not Python's."""

    def refuse(_fd: int, _size: int, _at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("headrace.format.sparse.os", SimpleNamespace(**vars(os) | {"pread": refuse}))


def test_a_sector_behind_the_end_that_cannot_be_read(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole store was said to be unreadable, and no file named."""
    bench.append("T", b"a", b"b")
    bench.close()
    refuse_to_look_behind_the_end(monkeypatch)
    report = bench.check()
    assert report.exit_code == 1
    assert one(report, "unreadable").file == "commitlog/00000000000000000000"


def test_a_start_names_the_file_behind_whose_end_it_cannot_look(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.append("T", b"a", b"b")
    bench.crash()
    with monkeypatch.context() as patch:
        refuse_to_look_behind_the_end(patch)
        with pytest.raises(OSError, match=r"commitlog/0{20}"):
            bench.open()
    bench.open()


def test_a_whole_store(bench: StoreBench) -> None:
    """Exit 0; the numbers are those of the store."""
    closed(bench)
    report = bench.check()
    assert (report.exit_code, report.state, report.damage, report.info) == (0, "closed", [], [])
    assert (report.log.records, report.queues.entries, report.queues.queues, report.queues.topics) == (200, 200, 2, 2)
    assert report.log.end_offset == report.log.durable_mark == report.log.checkpoint_offset
    assert report.log.segments >= 4


@pytest.mark.parametrize("more", [b"x" * 7, bytes(19) + b"x", b"\xff" * 1_000])
def test_a_queue_file_that_is_too_long_is_no_damage(make_bench: MakeBench, more: bytes) -> None:
    """Exit 0, said as harmless, before and behind a start: no reader comes so far. A start leaves it as it is."""
    bench = make_bench("long", queue_file_bytes=1_000)
    placed = closed(bench)
    for name in ("consumequeue/t0/0/" + "0" * 20, "consumequeue/t1/0/" + f"{1_000:020d}"):
        with (bench.root / name).open("ab") as file:
            file.write(more)
    for _ in range(2):
        report = bench.check()
        assert (report.exit_code, report.damage) == (0, [])
        assert {found.kind for found in report.info} == {"queue_file_size"}
        assert all(found.message.endswith("; what is behind is never read") for found in report.info)
        assert len(report.info) == 2
        bench.open()
        for topic in ("t0", "t1"):
            assert list(bench.messages(topic).values()) == [body for name, *_, body in placed if name == topic]
        bench.close()


@pytest.mark.parametrize("place", ["consumequeue/t0", "consumequeue/t0/0"])
def test_a_file_in_the_place_of_a_queues_folder(bench: StoreBench, place: str) -> None:
    """Exit 1: the records are there, their entries are missing."""
    closed(bench)
    shutil.rmtree(bench.root / place)
    (bench.root / place).write_bytes(b"no folder")
    report = bench.check()
    assert (report.exit_code, kinds(report)) == (1, {"missing_entries"}), report.to_json()


def test_a_check_changes_nothing_and_takes_no_lock(bench: StoreBench) -> None:
    """It works while a broker has the store, and beside it nobody notices."""
    bench.append("t", b"one")
    bench.settle()
    before = {path: path.stat().st_mtime_ns for path in bench.root.rglob("*")}
    report = bench.check()
    assert (report.state, report.exit_code) == ("open", 0)
    assert {path: path.stat().st_mtime_ns for path in bench.root.rglob("*")} == before
    assert report.log.records == 1


def test_what_a_living_broker_has_not_flushed_is_no_damage(bench: StoreBench) -> None:
    """Tails being written are not damage."""
    bench.append("t", b"one")
    bench.append("t", b"two", b"three", flush=False)
    report = bench.check()
    assert (report.exit_code, report.queues.pending_entries) == (0, 3)
    bench.store.flush()


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_segment_that_a_living_broker_allocates_is_no_damage(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """Its size was read as it was made; a moment later it has all of it, or is gone where the disk was full."""
    bench.append("t", b"one")
    bench.settle()
    list_segments = StoreReader.segments

    def list_early(reader: StoreReader) -> list[SegmentFile]:
        found = list_segments(reader)
        if is_given_up:
            found.append(SegmentFile(bench.segment(2 * SEGMENT_BYTES), 2 * SEGMENT_BYTES, 0))
        else:
            found[-1] = replace(found[-1], size_bytes=0)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(StoreReader, "segments", list_early)
        report = bench.check()
    assert (report.state, report.damage) == ("open", [])


def test_a_file_that_a_living_broker_begins_is_no_damage(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log ended as the files behind were looked at, its next record may be the first of the next file."""
    find_behind = LogCheck._find_behind

    def find_and_roll(check: LogCheck, number: int, offset: int) -> int | None:
        found = find_behind(check, number, offset)
        bench.append("t", bytes(SEGMENT_BYTES - 1000))
        return found

    bench.append("t", bytes(1000))
    bench.settle()
    with monkeypatch.context() as patch:
        patch.setattr(LogCheck, "_find_behind", find_and_roll)
        report = bench.check()
    assert bench.store.log.active.first_offset == SEGMENT_BYTES
    assert (report.state, report.damage, report.log.records) == ("open", [], 1)


@pytest.mark.parametrize("number", [0, 57, 58, 150])
def test_a_flipped_bit_is_named(bench: StoreBench, number: int) -> None:
    """Exit 1: physical offset, segment file, topic, queue and queue offset of the damaged record."""
    topic, queue_offset, physical_offset, body = closed(bench)[number]
    bench.overwrite(physical_offset + 100, bytes([body[10] ^ 1]))
    report = bench.check()
    assert report.exit_code == 1
    assert kinds(report) == {"hole", "damaged_record"}
    found = one(report, "damaged_record")
    assert (found.physical_offset, found.topic, found.queue_id, found.queue_offset) == (
        physical_offset, topic, 0, queue_offset,
    )  # fmt: skip
    assert found.file == f"commitlog/{physical_offset // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    assert found.reason == "bad checksum"


def test_every_record_of_a_damaged_range_is_named(bench: StoreBench) -> None:
    """The consume queues know what lay there."""
    placed = closed(bench)
    for _, _, physical_offset, _ in placed[60:70]:
        bench.overwrite(physical_offset, b"\xee" * 700)
    report = bench.check()
    found = {(f.topic, f.queue_offset, f.physical_offset) for f in report.damage if f.kind == "damaged_record"}
    assert found == {(topic, queue_offset, at) for topic, queue_offset, at, _ in placed[60:70]}


def test_a_range_over_a_segment_end_is_one_hole(bench: StoreBench) -> None:
    """Damage does not stop at a file's end."""
    placed = closed(bench)
    near = [item for item in placed if SEGMENT_BYTES - 3000 < item[2] < SEGMENT_BYTES + 2000]
    for _, _, at, _ in near:
        bench.overwrite(at, b"\xee" * 700)
    bench.overwrite(near[-2][2] // SEGMENT_BYTES * SEGMENT_BYTES, b"\xee" * 8)
    report = bench.check()
    found = {(f.topic, f.queue_offset) for f in report.damage if f.kind == "damaged_record"}
    assert found == {(topic, queue_offset) for topic, queue_offset, _, _ in near}


def test_the_last_record_of_a_queue_is_named(bench: StoreBench) -> None:
    """Nothing follows it in its queue; its entry still points at it."""
    closed(bench, 20)
    bench.open()
    rare = bench.append("rare", b"only one")
    bench.append("t0", b"behind")
    bench.close()
    bench.overwrite(rare[0][2] + 90, b"!")
    found = one(bench.check(), "damaged_record")
    assert (found.topic, found.queue_offset, found.physical_offset) == ("rare", 0, rare[0][2])


def test_a_misplaced_record_is_named(bench: StoreBench) -> None:
    """A whole record that says it lies elsewhere: a block that was written to the wrong place."""
    placed = closed(bench)
    size = placed[3][2] - placed[2][2]
    bench.overwrite(placed[20][2], bench.bytes_at(placed[2][2], size))
    report = bench.check()
    found = one(report, "misplaced_record")
    assert (found.physical_offset, found.topic, found.queue_offset) == (placed[20][2], placed[20][0], placed[20][1])
    assert report.exit_code == 1


def test_wrong_missing_and_stray_entries_are_named(bench: StoreBench) -> None:
    """Every consume-queue entry points to the right record: place, size, tag hash; and none is missing."""
    placed = closed(bench)
    file = bench.root / "consumequeue/t0/0/00000000000000000000"
    raw = bytearray(file.read_bytes())
    good = layouts.decode_entries(bytes(raw))
    raw[0:20] = layouts.encode_entry(good[1][0], good[1][1], 0)
    raw[40:60] = layouts.encode_entry(good[2][0], good[2][1] + 1, 0)
    raw[80:100] = layouts.encode_entry(good[4][0], good[4][1], 42)
    raw[120:180] = bytes(60)
    raw[200:220] = layouts.encode_entry(*layouts.FILLER)
    file.write_bytes(raw)
    report = bench.check()
    wrong = {(f.queue_offset, f.physical_offset, f.reason) for f in report.damage if f.kind == "wrong_entry"}
    assert wrong == {
        (0, good[0][0], f"it points at {good[1][0]}"), (2, good[2][0], f"it says {good[2][1] + 1} bytes"),
        (4, good[4][0], "its tag hash is another"), (10, good[10][0], "it is a filler"),
    }  # fmt: skip
    missing = one(report, "missing_entries")
    assert (missing.queue_offset, missing.count, missing.file) == (6, 3, "consumequeue/t0/0/00000000000000000000")
    assert len(placed) == 200


def test_every_run_of_missing_records_is_named(bench: StoreBench) -> None:
    """Damage before them in the log explains none; the first of two runs in one gap was taken for explained by it."""
    (damaged,) = bench.append("other", b"damaged")
    bench.append("t", *[b"a"] * 5)
    bench.store.queue("t", 0).skip_to(8)
    bench.append("t", b"behind")
    bench.close()
    bench.overwrite(damaged[2] + 90, b"!")
    file = bench.root / "consumequeue/t/0/00000000000000000000"
    raw = bytearray(file.read_bytes())
    raw[5 * 20 : 6 * 20] = raw[7 * 20 : 8 * 20] = bytes(20)
    file.write_bytes(raw)
    report = bench.check()
    assert [(f.queue_offset, f.count) for f in report.damage if f.kind == "missing_records"] == [(5, 1), (7, 1)]
    assert [(f.queue_offset, f.count) for f in report.info if f.kind == "skipped_offsets"] == [(6, 1)]


def test_a_missing_segment_is_named_with_its_records(bench: StoreBench) -> None:
    """Holes in the sequence of files that no epoch explains."""
    placed = closed(bench)
    (bench.root / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    report = bench.check()
    assert one(report, "missing_segment").physical_offset == SEGMENT_BYTES
    found = {(f.topic, f.queue_offset) for f in report.damage if f.kind == "damaged_record"}
    assert found == {(t, n) for t, n, at, _ in placed if SEGMENT_BYTES <= at < 2 * SEGMENT_BYTES}


@pytest.mark.parametrize(
    "name",
    [
        "commitlog/99999999999999999999",
        "commitlog/09223372036854775807",
        "commitlog/" + "\u00b2" * 20,
        "consumequeue/t/0/99999999999999999999",
        f"consumequeue/t/{1 << 31}/{0:020d}",
        f"consumequeue/t/00/{0:020d}",
    ],
)
def test_files_whose_names_are_no_offsets_are_passed_over(bench: StoreBench, name: str) -> None:
    """Check, inspect, dump and the start ended with a traceback; "00" was taken for a second folder of queue 0."""
    bench.append("t", b"a", b"b")
    bench.close()
    stranger = bench.root / name
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(bytes(SEGMENT_BYTES))
    report = bench.check()
    assert (report.exit_code, report.damage) == (0, [])
    if name.startswith("commitlog"):
        assert [(found.kind, found.file) for found in report.info] == [("unknown_file", name)]
    bench.open()
    assert bench.store.recovery.lost_bytes == 0
    assert list(bench.messages("t").values()) == [b"a", b"b"]
    bench.store.close()
    assert stranger.exists()


@pytest.mark.parametrize("hole_bytes", range((1 << 20) - 4, (1 << 20) + 3))
def test_what_follows_a_hole_is_found_wherever_it_begins(make_bench: MakeBench, hole_bytes: int) -> None:
    """It is looked for in pieces of a MiB, and may begin in the last bytes of one."""
    bench = make_bench(segment_bytes=4 << 20)
    bench.append("t", b"")
    lost = bench.append("t", bytes(hole_bytes - bench.store.log.end_offset))[0]
    found = bench.append("t", b"found")[0]
    assert found[2] - lost[2] == hole_bytes
    bench.close()
    bench.overwrite(lost[2], bytes(hole_bytes))
    report = bench.check()
    assert [(f.physical_offset, f.end_offset) for f in report.damage if f.kind == "hole"] == [(lost[2], found[2])]
    assert report.log.records == 2


def test_a_segment_that_was_cut_short(bench: StoreBench) -> None:
    """Segment names and sizes."""
    closed(bench)
    os.truncate(bench.root / "commitlog" / f"{SEGMENT_BYTES:020d}", 1000)
    report = bench.check()
    assert {"segment_size", "hole"} <= kinds(report)
    assert report.exit_code == 1


@pytest.mark.parametrize("place", [1, SEGMENT_BYTES + 5, 90 * SEGMENT_BYTES + 7])
def test_a_file_between_two_segments_is_no_part_of_the_log(bench: StoreBench, place: int) -> None:
    """It was walked: whole records behind it were called damaged, and all in front of it missing."""
    closed(bench)
    folder = bench.root / "commitlog"
    stray = folder / f"{place:020d}"
    shutil.copy(folder / f"{0:020d}", stray)
    report = bench.check()
    assert [(found.kind, found.file) for found in report.damage] == [("segment_name", f"commitlog/{stray.name}")]
    assert len(list(dump_records(StoreReader(bench.root), Selection()))) == report.log.records
    with pytest.raises(SideFileError, match=f"{stray.name}: is no file of this log"):
        bench.open()
    stray.unlink()
    bench.open()
    assert len(bench.messages("t0")) == 100


def test_a_segment_under_a_wrong_name_is_missing(bench: StoreBench) -> None:
    """Its range is named as that of a file that is gone, and the file beside it."""
    placed = closed(bench)
    path = bench.root / "commitlog" / f"{SEGMENT_BYTES:020d}"
    path.rename(path.with_name(f"{SEGMENT_BYTES + 1:020d}"))
    report = bench.check()
    assert one(report, "segment_name").file == f"commitlog/{SEGMENT_BYTES + 1:020d}"
    assert (one(report, "hole").physical_offset, one(report, "hole").end_offset) == (SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    found = {(f.topic, f.queue_offset) for f in report.damage if f.kind == "damaged_record"}
    assert found == {(t, n) for t, n, at, _ in placed if SEGMENT_BYTES <= at < 2 * SEGMENT_BYTES}


def test_a_copied_log_has_repeated_offsets(bench: StoreBench) -> None:
    """Queue offsets are never issued twice."""
    first = bench.append("t", b"one")
    bench.close()
    raw = layouts.decode_record(bench.bytes_at(0, 200)[: bench.store.mark.noted_offset])
    again = layouts.Record(**{
        **raw.__dict__, "physical_offset": bench.store.mark.noted_offset,
        "properties": raw.properties[:-20],
    }).encode_checked()  # fmt: skip
    bench.overwrite(bench.store.mark.noted_offset, again)
    found = one(bench.check(), "repeated_queue_offset")
    assert (found.topic, found.queue_offset, found.physical_offset) == ("t", 0, bench.store.mark.noted_offset)
    assert first[0][1] == 0


def test_a_fifo_in_the_place_of_the_durable_mark(bench: StoreBench) -> None:
    """Check waited for a writer for ever; a start said "Illegal seek"."""
    closed(bench, 1)
    mark = bench.root / "headrace" / "durable"
    mark.unlink()
    os.mkfifo(mark)
    assert one(bench.check(), "side_file").file == "headrace/durable"
    with pytest.raises(SideFileError, match="durable: is no regular file; remove it"):
        bench.open()


@pytest.fixture
def no_hanging() -> Iterator[None]:
    """Reading a fifo waits for who writes to it: the alarm ends the whole run, which a failed test would not."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("no_hanging")
@pytest.mark.parametrize(
    ("name", "kinds_beside"),
    [
        ("commitlog/00000000000000000000", {"missing_segment", "hole", "damaged_record"}),
        ("commitlog/00000000000000065536", {"missing_segment", "hole", "damaged_record"}),
        ("commitlog/00000000000000262144", set()),  # made ahead
        ("consumequeue/t0/0/00000000000000000000", {"missing_entries"}),
        ("consumequeue/t0/0/00000000000000000400", {"missing_entries", "missing_queue_file"}),
        ("headrace/checkpoint.json", set()),
        ("headrace/store.json.bak", set()),
        ("lock", set()),
    ],
)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a fifo"),
        (lambda path: path.symlink_to(path.parent / "nothing"), "a link that leads nowhere"),
    ],
)
def test_what_is_no_file_is_named(
    bench: StoreBench, name: str, kinds_beside: set[str], make: Callable[[Path], None], reason: str
) -> None:
    """Check, inspect and dump waited for a writer for ever; of a link that leads nowhere check said nothing."""
    closed(bench)
    path = bench.root / name
    path.unlink(missing_ok=True)
    make(path)
    report = bench.check()
    assert report.exit_code == 1, report.to_json()
    assert kinds(report) - {"special_file", "side_file"} == kinds_beside
    if name in ("headrace/checkpoint.json", "headrace/store.json.bak") and make is os.mkfifo:
        assert one(report, "side_file").file == name
    else:
        assert (one(report, "special_file").file, one(report, "special_file").reason) == (name, reason)
    inspect_store(bench.root)
    list(dump_records(StoreReader(bench.root), Selection()))
    list(dump_entries(StoreReader(bench.root), Selection()))
    StoreReader(bench.root).record_at(0, 100)


@pytest.mark.parametrize(
    "name",
    ["commitlog/00000000000000065536", "commitlog/00000000000000262144", "consumequeue/t0/0/00000000000000000400"],
)
def test_a_link_to_itself_is_named(bench: StoreBench, name: str) -> None:
    """Check, inspect and dump ended there, with nothing said of the rest."""
    closed(bench)
    path = bench.root / name
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    report = bench.check()
    assert report.exit_code == 1, report.to_json()
    assert one(report, "special_file").file == name
    inspect_store(bench.root)
    list(dump_records(StoreReader(bench.root), Selection()))
    list(dump_entries(StoreReader(bench.root), Selection()))


@pytest.mark.parametrize("name", ["checkpoint.json", "store.json.bak", "durable"])
def test_a_damaged_side_file_is_named(bench: StoreBench, name: str) -> None:
    """Side files' checksums; exit 1."""
    closed(bench, 10)
    path = bench.root / "headrace" / name
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    report = bench.check()
    assert (report.exit_code, one(report, "side_file").file) == (1, f"headrace/{name}")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw[:24], id="cut"),
        pytest.param(lambda raw: bytes(48), id="zeroed"),
        pytest.param(lambda raw: bytes([raw[0] ^ 1]) + raw[1:], id="first slot"),
        pytest.param(lambda raw: raw[:24] + bytes([raw[24] ^ 1]) + raw[25:], id="second slot"),
        pytest.param(lambda raw: raw + b"\0", id="longer"),
    ],
)
def test_a_mark_that_no_clean_end_leaves(
    bench: StoreBench, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A part of the durable mark is damaged: where nothing can have torn it that is named, also by a start."""
    closed(bench, 10)
    path = bench.root / "headrace/durable"
    raw = path.read_bytes()
    path.write_bytes(damage(raw))
    assert (bench.check().exit_code, one(bench.check(), "side_file").file) == (1, "headrace/durable")
    (bench.root / "abort").touch()
    assert bench.check().damage == [], "a power cut may tear it, and a kill in a first start leave none"
    (bench.root / "abort").unlink()
    bench.open()
    # A start says nothing of one that is missing, nor of an empty one.
    assert any("durable mark damaged" in message for message in caplog.messages) == bool(damage(raw))
    bench.close()
    assert bench.check().exit_code == 0


def _empty(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda root: shutil.rmtree(root / "headrace"), "is not a Headrace store: .*; `headrace store import` copies"),
        (_empty, "is not a Headrace store: .*; name the broker's --data-dir"),
        (lambda root: (root / "headrace/store.json").unlink(), r"store\.json: is missing; copy"),
        (lambda root: (root / "headrace/store.json").write_bytes(b"x"), r"store\.json: is not a Headrace store file"),
        (
            lambda root: (root / "headrace/store.json").write_bytes(layouts.encode_side_file("store", 2, b"{}")),
            "has format version 2",
        ),
        (
            lambda root: (root / "headrace/store.json").write_bytes(layouts.encode_side_file("store", 1, b"{}")),
            "does not hold what it should",
        ),
        (shutil.rmtree, "is not a directory"),
    ],
)
def test_an_unreadable_store(bench: StoreBench, change: Callable[[Path], Any], text: str) -> None:
    """Exit 2: not a store, identity unreadable, newer version; one clear sentence."""
    closed(bench, 10)
    change(bench.root)
    report = bench.check()
    assert report.exit_code == 2
    assert report.error is not None
    assert re.search(text, report.error), report.error


def test_progress_reaches_its_end(bench: StoreBench) -> None:
    """The bar on a terminal."""
    closed(bench)
    seen: list[tuple[int, int]] = []
    check_store(bench.root, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


# -- what the broker keeps in the store --


def broker_on(bench: StoreBench) -> Broker:
    return Broker.open(bench.store, BrokerSettings(node_id=1), bench.clock)


def filled_broker(bench: StoreBench) -> None:
    """Two topics, three channels, some messages finished; all closed."""
    broker = broker_on(bench)
    for name in ("orders", "events"):
        topic = broker.ensure_topic(name)
        broker.ensure_channel(topic, "billing")
    broker.ensure_channel(broker.topics["orders"], "audit")
    broker.pause_channel("orders", "audit", True)
    bench.store.flush()
    broker.close()
    bench.close()


def test_channels_of_a_whole_store(bench: StoreBench) -> None:
    """Channel journal and snapshot, catalog and control records."""
    filled_broker(bench)
    report = check_store(bench.root, extra=check_channels)
    assert (report.exit_code, report.damage) == (0, [])
    assert (report.channels.topics, report.channels.channels) == (2, 3)


def test_a_damaged_journal_and_catalog_are_named(bench: StoreBench) -> None:
    """Exit 1; a torn end of a journal is damage only in a store that was closed."""
    filled_broker(bench)
    (bench.root / "headrace/catalog.json").write_bytes(b"noise")
    snapshot = bench.root / "headrace/channels/snapshot"
    raw = bytearray(snapshot.read_bytes())
    raw[40] ^= 1
    snapshot.write_bytes(raw)
    journal = max((bench.root / "headrace/channels").glob("journal.*"))
    journal.write_bytes(journal.read_bytes() + b"HRCR\x01")
    report = check_store(bench.root, extra=check_channels)
    assert {"side_file", "channel_journal", "channel_journal_tail"} <= kinds(report)
    (bench.root / "abort").touch()
    report = check_store(bench.root, extra=check_channels)
    assert "channel_journal_tail" not in kinds(report)
    assert "channel_journal_tail" in {finding.kind for finding in report.info}


def test_a_catalog_that_differs_from_the_log_is_named(bench: StoreBench) -> None:
    """The catalog only saves replaying the control records."""
    filled_broker(bench)
    path = bench.root / "headrace/catalog.json"
    kind, version, payload = layouts.decode_side_file(path.read_bytes())
    del payload["topics"]["events"]
    path.write_bytes(layouts.encode_side_file(kind, version, json.dumps(payload).encode()))
    assert kinds(check_store(bench.root, extra=check_channels)) == {"catalog_differs"}


def test_a_catalog_of_an_earlier_build_is_no_damage(bench: StoreBench) -> None:
    """It noted the names of deleted topics alone; what a start makes of them is in the catalog from then on."""
    broker = broker_on(bench)
    broker.ensure_topic("gone")
    broker.delete_topic("gone")
    broker.close()
    bench.close()
    path = bench.root / "headrace/catalog.json"
    kind, version, payload = layouts.decode_side_file(path.read_bytes())
    for deleted, found in ((["gone"], set()), ({"gone": ABOVE_ALL}, set()), (["other"], {"catalog_differs"})):
        payload["deleted"] = deleted
        path.write_bytes(layouts.encode_side_file(kind, version, json.dumps(payload).encode()))
        assert kinds(check_store(bench.root, extra=check_channels)) == found


def test_a_side_file_that_may_not_be_read_is_not_said_to_be_made_anew(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is refused there, it does not replace the file."""
    bench.append("t", b"x")
    bench.close()
    side_file = StoreReader.side_file

    def refuse(reader: StoreReader, path: Path, kind: str) -> Any:
        if kind == "checkpoint":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return side_file(reader, path, kind)

    monkeypatch.setattr(StoreReader, "side_file", refuse)
    (found,) = bench.check().damage
    assert found.kind == "side_file"
    assert found.message == (
        "headrace/checkpoint.json cannot be read: Permission denied; see to the disk and to whose the file is"
    )


def test_a_note_of_the_index_that_cannot_be_read_makes_no_store_unreadable(bench: StoreBench) -> None:
    """A start makes the index anew then; the check ended there, with all that it had found unsaid."""
    bench.append("t", b"x", properties=b"KEYS\x01k\x02")
    bench.close()
    note = bench.root / "headrace/index.json"
    note.unlink()
    note.symlink_to(note)
    report = bench.check()
    assert (report.exit_code, [(found.kind, found.file) for found in report.damage]) == (
        1, [("side_file", "headrace/index.json")],
    )  # fmt: skip


def test_a_journal_of_a_newer_version_is_unreadable(bench: StoreBench) -> None:
    """Exit 2 for a newer version of any file."""
    filled_broker(bench)
    journal = max((bench.root / "headrace/channels").glob("journal.*"))
    head = bytearray(encode_file_head(KIND_JOURNAL, 9))
    head[8] = 99
    head[20:] = struct.pack("<I", zlib.crc32(head[:20]))
    journal.write_bytes(head)
    assert check_store(bench.root, extra=check_channels).exit_code == 2


def test_channel_states_are_read_as_channels_write_them(tmp_path: Path) -> None:
    """docs/formats/channel-journal.md, "State": the tools' reader against the compiled writer."""
    from tests.support.channels import Bench

    bench = Bench()
    ids = bench.publish(200)
    subscription = bench.subscribe(ready_count=200)
    bench.take(subscription)
    bench.finish(subscription, *ids[:10], *ids[20:90:2], ids[150])
    bench.requeue(subscription, ids[15], 60_000)
    stored = StoredChannel()
    for state in bench.channel.snapshot_parts():
        stored.apply(state)
    floor, cursor = bench.channel.position(0)
    assert (stored.floors, stored.cursors) == ({0: floor}, {0: cursor}) == ({0: 10}, {0: 200})
    assert stored.count_finished(0) == 35 + 1
    assert [queue_offset for queue_offset in range(200) if stored.is_finished(0, queue_offset)] == [
        *range(10), *range(20, 90, 2), 150,
    ]  # fmt: skip
    assert [(attempts, offset) for due, attempts, _, offset in stored.live_entries() if due > 0] == [(1, 15)]
    assert read_journal(tmp_path).channels == {}
    with pytest.raises(ValueError, match="unknown kind or version"):
        stored.apply(b"\x07\x07")


def test_a_cut_says_nothing_of_what_lies_below_it() -> None:
    """A channel that has finished nothing notes no floor: the end of a cut is none."""
    from tests.support.channels import Bench

    bench = Bench()
    ids = bench.publish(3)
    subscription = bench.subscribe()
    bench.take(subscription)
    bench.requeue(subscription, ids[2], 60_000)
    noted = bench.channel.take_changes()
    assert noted is not None
    bench = Bench()
    bench.publish(2)
    bench.restart([noted])
    assert bench.clamped == [1]
    cut = bench.channel.take_changes()
    assert cut is not None
    stored = StoredChannel()
    stored.apply(noted)
    stored.apply(cut)
    assert stored.live_entries() == []
    assert [stored.is_finished(0, queue_offset) for queue_offset in range(2)] == [False, False]


# -- dump --


def test_dump_selects(bench: StoreBench) -> None:
    """By topic, queue, queue offset, physical offset; limit; body text, base64, none."""
    placed = closed(bench)
    reader = StoreReader(bench.root)

    def dumped(**chosen: Any) -> list[dict[str, Any]]:
        return list(dump_records(reader, Selection(**chosen)))

    assert [line["physical_offset"] for line in dumped()] == [at for _, _, at, _ in placed]
    assert [line["queue_offset"] for line in dumped(topic="t1", limit=3)] == [0, 1, 2]
    assert [line["queue_offset"] for line in dumped(topic="t1", from_offset=95)] == [95, 96, 97, 98, 99]
    (line,) = dumped(physical_offset=placed[33][2], body="base64")
    assert base64.b64decode(line["body_base64"]) == placed[33][3]
    assert "body" not in line
    assert dumped(topic="t0", limit=1)[0]["body"] == placed[0][3].decode()
    assert dumped(topic="t1", from_offset=100) == dumped(topic=CONTROL_TOPIC) == []
    for lacking, text in (
        ({"topic": "nix"}, "no consume queue of topic 'nix'$"),
        ({"topic": "t1", "queue_id": 3}, "no consume queue 3 of topic 't1'$"),
        ({"queue_id": 3}, "no consume queue 3$"),
    ):
        with pytest.raises(StoreError, match=text):
            dumped(**lacking)
    assert set(dumped(limit=1, body="none")[0]["properties"]) == {"__CRC32#"}
    entries = list(dump_entries(reader, Selection(topic="t1", from_offset=98)))
    assert [(e["queue_offset"], e["physical_offset"]) for e in entries] == [
        (n, at) for t, n, at, _ in placed if t == "t1" and n >= 98
    ]


def test_dump_shows_damage_and_goes_on(bench: StoreBench) -> None:
    """What is no record is said, not left out."""
    placed = closed(bench, 10)
    bench.overwrite(placed[4][2] + 100, b"!")
    lines = list(dump_records(StoreReader(bench.root), Selection()))
    assert [line["physical_offset"] for line in lines] == [at for _, _, at, _ in placed]
    assert lines[4] == {
        "physical_offset": placed[4][2], "end_offset": placed[5][2], "damage": "bad checksum",
    }  # fmt: skip


@pytest.mark.parametrize("noise", [b"\xff", b"\0"])
def test_dump_goes_on_behind_a_hole_of_any_size(make_bench: MakeBench, noise: bytes) -> None:
    """A range larger than what is read at once, and one of zeros over a segment's end."""
    bench = make_bench(segment_bytes=32 << 20)
    placed = bench.append("t", *(b"%02d" % n + b"x" * 1_000_000 for n in range(45)))
    bench.close()
    log = b"".join(path.read_bytes() for path in sorted((bench.root / "commitlog").iterdir()))
    for first, behind in ((placed[2][2], placed[22][2]), (placed[25][2], placed[35][2])):
        log = log[:first] + noise * (behind - first) + log[behind:]
    for number, path in enumerate(sorted((bench.root / "commitlog").iterdir())):
        path.write_bytes(log[number * (32 << 20) : (number + 1) * (32 << 20)])
    lines = list(dump_records(StoreReader(bench.root), Selection(body="none")))
    assert [line["queue_offset"] for line in lines if "damage" not in line] == [0, 1, 22, 23, 24, *range(35, 45)]
    damage = [line for line in lines if "damage" in line]
    assert (damage[0]["physical_offset"], damage[0]["end_offset"]) == (placed[2][2], placed[22][2])
    assert (damage[1]["physical_offset"], damage[-1]["end_offset"]) == (placed[25][2], placed[35][2])


def test_dump_shows_records_of_any_size(make_bench: MakeBench) -> None:
    """Imported ones may be larger than ours."""
    bench = make_bench(segment_bytes=64 << 20)
    end = bench.store.log.end_offset
    bench.crash()
    at, places = end, []
    for offset, size in enumerate([5 << 20, 12 << 20, 17 << 20, 100]):
        made = layouts.Record(queue_offset=offset, physical_offset=at, body=bytes(size), topic=b"r", store_ms=1)
        places.append(at)
        raw = made.encode_checked()
        bench.overwrite(at, raw)
        at += len(raw)
    bench.open()
    bench.store.close()
    found = list(dump_records(StoreReader(bench.root), Selection(topic="r", body="none")))
    assert [row.get("queue_offset") for row in found] == [0, 1, 2, 3]
    for offset, place in enumerate(places):
        (row,) = dump_records(StoreReader(bench.root), Selection(physical_offset=place, body="none"))
        assert row["queue_offset"] == offset


def test_a_log_that_goes_on_into_the_next_file_while_it_is_checked(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was the end of the log is none any more: that is no hole."""
    bench.append("t", *[b"x" * 1000] * 55)  # near the end of the first segment
    bench.settle()
    found_behind = LogCheck._find_behind
    went_on: list[int] = []

    def go_on_first(self: LogCheck, number: int, offset: int) -> int | None:
        if not went_on:
            went_on.extend(entry[1] for entry in bench.append("t", *[b"y" * 1000] * 10))
        return found_behind(self, number, offset)

    monkeypatch.setattr(LogCheck, "_find_behind", go_on_first)
    report = check_store(bench.root)
    assert went_on
    assert (report.exit_code, report.damage) == (0, []), report.to_json()


def test_an_entry_with_a_size_that_cannot_be_is_not_believed(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit makes it a gigabyte: that much was read, and held in memory, to find no record."""
    (placed,) = bench.append("t", b"body")
    bench.close()
    (entries,) = (bench.root / "consumequeue" / "t" / "0").iterdir()
    with entries.open("r+b") as file:
        file.seek(8)
        file.write(b"\x40")
    sizes = count_reads(monkeypatch, "commitlog")
    (shown,) = dump_records(StoreReader(bench.root), Selection(topic="t", from_offset=0))
    assert (shown["physical_offset"], shown["damage"]) == (placed[2], "no whole record there")
    assert sizes == []


def test_dump_names_an_entry_that_is_missing(bench: StoreBench) -> None:
    """Queue files that lost entries: the others are shown."""
    closed(bench, 10)
    path = bench.root / "consumequeue/t0/0" / f"{0:020d}"
    entries = path.read_bytes()
    path.write_bytes(entries[:20] + bytes(20) + entries[40:])
    lines = list(dump_records(StoreReader(bench.root), Selection(topic="t0", from_offset=0)))
    assert [line.get("queue_offset") for line in lines] == [0, None, 2, 3, 4]
    assert lines[1] == {"physical_offset": 0, "end_offset": 0, "damage": "entry 1 of t0/0 is missing"}


def test_a_check_opens_nothing_for_writing(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a file system that is mounted read-only, or of another user, is as whole as elsewhere."""
    bench.append("t", b"one", properties=b"KEYS\x01k\x02")
    bench.store.index.wait_live()
    bench.close()
    really_open = os.open

    def open_to_read(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_to_read)
    report = bench.check()
    monkeypatch.undo()
    assert (report.exit_code, report.index.keys, report.damage) == (0, 1, [])


# -- the command --


def test_names_that_are_no_text(bench: StoreBench) -> None:
    """Files may have any name: the JSON stays JSON, and text is printed in any locale."""
    closed(bench, 2)
    (bench.root / os.fsdecode(b"headrace/\xff")).touch()
    stray = bench.root / os.fsdecode(b"consumequeue/\xfe/0")
    stray.mkdir(parents=True)
    for flags in (["--json"], []):
        code = "import sys; from headrace.cli.program import main; main(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, "store", "check", str(bench.root), *flags],
            capture_output=True, check=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        )  # fmt: skip
        assert b"\\udcff" in done.stdout
        if flags:
            assert json.loads(done.stdout)["status"] == "whole"
    bench.open()
    assert bench.messages("t0")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_utf_8_in_any_locale(bench: StoreBench, encoding: str) -> None:
    """What an encoding has not was written as \\xe9, which is no JSON, or in bytes that no reader of JSON expects."""
    bench.append("t", "\u00e9\u20ac\U0001f600".encode())
    bench.close()
    (bench.root / "\u00e9\u20ac").touch()
    for command in (["dump", "--topic", "t"], ["check", "--json"]):
        code = "import sys; from headrace.cli.program import main; main(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, "store", *command, str(bench.root)],
            capture_output=True, check=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        shown = json.loads(done.stdout)
        text = shown["body"] if command[0] == "dump" else shown["info"][0]["file"]
        assert text.startswith("\u00e9\u20ac")


def test_the_command(bench: StoreBench, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes, --json with stable keys, one clear line for each error."""
    filled_broker(bench)
    root = str(bench.root)
    assert run(["store", "check", root]) == 0
    assert "whole (closed)" in capsys.readouterr().out
    assert run(["store", "check", root, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == [
        "directory", "status", "exit_code", "error", "state", "store_id", "format_version", "segment_bytes", "log",
        "queues", "index", "channels", "damage", "info", "seconds",
    ]  # fmt: skip
    assert run(["store", "inspect", root]) == 0
    text = capsys.readouterr().out
    assert "billing" in text
    assert "commitlog/00000000000000000000" in text
    assert run(["store", "inspect", root, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(c["topic"], c["channel"], c["paused"]) for c in shown["channels"]] == [
        ("events", "billing", False), ("orders", "audit", True), ("orders", "billing", False),
    ]  # fmt: skip
    assert run(["store", "dump", root, "--control"]) == 0
    changes = [json.loads(json.loads(line)["body"]) for line in capsys.readouterr().out.splitlines()]
    assert [change["op"] for change in changes] == [
        "create_topic", "create_channel", "create_topic", "create_channel", "create_channel", "pause_channel",
    ]  # fmt: skip
    assert run(["store", "dump", root, "--queue-entries", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["queue_offset"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["check", "/nowhere"], 2, "/nowhere is not a directory"),
        (["inspect", "/nowhere"], 1, "/nowhere is not a directory"),
        (["dump", "/nowhere"], 1, "/nowhere is not a directory"),
        (["dump", "/nowhere", "--from-offset", "3"], 2, "name its --topic too"),
        (["dump", "/nowhere", "--control", "--topic", "t"], 2, "two different topics"),
        (["dump", "/nowhere", "--physical-offset", "0", "--queue-entries"], 2, "nothing to --queue-entries"),
        (["dump", "/nowhere", "--physical-offset", "0", "--from-offset", "3"], 2, "nothing to --from-offset"),
        (["dump", "/nowhere", "--queue-entries", "--body", "base64"], 2, "nothing to --body"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Clear errors."""
    assert run(["store", *arguments]) == code
    complaint = capsys.readouterr().err
    assert text in complaint
    assert complaint.count("\n") == 1


def test_inspect_of_a_store_without_a_checkpoint(bench: StoreBench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.close()
    (bench.root / "headrace/checkpoint.json").unlink()
    (bench.root / "headrace/durable").write_bytes(b"damaged")
    assert run(["store", "inspect", str(bench.root)]) == 0
    assert "durable mark none, checkpoint none, 0 holes" in capsys.readouterr().out


def test_a_long_name_hides_no_other_column_of_an_inspection(
    bench: StoreBench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 columns one topic of 64 letters left no room for the queue's number, nor for anything of a channel."""
    broker = broker_on(bench)
    broker.ensure_channel(broker.ensure_topic("T" * 64), "audit")
    broker.close()
    bench.close()
    monkeypatch.setattr("headrace.cli.output.PIPE_COLUMNS", 80)
    assert run(["store", "inspect", str(bench.root)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ T+… +audit +0 +0 +0 +0 +no *$", text, re.MULTILINE), text
    assert max(map(len, text.splitlines())) <= 80


def test_damage_on_the_command_line(make_bench: MakeBench, capsys: pytest.CaptureFixture[str]) -> None:
    """Every damaged record has a line; unknown places in a dump have one too."""
    bench = make_bench()
    placed = closed(bench, 10)
    bench.overwrite(placed[3][2] + 100, b"!")
    assert run(["store", "check", str(bench.root)]) == 1
    out = capsys.readouterr().out
    assert f"damage: damaged_record: record 1 of t1/0 at {placed[3][2]}" in out
    assert run(["store", "dump", str(bench.root), "--physical-offset", "17"]) == 1
    assert "no whole record begins at physical offset 17" in capsys.readouterr().err
    assert run(["store", "dump", str(bench.root), "--topic", "nix", "--from-offset", "0"]) == 1
    assert "no consume queue of topic 'nix'" in capsys.readouterr().err


def test_what_a_terminal_would_obey_is_spelled(bench: StoreBench, capsys: pytest.CaptureFixture[str]) -> None:
    """Names may be what is damaged, and folders are called as somebody likes."""
    placed, _ = bench.append("topic", b"body", b"behind")
    bench.close()
    shutil.rmtree(bench.root / "consumequeue/topic")  # so that the record is named by its own fields
    bench.overwrite(placed[2] + 88 + len(b"body") + 1, b"\x1b[2J\a")
    (bench.root / "consumequeue/\x1b[31m/0").mkdir(parents=True)
    assert run(["store", "check", str(bench.root)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"by its own fields 0 of \x1b[2J\x07/0" in out
    assert run(["store", "inspect", str(bench.root)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[31m" in out


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("chosen", [[], ["--queue", "0"], ["--from-offset", "0"], ["--queue-entries"]])
def test_dump_of_a_topic_without_a_message_prints_nothing(
    bench: StoreBench, chosen: list[str], is_open: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that was made is there, though its queues have no files yet."""
    broker = broker_on(bench)
    broker.ensure_topic("empty")
    if not is_open:
        broker.close()
        bench.close()
    assert run(["store", "dump", str(bench.root), "--topic", "empty", *chosen]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert run(["store", "dump", str(bench.root), "--topic", "empty", "--queue", "7"]) == 1
    assert "no consume queue 7 of topic 'empty'" in capsys.readouterr().err


def test_a_hole_before_a_missing_segment(bench: StoreBench) -> None:
    """Damage of two kinds, the later one known first."""
    placed = closed(bench)
    bench.overwrite(placed[5][2] + 100, b"!")
    bench.segment(2 * SEGMENT_BYTES).unlink()
    report = bench.check()
    found = {(f.topic, f.queue_offset) for f in report.damage if f.kind == "damaged_record"}
    assert found == {placed[5][:2]} | {
        (topic, number) for topic, number, at, _ in placed if 2 * SEGMENT_BYTES <= at < 3 * SEGMENT_BYTES
    }


def test_a_hole_that_takes_the_first_segment_of_an_epoch(bench: StoreBench) -> None:
    """It is a hole like any other: no gap that the recovery left."""
    bench.append("t", b"one")
    bench.crash()
    bench.overwrite(bench.store.mark.noted_offset, b"\xff" * 8)
    bench.open()
    assert bench.store.epoch == 2
    placed = bench.append("t", *(b"%03d" % n + b"x" * 1000 for n in range(150)))
    bench.close()
    first = placed[0][2]
    lost = [at for _, _, at, _ in placed if at < first + SEGMENT_BYTES]
    bench.overwrite(first, b"\xff" * SEGMENT_BYTES)
    report = bench.check()
    hole = one(report, "hole")
    assert (hole.physical_offset, hole.end_offset) == (first, first + SEGMENT_BYTES)
    assert [finding.physical_offset for finding in report.damage if finding.kind == "damaged_record"] == lost
    assert kinds(report) == {"hole", "damaged_record"}


def test_a_damaged_record_full_of_beginnings_is_stepped_over_at_once(make_bench: MakeBench) -> None:
    """What a client put into a body must not make the search behind it take half an hour."""
    bench = make_bench(segment_bytes=64 << 20)
    beginning = (32 << 20).to_bytes(4, "big") + bytes.fromhex("DAA320A7")
    placed = bench.append("t", beginning * (1 << 18), b"behind")
    bench.close()
    bench.overwrite(placed[0][2], b"\xff" * 8)
    hole = one(bench.check(), "hole")
    assert (hole.physical_offset, hole.end_offset) == (placed[0][2], placed[1][2])


def test_an_entry_that_points_ahead_is_wrong(bench: StoreBench) -> None:
    """In front of a damaged record, and not at it."""
    placed = [item for item in closed(bench) if item[0] == "t0"]
    bench.overwrite(placed[7][2] + 100, b"!")
    file = bench.root / "consumequeue/t0/0/00000000000000000000"
    raw = bytearray(file.read_bytes())
    raw[140:160] = layouts.encode_entry(placed[9][2], 1, 0)
    file.write_bytes(raw)
    report = bench.check()
    assert [(f.queue_offset, f.physical_offset) for f in report.damage if f.kind == "wrong_entry"] == [
        (7, placed[9][2])
    ]
    (record,) = [f for f in report.damage if f.kind == "damaged_record"]
    assert (record.physical_offset, record.topic, record.queue_offset) == (placed[7][2], "t0", 7), "by its own fields"


def test_a_read_that_fails_is_no_end_of_the_log_to_inspect(
    bench: StoreBench, capsys: pytest.CaptureFixture[str]
) -> None:
    """It showed what came before as if that were all, and exited with 0."""
    for n in range(200):
        bench.append(f"t{n % 2}", b"x" * 1000, flush=n == 199)
    bench.crash()
    segments = sorted((bench.root / "commitlog").iterdir())
    assert len(segments) > 2
    where = segments[1].name
    segments[1].unlink()
    segments[1].symlink_to("/proc/self/mem")  # of which no process can read the first bytes
    assert run(["store", "inspect", str(bench.root), "--json"]) == 1
    out, err = capsys.readouterr()
    assert f"commitlog/{where} cannot be read from physical offset {int(where)} on: Input/output error" in err
    assert "store check" in err
    shown = json.loads(out)
    assert shown["unreadable"] == [err.removeprefix("headrace: ").split(";")[0]]
    assert shown["topics"]["t0"], "what can be read is shown"
    assert run(["store", "inspect", str(bench.root)]) == 1


def test_an_open_store_shows_what_only_the_log_has(bench: StoreBench, capsys: pytest.CaptureFixture[str]) -> None:
    """Queue files are written behind the log; inspect and check look into the log for the rest."""
    broker = broker_on(bench)
    broker.ensure_channel(broker.ensure_topic("orders"), "billing")
    bench.append("orders", b"one", b"two")
    assert run(["store", "inspect", str(bench.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "open"
    assert [queue["next_offset"] for queue in shown["topics"]["orders"]] == [2]
    assert [(channel["channel"], channel["unfinished"]) for channel in shown["channels"]] == [("billing", 2)]
    report = check_store(bench.root, extra=check_channels)
    assert (report.exit_code, report.channels.topics, report.channels.channels) == (0, 1, 1)
    broker.close()
