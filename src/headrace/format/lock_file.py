"""A file that one living process holds: its lock goes with the process, however that ends.

Content: ``lock PID``, for whoever finds it held.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LockHeldError(Exception):
    """Another process holds the lock; ``owner`` is its number, empty where the file does not tell."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by process {owner or 'unknown'}")
        self.owner = owner


def take_lock(path: Path) -> int:
    """Lock a file, made if need be, for this process; return the descriptor that holds the lock until it is closed.

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
    return fd


def owner_of(fd: int) -> str:
    """Return the number of the process that wrote an open lock file, empty when it does not say."""
    return os.pread(fd, 64, 0).decode("ascii", "replace").partition(" ")[2].strip()
