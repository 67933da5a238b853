"""What a process in the foreground says about itself."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError, NoLoopError
from headrace.foreground import LogOutput, ReadyFile, announce, loop_refusals


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


def test_a_ready_file_stays_when_another_has_put_its_own_there(tmp_path: Path) -> None:
    """Who ends late still has what it wrote, but under that name there is another's."""
    path = tmp_path / "ready.json"
    first, second = ReadyFile(path), ReadyFile(path)
    first.put(tmp_path, {"admin": "127.0.0.1:1"})
    second.clear()
    second.put(tmp_path, {"admin": "127.0.0.1:2"})
    first.remove()
    assert json.loads(path.read_text())["listeners"] == {"admin": "127.0.0.1:2"}
    second.remove()
    assert not path.exists()


def test_a_start_that_fails_takes_no_file_away_that_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready = ReadyFile(path)
    ready.clear()
    path.write_text("another's")
    ready.remove()
    assert path.read_text() == "another's"


def test_a_ready_file_that_cannot_be_put_leaves_nothing_beside(tmp_path: Path) -> None:
    """What was written beside it is taken away again."""
    path = tmp_path / "ready.json"
    path.mkdir()
    ready = ReadyFile(path)
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        ready.put(tmp_path, {})
    ready.remove()
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_of_a_ready_file_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the folder of --ready-file .* does not exist; make it first"):
        ReadyFile(tmp_path / "missing" / "ready.json").require_writable()


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


_CANNOT_BEGIN = """
import asyncio, os, resource, uvloop
from headrace.foreground import loop_refusals
try:
    with loop_refusals(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
        loop.run_forever()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_loop_that_cannot_begin_is_told_in_one_sentence() -> None:
    """The loop's end hid the reason: "Cannot close a running event loop", behind three tracebacks."""
    told = subprocess.run([sys.executable, "-c", _CANNOT_BEGIN], capture_output=True, text=True, check=True, timeout=60)
    sentence = "the event loop cannot run: Too many open files; raise the limit of open files (ulimit -n)"
    assert told.stdout == f"NoLoopError {sentence}\n"


def test_a_loop_that_cannot_be_made_is_told_in_one_sentence() -> None:
    """It was "Too many open files" alone."""
    with pytest.raises(NoLoopError, match="ulimit -n"), loop_refusals():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # of uvloop.new_event_loop


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), OSError(errno.EMFILE, "Too many open files", "f.json"), ConnectionResetError(104, "reset")],
    ids=["bug", "file", "peer"],
)
def test_what_is_not_the_loops_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, loop_refusals():
        raise error
    assert caught.value is error
