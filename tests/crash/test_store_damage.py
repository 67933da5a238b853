"""Torn tails and flipped bits: damage is found and named, nothing else is lost, nothing is removed silently.

An invalid range followed by valid records is a hole, one with nothing valid after it a torn tail. Offsets are never
issued twice.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.errors import SideFileError, StoreFullError
from headrace.settings import StoreSettings
from headrace.store import opening
from headrace.store.check import check_store
from headrace.store.store import Store
from tests.crash.damage import (
    SEGMENT_BYTES,
    Appended,
    StoreRig,
    copy_store,
    expected,
    fast_folder,
    overwrite,
    read_log,
    readable,
)
from tests.crash.failures import fill, small_disk

__all__ = ["small_disk"]

BODY_BYTES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = fast_folder(tmp_path_factory.mktemp("damage"))
    yield made
    if made.is_relative_to("/dev/shm"):
        shutil.rmtree(made, ignore_errors=True)


def reopen(at: Path) -> Store:
    return Store.open(StoreSettings(data_dir=at, segment_bytes=SEGMENT_BYTES), ManualClock())


def body(number: int) -> bytes:
    return (b"message %06d " % number).ljust(BODY_BYTES, b".")


@pytest.fixture(scope="module")
def unflushed(folder: Path) -> tuple[Path, StoreRig]:
    """A store killed before its last record and last MPUB were flushed; the durable mark is before them."""
    rig = StoreRig(folder / "unflushed-live")
    for number in range(20):
        rig.append(body(number))
    rig.store.flush()
    rig.append(body(100))
    rig.snapshot(folder / "unflushed-pub")
    rig.append(*(body(200 + number) for number in range(5)))
    rig.snapshot(folder / "unflushed-mpub")
    rig.store.abandon()
    return folder, rig


def check_torn(at: Path, kept: list[Appended], gone: list[Appended], caplog: pytest.LogCaptureFixture) -> Store:
    """Open a store whose tail is torn; check what it says and serves, and that it goes on. Returns it, open."""
    caplog.clear()
    store = reopen(at)
    assert readable(store) == expected(kept)
    assert store.holes == []
    assert store.recovery.scan.torn_offset == gone[0].physical_offset
    assert f"torn tail cut off physical_offset={gone[0].physical_offset}" in caplog.text
    assert store.recovery.lost_bytes == 0
    assert "lost" not in caplog.text
    return store


@pytest.mark.parametrize("variant", ["zeros", "garbage", "ones"])
@pytest.mark.parametrize("command", ["pub", "mpub"])
def test_torn_at_every_byte_of_the_last_record(
    unflushed: tuple[Path, StoreRig], command: str, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E-STORE-06: a torn tail is truncated and counted; an MPUB is there whole or not at all."""
    caplog.set_level(logging.INFO)
    folder, rig = unflushed
    appended = rig.appended if command == "mpub" else rig.appended[:21]
    last = appended[-1]
    gone = [one for one in appended if one.command == last.command]
    kept = appended[: len(appended) - len(gone)]
    rng = random.Random(1)
    whole = read_log(folder / f"unflushed-{command}", last.physical_offset, last.record_bytes)
    at = folder / "torn"
    written = 4 if variant == "zeros" and command == "pub" else 0  # the size begins with three zeros: nothing is torn
    for cut in range(written, last.record_bytes):
        rest = last.record_bytes - cut
        tail = {"zeros": bytes(rest), "ones": b"\xff" * rest, "garbage": rng.randbytes(rest)}[variant]
        if tail == whole[cut:]:
            continue
        copy_store(folder / f"unflushed-{command}", at)
        overwrite(at, last.physical_offset + cut, tail)
        store = check_torn(at, kept, gone, caplog)
        if cut % 16 == 0:
            goes_on(store, at, kept, last.queue_offset)
        else:
            store.abandon()


