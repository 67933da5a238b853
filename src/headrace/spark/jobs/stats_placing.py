"""How ``headrace job stats`` changes its tables: all that a run has counted, or nothing, whenever it is killed.

Spark's own overwriting of partitions deletes an hour before it renames the new one: a kill between the two loses the
rows of brokers that the run did not read. So what is new is written beside the tables, whole hours and days of all
three, and then takes their place:

    _new/minute/dt=2026-01-31/hour=07/   while it is written: a run that ends here has changed nothing
    _ready/minute/...                    from the rename on everything in it will be in the tables
    _old/minute/...                      what was in its place, until all is done

A run that is killed behind that rename leaves ``_ready``; the next one goes on there before it reads the tables.
Whoever reads them beside a run has all of one run when ``mark_of`` is the same before and after.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.jobs.folder import LOCK
from headrace.spark.jobs.target import NEW, OLD

READY: Final = "_ready"
"""Below the folder of the tables: what takes its place in them."""
PARTITIONS: Final = {"minute": ("dt", "hour"), "hour": ("dt", "hour"), "day": ("dt",)}
"""What the folders of a table are named after; one of the last of them is replaced as a whole."""
LEFT_BEHIND: Final = (
    NEW, OLD, *(f"{span}/{left}" for span in PARTITIONS for left in (".spark-staging-*", "_temporary")),
)  # fmt: skip
"""Of runs that were killed: ours, and Spark's."""


def require_own(folder: Path, *files: str) -> None:
    """Refuse a folder in which others have what a run replaces and removes.

    Args:
        files: Names of what else it replaces; in a folder without tables or a lock these are no run's.

    Raises:
        ConfigError: it is one, or cannot be looked at.
    """
    try:
        found = [child for name in (NEW, READY, OLD) for child in (folder / name).glob("*")]
        if not any((folder / name).exists() for name in (LOCK, *PARTITIONS)):
            found += [folder / name for name in files if (folder / name).exists()]
    except OSError as error:
        raise ConfigError(f"--to {folder} cannot be read: {error.strerror}", key="to") from None
    for child in found:
        if child.name not in PARTITIONS:
            raise ConfigError(
                f"--to {folder} holds {child}, which no job has written: name a new or an empty folder", key="to"
            )


def put_in_place(folder: Path) -> None:
    """Put everything that was written beside the tables in the place of what they have.

    Raises:
        HeadraceError: it cannot be moved.
    """
    try:
        (folder / NEW).rename(folder / READY)
    except OSError as error:
        raise _stuck(folder, error) from error
    finish(folder)


def finish(folder: Path) -> None:
    """Go on where a run was killed, and remove what it left.

    Raises:
        HeadraceError: something cannot be moved or removed.
    """
    ready, old = folder / READY, folder / OLD
    try:
        for new in _places(ready):
            place, aside = (root / new.relative_to(ready) for root in (folder, old))
            if place.exists():  # else it is aside already, or the first of its hour
                aside.parent.mkdir(parents=True, exist_ok=True)
                place.rename(aside)
            place.parent.mkdir(parents=True, exist_ok=True)
            new.rename(place)
        for pattern in LEFT_BEHIND:
            for left in list(folder.glob(pattern)):
                shutil.rmtree(left)
        if ready.exists():
            shutil.rmtree(ready)  # last: while it is there what is aside may be of an hour without a place
    except OSError as error:
        raise _stuck(folder, error) from error


def mark_of(folder: Path) -> int | None:
    """Return a number that changes with every run that writes; None while the tables are of two runs.

    Raises:
        OSError: the folder cannot be looked at.
    """
    changed_ns = folder.stat().st_mtime_ns
    return None if (folder / READY).exists() else changed_ns


def _places(ready: Path) -> Iterator[Path]:
    for span, partitions in PARTITIONS.items():
        yield from sorted((ready / span).glob("/".join(f"{name}=*" for name in partitions)))


def _stuck(folder: Path, error: OSError) -> HeadraceError:
    return HeadraceError(
        f"{folder}: the tables cannot be replaced: {error.strerror} ({error.filename}); what was counted is not lost, "
        "the next run goes on"
    )
