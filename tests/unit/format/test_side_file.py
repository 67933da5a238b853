"""Side files: small ones are for people, large ones hold up nobody."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import SideFileError
from headrace.format.durable_mark import read_mark
from headrace.format.side_file import MAX_INDENTED, read_side_file, write_side_file


def test_a_small_file_is_in_lines_and_a_large_one_in_one(tmp_path: Path) -> None:
    """Indenting 6 MB held the event loop for 20 ms and more."""
    path = tmp_path / "rows.json"
    for rows, lines in ((10, 15), (200_000, 2)):
        payload = {"rows": [rows] * rows}
        write_side_file(path, "rows", payload)
        raw = path.read_bytes()
        assert raw.count(b"\n") == lines
        assert (len(raw) > MAX_INDENTED) == (rows > 10)
        assert read_side_file(path, "rows", "none") == payload


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Reading a fifo waited for ever, in a start and in store check."""
    path = tmp_path / "catalog.json"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    with pytest.raises(SideFileError, match=r"catalog\.json: is no regular file; restore it"):
        read_side_file(path, "catalog", "restore it")


@pytest.mark.parametrize(("change", "reason"), [(3 << 30, "3221225472 bytes too long"), (-1, "1 bytes too short")])
def test_a_file_of_another_length_is_not_read(tmp_path: Path, change: int, reason: str) -> None:
    """Memory may not hold what something else has made of it; its header says how long it is."""
    path = tmp_path / "epochs.json"
    write_side_file(path, "epochs", [])
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(SideFileError, match=reason):
        read_side_file(path, "epochs", "restore it")


def test_a_long_first_line_is_no_header(tmp_path: Path) -> None:
    """It is not read to its end."""
    path = tmp_path / "epochs.json"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(SideFileError, match="is not a Headrace epochs file"):
        read_side_file(path, "epochs", "restore it")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_in_the_way_of_a_write_is_replaced(tmp_path: Path, kind: str) -> None:
    """A fifo held the thread that wrote, and the stop of the broker behind it, for ever; a link led elsewhere."""
    path = tmp_path / "checkpoint.json"
    beside = tmp_path / "checkpoint.json.new"
    os.mkfifo(beside) if kind == "fifo" else beside.symlink_to(tmp_path / "not mounted" / "file")
    write_side_file(path, "rows", {"clean": True})
    assert read_side_file(path, "rows", "none") == {"clean": True}
    assert path.is_file()
    assert not path.is_symlink()


