"""Where a file that is mostly holes was written last."""

import errno
import os
from pathlib import Path

import pytest

from headrace.format.sparse import written_end


def made(path: Path, size: int, *written: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    for at in written:
        os.pwrite(fd, b"x" * 4096, at)
    return fd


def test_end_of_what_was_written(tmp_path: Path) -> None:
    for number, (written, end) in enumerate([((), 0), ((0,), 4096), ((0, 1 << 20), (1 << 20) + 4096)]):
        fd = made(tmp_path / str(number), 1 << 22, *written)
        assert end <= written_end(fd) < max(end, 1) + (1 << 16)  # file systems have blocks of their own
        os.close(fd)


def test_file_that_is_written_to_its_end(tmp_path: Path) -> None:
    fd = made(tmp_path / "full", 8192, 0, 4096)
    assert written_end(fd) == 8192
    os.close(fd)


def test_file_system_that_cannot_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, position: int, how: int) -> int:
        raise OSError(errno.EINVAL, "no such thing")

    fd = made(tmp_path / "any", 1 << 20, 0)
    monkeypatch.setattr(os, "lseek", refuse)
    assert written_end(fd) == 1 << 20
    monkeypatch.undo()
    os.close(fd)
