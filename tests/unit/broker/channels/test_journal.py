"""The journal of channel states: torn tails, damage, compaction, generations. docs/formats/channel-journal.md."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.channels import journal as journal_module
from headrace.broker.channels.journal import MIN_COMPACTION_BYTES, ChannelJournal
from headrace.broker.channels.journal_file import (
    KIND_JOURNAL,
    encode_file_head,
    encode_record,
    find_journals,
    lacks_beginning,
    scan_history,
)
from headrace.broker.channels.stored_channels import read_journal
from headrace.errors import FormatVersionError, SideFileError, UnsyncedError
from headrace.lock_file import release_lock, take_lock

A, B = b"topic/a", b"topic/b"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "channels"


@pytest.fixture
def journals(directory: Path) -> Iterator[list[ChannelJournal]]:
    opened: list[ChannelJournal] = []
    yield opened
    for journal in opened:
        journal.close()


def opened(directory: Path, journals: list[ChannelJournal]):
    journal = ChannelJournal(directory)
    loaded = journal.load()
    journals.append(journal)
    return journal, loaded


def troubles(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a start said of the journal's files, in short."""
    said = [re.match("channel (?:journal|snapshot) (?:header )?(?:damaged|cut)", text) for text in caplog.messages]
    return [found[0].removeprefix("channel ") for found in said if found is not None]


def compact(journal: ChannelJournal, blocks: list[tuple[bytes, bytes]]) -> None:
    journal.begin_compaction()
    journal.finish_compaction(blocks)


def test_layout_of_a_record() -> None:
    """Section "Record", in plain struct code."""
    record = encode_record(b"t\0c", b"payload", 1)
    checked = struct.pack("<IHH", 7, 3, 1)
    crc = zlib.crc32(checked + b"t\0c" + b"payload")
    assert record == b"HRCR" + struct.pack("<IIHH", 7, crc, 3, 1) + b"t\0cpayload"


def test_layout_of_a_file_head() -> None:
    head = encode_file_head(KIND_JOURNAL, 5)
    fields = b"HRCHANNL" + struct.pack("<HHQ", 1, 1, 5)
    assert head == fields + struct.pack("<I", zlib.crc32(fields))


def test_empty_directory(directory: Path, journals: list[ChannelJournal]) -> None:
    _, loaded = opened(directory, journals)
    assert loaded == {}
    assert [path.name for path in directory.iterdir()] == ["journal.00000001"]


def test_what_is_written_is_read_back_in_order(directory: Path, journals: list[ChannelJournal]) -> None:
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1"), (B, b"2")])
    journal.write([(A, b"3")])
    journal.sync()
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"1", b"3"], B: [b"2"]}
    assert scan_history(directory / "journal.00000001", KIND_JOURNAL).records[1] == (B, 0, b"2")


def test_forgotten_channel_starts_anew(directory: Path, journals: list[ChannelJournal]) -> None:
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"old")])
    journal.write([(A, b"1")])
    journal.forget(A)
    _, loaded = opened(directory, journals)
    assert loaded == {}
    journal.write([(A, b"2")])
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"2"]}