RUN = ["orders", 0, 7, 3]
RIGHT: dict[str, Any] = {
    "store": {"store_id": "1", "format_version": 1, "segment_bytes": 1, "queue_file_bytes": 1, "created_ms": 1},
    "epochs": [{"epoch": 1, "first_physical_offset": 0}],
    "holes": [{"first_offset": 0, "end_offset": 9, "reason": "torn"}],
    "checkpoint": {"physical_offset": 9, "queue_entries": 1, "clean": True},
    "index": {"slot_count": 1, "capacity": 1, "physical_offset": 9, "keys_ahead": 0, "files": []},
    "boot": {"boot_id": "1"},
    "catalog": {"applied_offset": 9, "deleted": {}, "topics": {"a": {
        "queues": 1, "start": [0], "frozen": None, "channels": {"b": {"key": 1, "start": [0]}}}}},
    "producers": {"applied": 9, "staged": {"committed": [["q", 1]], "batches": [
        ["q", 2, 0, 0, None, [[0, 0, 3, [["orders", 0, 3]], [RUN]]]]]}},
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_members_of_a_later_build_are_left_out(tmp_path: Path, kind: str) -> None:
    """store.json and holes.json with one of them ended a start in a traceback."""
    path, right = tmp_path / "file.json", copy.deepcopy(RIGHT[kind])
    members = right if isinstance(right, dict) else right[0]
    members["of_a_later_build"] = 1
    write_side_file(path, kind, right)
    read = read_side_file(path, kind, "none")
    del members["of_a_later_build"]
    assert msgspec.json.encode(read) == msgspec.json.encode(right)


@pytest.mark.parametrize("wrong", [None, 3, "text", [[]], {"other": 1}], ids=repr)
@pytest.mark.parametrize("kind", RIGHT)
def test_what_a_file_of_its_kind_does_not_hold_is_refused(tmp_path: Path, kind: str, wrong: object) -> None:
    """A start, and store check of most kinds, ended in a traceback."""
    path = tmp_path / "file.json"
    write_side_file(path, kind, wrong)
    with pytest.raises(SideFileError, match=r"file\.json: does not hold what it should.*; move it"):
        read_side_file(path, kind, "move it")


@pytest.mark.parametrize(
    ("kind", "member", "number"),
    [("epochs", "first_physical_offset", 1 << 63), ("checkpoint", "physical_offset", -(1 << 70)),
     ("catalog", "applied_offset", 1 << 64), ("catalog", "queues", -1), ("catalog", "queues", 65_537),
     ("producers", "applied", 1 << 63), ("store", "queue_file_bytes", 0), ("store", "queue_file_bytes", (1 << 63) - 1),
     ("store", "segment_bytes", 0)],
)  # fmt: skip
def test_numbers_that_compiled_code_does_not_take_are_refused(
    tmp_path: Path, kind: str, member: str, number: int
) -> None:
    """A start ended in OverflowError, ValueError of what has fewer than no queues or, of files of 0 bytes, never."""
    path, right = tmp_path / "file.json", copy.deepcopy(RIGHT[kind])
    rows = right if isinstance(right, list) else [right, right.get("topics", {}).get("a", {})]
    next(row for row in rows if member in row)[member] = number
    write_side_file(path, kind, right)
    with pytest.raises(SideFileError, match=rf"does not hold what it should.*{member}.*; move it"):
        read_side_file(path, kind, "move it")


@pytest.mark.parametrize("key", ["orders", "", "/0", "a/", "a/-1", "a/ 1", "a/1_0", "a/\u0661", f"a/{1 << 31}", "a/b"])
@pytest.mark.parametrize("kind", ["epochs", "checkpoint"])
def test_queue_ends_of_no_queue_are_refused(tmp_path: Path, kind: str, key: str) -> None:
    """A start ended in ValueError or, of an id beyond int32, in OverflowError."""
    path, right = tmp_path / "file.json", copy.deepcopy(RIGHT[kind])
    row = right[0] if isinstance(right, list) else right
    row["queue_ends"] = {"a/b/7": 9, "\u0661\n/65535": 9}
    write_side_file(path, kind, right)
    assert read_side_file(path, kind, "move it") == right
    row["queue_ends"][key] = 9
    write_side_file(path, kind, right)
    with pytest.raises(SideFileError, match=r"file\.json: does not hold what it should.*queue_ends.*; move it"):
        read_side_file(path, kind, "move it")


def test_rows_of_a_later_build_are_refused(tmp_path: Path) -> None:
    """Nobody knows what their members stand for."""
    path, right = tmp_path / "file.json", copy.deepcopy(RIGHT["producers"])
    right["staged"]["batches"][0][5][0][4][0].append("of a later build")
    write_side_file(path, "producers", right)
    with pytest.raises(SideFileError, match=r"Expected `array` of length 4 - at `\$\.staged\.batches"):
        read_side_file(path, "producers", "move it")


def test_a_replacement_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side files are replaced atomically: write, fsync, rename, fsync of the directory."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(f"sync {path.name}: {path.read_bytes().count(b'payload') if path.is_file() else 'folder'}")
        fsync(descriptor)

    def note_replace(path: Path, target: Path) -> Path:
        steps.append(f"rename {path.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_side_file(tmp_path / "x.json", "x", "payload")
    assert steps == ["sync x.json.new: 1", "rename x.json.new", f"sync {tmp_path.name}: folder"]


@pytest.mark.parametrize("read", [lambda path: read_side_file(path, "x", "move it"), read_mark], ids=["json", "mark"])
def test_a_file_that_the_disk_does_not_read_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """The system names a file where it is opened, and none where it is read: a start told nobody which it was."""
    path = tmp_path / "x.json"
    path.symlink_to("/proc/self/mem")  # nothing is mapped at its beginning
    with pytest.raises(OSError, match=r"Input/output error: .*x\.json"):
        read(path)
