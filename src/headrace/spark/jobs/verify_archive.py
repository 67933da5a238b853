"""Check an archive: every file of the manifest is there unchanged and holds what the manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from headrace.format.findings import Finding
from headrace.spark.jobs.answers import ask_tasks
from headrace.spark.jobs.archive_files import NEEDED, time_range
from headrace.spark.jobs.archive_plan import read_plan
from headrace.spark.jobs.manifest import FOLDER, PLAN, ArchiveError, ArchiveFile, data_files, load, sum_up
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import Summary

_PLAN: Final = f"{FOLDER}/{PLAN}"


def verify_archive(spark: SparkSession, root: Path, summary: Summary) -> tuple[list[Finding], list[Finding]]:
    """Check an archive; return damage and what is only worth knowing.

    Raises:
        ConfigError: there is no archive.
        ArchiveError: its manifest cannot be read.
        HeadraceError: a task gave no answer.
    """
    phase("planning")
    manifest = load(root)
    files = manifest.files
    summary.facts |= {"epochs": len(manifest.epochs), "files": len(files), "messages": manifest.rows}
    summary.facts["file_bytes"] = sum(file.size_bytes for file in files)
    if summary.dry_run:
        return [], []
    phase("checking")
    answers = ask_tasks(spark, files, partial(check_file, str(root.absolute())), "files were to be checked")
    damage = [
        Finding(kind=kind, broker=file.broker, file=file.path, message=f"{file.path}: {message}")
        for file, faults in zip(files, answers, strict=True)
        for kind, message in faults
    ]
    damage += _overlaps(files)
    notes = _strangers(root, {file.path for file in files})
    try:
        if read_plan(root) is not None:
            notes.append(Finding(
                kind="unfinished_epoch", file=_PLAN,
                message="a run was not finished: the next headrace job archive finishes it",
            ))  # fmt: skip
    except ArchiveError as error:
        damage.append(Finding(kind="damaged_plan", file=_PLAN, message=str(error)))
    return damage, notes


def _overlaps(files: list[ArchiveFile]) -> list[Finding]:
    """Ranges of one log that two sets of files cover: their messages would be there twice."""
    found = []
    ranges = sorted({(file.broker, file.start, file.end) for file in files})
    for (broker, start, end), (next_broker, next_start, _) in pairwise(ranges):
        if broker == next_broker and next_start < end:
            found.append(Finding(
                kind="overlapping_files", broker=broker, physical_offset=next_start, end_offset=end,
                message=f"the range {next_start} to {end} of broker {broker} is in files from {start} and {next_start}",
            ))  # fmt: skip
    names = [file.path for file in files]
    for name in sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else ():
        found.append(Finding(kind="repeated_file", file=name, message=f"{name} is in the manifest twice"))
    return found


def _strangers(root: Path, known: set[str]) -> list[Finding]:
    """Files that no epoch lists: a run that was killed left them, or somebody else did; no reader sees them."""
    return [
        Finding(kind="unlisted_file", file=name, message=f"{name} is in no epoch of the manifest: readers pass over it")
        for name in data_files(root) if name not in known
    ]  # fmt: skip


def check_file(root: str, file: ArchiveFile) -> list[tuple[str, str]]:
    """Check one file; return what is wrong: kind, sentence."""
    try:
        return list(_problems(Path(root, file.path), file))
    except FileNotFoundError:
        return [("missing_file", "it is missing")]
    except OSError as error:
        return [("unreadable", f"it cannot be read: {error.strerror}")]


def _problems(path: Path, file: ArchiveFile) -> Iterator[tuple[str, str]]:
    size, crc = sum_up(path)
    if size != file.size_bytes:
        yield "file_size", f"it is {size} bytes long, the manifest says {file.size_bytes}"
        return
    if crc != file.crc32:
        yield "file_checksum", f"its CRC-32 is {crc:08x}, the manifest says {file.crc32:08x}"
        return
    try:
        table = pq.ParquetFile(path).read(columns=list(NEEDED))
    except (pa.ArrowException, OSError, ValueError) as error:
        yield "parquet", f"it is no Parquet file of an archive: {error}"
        return
    yield from _contents(table, file)


def _contents(table: pa.Table, file: ArchiveFile) -> Iterator[tuple[str, str]]:
    """Hold the rows against the manifest: nothing a changed byte can do, but what a wrong writer would."""
    if table.num_rows != file.rows:
        yield "rows", f"it holds {table.num_rows} messages, the manifest says {file.rows}"
        return
    counts: dict[str, Any] = {
        item["values"]: item["counts"] for item in table.column("topic").value_counts().to_pylist()
    }
    if counts != file.topics:
        yield "topics", "its topics are not those of the manifest"
    offsets = table.column("log_offset").to_numpy()
    if (int(offsets.min()), int(offsets.max())) != (file.min_offset, file.max_offset):
        yield "offsets", "its physical offsets are not those of the manifest"
    if not (file.start <= file.min_offset and file.max_offset < file.end):
        yield "offsets", f"it holds messages outside of its range {file.start} to {file.end}"
    if len(np.unique(offsets)) != len(offsets):
        yield "repeated_message", "it holds a message twice"
    if time_range(table) != (file.min_ts, file.max_ts):
        yield "times", "its times are not those of the manifest"
    topics = table.column("topic").to_pylist()
    order = list(
        zip(topics, table.column("queue_id").to_pylist(), table.column("queue_offset").to_pylist(), strict=True)
    )
    if any(before > after for before, after in pairwise(order)):
        yield "order", "its messages are not in the order of topic, queue and queue offset"