@pytest.mark.parametrize("cut", [1, 10, 20, 23, 24, 29])
def test_torn_tail_is_cut_and_named(
    directory: Path, journals: list[ChannelJournal], caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    caplog.set_level(logging.INFO)
    journal, _ = opened(directory, journals)
    journal.write([(A, b"one")])
    journal.write([(A, b"second")])
    path = directory / "journal.00000001"
    size = path.stat().st_size
    last = len(encode_record(A, b"second"))
    os.truncate(path, size - cut)
    journal, loaded = opened(directory, journals)
    assert loaded[A] == [b"one"]
    if cut < last:
        assert troubles(caplog) == ["journal cut"]
        assert f"position={size - last} torn_bytes={last - cut}" in caplog.text
    else:
        assert troubles(caplog) == []
    caplog.clear()
    journal.write([(A, b"three")])
    _, loaded = opened(directory, journals)
    assert (loaded[A], troubles(caplog)) == ([b"one", b"three"], [])


@pytest.mark.parametrize("position", range(26))
def test_damage_in_the_middle_is_skipped_and_named(
    directory: Path, journals: list[ChannelJournal], caplog: pytest.LogCaptureFixture, position: int
) -> None:
    """Any flipped byte costs one record, never the ones behind it."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"one"), (A, b"two"), (B, b"three")])
    path = directory / "journal.00000001"
    content = bytearray(path.read_bytes())
    at = content.index(encode_record(A, b"two")) + position
    content[at] ^= 0x40
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        _, loaded = opened(directory, journals)
    assert loaded == {A: [b"one"], B: [b"three"]}
    assert troubles(caplog) == ["journal damaged"]
    assert f"path={path} position={at - position}" in caplog.text


def test_compaction_replaces_the_journal(directory: Path, journals: list[ChannelJournal]) -> None:
    journal, _ = opened(directory, journals)
    journal.write([(A, b"x" * 5_000_000)])
    assert journal.needs_compaction
    journal.begin_compaction()
    journal.write([(B, b"meanwhile")])
    journal.finish_compaction(iter([(A, b"A1"), (B, b"B1")]))
    assert not journal.needs_compaction
    journal.sync()
    assert sorted(path.name for path in directory.iterdir()) == ["journal.00000002", "snapshot"]
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"A1"], B: [b"B1", b"meanwhile"]}


def test_compaction_waits_for_twice_the_snapshot(directory: Path, journals: list[ChannelJournal]) -> None:
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"x" * MIN_COMPACTION_BYTES)])
    journal.write([(A, b"y" * (MIN_COMPACTION_BYTES + 1))])
    assert not journal.needs_compaction
    journal.write([(A, b"y" * MIN_COMPACTION_BYTES)])
    journal.write([(A, b"y" * 100)])
    assert journal.needs_compaction


def test_crash_between_the_steps_of_a_compaction(directory: Path, journals: list[ChannelJournal]) -> None:
    """Snapshot N counts with the journals N and N + 1; journals below a snapshot's generation do not."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    before = (directory / "journal.00000001").read_bytes()
    journal.begin_compaction()
    journal.write([(A, b"2")])
    _, loaded = opened(shutil.copytree(directory, directory.with_name("crashed")), journals)
    assert loaded == {A: [b"1", b"2"]}
    journal.finish_compaction([(A, b"S")])
    (directory / "journal.00000001").write_bytes(before)  # as if it had not been removed yet
    (directory / "snapshot.tmp").write_bytes(b"half")
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S", b"2"]}
    assert sorted(path.name for path in directory.iterdir()) == ["journal.00000002", "snapshot"]


def test_damaged_snapshot_falls_back_to_the_one_before(
    directory: Path, journals: list[ChannelJournal], caplog: pytest.LogCaptureFixture
) -> None:
    """A channel whose state is damaged goes back to its last good floor."""
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"A1"), (B, b"B1")])
    compact(journal, [(A, b"A2"), (B, b"B2")])
    journal.write([(A, b"A3")])
    path = directory / "snapshot"
    content = bytearray(path.read_bytes())
    content[content.index(b"A2")] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        journal, loaded = opened(directory, journals)
    assert loaded == {A: [b"A1", b"A3"], B: [b"B1", b"B2"]}
    assert troubles(caplog) == ["snapshot damaged"]
    assert str(path) in caplog.text
    assert journal.needs_compaction


@pytest.mark.parametrize("damage", ["state", "end", "all"])
def test_tools_read_the_snapshot_before_beneath_a_damaged_one(
    directory: Path, journals: list[ChannelJournal], damage: str
) -> None:
    """As a start does: ``store inspect`` showed a channel at 0 that the broker had at its last good floor."""
    floor_at = [bytes([2, 1, 1]) + struct.pack("<Hqq", 0, floor, floor) for floor in (5, 8)]
    journal, _ = opened(directory, journals)
    compact(journal, [(A, floor_at[0])])
    compact(journal, [(A, floor_at[1])])
    path = directory / "snapshot"
    content = path.read_bytes()
    state = content.index(floor_at[1])
    kept = {"state": content[:state] + b"\x03" + content[state + 1 :], "end": content[:-3], "all": b""}[damage]
    path.write_bytes(kept)
    view = read_journal(directory)
    assert view.channels[A].floors == {0: 8 if damage == "end" else 5}
    assert [place.name for place, _, _ in view.damage] == ["snapshot"]


@pytest.mark.parametrize("name", ["snapshot", "journal.00000001"])
def test_a_fifo_in_the_place_of_a_file(directory: Path, journals: list[ChannelJournal], name: str) -> None:
    """Reading it would wait for who writes to it: a start and ``store check`` hung."""
    directory.mkdir()
    os.mkfifo(directory / name)
    with pytest.raises(SideFileError, match=f"{name}: is no regular file; put the file back, or remove this"):
        opened(directory, journals)