def goes_on(store: Store, at: Path, kept: list[Appended], last_issued: int) -> None:
    """What is appended to a recovered store survives the next crash, at offsets never issued before."""
    store.abandon()
    rig = StoreRig(at)
    assert readable(rig.store) == expected(kept)
    assert rig.store.recovery.scan.torn_offset == -1
    new = rig.append(b"new")
    assert new[0].queue_offset > kept[-1].queue_offset
    if last_issued in {offset for _, offset in readable(rig.store)}:
        assert new[0].queue_offset > last_issued
    assert new[0].physical_offset >= SEGMENT_BYTES, "a torn segment is left, not written on"
    rig.store.flush()
    rig.store.abandon()
    again = reopen(at)
    assert readable(again) == expected([*kept, *new])
    again.close()


def test_torn_below_the_durable_mark_is_reported_as_loss(
    unflushed: tuple[Path, StoreRig], caplog: pytest.LogCaptureFixture
) -> None:
    """A torn tail that begins below the durable mark is reported as loss."""
    folder, rig = unflushed
    at = folder / "lost"
    for victim in (rig.appended[19], rig.appended[10]):
        copy_store(folder / "unflushed-pub", at)
        end = rig.appended[20].end_offset
        overwrite(at, victim.physical_offset + 3, bytes(end - victim.physical_offset - 3))
        caplog.clear()
        store = reopen(at)
        assert readable(store) == expected(
            [one for one in rig.appended[:20] if one.end_offset <= victim.physical_offset]
        )
        assert store.recovery.lost_bytes == rig.appended[19].end_offset - victim.physical_offset
        assert "durable messages lost" in caplog.text
        new_queue_offset = store.queue("t", 0).next_offset
        store.close()
        assert new_queue_offset >= victim.queue_offset


@pytest.fixture(scope="module")
def rolled(folder: Path) -> tuple[Path, StoreRig]:
    """Three segments, flushed; killed without a clean end."""
    rig = StoreRig(folder / "rolled-live")
    number = 0
    while rig.store.log.end_offset < 2 * SEGMENT_BYTES + 60_000:
        size = 1 if number % 7 else 4
        rig.append(*((body(number) + b"%03d" % part).ljust(2800, b"-") for part in range(size)), topic=f"t{number % 3}")
        number += 1
    rig.store.flush()
    rig.snapshot(folder / "rolled")
    rig.store.abandon()
    return folder, rig


def blank_of(rig: StoreRig, segment: int) -> tuple[int, int]:
    """Return (physical offset, bytes) of the blank record that ends a segment."""
    end = max(one.end_offset for one in rig.appended if one.physical_offset < (segment + 1) * SEGMENT_BYTES)
    return end, (segment + 1) * SEGMENT_BYTES - end


