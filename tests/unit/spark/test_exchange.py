"""One folder in the place of another."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.jobs import exchange


def folders(root: Path) -> tuple[Path, Path, Path]:
    for name in ("new", "old"):
        (root / name / "deeper").mkdir(parents=True)
        (root / name / "deeper" / "file").write_text(name)
    return root / "new", root / "old", root / "aside"


def test_a_folder_takes_the_place_of_another_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, aside = folders(tmp_path)
    renamed: list[Path] = []
    rename = Path.rename

    def note(path: Path, target: Path) -> Path:
        renamed.append(path)
        assert (old / "deeper" / "file").read_text() == "new"
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", note)
    exchange.exchange_folder(new, old, aside)
    assert renamed == [new]  # to where it is removed
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("number", [None, errno.EINVAL])
def test_where_names_cannot_be_exchanged_it_takes_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def refuse(*_: Any) -> int:
        ctypes.set_errno(number or 0)
        return -1

    monkeypatch.setattr(exchange, "_renameat2", refuse if number else None)
    new, old, aside = folders(tmp_path)
    exchange.exchange_folder(new, old, aside)
    assert (old / "deeper" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_what_is_not_there_yet_is_put_there(tmp_path: Path) -> None:
    new, old, aside = folders(tmp_path)
    old.rename(aside)  # what a killed run left
    exchange.exchange_folder(new, old, aside)
    assert (old / "deeper" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_another_error_is_raised(tmp_path: Path) -> None:
    _, old, aside = folders(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exchange.exchange_folder(tmp_path / "nowhere", old, aside)
    assert (old / "deeper" / "file").read_text() == "old"