@pytest.mark.parametrize("damage", ["header", "cut", "empty"])
def test_ruined_snapshot_does_not_stop_a_start(
    directory: Path, journals: list[ChannelJournal], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"A1"), (B, b"B1")])
    compact(journal, [(A, b"A2"), (B, b"B2")])
    journal.write([(B, b"B3")])
    path = directory / "snapshot"
    content = path.read_bytes()
    end = content.index(b"B2")
    path.write_bytes({"header": b"\0" * 20 + content[20:], "cut": content[:end], "empty": b""}[damage])
    _, loaded = opened(directory, journals)
    expected = {"header": ([b"A2"], [b"B2", b"B3"]), "cut": ([b"A2"], [b"B3"]), "empty": ([], [b"B3"])}[damage]
    assert (loaded[A], loaded[B]) == ([b"A1", *expected[0]], [b"B1", *expected[1]])
    assert troubles(caplog) == ["snapshot damaged"]


def test_a_reader_beside_a_first_snapshot_misses_nothing(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``store check`` looks at a living broker, which may put its first snapshot in place between two looks."""
    journal, _ = opened(directory, journals)
    look = Path.exists

    def replace_before_looking(path: Path) -> bool:
        if path.name == "snapshot" and not look(path):
            compact(journal, [(A, b"A1")])
            return False  # as it was a moment ago
        return look(path)

    monkeypatch.setattr(Path, "exists", replace_before_looking)
    assert not lacks_beginning(directory)


def test_a_journal_without_room_for_its_head_leaves_no_file(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(directory, journals)

    def refuse(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(SideFileError, match="No space left"):
        journal.begin_compaction()
    assert [path.name for path in directory.iterdir()] == ["journal.00000001"]


def test_a_snapshot_is_on_the_disk_before_what_it_replaces_is_removed(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By POSIX a power cut may take the rename, and leave the removals behind it."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    steps: list[tuple[str, set[str]]] = []
    fsync = os.fsync

    def note(step: str) -> None:
        steps.append((step, {path.name for path in directory.iterdir()}))

    def sync_file(descriptor: int) -> None:
        note("file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_file)
    monkeypatch.setattr(journal_module, "sync_folder", lambda folder: note("folder"))
    compact(journal, [(A, b"1")])
    names = {"journal.00000001", "journal.00000002"}
    assert steps == [("file", {*names, "snapshot.tmp"}), ("folder", {*names, "snapshot"})]
    assert {path.name for path in directory.iterdir()} == {"journal.00000002", "snapshot"}


def test_snapshot_in_parts(directory: Path, journals: list[ChannelJournal]) -> None:
    """A large channel's snapshot is several records; all count, then the changes."""
    journal, _ = opened(directory, journals)
    journal.begin_compaction()
    journal.add_to_snapshot([(A, b"A-part1")])
    journal.write([(A, b"change")])
    journal.add_to_snapshot([(A, b"A-part2"), (B, b"B")])
    journal.finish_compaction()
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"A-part1", b"A-part2", b"change"], B: [b"B"]}
    with pytest.raises(SideFileError, match="begin a new compaction"):
        journal.add_to_snapshot([(A, b"late")])


def test_damaged_journal_header_costs_nothing(
    directory: Path, journals: list[ChannelJournal], caplog: pytest.LogCaptureFixture
) -> None:
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    path = directory / "journal.00000001"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    journal, loaded = opened(directory, journals)
    assert loaded[A] == [b"1"]
    assert troubles(caplog) == ["journal header damaged"]
    assert sorted(path.name for path in directory.iterdir()) == ["journal.00000001", "journal.00000002"]
    journal.write([(A, b"2")])
    _, loaded = opened(directory, journals)
    assert loaded[A] == [b"1", b"2"]


def test_newer_format_is_refused(directory: Path) -> None:
    directory.mkdir()
    head = b"HRCHANNL" + struct.pack("<HHQ", 2, 1, 1)
    (directory / "journal.00000001").write_bytes(head + struct.pack("<I", zlib.crc32(head)))
    with pytest.raises(
        FormatVersionError,
        match=r"journal\.00000001 has format version 2, .*: use the Headrace that wrote it, or a newer",
    ):
        ChannelJournal(directory).load()


