"""What a process in the foreground says about itself."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.foreground import ReadyFile


def test_a_ready_file_is_taken_away_by_who_wrote_it(tmp_path: Path) -> None:
    """The store is free a moment before its broker ends: the next one may be ready by then."""
    path = tmp_path / "ready.json"
    first, second = ReadyFile(path), ReadyFile(path)
    first.put(tmp_path, {"admin": "127.0.0.1:1"})
    second.clear()
    first.remove()
    second.put(tmp_path, {"admin": "127.0.0.1:2"})
    first.remove()
    assert json.loads(path.read_text())["listeners"] == {"admin": "127.0.0.1:2"}
    second.remove()
    second.remove()
    assert not path.exists()


def test_a_start_that_fails_takes_no_file_away_that_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready = ReadyFile(path)
    ready.clear()
    path.write_text("another's")
    ready.remove()
    assert path.read_text() == "another's"
