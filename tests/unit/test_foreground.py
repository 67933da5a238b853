"""What a process in the foreground says about itself."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from headrace.foreground import LogOutput, ReadyFile, announce


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


def test_a_line_is_written_by_no_more_than_a_pipe_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an encoding spells by ten letters for one filled the pipe, and the event loop waited for its reader."""
    write, sizes = os.write, []

    def note(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(fd, data)

    text = "\U0001f600" * 1_000 + "\n"
    with (tmp_path / "log").open("ab") as file:
        monkeypatch.setattr("headrace.foreground.STANDARD_ERROR", file.fileno())
        monkeypatch.setattr(os, "write", note)
        output = LogOutput()
        monkeypatch.setattr(output, "_encoding", "ascii")
        output.write(text)
    assert (tmp_path / "log").read_bytes() == text.encode("ascii", "backslashreplace")
    assert max(sizes) <= 4_096


def test_an_output_that_is_no_file_takes_the_text(caplog: pytest.LogCaptureFixture) -> None:
    """As that of a test which runs the command in its own process."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        announce("ready")
    assert output.getvalue() == "ready\n"
    assert caplog.messages == []
