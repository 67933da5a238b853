"""Whether a folder that a setting or an option names can be used, found out without making it."""

import os
from pathlib import Path


def nearest_folder(path: Path) -> Path:
    """Return what is there of a path: itself, or the parent in which the rest would be made.

    A link that leads nowhere is there: nothing can be made in its place.
    """
    path = path.absolute()
    return next(one for one in (path, *path.parents) if os.path.lexists(one))


def find_folder_problem(path: Path) -> str:
    """Return why a folder cannot be written to or made; empty when it can."""
    try:
        there = nearest_folder(path)
    except FileNotFoundError:  # a relative path
        return "the working directory does not exist any more"
    if not is_there(there) or not there.is_dir():
        return f"{there} is no directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is not writable for this user"
    return ""


def is_there(path: Path) -> bool:
    """Return whether something is there that this user may see."""
    try:
        path.stat()
    except OSError:
        return False
    return True
