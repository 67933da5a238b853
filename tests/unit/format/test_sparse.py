"""Files that are mostly holes: where they were written, and whether with anything but zeros."""

import errno
import os
from pathlib import Path

import pytest

from headrace.format.sparse import has_bytes, written_end


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


@pytest.mark.parametrize("at", [None, 0, 4095, 4096, 3 << 20, (4 << 20) - 1])
def test_bytes_that_are_not_zero(tmp_path: Path, at: int | None) -> None:
    """Zeros that were written are none; nor is what lies in front of the range, or behind it."""
    fd = made(tmp_path / "any", 4 << 20)
    os.pwrite(fd, bytes(2 << 20), 1 << 20)
    if at is not None:
        os.pwrite(fd, b"x", at)
    for start, end in ((0, 4 << 20), (4096, 4 << 20), (0, 4095), (1 << 20, 3 << 20)):
        assert has_bytes(fd, start, end) == (at is not None and start <= at < end)
    os.close(fd)