def test_unreadable_file_names_itself_and_the_remedy(directory: Path) -> None:
    directory.mkdir()
    (directory / "snapshot").symlink_to("snapshot")
    (directory / "journal.00000001").symlink_to("snapshot")
    with pytest.raises(SideFileError, match=r"00000001: cannot be read: .*move the file away"):
        ChannelJournal(directory).load()


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "make room on its disk"), (errno.EIO, "see to the disk")]
)
def test_refused_write_names_the_remedy_and_asks_for_a_snapshot(
    directory: Path,
    journals: list[ChannelJournal],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    remedy: str,
) -> None:
    caplog.set_level(logging.INFO)
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    real = os.pwrite

    def refuse(descriptor: int, data: bytes, at: int) -> int:
        if at > 60:
            raise OSError(number, os.strerror(number))
        return real(descriptor, bytes(data)[:5], at)

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(SideFileError, match=f"{remedy}.*until then"):
        journal.write([(A, b"2" * 100)])
    monkeypatch.undo()
    assert journal.needs_compaction
    journal.write([(A, b"3")])
    _, loaded = opened(directory, journals)
    assert loaded[A] == [b"1", b"3"]
    assert troubles(caplog) == []
    compact(journal, [(A, b"S")])
    assert not journal.needs_compaction


def test_failed_sync_is_never_taken_for_safe(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(directory, journals)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(UnsyncedError, match=r"cannot sync .*journal\..*: Input/output error; check the disk"):
        journal.sync()
    monkeypatch.undo()
    assert journal.needs_compaction


def test_a_sync_takes_the_journal_before_the_open_one_with_it(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the snapshot is there, the journal that it is to replace counts."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    journal.begin_compaction()
    journal.write([(A, b"2")])
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    journal.sync()
    assert synced == ["journal.00000001", "journal.00000002"]


def test_the_disk_is_left_alone_while_nothing_is_written(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fdatasync of an unchanged file empties the disk's cache all the same: an idle broker did that each second."""
    journal, _ = opened(directory, journals)
    journal.sync()
    synced: list[int] = []
    refused: list[int] = []

    def fdatasync(descriptor: int) -> None:
        synced.append(descriptor)
        if refused:
            raise OSError(refused.pop(), "refused")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.sync()
    assert len(synced) == 0
    journal.write([(A, b"1")])
    journal.sync()
    journal.sync()
    assert len(synced) == 1
    journal.forget(A)
    refused.append(errno.EIO)
    with pytest.raises(UnsyncedError):
        journal.sync()
    journal.sync()  # what failed is not on disk
    assert len(synced) == 3
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: journal.write([(A, b"2")]))
    journal.write([(A, b"3")])
    journal.sync()  # and the loop writes meanwhile
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.sync()
    assert len(synced) == 4


def test_what_cannot_be_removed_stays(
    directory: Path,
    journals: list[ChannelJournal],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file system that became read-only: each second's try was logged as a bug."""
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"S1")])

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name != "snapshot.previous":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        journal.begin_compaction()
        journal.begin_compaction()
        journal.finish_compaction([(A, b"S2")])
    assert len(list(directory.glob("journal.*"))) > 1
    assert "old journal not removed" in caplog.text
    assert os.strerror(errno.EROFS) in caplog.text
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S2"]}


def test_a_journal_that_somebody_removed_is_noticed_and_made_anew(
    directory: Path, journals: list[ChannelJournal]
) -> None:
    """What is written to it goes with the process: without a snapshot a kill would deliver everything again."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    journal.require_name()
    assert not journal.needs_compaction
    (directory / "journal.00000001").unlink()
    with pytest.raises(SideFileError, match="was removed while it is written to"):
        journal.require_name()
    assert journal.needs_compaction
    compact(journal, [(A, b"S1")])
    journal.write([(A, b"2")])
    journal.require_name()
    assert journal.is_whole
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1", b"2"]}


def test_a_folder_that_somebody_removed_is_made_anew(directory: Path, journals: list[ChannelJournal]) -> None:
    """Each try of another journal failed, until the next start: a kill delivered everything again."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    shutil.rmtree(directory)
    with pytest.raises(SideFileError, match="was removed while it is written to"):
        journal.require_name()
    compact(journal, [(A, b"S1")])
    journal.write([(A, b"2")])
    journal.sync()
    assert journal.is_whole
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1", b"2"]}


