"""The folder of a store: made where it is not there, and found again behind a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import StoreError
from headrace.format.side_file import sync_folder
from headrace.store.directory import StoreDirectory

MODULES = ("headrace.format.side_file", "headrace.store.directory")


def test_every_folder_that_is_made_for_a_store_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-STORE: the entry of a folder lies in the one above it, which must be on the disk as well."""
    synced: list[Path] = []

    def note(folder: str | Path) -> None:
        synced.append(Path(folder))
        sync_folder(folder)

    for module in MODULES:
        monkeypatch.setattr(f"{module}.sync_folder", note)
    directory = StoreDirectory(tmp_path / "a" / "b" / "store")
    directory.require_ours()
    directory.create_identity(1 << 20, 300_000, 1)
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b", directory.root} <= set(synced)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_store_may_lie_where_its_broker_may_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """As in /var/lib/private, where systemd puts the folder of a service with a user of its own."""
    above = tmp_path / "private"
    directory = StoreDirectory(above / "store")
    (above if is_new else directory.root).mkdir(parents=True)
    above.chmod(0o311)

    def refuse(folder: str | Path) -> None:
        if Path(folder) == above:  # root would be let through
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        sync_folder(folder)

    for module in MODULES:
        monkeypatch.setattr(f"{module}.sync_folder", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != above)
    directory.require_ours()
    directory.create_identity(1 << 20, 300_000, 1)
    above.chmod(0o700)
    assert directory.identity.exists()


def test_a_folder_that_cannot_be_looked_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(StoreError, match=r"cannot use .* as data directory: Permission denied; choose another"):
        StoreDirectory(tmp_path / "hidden" / "store").require_ours()
