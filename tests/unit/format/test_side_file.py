"""Side files: small ones are for people, large ones hold up nobody."""

from __future__ import annotations

from pathlib import Path

from headrace.format.side_file import MOST_INDENTED, read_side_file, write_side_file


def test_a_small_file_is_in_lines_and_a_large_one_in_one(tmp_path: Path) -> None:
    """Indenting 6 MB held the event loop for 20 ms and more."""
    path = tmp_path / "producers.json"
    for rows, lines in ((10, 15), (200_000, 2)):
        payload = {"rows": [rows] * rows}
        write_side_file(path, "producers", 1, payload)
        raw = path.read_bytes()
        assert raw.count(b"\n") == lines
        assert (len(raw) > MOST_INDENTED) == (rows > 10)
        assert read_side_file(path, "producers", 1, "none") == payload