@pytest.mark.parametrize("what", ["journal", "folder"])
def test_a_journal_that_was_moved_away_is_made_anew(directory: Path, journals: list[ChannelJournal], what: str) -> None:
    """It was written to where no start looks, until the next snapshot: a kill delivered everything again."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    moved = directory / "journal.00000001" if what == "journal" else directory
    moved.rename(directory.with_name("elsewhere"))
    with pytest.raises(SideFileError, match="was removed while it is written to"):
        journal.require_name()
    compact(journal, [(A, b"S1")])
    journal.write([(A, b"2")])
    journal.require_name()
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1", b"2"]}


def test_a_journal_whose_store_is_away_for_a_moment_goes_on(directory: Path, journals: list[ChannelJournal]) -> None:
    """It comes back with the rest: a snapshot could not be written meanwhile, and what is not noted comes twice."""
    root = directory.parent / "store"
    root.mkdir()
    lock = take_lock(root / "lock")
    try:
        journal, _ = opened(root / "channels", journals)
        root.rename(root.with_name("away"))
        journal.require_name()
        journal.write([(A, b"1")])
        root.with_name("away").rename(root)
        journal.require_name()
        assert not journal.needs_compaction
    finally:
        release_lock(lock)


def test_a_folder_that_cannot_be_listed_keeps_old_journals_and_takes_the_snapshot(
    directory: Path,
    journals: list[ChannelJournal],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a descriptor left, say: it was logged as a bug, and a stop that met it saved no catalog."""
    journal, _ = opened(directory, journals)

    def refuse(path: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        patch.setattr(os, "listdir", refuse)
        compact(journal, [(A, b"S1")])
    assert "old journals not looked for" in caplog.text
    assert sorted(path.name for path in directory.glob("journal.*")) == ["journal.00000001", "journal.00000002"]
    compact(journal, [(A, b"S2")])
    assert sorted(path.name for path in directory.glob("journal.*")) == ["journal.00000003"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """What channels had finished would be forgotten: CPython 3.13 keeps such errors back, 3.11 that of permission."""
    journal, _ = opened(directory, journals)
    journal.write([(A, b"1")])
    journal.close()

    def refuse(path: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(OSError, match=os.strerror(code)):
            find_journals(directory)
        with pytest.raises(OSError, match=os.strerror(code)):
            opened(directory, journals)
    assert opened(directory, journals)[1] == {A: [b"1"]}


def test_failed_compaction_leaves_everything_in_use(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"S1")])
    journal.write([(A, b"1")])

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SideFileError):
        compact(journal, [(A, b"S2")])
    monkeypatch.undo()
    assert journal.needs_compaction
    journal.write([(A, b"2")])
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1", b"1", b"2"]}
    assert not (directory / "snapshot.tmp").exists()


def test_tries_without_room_for_a_snapshot_leave_one_journal(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one each second while the disk is nearly full: each took another block of it, and an inode."""
    journal, _ = opened(directory, journals)
    compact(journal, [(A, b"S1")])

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        for number in range(20):
            journal.write([(A, b"%d" % number)])
            with pytest.raises(SideFileError):
                compact(journal, [(A, b"S2")])
    assert len(list(directory.glob("journal.*"))) == 2
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1", *(b"%d" % number for number in range(20))]}
    compact(journal, [(A, b"S3")])
    journal.write([(A, b"last")])
    _, loaded = opened(directory, journals)
    assert loaded[A][0] == b"S3"
    assert loaded[A][-1] == b"last"
    compact(journal, [(A, b"S4")])
    assert len(list(directory.glob("journal.*"))) == 1


def test_what_was_noted_behind_a_refused_snapshot_is_not_read_above_that_of_a_stop(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk that had room again at the stop: it took back an attempt of what was delivered in between."""
    journal, _ = opened(directory, journals)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(SideFileError):
            compact(journal, [(A, b"S0")])
    journal.write([(A, b"noted before")])
    journal.compact([(A, b"S1")])
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1"]}
    assert len(list(directory.glob("journal.*"))) == 1


def test_a_snapshot_under_way_leaves_nothing_above_the_one_that_is_made_in_its_place(
    directory: Path, journals: list[ChannelJournal]
) -> None:
    """At a stop: what was noted since the first one began would count for more than what the second says."""
    journal, _ = opened(directory, journals)
    journal.begin_compaction()
    journal.write([(A, b"noted before")])
    compact(journal, [(A, b"S1")])
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1"]}
    assert len(list(directory.glob("journal.*"))) == 1


@pytest.mark.parametrize("lacking", ["pwrite", "fdatasync"])
def test_a_journal_that_lacks_something_serves_no_further_snapshot(
    directory: Path, journals: list[ChannelJournal], monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """Read on top of a snapshot, what it has of a message would replace what it lacks."""
    journal, _ = opened(directory, journals)

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal.begin_compaction()
    journal.write([(A, b"old")])
    with monkeypatch.context() as patch:
        patch.setattr(os, lacking, refuse)
        with pytest.raises((SideFileError, UnsyncedError)):
            journal.write([(A, b"lost")]) if lacking == "pwrite" else journal.sync()
    compact(journal, [(A, b"S1")])
    _, loaded = opened(directory, journals)
    assert loaded == {A: [b"S1"]}
