"""A file that one living process holds: its lock goes with the process, however that ends.

Content: ``lock PID``, for whoever finds it held. A forked child has a copy of every descriptor, and a lock lasts until
the last copy is closed: the child closes its own at once.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

# Descriptors of the locks that this process holds.
_HELD: Final[set[int]] = set()


class LockHeldError(Exception):
    """Another process holds the lock; ``owner`` is its number, empty where the file does not tell."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by process {owner or 'unknown'}")
        self.owner = owner


def take_lock(path: Path) -> int:
    """Lock a file, made if need be, for this process; return the descriptor that holds the lock until ``release_lock``.

    Raises:
        LockHeldError: a living process has it.
        OSError: it cannot be made, locked or written.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"lock {os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        owner = owner_of(fd)
        os.close(fd)
        raise LockHeldError(owner) from None
    except BaseException:
        os.close(fd)
        raise
    _HELD.add(fd)
    return fd


def release_lock(fd: int) -> None:
    """Let go of a lock that ``take_lock`` returned; in a forked child, which does not have it, nothing happens."""
    if fd in _HELD:
        _HELD.remove(fd)
        os.close(fd)


def _release_all() -> None:
    for fd in tuple(_HELD):
        release_lock(fd)


os.register_at_fork(after_in_child=_release_all)


def owner_of(fd: int) -> str:
    """Return the number of the process that wrote an open lock file, empty when it does not say."""
    return os.pread(fd, 64, 0).decode("ascii", "replace").partition(" ")[2].strip()
