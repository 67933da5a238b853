"""Putting one folder in the place of another, in one step where the system can.

``target`` keeps the folder, which may be a mount, and moves what is in it; ``stats_placing`` has many places at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.format.side_file import sync_folder

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT: Final = frozenset((errno.EINVAL, errno.ENOSYS))
"""What a kernel or a file system answers that exchanges no names."""


def exchange_folder(new: Path, old: Path, aside: Path) -> None:
    """Put ``new`` in the place of ``old``, which is removed; all three lie on one file system.

    Two renames, for which there is nothing in the place for a moment, only where the file system exchanges no names.

    Args:
        aside: Where the old folder is while it is removed.

    Raises:
        OSError: it cannot be moved.
    """
    shutil.rmtree(aside, ignore_errors=True)
    if not old.exists():
        new.rename(old)
    elif _exchange(new, old):
        new.rename(aside)
    else:
        old.rename(aside)
        new.rename(old)
    sync_folder(old.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders; return whether the system can."""
    if _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _find_renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Return the call of Linux, None where there is none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return call


_renameat2 = _find_renameat2()
