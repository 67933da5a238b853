"""Folders that a job writes to.

Some it replaces, ``--to`` and ``--report`` with all that is in them. What is new is written below the folder, and takes
the place of what is there when it is whole: a run that fails or is killed leaves the result of the last one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.format.layout import COMMIT_LOG
from headrace.settings.folder import find_folder_problem
from headrace.spark.jobs.folder import hold_folder, make_folder
from headrace.spark.jobs.manifest import FOLDER as ARCHIVE
from headrace.spark.session import settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK_FILE: Final = re.compile(r"_SUCCESS|\.?part-[^/]*\.parquet(\.crc)?|\._SUCCESS\.crc")
NEW: Final = "_new"
"""Below a folder: what will take its place. Spark passes over names that begin so."""
OLD: Final = "_old"
"""What was in its place, until it is deleted."""
SUCCESS: Final = "_SUCCESS"
SPARK_FOLDER: Final = re.compile(rf"{NEW}|{OLD}|[^/=]+=[^/]*")
"""Of a partition, or of a run that did not end."""
UNFINISHED: Final = "_temporary"
"""What a run that was killed leaves, with folders and files of Spark's below it."""
TIMES: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""How times stand in Parquet. INT96, Spark's default, is out of use: it has no least and greatest value to skip row
groups by, and others than Spark take it for ns since 1970, in which the year 9999 is another one."""


def require_outside(path: Path | None, name: str, *, is_archive: bool = False) -> None:
    """Refuse to write where a store or an archive is.

    Args:
        path: Folder that a job writes to; None: it writes to none.
        name: Of the option that says so.
        is_archive: It may be one itself.

    Raises:
        ConfigError: it is or lies in one.
    """
    if path is None:
        return
    whole = path.resolve()
    for folder in (whole, *whole.parents):
        for mark, what in ((ARCHIVE, "an archive"), (COMMIT_LOG, "a store")):
            if (folder / mark).is_dir() and not (is_archive and mark == ARCHIVE and folder == whole):
                raise ConfigError(f"--{name} {path} lies in {what}, {folder}: name a folder of its own", key=name)


def require_target(path: Path | None, name: str) -> None:
    """Refuse to replace what no job has written.

    Args:
        path: What is to be replaced; None: nothing is.
        name: Of the option that says so.

    Raises:
        ConfigError: the folder is or lies in a store or an archive, holds something else than Spark writes, or cannot
            be written: better now than when the work is done.
    """
    if path is None:
        return
    require_outside(path, name)
    flag = f"--{name} {path}"
    whole = path.resolve()
    found = _stranger(whole)
    if found is not None:
        raise ConfigError(
            f"{flag} would be replaced and holds what no job has written, {found}: name a new or an empty folder",
            key=name,
        )
    if problem := find_folder_problem(whole):
        raise ConfigError(f"{flag} cannot be made: {problem}", key=name)


@contextmanager
def hold_target(path: Path | None, name: str, *, dry_run: bool) -> Iterator[None]:
    """Check a folder that is to be replaced, and have it to oneself.

    Of two runs that Spark has write to one folder the first to end takes away what the other has written, and either
    may say that all is well. The lock lies beside the folder: what is in that goes when it is replaced.

    Raises:
        ConfigError: as ``require_target``, or the lock cannot be made.
        FolderBusyError: another run has it.
    """
    require_target(path, name)
    if path is None or dry_run:
        yield
        return
    whole = path.resolve()
    make_folder(whole.parent, name)
    with hold_folder(whole, name, lock=str(whole.with_name(f".{whole.name}.lock"))):
        yield


def write_beside(rows: DataFrame, path: Path, new: Path, *partitions: str) -> None:
    """Write rows as Parquet, in folders by ``partitions``, to what will take a place in a folder.

    Args:
        path: The folder, as the job's option names it.
        new: What is written below it, an absolute path; what is there is overwritten.

    Raises:
        HeadraceError: Spark wrote, but not where this process can see it.
    """
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
    with settings_of(rows.sparkSession, TIMES):
        (writer.partitionBy(*partitions) if partitions else writer).parquet(str(new))
    if not new.is_dir():
        raise HeadraceError(
            f"{path}: Spark has written it, but here there is nothing: name a folder that the driver, this process and "
            "all workers share, and a Spark whose fs.defaultFS is file:///"
        )


def replace_folder(rows: DataFrame, path: Path, *partitions: str) -> None:
    """Write rows as Parquet, in folders by ``partitions``, in the place of all that a folder holds.

    A session whose overwrites are dynamic would leave folders of ``NEW`` that no row belongs to any more.

    Raises:
        HeadraceError: Spark wrote, but not where this process can see it, or what is old cannot be moved, or not all of
            it is a job's.
    """
    whole = path.absolute()  # links may lead elsewhere on the machines of the workers
    new, old = whole / NEW, whole / OLD
    write_beside(rows, path, new, *partitions)
    found = _stranger(whole, NEW)  # there was nothing when the job began
    if found is not None:
        raise HeadraceError(
            f"{path} is not replaced: it holds what no job has written, {found}; what is new lies in {new}"
        )
    try:
        _take_place(whole, new, old)
    except OSError as error:
        raise HeadraceError(
            f"{path} cannot be replaced: {error.strerror} ({error.filename}); what is new lies in {new}"
        ) from error


def _take_place(whole: Path, new: Path, old: Path) -> None:
    """Move what is in ``new`` to where ``old`` will hold what was.

    ``_SUCCESS`` goes first and comes last: where it is, all is of one run.
    """
    if old.exists():
        shutil.rmtree(old)  # of a run that was killed right here
    there = [child for child in whole.iterdir() if child.name not in {NEW, OLD}]
    old.mkdir()
    for child in sorted(there, key=_is_no_mark):
        child.rename(old / child.name)
    for child in sorted(new.iterdir(), key=_is_no_mark, reverse=True):
        child.rename(whole / child.name)
    new.rmdir()
    shutil.rmtree(old)


def _is_no_mark(child: Path) -> bool:
    return child.name != SUCCESS


def _stranger(root: Path, passed_over: str = "") -> str | None:
    """Return something in a folder that Spark does not write, None when there is nothing of the kind.

    Args:
        passed_over: Name of a folder in it that is not looked at.
    """
    if root.exists() and not root.is_dir():
        return root.name
    for folder, folders, files in os.walk(root):
        own = (Path(folder, name) for name in folders)
        folders[:] = [each.name for each in own if each != root / passed_over and not _is_unfinished(each)]
        names = (name for name in folders if not SPARK_FOLDER.fullmatch(name))
        found = next(names, None) or next((name for name in files if not SPARK_FILE.fullmatch(name)), None)
        if found is not None:
            return str(Path(folder, found))
    return None


def _is_unfinished(folder: Path) -> bool:
    """Return whether a folder is what Spark had not finished: jobs by their numbers."""
    return folder.name == UNFINISHED and all(job.name.isdigit() for job in folder.iterdir())
