"""A file that one living process holds: its lock goes with the process, however that ends.

Content: ``lock PID``, for whoever finds it held. With it the folder may be locked: a lock file is a file that people
remove, and the next process would lock another one of its name. A forked child has a copy of every descriptor, and a
lock lasts until the last copy is closed: the child closes its own at once.

What is locked is a folder, not the path it had: another one may be put there, a backup or another process's. So whoever
writes by path below a folder that is held calls ``require_in_place`` first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import ReplacedFolderError


@dataclass(frozen=True)
class _Held:
    """One lock that this process holds: its file, and the folder that was at the path then."""

    path: Path
    folder: Path
    prefix: str
    folder_status: os.stat_result
    folder_descriptor: int  # -1: only the file is locked


_HELD: Final[dict[int, _Held]] = {}  # by the descriptor of the lock file

LOOK_SECONDS: Final = 0.2
"""How long a lock is tried for that is held: who only looks, from another container, has it for a moment."""
_TRIES: Final = 20
LOCKS: Final = Path("/proc/locks")
PROCESSES: Final = Path("/proc/self/ns/pid")
ALL_PROCESSES: Final = 0xEFFFFFFC
"""Number of the first namespace of processes (PROC_PID_INIT_INO). Others, of containers, show their own locks only."""


class LockHeldError(Exception):
    """Another process holds the lock; ``owner`` is its number, empty where the file does not tell.

    ``is_removed``: it holds the folder's, so somebody has removed its lock file.
    """

    def __init__(self, owner: str, *, is_removed: bool = False) -> None:
        super().__init__(f"held by process {owner or 'unknown'}")
        self.owner = owner
        self.is_removed = is_removed


def take_lock(path: Path, *, with_folder: bool = False) -> int:
    """Lock a file, made if need be, for this process; return the descriptor that holds the lock until ``release_lock``.

    Blocks for up to LOOK_SECONDS where somebody has it.

    Args:
        with_folder: Lock its folder as well, where the file system can.

    Raises:
        LockHeldError: a living process has it.
        OSError: it cannot be made, locked or written.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    folder = -1
    try:
        _lock(fd)
        folder = lock_folder(path.parent) if with_folder else -1
        status = path.parent.stat()
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"lock {os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        owner = owner_of(fd)
        os.close(fd)
        raise LockHeldError(owner) from None
    except BaseException:
        os.close(fd)
        if folder >= 0:
            os.close(folder)
        raise
    _HELD[fd] = _Held(path, path.parent, f"{path.parent}/", status, folder)
    return fd


def _lock(fd: int) -> None:
    """Lock an open file for this process alone. Raises: BlockingIOError: another one keeps it."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(LOOK_SECONDS / _TRIES)
        else:
            return


def lock_folder(path: Path) -> int:
    """Lock a folder; return the descriptor that holds the lock, -1 where its file system has none.

    Blocks for up to LOOK_SECONDS where somebody has it.

    Raises:
        LockHeldError: a living process has it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(fd)
    except BlockingIOError:
        os.close(fd)
        raise LockHeldError("", is_removed=True) from None
    except OSError:  # some network file systems lock files only; the lock file is held
        os.close(fd)
        return -1
    return fd


def release_lock(fd: int) -> None:
    """Let go of a lock that ``take_lock`` returned; in a forked child, which does not have it, nothing happens."""
    held = _HELD.pop(fd, None)
    if held is None:
        return
    os.close(fd)
    if held.folder_descriptor >= 0:
        os.close(held.folder_descriptor)


def require_in_place(path: str | Path) -> None:
    """Refuse a path below a folder that this process holds, where that path leads to another folder meanwhile.

    Raises:
        ReplacedFolderError: another folder was put there.
        OSError: there is none, or an empty one, as where a disk is not mounted; or it cannot be looked at.
    """
    for fd, held in tuple(_HELD.items()):
        if str(path).startswith(held.prefix) and not _is_in_place(fd, held):
            if any(held.folder.iterdir()):
                raise ReplacedFolderError(held.folder)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(held.folder))


def _is_in_place(fd: int, held: _Held) -> bool:
    if os.path.samestat(held.folder.stat(), held.folder_status):
        return True
    try:  # some file systems number a folder anew, but no file that is open
        return os.path.samestat(held.path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _release_all() -> None:
    for fd in tuple(_HELD):
        release_lock(fd)


os.register_at_fork(after_in_child=_release_all)


def owner_of(fd: int) -> str:
    """Return the number of the process that wrote an open lock file, empty when it does not say."""
    return os.pread(fd, 64, 0).decode("ascii", "replace").partition(" ")[2].strip()


def owner_in(path: Path) -> str:
    """Return the number of the process that wrote a lock file, ``unknown`` where that cannot be read."""
    try:
        with path.open("rb") as file:
            return owner_of(file.fileno()) or "unknown"
    except OSError:
        return "unknown"


def is_held(path: Path) -> bool:
    """Whether a process holds a lock file, or only its folder still, as where the file was removed.

    Found without trying it where it can be: a try could make a start fail.
    """
    try:
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return _owner_lives(path)
    return _is_locked(path, lines) or _is_locked(path.parent, lines)


def _is_locked(path: Path, lines: list[str]) -> bool:
    """Whether a file or folder is locked, going by the lines of ``LOCKS``."""
    try:
        found = path.stat()
    except OSError:
        return False
    # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131081 0 EOF"
    if any(f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} " in line for line in lines):
        return True
    # A file of that number elsewhere, or this one where the system has two names for a disk (btrfs).
    is_alike = any(f":{found.st_ino} " in line for line in lines)
    return (is_alike or _is_in_container()) and _is_refused(path)


def _is_in_container() -> bool:
    """Whether there may be processes that cannot be seen from here, which hold locks that ``LOCKS`` does not name."""
    try:
        return PROCESSES.stat().st_ino != ALL_PROCESSES
    except OSError:
        return True


def _is_refused(path: Path) -> bool:
    """Whether a lock that others may share is refused; one that is not is given back at once."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _owner_lives(path: Path) -> bool:
    try:
        os.kill(int(path.read_text(encoding="ascii").split()[1]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, IndexError):
        return False
    return True
