"""Locks that others hold, as whoever only looks at a store sees them."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from headrace import lock_file
from headrace.lock_file import LockHeldError, is_held, release_lock, take_lock


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_lock_is_seen_while_it_is_held(lock: Path) -> None:
    assert not is_held(lock)
    held = take_lock(lock)
    assert is_held(lock)
    release_lock(held)
    assert not is_held(lock)


@pytest.mark.parametrize("namespace", ["another", "unknown"])
def test_a_lock_of_another_container_is_seen(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """Two containers with one volume: the system does not show the one the other's locks."""
    (tmp_path / "locks").write_text("1: POSIX  ADVISORY  WRITE 1 fe:00:1 0 EOF\n")
    monkeypatch.setattr(lock_file, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(lock_file, "PROCESSES", tmp_path / ("locks" if namespace == "another" else "nothing"))
    held = take_lock(lock)
    assert is_held(lock)
    assert is_held(lock)  # the look before has taken nothing
    release_lock(held)
    assert not is_held(lock)
    release_lock(take_lock(lock))  # nor has that one


@pytest.mark.parametrize("sees_locks", [True, False])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_lock_whose_file_was_removed_is_seen_by_its_folder(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_made_again: bool, sees_locks: bool
) -> None:
    """docs/running.md: removing it does not help. A second start that is refused then leaves another one there."""
    if not sees_locks:  # from another container
        (tmp_path / "locks").touch()
        monkeypatch.setattr(lock_file, "LOCKS", tmp_path / "locks")
        monkeypatch.setattr(lock_file, "_is_in_container", lambda: True)
    held = take_lock(lock, with_folder=True)
    lock.unlink()
    if is_made_again:
        with pytest.raises(LockHeldError):
            take_lock(lock, with_folder=True)
    assert is_held(lock)
    release_lock(held)
    assert not is_held(lock)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_lock_on_another_disk_is_told_from_one_on_this(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """Files of two disks have one number where the disks were filled alike; btrfs has two numbers for its disks."""
    held = take_lock(lock)
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 1 ff:ff:{lock.stat().st_ino} 0 EOF\n")
    monkeypatch.setattr(lock_file, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(lock_file, "_is_in_container", lambda: False)
    if not is_taken:
        release_lock(held)
    assert is_held(lock) is is_taken
    release_lock(held)


def test_a_look_from_another_container_makes_no_start_fail(lock: Path) -> None:
    """It holds a lock, shared and for a moment."""
    release_lock(take_lock(lock))
    for looked_at in (lock, lock.parent):
        look = os.open(looked_at, os.O_RDONLY)
        fcntl.flock(look, fcntl.LOCK_SH)
        ended = threading.Timer(0.05, fcntl.flock, (look, fcntl.LOCK_UN))
        ended.start()
        release_lock(take_lock(lock, with_folder=True))
        ended.join()
        os.close(look)


def test_a_lock_that_is_kept_is_waited_for_in_vain(lock: Path) -> None:
    held = take_lock(lock)
    with pytest.raises(LockHeldError, match=f"held by process {os.getpid()}"):
        take_lock(lock)
    release_lock(held)
