"""A power cut at level ``async`` takes what readers had already seen; offsets of it are not issued again.

The cut is simulated on a copy, opened under another boot id. Ref: docs/formats/side-files.md, "Boot note".
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.errors import StoreFullError
from headrace.settings import StoreSettings, TopicSettings
from headrace.store import boot_note
from headrace.store.check import check_store
from headrace.store.store import Store
from tests.crash.damage import SEGMENT_BYTES, StoreRig, copy_store, expected, overwrite, readable

SetBoot = Callable[[str], None]


@pytest.fixture
def set_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetBoot:
    """Say which boot this is; empty: nothing tells."""
    path = tmp_path / "boot_id"
    monkeypatch.setattr(boot_note, "BOOT_ID_FILE", path)

    def set_to(boot_id: str) -> None:
        path.unlink(missing_ok=True)
        if boot_id:
            path.write_text(f"{boot_id}\n")

    set_to("boot-1")
    return set_to


def shown_and_lost(folder: Path, **options: object) -> tuple[StoreRig, Path]:
    """Return a store that showed two messages more than its disk had, and the folder that a power cut left of it."""
    rig = StoreRig(folder / "live", {"durability": "async", **options})
    rig.append(b"kept")
    rig.store.flush()
    lost = [*rig.append(b"seen"), *rig.append(b"seen too")]
    rig.snapshot(folder / "cut")
    rig.store.abandon()
    size = lost[-1].end_offset - lost[0].physical_offset
    overwrite(folder / "cut", lost[0].physical_offset, bytes(size))
    return rig, folder / "cut"


def open_store(at: Path, durability: str = "async", **options: Any) -> Store:
    options |= {"durability": durability}
    return Store.open(StoreSettings(data_dir=at, segment_bytes=SEGMENT_BYTES, **options), ManualClock())


def test_physical_offsets_are_not_issued_again(folder: Path, set_boot: SetBoot) -> None:
    rig, cut = shown_and_lost(folder)
    set_boot("boot-2")
    again = StoreRig(cut, {"durability": "async"})
    assert again.store.epoch == 2
    assert readable(again.store) == expected(rig.appended[:1])
    assert again.append(b"new")[0].physical_offset >= rig.appended[-1].end_offset
    assert again.store.epochs.newest.queue_ends == {("t", 0): 1}, "what a reader is beyond, it has read of the old ones"
    again.close()
    report = check_store(cut)
    assert (report.exit_code, report.damage) == (0, [])


def test_a_log_that_was_lost_in_whole_segments_goes_on_above_them(folder: Path, set_boot: SetBoot) -> None:
    """The lost messages may have filled the segment that was made ahead, too."""
    rig = StoreRig(folder / "live", {"durability": "async"})
    rig.append(b"kept")
    rig.store.flush()
    while rig.appended[-1].physical_offset < SEGMENT_BYTES:
        rig.append(bytes(200_000))
    lost_from = rig.appended[1].physical_offset
    rig.snapshot(folder / "cut")
    rig.store.abandon()
    overwrite(folder / "cut", lost_from, bytes(SEGMENT_BYTES - lost_from))
    overwrite(folder / "cut", SEGMENT_BYTES, bytes(SEGMENT_BYTES))
    set_boot("boot-2")
    again = StoreRig(folder / "cut")
    assert again.append(b"new")[0].physical_offset > rig.appended[-1].physical_offset
    again.close()


def test_a_kill_begins_no_epoch(folder: Path, set_boot: SetBoot) -> None:
    """The kernel has what a killed process wrote, however often it is killed."""
    rig = StoreRig(folder / "live", {"durability": "async"})
    for number in range(3):
        rig.append(b"%d" % number)
        rig.store.abandon()
        kept = rig.appended
        rig = StoreRig(folder / "live", {"durability": "async"}, appended=kept)
        assert rig.store.epoch == 1
        assert readable(rig.store) == expected(kept)
    rig.close()


def test_an_epoch_begins_once_for_a_power_cut(folder: Path, set_boot: SetBoot) -> None:
    _, cut = shown_and_lost(folder)
    set_boot("boot-2")
    for _ in range(3):
        store = open_store(cut)
        assert store.epoch == 2
        store.abandon()


def test_a_clean_end_needs_no_epoch_after_it(folder: Path, set_boot: SetBoot) -> None:
    rig = StoreRig(folder / "live", {"durability": "async"})
    rig.append(b"kept")
    rig.close()
    assert not (folder / "live" / "headrace" / "boot.json").exists()
    set_boot("boot-2")
    store = open_store(folder / "live")
    assert store.epoch == 1
    store.close()


def test_level_fsync_needs_no_epoch(folder: Path, set_boot: SetBoot) -> None:
    """What was not on the disk nobody has seen; its file systems see no note either."""
    rig = StoreRig(folder / "live")
    rig.append(b"kept")
    rig.store.flush()
    rig.append(b"lost")
    rig.store.abandon()
    assert not (folder / "live" / "headrace" / "boot.json").exists()
    overwrite(folder / "live", rig.appended[1].physical_offset, bytes(rig.appended[1].record_bytes))
    set_boot("boot-2")
    store = open_store(folder / "live")
    assert store.epoch == 1
    store.close()


def test_one_topic_at_level_async_is_enough(folder: Path, set_boot: SetBoot) -> None:
    _, cut = shown_and_lost(folder, durability="fsync", topics={"t": TopicSettings(durability="async")})
    set_boot("boot-2")
    store = open_store(cut, durability="fsync")
    assert store.epoch == 2
    store.abandon()
    assert not (cut / "headrace" / "boot.json").exists(), "at level fsync there is nothing to note"
    set_boot("boot-3")
    store = open_store(cut, durability="fsync")
    assert store.epoch == 2
    store.close()


@pytest.mark.parametrize(("before", "now"), [("boot-1", ""), ("", "boot-1"), ("", "")])
def test_a_boot_that_nothing_tells_begins_no_epoch(folder: Path, set_boot: SetBoot, before: str, now: str) -> None:
    """Every kill would begin one."""
    set_boot(before)
    _, cut = shown_and_lost(folder)
    set_boot(now)
    store = open_store(cut)
    assert store.epoch == 1
    store.close()


def test_a_store_without_the_note_opens_as_before(folder: Path, set_boot: SetBoot) -> None:
    _, cut = shown_and_lost(folder)
    (cut / "headrace" / "boot.json").unlink()
    set_boot("boot-2")
    store = open_store(cut)
    assert store.epoch == 1
    store.close()


def test_a_damaged_note_is_named_and_made_anew(
    folder: Path, set_boot: SetBoot, caplog: pytest.LogCaptureFixture
) -> None:
    _, cut = shown_and_lost(folder)
    note = cut / "headrace" / "boot.json"
    for damaged in (b"", note.read_bytes()[:-3], note.read_bytes().replace(b"boot-1", b"boot-9")):
        copy_store(cut, folder / "damaged")
        (folder / "damaged" / "headrace" / "boot.json").write_bytes(damaged)
        report = check_store(folder / "damaged")
        assert [(found.kind, found.file) for found in report.damage] == [("side_file", "headrace/boot.json")]
        caplog.clear()
        store = open_store(folder / "damaged")
        assert [r.levelno for r in caplog.records if "boot note damaged" in r.message] == [logging.WARNING]
        assert store.epoch == 1
        store.abandon()
        set_boot("boot-2")
        store = open_store(folder / "damaged")
        assert store.epoch == 2, "the start before noted its own boot"
        store.close()
        set_boot("boot-1")


def test_a_disk_without_room_for_the_note_refuses_no_start(
    folder: Path, set_boot: SetBoot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(path: Path, kind: str, payload: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{path}.new")

    monkeypatch.setattr(boot_note, "write_side_file", write)
    store = open_store(folder / "live")
    assert "boot note not written" in caplog.text
    store.close()


def test_a_start_that_is_refused_again_and_again_begins_one_epoch(folder: Path, set_boot: SetBoot) -> None:
    """A service manager that tries each second would make an epoch of each, with every queue's end in it."""
    for durability in ("async", "fsync"):
        set_boot("boot-1")
        _, cut = shown_and_lost(folder / durability)
        set_boot("boot-2")
        for _ in range(3):
            with pytest.raises(StoreFullError):
                open_store(cut, durability=durability, budget_bytes=SEGMENT_BYTES)
        store = open_store(cut, durability=durability)
        assert store.epoch == 2
        store.close()


def test_a_note_that_cannot_be_made_anew_begins_one_epoch(
    folder: Path, set_boot: SetBoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the warning says: a power cut goes unnoticed. Not: every kill counts as one."""

    def write(path: Path, kind: str, payload: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{path}.new")

    _, cut = shown_and_lost(folder)
    set_boot("boot-2")
    monkeypatch.setattr(boot_note, "write_side_file", write)
    for _ in range(3):
        store = open_store(cut)
        assert store.epoch == 2
        store.abandon()


def test_the_note_stands_before_the_first_message(folder: Path, set_boot: SetBoot) -> None:
    store = open_store(folder / "live")
    assert boot_note.BootNote(folder / "live" / "headrace" / "boot.json").boot_id == "boot-1"
    store.close()
