"""``headrace store check``: verify a store without changing it.

The store may be closed, left by a crash, or open in a living broker. Side files are looked at first, because they say
what the log promises; they are read before the log, so that what a living broker promises meanwhile is not asked for.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from headrace.errors import SideFileError, StoreError
from headrace.format import findings
from headrace.format.epochs import Epochs, noted_queue_ends
from headrace.format.findings import Finding
from headrace.format.layout import ROCKETMQ_CHECKPOINT_BYTES, ROOT_NAMES, SIDE, SIDE_NAMES
from headrace.format.names import is_offset_name
from headrace.store.check_report import CheckReport
from headrace.store.index_check import check_index
from headrace.store.log_check import LogCheck
from headrace.store.reader import CLOSED, StoreReader
from headrace.store.recovery import MISSING_FILE

Progress = Callable[[int, int], None]
Extra = Callable[[StoreReader, CheckReport], None]

_DEEPEST: Final = 3
"""Folders between a store's own and the deepest file: ``consumequeue/TOPIC/QUEUE``."""

_SPECIAL: Final = (
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_store(root: Path, progress: Progress = lambda done, total: None, extra: Extra | None = None) -> CheckReport:
    """Check the store in ``root``.

    Args:
        progress: Called now and then with the bytes of the log that are done, and all of them.
        extra: Further checks of what a higher layer keeps in the store.

    Returns:
        The report; an unreadable store is a report too.
    """
    started = time.monotonic()
    report = CheckReport(directory=str(root))
    try:
        reader = StoreReader(root)
        report.state = reader.state()
        identity = reader.identity
        report.store_id, report.format_version = identity.store_id, identity.format_version
        report.segment_bytes = identity.segment_bytes
        log_check = _check_side_files(reader, report)
        total = max(1, len(reader.segments())) * identity.segment_bytes
        log_check.run(lambda done: progress(done, total))
        walk = log_check.walk
        for index in range(walk.track_count):
            topic, queue_id = walk.name(index)
            report.note_queue_end(topic.decode(), queue_id, walk.totals(index)[0])
        if report.log.checkpoint_offset > report.log.end_offset:
            report.damage.append(findings.checkpoint_beyond_log(report.log.checkpoint_offset, report.log.end_offset))
        note = read_checked(
            reader, report, reader.directory.index_note, "index", "the next start makes the index anew from the log"
        )
        check_index(reader, report, note)
        if extra is not None:
            extra(reader, report)
        _name_special_files(reader, report)
        progress(total, total)
    except StoreError as error:
        report.error = str(error)
    except OSError as error:
        report.error = f"{error.filename or root} cannot be read: {error.strerror}"
    report.seconds = time.monotonic() - started
    return report


def read_checked(reader: StoreReader, report: CheckReport, path: Path, kind: str, effect: str) -> Any:
    """Return a side file's payload; a damaged one becomes a finding and reads as None."""
    try:
        return reader.side_file(path, kind)
    except (SideFileError, OSError, ValueError) as error:
        name, reason = reader.name_of(path), "damaged"
        message = f"{name} is damaged; {effect}"
        if isinstance(error, OSError):  # a start does not replace what it may not read
            reason = error.strerror or "unreadable"
            message = f"{name} cannot be read: {reason}; see to the disk and to whose the file is"
        report.damage.append(Finding(kind="side_file", file=name, reason=reason, message=message))
        return None


def name_missing(reader: StoreReader, report: CheckReport, path: Path, effect: str) -> None:
    """Name a file that every clean end leaves, and that a start can do without."""
    if report.state == CLOSED and not path.exists():
        name = reader.name_of(path)
        report.info.append(Finding(kind="missing_file", file=name, message=f"{name} is missing; {effect}"))


def _check_side_files(reader: StoreReader, report: CheckReport) -> LogCheck:
    """Check the small files; return the log check that they ask for."""
    directory = reader.directory
    # The promises first: a living broker only adds to the log behind them.
    mark, is_damaged = reader.durable_mark()
    if is_damaged:
        report.damage.append(findings.unusable_mark("damaged"))
    checkpoint = read_checked(
        reader, report, directory.checkpoint, "checkpoint", "the next start scans the whole log and writes it anew"
    )
    name_missing(reader, report, directory.checkpoint, "the next start scans the whole log and writes it anew")
    name_missing(
        reader, report, directory.durable_mark,
        "the next start sets it anew, loss cannot be told from a torn tail",
    )  # fmt: skip
    epochs = read_checked(reader, report, directory.epochs, "epochs", "a start is refused: restore it from a backup")
    holes = read_checked(reader, report, directory.holes, "holes", "the next start that finds a hole makes it anew")
    read_checked(
        reader, report, directory.producers, "producers",
        "the next start makes it anew from the log, or is refused where that no longer has every record",
    )  # fmt: skip
    read_checked(
        reader, report, directory.boot_note, "boot",
        "the next start makes it anew, a power cut before it goes unnoticed",
    )  # fmt: skip
    if directory.identity_backup.exists():
        read_checked(reader, report, directory.identity_backup, "store", "copy headrace/store.json over it")
    else:
        report.info.append(Finding(kind="no_backup", message="headrace/store.json.bak is missing: copy store.json"))
    _check_rocketmq_checkpoint(reader, report)
    _name_strangers(reader, report)
    log = report.log
    log.durable_mark = mark
    known = Epochs.of(epochs)
    for (topic, queue_id), end in noted_queue_ends(known, checkpoint).items():
        report.note_queue_end(topic, queue_id, end)
    log.epoch = known.newest.number
    log.checkpoint_offset = int(checkpoint["physical_offset"]) if checkpoint else 0
    if report.state == CLOSED and checkpoint is not None and not checkpoint["clean"]:
        report.info.append(Finding(
            kind="no_clean_end", file="headrace/checkpoint.json",
            message="there is no abort file, yet the checkpoint notes no clean end; the next start recovers anyway",
        ))  # fmt: skip
    if holes:
        report.info.append(Finding(kind="known_holes", count=len(holes), message=f"{len(holes)} holes are known"))
    # Files that were missing may be back: the log says what they hold.
    known_holes = {
        int(hole["first_offset"]): int(hole["end_offset"]) for hole in holes or () if hole["reason"] != MISSING_FILE
    }
    return LogCheck(reader, report, known, known_holes)


def _check_rocketmq_checkpoint(reader: StoreReader, report: CheckReport) -> None:
    path = reader.directory.rocketmq_checkpoint
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return
    if size != ROCKETMQ_CHECKPOINT_BYTES and report.state == CLOSED:
        report.damage.append(findings.rocketmq_checkpoint_size(size, ROCKETMQ_CHECKPOINT_BYTES))


def _name_strangers(reader: StoreReader, report: CheckReport) -> None:
    """Files that no part of Headrace made."""
    for folder, known in (("", ROOT_NAMES), (SIDE, SIDE_NAMES)):
        path = reader.root / folder
        for name in sorted(entry.name for entry in path.iterdir()) if path.is_dir() else ():
            if name not in known and not name.endswith(".new"):
                report.info.append(Finding(
                    kind="unknown_file", file=str(Path(folder, name)), message=f"{Path(folder, name)} is not ours"
                ))  # fmt: skip
    for segment_path in sorted(reader.directory.commit_log.iterdir()) if reader.directory.commit_log.is_dir() else ():
        if not is_offset_name(segment_path.name):
            name = reader.name_of(segment_path)
            report.info.append(Finding(kind="unknown_file", file=name, message=f"{name} is not a segment"))


def _name_special_files(reader: StoreReader, report: CheckReport) -> None:
    """Name what is in the place of a file or folder of ours and is neither, unless something else found it."""
    said = {"side_file", "no_backup", "unknown_file"}
    named = {finding.file for finding in (*report.damage, *report.info) if finding.kind in said}
    for entry in _entries(reader.root, _DEEPEST):
        name = reader.name_of(Path(entry.path))
        what = _what_is_special(entry)
        if what is not None and name not in named:
            report.damage.append(Finding(
                kind="special_file", file=name, reason=what,
                message=f"{name} is {what}, no regular file: put back what belongs there, or remove it",
            ))  # fmt: skip


def _entries(folder: Path | str, levels: int) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder of the store and in those in it, also where they are links to other disks."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if levels == _DEEPEST and entry.name not in ROOT_NAMES - {"lost+found"}:
                continue
            yield entry
            if levels and _is_folder(entry):
                yield from _entries(entry.path, levels - 1)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _what_is_special(entry: os.DirEntry[str]) -> str | None:
    """Return what an entry is that is neither a file nor a folder, nor a link to one; None of all others."""
    try:
        if entry.is_file() or entry.is_dir():
            return None
        mode = entry.stat().st_mode
    except FileNotFoundError:
        return "a link that leads nowhere" if entry.is_symlink() else None  # a living broker removes files
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror})"
    return next((what for is_it, what in _SPECIAL if is_it(mode)), "no regular file")