@pytest.mark.parametrize("variant", ["zeros", "garbage"])
def test_damaged_blank_record_at_a_segment_end(
    rolled: tuple[Path, StoreRig], variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A blank record carries nothing: with valid records in the next segment its loss costs nothing but a name."""
    folder, rig = rolled
    at = folder / "blank"
    rng = random.Random(2)
    offset, size = blank_of(rig, 0)
    assert 8 <= size < 4000
    for position in range(8):
        copy_store(folder / "rolled", at)
        tail = bytes(8 - position) if variant == "zeros" else rng.randbytes(8 - position)
        if tail == read_log(at, offset + position, 8 - position):
            continue
        overwrite(at, offset + position, tail)
        caplog.clear()
        store = reopen(at)
        assert readable(store) == expected(rig.appended)
        assert [(hole.first_offset, hole.end_offset) for hole in store.holes] == [(offset, SEGMENT_BYTES)]
        assert f"hole in the log first_offset={offset} end_offset={SEGMENT_BYTES}" in caplog.text
        assert store.recovery.scan.torn_offset == -1
        store.close()


def test_torn_blank_record_before_an_empty_segment(
    rolled: tuple[Path, StoreRig], caplog: pytest.LogCaptureFixture
) -> None:
    """Killed while the segment rolled: the blank record is torn, the next segment was never written to."""
    caplog.set_level(logging.INFO)
    folder, rig = rolled
    at = folder / "blank"
    offset, size = blank_of(rig, 1)
    kept = [one for one in rig.appended if one.physical_offset < offset]
    for written in range(9):
        copy_store(folder / "rolled", at)
        for later in (2, 3):
            path = at / "commitlog" / f"{later * SEGMENT_BYTES:020d}"
            if path.exists():
                path.write_bytes(bytes(SEGMENT_BYTES))
        (at / "headrace" / "durable").unlink()
        overwrite(at, offset, read_log(at, offset, written) + bytes(min(size, 64) - written))
        caplog.clear()
        store = reopen(at)
        assert readable(store) == expected(kept)
        assert store.holes == []
        assert store.recovery.scan.torn_offset in (-1, offset)
        store.close()
        rig_again = StoreRig(at)
        new = rig_again.append(b"x" * 5000)
        rig_again.store.flush()
        rig_again.store.abandon()
        again = reopen(at)
        assert readable(again) == expected([*kept, *new])
        again.close()


def sampled_flips(record_bytes: int, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return (byte, bit) pairs: every second byte of the fixed head, the whole checksum, the rest sampled."""
    head = [(position, rng.randrange(8)) for position in range(0, min(91, record_bytes), 2)]
    rest = [(rng.randrange(record_bytes), rng.randrange(8)) for _ in range(count)]
    tail = [(record_bytes - 1 - back, rng.randrange(8)) for back in range(24)]
    return head + rest + tail


@pytest.mark.parametrize("which", ["in an MPUB", "before a roll", "after a roll", "last but one"])
def test_flipped_bit_makes_one_hole(
    rolled: tuple[Path, StoreRig], which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hole is quarantined and named, what follows is kept and served."""
    folder, rig = rolled
    victim = rig.appended[victim_index(rig, which)]
    others = [one for one in rig.appended if one is not victim]
    at = folder / "flipped"
    # A hole ends where the next record begins; the blank record behind the last one of a segment is none.
    hole_end = SEGMENT_BYTES if which == "before a roll" else victim.end_offset
    for position, bit in sampled_flips(victim.record_bytes, 15, random.Random(which)):
        copy_store(folder / "rolled", at)
        offset = victim.physical_offset + position
        overwrite(at, offset, bytes([read_log(at, offset, 1)[0] ^ 1 << bit]))
        before = read_log(at, victim.physical_offset, victim.record_bytes)
        caplog.clear()
        store = reopen(at)
        place = f"byte={position} bit={bit}"
        assert readable(store) == expected(others), place
        holes = [(hole.first_offset, hole.end_offset) for hole in store.holes]
        assert holes == [(victim.physical_offset, hole_end)], place
        assert f"hole in the log first_offset={victim.physical_offset}" in caplog.text, place
        assert store.recovery.scan.torn_offset == -1, place
        assert store.recovery.lost_bytes == 0
        store.close()
        assert read_log(at, victim.physical_offset, victim.record_bytes) == before, "damage is evidence: kept"
        caplog.clear()
        again = reopen(at)
        assert [hole.first_offset for hole in again.holes] == [victim.physical_offset]
        assert f"first_offset={victim.physical_offset}" in caplog.text, "every start names every hole"
        assert readable(again) == expected(others)
        again.close()


def victim_index(rig: StoreRig, which: str) -> int:
    offsets = [one.physical_offset for one in rig.appended]
    after_roll = next(i for i, offset in enumerate(offsets) if offset >= SEGMENT_BYTES)
    commands = [one.command for one in rig.appended]
    in_mpub = next(i for i in range(1, len(commands)) if commands[i] == commands[i - 1] == commands[i + 1])
    return {
        "in an MPUB": in_mpub,
        "before a roll": after_roll - 1,
        "after a roll": after_roll,
        "last but one": len(offsets) - 2,
    }[which]


def test_flipped_bit_below_what_a_start_verifies(
    rolled: tuple[Path, StoreRig], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the checkpoint nothing is scanned: the damage is found when the record is read, named and skipped."""
    folder, rig = rolled
    at = folder / "below"
    copy_store(folder / "rolled", at)
    reopen(at).close()  # a checkpoint at the end
    checkpointed = folder / "below-template"
    copy_store(at, checkpointed)
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    victim = rig.appended[10]
    others = [one for one in rig.appended if one is not victim]
    for position, bit in sampled_flips(victim.record_bytes, 5, random.Random(5)):
        copy_store(checkpointed, at)
        offset = victim.physical_offset + position
        overwrite(at, offset, bytes([read_log(at, offset, 1)[0] ^ 1 << bit]))
        store = reopen(at)
        assert store.recovery.scanned_from > victim.end_offset
        assert readable(store) == expected(others), f"byte={position} bit={bit}"
        store.abandon()


def test_several_holes_in_one_start(rolled: tuple[Path, StoreRig], caplog: pytest.LogCaptureFixture) -> None:
    """One log line per hole, and nothing else is lost."""
    folder, rig = rolled
    at = folder / "several"
    copy_store(folder / "rolled", at)
    victims = [rig.appended[index] for index in (3, 50, 51, 52, 450, len(rig.appended) - 3)]
    for victim in victims:
        overwrite(at, victim.physical_offset + 40, b"damage")
    store = reopen(at)
    assert readable(store) == expected([one for one in rig.appended if one not in victims])
    covered = [range(hole.first_offset, hole.end_offset) for hole in store.holes]
    assert all(any(victim.physical_offset in hole for hole in covered) for victim in victims)
    assert sum(len(hole) for hole in covered) == sum(victim.record_bytes for victim in victims)
    assert caplog.text.count("hole in the log") == len(covered)
    store.close()


@pytest.mark.parametrize("page", [1, 100, 255])
def test_zeroed_page_in_the_log(rolled: tuple[Path, StoreRig], page: int, caplog: pytest.LogCaptureFixture) -> None:
    """A page that a disk lost is a hole of the records that touch it."""
    folder, rig = rolled
    at = folder / "page"
    copy_store(folder / "rolled", at)
    first, end = page * 4096, (page + 1) * 4096
    overwrite(at, first, bytes(4096))
    store = reopen(at)
    hit = [one for one in rig.appended if one.physical_offset < end and one.end_offset > first]
    assert readable(store) == expected([one for one in rig.appended if one not in hit])
    assert len(store.holes) == 1
    assert store.holes[0].first_offset == hit[0].physical_offset
    assert "hole in the log" in caplog.text
    store.close()


def test_lost_middle_segment(rolled: tuple[Path, StoreRig], caplog: pytest.LogCaptureFixture) -> None:
    """A segment file that is gone is named, the ones around it are served."""
    folder, rig = rolled
    at = folder / "middle"
    copy_store(folder / "rolled", at)
    (at / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    store = reopen(at)
    kept = [one for one in rig.appended if one.physical_offset // SEGMENT_BYTES != 1]
    assert readable(store) == expected(kept)
    assert [(hole.first_offset, hole.end_offset) for hole in store.holes] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    assert "hole in the log" in caplog.text
    store.close()


def exchange(at: Path, one: int, other: int) -> None:
    """Give the files of two segments each other's name."""
    paths = [at / "commitlog" / f"{number * SEGMENT_BYTES:020d}" for number in (one, other)]
    aside = at / "aside"
    paths[0].rename(aside)
    paths[1].rename(paths[0])
    aside.rename(paths[1])


@pytest.mark.parametrize(("one", "other", "named", "holds"), [(1, 2, 1, 2), (0, 2, 2, 0), (2, 3, 3, 2)])
def test_exchanged_segments_at_the_end_are_refused_and_left_alone(
    rolled: tuple[Path, StoreRig], one: int, other: int, named: int, holds: int
) -> None:
    """What would be cut off is whole records of another place: they are there as soon as the file has its name."""
    folder, rig = rolled
    at = folder / "exchanged"
    copy_store(folder / "rolled", at)
    (at / "commitlog" / f"{3 * SEGMENT_BYTES:020d}").touch()
    os.truncate(at / "commitlog" / f"{3 * SEGMENT_BYTES:020d}", SEGMENT_BYTES)
    exchange(at, one, other)
    before = {path: path.read_bytes() for path in (at / "commitlog").iterdir()}
    report = check_store(at)
    assert [finding.physical_offset for finding in report.damage if finding.kind == "misplaced_record"]
    with pytest.raises(SideFileError) as caught:
        reopen(at)
    assert f"{named * SEGMENT_BYTES:020d}: holds records of {holds * SEGMENT_BYTES:020d}" in str(caught.value)
    assert {path: path.read_bytes() for path in (at / "commitlog").iterdir()} == before
    exchange(at, one, other)
    store = reopen(at)
    assert readable(store) == expected(rig.appended)
    store.close()


def test_lost_segment_inside_an_mpub(folder: Path) -> None:
    """The records of an MPUB that a lost segment took are not waited for: what lies behind is whole and stays."""
    rig = StoreRig(folder / "spanning-live")
    while rig.store.log.end_offset < SEGMENT_BYTES - 8000:
        rig.append(body(1).ljust(3000, b"-"))
    rig.append(*(body(number).ljust(3000, b"-") for number in range(300)))  # into segment 1
    while rig.store.log.end_offset < 2 * SEGMENT_BYTES + 20_000:
        rig.append(body(2).ljust(3000, b"-"))
    rig.store.flush()
    rig.snapshot(folder / "spanning")
    rig.store.abandon()
    (folder / "spanning" / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    (folder / "spanning" / "headrace" / "checkpoint.json").unlink(missing_ok=True)
    store = reopen(folder / "spanning")
    kept = [one for one in rig.appended if one.physical_offset // SEGMENT_BYTES != 1]
    assert readable(store) == expected(kept)
    assert store.recovery.scan.torn_offset == -1
    store.close()


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("goes_on_with", [0, 50, 4000])
def test_refused_batch_leaves_nothing_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, goes_on_with: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A publish that is refused because no segment can be made is nowhere, also after a crash.

    Ref: X-STORE-22.
    """
    shutil.rmtree(folder / "refused-live", ignore_errors=True)
    rig = StoreRig(folder / "refused-live")
    while rig.store.log.end_offset < SEGMENT_BYTES - 9000:
        rig.append(body(1).ljust(3000, b"-"))
    rig.store.flush()
    kept = list(rig.appended)

    def refuse(first_offset: int) -> None:
        raise StoreFullError("no room")

    monkeypatch.setattr(rig.store.log, "provide_segment", refuse)
    for _ in range(2):
        with pytest.raises(StoreFullError):
            rig.append(*(body(number).ljust(9000 // size, b"!") for number in range(size)))
    assert rig.store.log.end_offset == kept[-1].end_offset
    if goes_on_with:
        kept += rig.append(b"y" * goes_on_with)
        rig.store.flush()
    rig.snapshot(folder / "refused")
    rig.store.abandon()
    caplog.clear()
    store = reopen(folder / "refused")
    assert readable(store) == expected(kept)
    assert store.holes == []
    assert store.recovery.scan.torn_offset == -1
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]
    store.close()


def test_a_copy_without_its_zeros_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    """What `cp` leaves out is not allocated: a full disk refuses in the middle of a batch, as long as it is full.

    Ref: X-STORE-22.
    """
    rig = StoreRig(tmp_path / "live")
    rig.append(body(1))
    rig.close()
    subprocess.run(["cp", "-a", "--sparse=always", str(rig.folder), str(small_disk / "copy")], check=True)
    copy = StoreRig(small_disk / "copy", appended=list(rig.appended))
    others = fill(small_disk)
    for _ in range(2):
        with pytest.raises(StoreFullError, match="free space"):
            copy.append(b"one large".ljust(20_000, b"!"))
        with pytest.raises(StoreFullError, match="free space"):
            copy.append(*(b"a part of many %d".ljust(3000, b"!") % number for number in range(10)))
        copy.append(body(2))  # its page is there
    others.unlink()
    copy.append(*(body(number).ljust(3000, b"-") for number in range(10)))
    copy.store.flush()
    copy.snapshot(tmp_path / "copy")
    copy.store.abandon()
    store = reopen(tmp_path / "copy")
    assert readable(store) == expected(copy.appended)
    assert store.holes == []
    assert store.recovery.scan.torn_offset == -1
    store.close()


class KilledError(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the process die before its Nth change of a file; return the names of those it made."""
    made: list[str] = []

    def guard(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(made) == step:
                raise KilledError(name)
            made.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("ftruncate", "pwrite", "replace", "unlink", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, guard(name, getattr(os, name)))
    return made


@pytest.mark.parametrize("command", ["pub", "mpub", "lost"])
def test_killed_at_every_step_of_a_recovery(
    unflushed: tuple[Path, StoreRig], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that is cut short is taken up by the next: same messages, no offset issued twice."""
    folder, rig = unflushed
    torn = folder / "torn-template"
    if command == "lost":
        victim, kept = rig.appended[10], rig.appended[:10]
        copy_store(folder / "unflushed-pub", torn)
        end = rig.appended[20].end_offset
        overwrite(torn, victim.physical_offset + 3, bytes(end - victim.physical_offset - 3))
    else:
        victim = rig.appended[-1 if command == "mpub" else 20]
        kept = [one for one in rig.appended if one.command < victim.command]
        copy_store(folder / f"unflushed-{command}", torn)
        overwrite(torn, victim.physical_offset + 50, b"\xff" * 40)
    at = folder / "killed"
    for step in range(200):
        copy_store(torn, at)
        with monkeypatch.context() as patch:
            made = kill_at(step, patch)
            try:
                store = reopen(at)
            except KilledError:
                pass
            else:
                store.abandon()
                assert step > 5
                break
        restarted = folder / "restarted"
        copy_store(at, restarted)  # the lock of the killed process is not copied
        again = StoreRig(restarted)
        assert readable(again.store) == expected(kept), f"killed behind {made}"
        new = again.append(b"new")
        assert new[0].queue_offset >= kept[-1].queue_offset + 1
        assert new[0].physical_offset >= SEGMENT_BYTES
        again.store.flush()
        again.close()
        last = reopen(restarted)
        assert readable(last) == expected([*kept, *new]), f"killed behind {made}"
        last.close()


def test_a_tail_lost_below_the_checkpoint_without_a_mark(tmp_path: Path) -> None:
    """The durable mark is gone too: the checkpoint says as well how far the log once reached."""
    at = tmp_path / "store"
    rig = StoreRig(at)
    for number in range(5):
        rig.append(b"%d" % number)
    rig.close()
    (at / "headrace" / "durable").unlink()
    for one in rig.appended[3:]:
        overwrite(at, one.physical_offset, bytes(one.record_bytes))
    again = StoreRig(at, appended=rig.appended[:3])
    assert again.store.epoch == 2
    assert again.store.recovery.lost_bytes == rig.appended[-1].end_offset - rig.appended[3].physical_offset
    new = again.append(b"new")[0]
    assert new.physical_offset >= rig.appended[-1].end_offset
    assert new.queue_offset >= len(rig.appended)
    again.store.flush()
    assert readable(again.store) == expected(again.appended)
    again.close()
