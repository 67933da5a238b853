"""Config files: replaced in one step, read from the copy when damaged, written in a thread."""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from pathlib import Path

import pytest

from headrace.broker.config_file import RETRY_MS, Build, ConfigFile, FileWriter, read_config
from headrace.errors import SideFileError
from tests.support.config_files import BrokenConfigFile, Jobs


def content(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


def test_the_content_before_is_kept_as_a_copy(tmp_path: Path) -> None:
    """X-BROKER-01; remoting.md 3.5."""
    file = ConfigFile(tmp_path / "config", "x.json")
    assert file.load() is None
    file.save(content(1), 1)
    file.save(content(2), 2)
    assert file.load() == {"number": 2}
    assert json.loads((tmp_path / "config" / "x.json.bak").read_bytes()) == {"number": 1}
    assert not (tmp_path / "config" / "x.json.tmp").exists()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_in_the_way_of_a_write_is_replaced(tmp_path: Path, kind: str) -> None:
    """A fifo held the thread that wrote, and the stop of the broker behind it, for ever."""
    beside = tmp_path / "x.json.tmp"
    os.mkfifo(beside) if kind == "fifo" else beside.symlink_to(tmp_path / "not mounted" / "file")
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    assert file.load() == json.loads(content(1))
    assert not file.path.is_symlink()


def test_an_older_content_never_replaces_a_newer_one(tmp_path: Path) -> None:
    """The end writes on its own while a thread may still be about to."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(2), 2)
    file.save(content(1), 1)
    assert file.load() == {"number": 2}


@pytest.mark.parametrize("damage", [b"", b'{"number":', b"[1]", b"\xff\xfe", b"null"])
def test_a_damaged_file_is_read_from_its_copy_and_put_aside(tmp_path: Path, damage: bytes) -> None:
    """remoting.md 3.5: the reader falls back to .bak, and the next write does not push the damage over it."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    file.save(content(2), 2)
    file.path.write_bytes(damage)
    assert file.load() == {"number": 1}
    assert (tmp_path / "x.json.damaged").read_bytes() == damage
    file.save(content(3), 3)
    assert json.loads((tmp_path / "x.json.bak").read_bytes()) == {"number": 1}
    assert ConfigFile(tmp_path, "x.json").load() == {"number": 3}


def test_what_is_no_regular_file_is_damage(tmp_path: Path) -> None:
    """Reading a fifo waited for ever."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    file.save(content(2), 2)
    file.path.unlink()
    os.mkfifo(file.path)
    assert file.load() == {"number": 1}


def test_a_missing_file_is_read_from_its_copy(tmp_path: Path) -> None:
    """A crash between the two renames leaves only the copy."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    file.path.rename(tmp_path / "x.json.bak")
    (tmp_path / "x.json.tmp").write_bytes(content(2))
    assert ConfigFile(tmp_path, "x.json").load() == {"number": 1}


@pytest.mark.parametrize("damage", [None, b"{"])
def test_what_came_from_the_copy_takes_the_place_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    """Until something changed each start warned again, and stood on the copy alone."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    file.save(content(2), 2)
    file.path.unlink() if damage is None else file.path.write_bytes(damage)
    assert ConfigFile(tmp_path, "x.json").load() == {"number": 1}
    assert file.path.read_bytes() == content(1)
    assert (tmp_path / "x.json.bak").read_bytes() == content(1)
    caplog.clear()
    assert ConfigFile(tmp_path, "x.json").load() == {"number": 1}
    assert not caplog.text


def test_a_copy_that_cannot_take_the_place_goes_on_standing_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, say: the start goes on."""
    file = ConfigFile(tmp_path, "x.json")
    file.save(content(1), 1)
    file.path.rename(tmp_path / "x.json.bak")
    (tmp_path / "x.json.tmp").mkdir()  # in the way of the write
    assert ConfigFile(tmp_path, "x.json").load() == {"number": 1}
    assert "config file stays missing" in caplog.text


@pytest.mark.parametrize("copy", [None, b"{"])
def test_damage_without_a_whole_copy_refuses_and_names_file_and_remedy(tmp_path: Path, copy: bytes | None) -> None:
    """Command contract: a damaged side file that the log cannot give refuses the start."""
    (tmp_path / "x.json").write_bytes(b"{")
    if copy is not None:
        (tmp_path / "x.json.bak").write_bytes(copy)
    with pytest.raises(SideFileError, match=r"x\.json: is damaged .* restore .* or remove"):
        ConfigFile(tmp_path, "x.json").load()
    assert (tmp_path / "x.json").read_bytes() == b"{"


def test_files_of_the_java_side_are_read(tmp_path: Path) -> None:
    """remoting.md 1.8: tabs, newlines, integer keys without quotes."""
    (tmp_path / "x.json").write_bytes(b'{\n\t"offsetTable":{\n\t\t"T@G":{0:4,1:1\n\t\t}\n\t}\n}')
    assert ConfigFile(tmp_path, "x.json").load() == {"offsetTable": {"T@G": {"0": 4, "1": 1}}}


def test_requests_during_a_write_go_together_with_the_next(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    writer = jobs.writer(tmp_path, "x.json")
    told: list[tuple[int, OSError | None]] = []

    def ask(number: int) -> None:
        writer.request(lambda: lambda: content(number))
        writer.when_saved(lambda failure: told.append((number, failure)))

    for number in (1, 2, 3):
        ask(number)
    assert not told
    jobs.run()
    assert told == [(1, None)]
    assert writer.file.load() == {"number": 1}
    jobs.run()
    assert told == [(1, None), (2, None), (3, None)]
    assert writer.file.load() == {"number": 3}
    assert jobs.count == 2
    assert writer.is_clean
    writer.when_saved(lambda failure: told.append((4, failure)))
    assert told[-1] == (4, None)


def test_a_table_is_taken_down_once_for_each_write(tmp_path: Path) -> None:
    """Not for each of a burst of changes: with some thousand groups that was all that making one cost."""
    jobs = Jobs(at_once=False)
    writer = jobs.writer(tmp_path, "x.json")
    taken: list[int] = []

    def take(number: int) -> Build:
        taken.append(number)
        return lambda: content(number)

    for number in range(5):
        writer.request(partial(take, number))
    assert taken == [0]
    jobs.run()
    jobs.run()
    assert taken == [0, 4]
    assert writer.file.load() == {"number": 4}


def test_a_write_that_fails_is_told_counted_and_tried_again(tmp_path: Path) -> None:
    jobs = Jobs()
    file = BrokenConfigFile(tmp_path, "x.json")
    writer = FileWriter(file, jobs.submit, lambda call: call())
    writer.request(lambda: lambda: content(1))
    told: list[OSError | None] = []
    writer.when_saved(told.append)  # tries at once, since somebody waits
    assert [type(failure) for failure in told] == [OSError]
    assert writer.errors == 2
    assert not writer.is_clean
    writer.tick(0)
    writer.tick(RETRY_MS - 1)
    assert writer.errors == 2
    file.fails = False
    writer.tick(RETRY_MS)
    assert writer.is_clean
    assert file.load() == {"number": 1}


def test_a_disk_that_stays_full_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Offsets are tried again every 5 s: a line each would fill the disk further. A write that succeeds ends it."""
    jobs = Jobs()
    file = BrokenConfigFile(tmp_path, "x.json")
    writer = FileWriter(file, jobs.submit, lambda call: call())
    for errors, lines in ((5, 1), (10, 2)):
        file.fails = True
        while writer.errors < errors:
            writer.request(lambda: lambda: content(1))
        assert caplog.text.count("config file not written, tried again") == lines
        file.fails = False
        writer.request(lambda: lambda: content(2))
        assert writer.is_clean


@pytest.mark.provokes_bugs
def test_a_bug_in_the_content_is_told_and_the_writer_lives(tmp_path: Path) -> None:
    jobs = Jobs()
    writer = jobs.writer(tmp_path, "x.json")
    writer.request(lambda: lambda: bytes(1 // 0))
    assert writer.errors == 1
    writer.request(lambda: lambda: content(1))
    assert writer.is_clean
    assert writer.file.load() == {"number": 1}


@pytest.mark.provokes_bugs
def test_a_bug_of_one_who_is_told_keeps_no_other_from_being_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each stands for a client that waits for its answer."""
    jobs = Jobs(at_once=False)
    writer = jobs.writer(tmp_path, "x.json")
    told: list[OSError | None] = []

    def fail(_: OSError | None) -> None:
        raise MemoryError

    writer.request(lambda: lambda: content(1))
    writer.when_saved(fail)
    writer.when_saved(told.append)
    jobs.run()
    assert told == [None]
    assert "failed by a bug" in caplog.text


def test_the_last_write_wins_over_what_waits(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    writer = jobs.writer(tmp_path, "x.json")
    writer.request(lambda: lambda: content(1))
    writer.request(lambda: lambda: content(2))
    writer.write_last(lambda: content(3), "")
    jobs.run()
    assert writer.file.load() == {"number": 3}
    assert writer.is_clean


@pytest.mark.parametrize("step", range(8))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Side files are replaced atomically. Each step of a replacement is the last one once."""
    ConfigFile(tmp_path, "x.json").save(content(1), 1)
    ConfigFile(tmp_path, "x.json").save(content(2), 1)
    steps = 0

    def counted(call):
        def run(*args, **more):
            nonlocal steps
            steps += 1
            if steps > step:
                raise KeyboardInterrupt
            return call(*args, **more)

        return run

    monkeypatch.setattr("headrace.broker.config_file.os.fsync", counted(os.fsync))
    monkeypatch.setattr("headrace.broker.config_file.os.open", counted(os.open))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "open", counted(Path.open))
    with contextlib.suppress(KeyboardInterrupt):
        ConfigFile(tmp_path, "x.json").save(content(3), 1)
    monkeypatch.undo()
    again = ConfigFile(tmp_path, "x.json")
    assert again.load() == {"number": 3 if step >= 4 else 2}
    again.save(content(4), 1)
    assert again.load() == {"number": 4}


def test_a_new_folder_is_synced_into_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not take the folder with the file in it."""
    synced: list[Path] = []
    monkeypatch.setattr("headrace.broker.config_file.sync_folder", synced.append)
    file = ConfigFile(tmp_path / "config", "x.json")
    file.save(content(1), 1)
    file.save(content(2), 2)
    assert synced == [tmp_path / "config", tmp_path, tmp_path / "config"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_that_leads_nowhere_is_not_taken_for_a_missing_file(tmp_path: Path, is_folder: bool) -> None:
    """A start on a disk that is not mounted would forget every group's offsets."""
    folder = tmp_path / "config"
    if not is_folder:
        folder.mkdir()
    link = folder if is_folder else folder / "consumerOffset.json"
    link.symlink_to(tmp_path / "not-mounted")
    with pytest.raises(SideFileError, match="a link that leads nowhere"):
        ConfigFile(folder, "consumerOffset.json").load()
    assert link.is_symlink()


def test_a_file_that_the_disk_does_not_read_is_named(tmp_path: Path) -> None:
    """A start that was refused for one of them said "Input/output error" of no file."""
    path = tmp_path / "subscriptionGroup.json"
    path.symlink_to("/proc/self/mem")  # nothing is mapped at its beginning
    with pytest.raises(OSError, match=r"Input/output error: .*subscriptionGroup\.json"):
        read_config(path)
