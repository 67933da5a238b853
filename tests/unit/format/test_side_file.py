"""Side files: small ones are for people, large ones hold up nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import SideFileError
from headrace.format.side_file import MAX_INDENTED, read_side_file, write_side_file


def test_a_small_file_is_in_lines_and_a_large_one_in_one(tmp_path: Path) -> None:
    """Indenting 6 MB held the event loop for 20 ms and more."""
    path = tmp_path / "producers.json"
    for rows, lines in ((10, 15), (200_000, 2)):
        payload = {"rows": [rows] * rows}
        write_side_file(path, "producers", 1, payload)
        raw = path.read_bytes()
        assert raw.count(b"\n") == lines
        assert (len(raw) > MAX_INDENTED) == (rows > 10)
        assert read_side_file(path, "producers", 1, "none") == payload


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Reading a fifo waited for ever, in a start and in store check."""
    path = tmp_path / "catalog.json"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    with pytest.raises(SideFileError, match=r"catalog\.json: is no regular file; restore it"):
        read_side_file(path, "catalog", 1, "restore it")


@pytest.mark.parametrize(("change", "reason"), [(3 << 30, "3221225472 bytes too long"), (-1, "1 bytes too short")])
def test_a_file_of_another_length_is_not_read(tmp_path: Path, change: int, reason: str) -> None:
    """Memory may not hold what something else has made of it; its header says how long it is."""
    path = tmp_path / "epochs.json"
    write_side_file(path, "epochs", 1, [])
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(SideFileError, match=reason):
        read_side_file(path, "epochs", 1, "restore it")


def test_a_long_first_line_is_no_header(tmp_path: Path) -> None:
    """It is not read to its end."""
    path = tmp_path / "epochs.json"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(SideFileError, match="is not a Headrace epochs file"):
        read_side_file(path, "epochs", 1, "restore it")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_in_the_way_of_a_write_is_replaced(tmp_path: Path, kind: str) -> None:
    """A fifo held the thread that wrote, and the stop of the broker behind it, for ever; a link led elsewhere."""
    path = tmp_path / "checkpoint.json"
    beside = tmp_path / "checkpoint.json.new"
    os.mkfifo(beside) if kind == "fifo" else beside.symlink_to(tmp_path / "not mounted" / "file")
    write_side_file(path, "checkpoint", 1, {"clean": True})
    assert read_side_file(path, "checkpoint", 1, "none") == {"clean": True}
    assert path.is_file()
    assert not path.is_symlink()
