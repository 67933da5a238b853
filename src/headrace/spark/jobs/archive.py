"""Write topics or the whole log to Parquet, exactly once.

Reads the commit log of a store's files or of running brokers and writes Parquet files sorted by topic, queue and queue
offset. A manifest says which files count and how far each broker's log is in them: the next run goes on there and adds
only what is new. A run that did not end leaves a plan; the next one carries out the same plan, which makes the same
files again, and nothing is archived twice or left out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import ConfigError
from headrace.spark.columns import parse_columns
from headrace.spark.errors import DataLossError
from headrace.spark.jobs import lake
from headrace.spark.jobs.archive_plan import Plan, make_plan
from headrace.spark.jobs.config import BROKER_OF_STORE, JobConfig, option, show_time
from headrace.spark.jobs.failure import JobFailedError, explain
from headrace.spark.jobs.folder import hold_folder, make_folder
from headrace.spark.jobs.log_rows import require_topics
from headrace.spark.jobs.manifest import (
    FOLDER,
    LOCK,
    PLAN,
    TEMPORARY,
    VERSION,
    ArchiveError,
    ArchiveFile,
    Epoch,
    Manifest,
    Selection,
    load_epochs,
    seal,
    write_epoch,
    write_json,
)
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import FAILED, Summary, Table, count_of
from headrace.spark.jobs.target import require_outside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.jobs.archive_files import ArchiveTask
    from headrace.spark.scan import Source

MIB: Final = 1 << 20
DEFAULT_COLUMNS: Final = (
    "topic", "broker", "queue_id", "queue_offset", "log_offset", "unique_key", "keys", "tags", "flag", "sys_flag",
    "reconsume_times", "store_size", "born_ts", "store_ts", "born_host", "store_host", "source_protocol", "body",
    "properties",
)  # fmt: skip
"""All that a message is, so that ``replay`` can send it again; ``msg_id`` follows from store_host and log_offset."""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job archive``."""

    without = frozenset({"until"})

    to: Path = option(Path(), help="Folder of the archive, made when missing.", metavar="DIR", required=True)
    layout: Literal["topic", "hour"] = option(
        "topic", help="Folders by topic and day, or by day and hour for logs of very many topics."
    )
    table_format: Literal["parquet", "delta", "iceberg"] = option(
        "parquet", help="Also keep a Delta or Iceberg table over the same files, in the same folder."
    )
    columns: tuple[str, ...] = option((), help="Columns of the files; all that a message is by default.")
    compression: Literal["zstd", "snappy", "lz4", "none"] = option(
        "zstd", help="Codec of the files that this run writes."
    )
    compression_level: int | None = option(
        None, help="Of zstd: 1 is the quickest and the default, a higher one makes smaller files.", least=1, most=22
    )
    retry_topics: bool = option(False, help="Also messages of %RETRY% and %DLQ% topics.")
    system_topics: bool = option(False, help="Also messages of the broker's own topics.")
    split_bytes: int = option(64 * MIB, help="Most bytes of log in a range.", least=64 * 1024, most=1 << 30)
    max_bytes: int = option(0, help="Most bytes of each log for one run, 0 for no limit.", least=0)
    on_data_loss: Literal["fail", "continue"] = option(
        "fail", help="What to do when messages that are not archived yet are missing from the log."
    )
    broker: str = option("", help="What to call the broker of --store; by default the folder's name.", metavar="NAME")

    def validate(self) -> None:
        """Check that there is one source, that the folder is one for an archive, and what is to be in it."""
        self.require_source()
        if self.broker and self.store is None:
            raise ConfigError(BROKER_OF_STORE, key="broker")
        if self.compression_level is not None and self.compression != "zstd":
            raise ConfigError(
                f"--compression-level is for zstd: --compression {self.compression} has none", key="compression_level"
            )
        if self.to.exists() and not self.to.is_dir():
            raise ConfigError(f"--to {self.to} is not a directory", key="to")
        require_outside(self.to, "to", is_archive=True)
        check_folder(self.to)
        lake.require(self.table_format, self.to)
        if self.columns:
            parse_columns(self.columns)

    @property
    def selection(self) -> Selection:
        """What the archive is to hold."""
        from headrace.spark.jobs.archive_files import NEEDED  # noqa: PLC0415  # needs pyarrow

        chosen = parse_columns(self.columns) if self.columns else DEFAULT_COLUMNS
        missing = tuple(column for column in NEEDED if column not in chosen)
        return Selection(
            topics=tuple(sorted(set(self.topics))),
            since=self.since,
            system_topics=self.system_topics,
            retry_topics=self.retry_topics,
            layout=self.layout,
            columns=missing + chosen,
        )


def run(spark: SparkSession, config: Config) -> Summary:
    """Archive what is new and return what was added.

    Raises:
        ConfigError: the folder holds something else, or an archive of something else.
        ArchiveError: the archive is damaged.
        FolderBusyError: another run writes to it.
        HeadraceError: the log cannot be read.
    """
    from headrace.spark.jobs.cut_source import cut_source_of  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.tasks import parallelism  # noqa: PLC0415  # needs pyspark

    summary = Summary(job="archive", dry_run=config.dry_run)
    config.validate()  # again: the folder may be another one by now
    phase("planning")
    source = cut_source_of(config, config.broker)
    if not is_begun(config.to):
        require_topics(source, config.topics)
    if config.dry_run:
        manifest = load_epochs(config.to)
        plan, is_resumed = make_plan(source, config, manifest, at_once=parallelism(spark))
        describe_plan(summary, config, manifest, plan, is_resumed=is_resumed)
        return summary
    make_folder(config.to / FOLDER, "to")
    with hold_folder(config.to, "to", lock=f"{FOLDER}/{LOCK}"):
        manifest = load_epochs(config.to)
        shutil.rmtree(config.to / TEMPORARY, ignore_errors=True)
        for file in manifest.files:
            manifest.locate(file)  # nothing is added to an archive whose files are not all there
        lake.refuse_ahead(config.table_format, manifest)
        plan, is_resumed = make_plan(source, config, manifest, at_once=parallelism(spark))
        epoch = write_files(spark, source, config, plan) if plan.splits else None
        if epoch is not None:
            write_epoch(config.to, epoch)
            manifest.epochs.append(epoch)
        (config.to / FOLDER / PLAN).unlink(missing_ok=True)
        shutil.rmtree(config.to / TEMPORARY, ignore_errors=True)
        phase("committing")
        committed = lake.commit(config.table_format, manifest)
    describe_run(summary, config, manifest, plan, epoch, is_resumed=is_resumed)
    if committed is not None:
        summary.facts["table_version"] = committed
    return summary


def is_begun(root: Path) -> bool:
    """Whether the selection of an archive is settled: of a topic in it that was deleted the messages still count.

    Raises:
        ArchiveError: the archive is damaged.
    """
    return (root / FOLDER / PLAN).exists() or load_epochs(root).selection is not None


def check_folder(root: Path) -> None:
    """Refuse a folder that holds something else.

    Raises:
        ConfigError: it is neither an archive nor empty.
    """
    try:
        names = {entry.name for entry in root.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"--to {root} cannot be read: {error.strerror}", key="to") from None
    if names and not (root / FOLDER).is_dir():
        raise ConfigError(
            f"--to {root} is not empty and is no archive (it has no folder {FOLDER}): name a new folder, or the one of "
            "an archive",
            key="to",
        )


def write_files(spark: SparkSession, source: Source, config: Config, plan: Plan) -> Epoch:
    """Write the files of the next epoch, the plan first.

    Raises:
        ArchiveError: a file cannot be written.
        HeadraceError: a task gave no answer.
        JobFailedError: a task failed; of a loss of data it says the remedy.
    """
    from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.archive_files import archive_split  # noqa: PLC0415

    try:
        write_json(config.to / FOLDER / PLAN, seal({"version": VERSION, **asdict(plan)}))
    except OSError as error:
        raise ConfigError(f"--to {config.to} cannot be written: {error.strerror}", key="to") from None
    tasks = _make_tasks(source, config, plan)
    phase("writing")
    try:
        results = ask_tasks(spark, tasks, archive_split, "ranges were to be archived")
    except Exception as error:
        found = explain(error)
        if isinstance(found, JobFailedError) and found.kind == DataLossError.__name__:
            raise JobFailedError(
                f"{found}; run again with --on-data-loss continue to archive the rest", found.kind
            ) from error
        raise
    files = [ArchiveFile(**file) for result in results for file in result["files"]]
    refuse_shared(config.to, files)
    counters = {"missing_bytes": plan.missing_bytes, "voided_bytes": plan.voided_bytes}
    for result in results:
        for name, count in result["counters"].items():
            counters[name] = counters.get(name, 0) + count
    return Epoch(
        epoch=plan.epoch,
        selection=plan.selection,
        brokers=plan.brokers,
        files=files,
        counters=counters,
        written_ms=time.time_ns() // 1_000_000,
    )


def _make_tasks(source: Source, config: Config, plan: Plan) -> list[ArchiveTask]:
    """Return a task for each range of the plan that is not empty."""
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.archive_files import ArchiveTask  # noqa: PLC0415

    selection, located = plan.selection, source.located()
    options = {
        "topics": selection.topics or None,
        "start_ms": selection.since,
        "system_topics": selection.system_topics,
        "retry_topics": selection.retry_topics,
    }
    return [
        ArchiveTask(
            split=scan.LogSplit(located, broker, start, end, plan.segment_bytes[broker]),
            root=str(config.to.absolute()),
            columns=selection.columns,
            layout=selection.layout,
            selection=options,
            compression=config.compression,
            compression_level=config.compression_level,
        )
        for broker, start, end in plan.splits
        if start < end
    ]


def refuse_shared(root: Path, files: Sequence[ArchiveFile]) -> None:
    """Refuse files whose names differ in upper and lower case only and which are one: the later replaced the earlier.

    Raises:
        ArchiveError: the disk does not tell such names apart.
    """
    known: dict[str, str] = {}
    for file in files:
        other = known.setdefault(file.path.casefold(), file.path)
        if other != file.path and (root / other).samefile(root / file.path):
            raise ArchiveError(
                f"{other} and {file.path} are one file in {root}, where upper and lower case are the same: nothing was "
                "added; archive to another disk, or each of the topics to a folder of its own"
            )


def describe_plan(summary: Summary, config: Config, manifest: Manifest, plan: Plan, *, is_resumed: bool) -> None:
    """Say what a run would do."""
    summary.facts |= {
        "archive": str(config.to), "epoch": plan.epoch, "ranges": len(plan.splits), "log_bytes": plan.bytes,
        "archived_messages": manifest.rows, "archived_files": len(manifest.files),
    }  # fmt: skip
    summary.tables.append(_ranges(plan))
    if is_resumed:
        summary.notes.append(f"epoch {plan.epoch} was begun and not finished: it would be finished first")
    _note_lacks(summary, plan)


def _note_lacks(summary: Summary, plan: Plan) -> None:
    """Say which logs end before what was durable, as the archive does too, and which nobody knew."""
    for broker, (first, end) in sorted(plan.lost_ends.items()):
        summary.notes.append(
            f"physical offsets {first} to {end} of broker {broker!r} are in no file of its log: what they held is not "
            "in the archive, which ends before them"
        )
    for broker, end in sorted(plan.absent.items()):
        summary.notes.append(
            f"broker {broker!r}, whose log is in the archive up to {end}, was not there: a run when it is back takes "
            "the rest"
        )


_REMARKS: Final = {
    "damaged": (
        "place of the log holds no whole record and is not in the archive: headrace job verify names it",
        "places of the log hold no whole record and are not in the archive: headrace job verify names them",
    ),
    "missing_bytes": (
        "byte of the log is not there: removed before it was archived, or cut off; the archive goes on behind it",
        "bytes of the log are not there: removed before they were archived, or cut off; the archive goes on behind "
        "them",
    ),
    "voided_bytes": (
        "byte of the log's offsets stands for nothing: a recovery of the broker left it out",
        "bytes of the log's offsets stand for nothing: a recovery of the broker left them out",
    ),
    "inflate_failures": (
        "compressed body could not be decompressed: archived as it was stored",
        "compressed bodies could not be decompressed: archived as they were stored",
    ),
}
"""What is said of a run's counters that are not 0."""


def describe_run(
    summary: Summary, config: Config, manifest: Manifest, plan: Plan, epoch: Epoch | None, *, is_resumed: bool
) -> None:
    """Say what a run has done."""
    files: Sequence[ArchiveFile] = epoch.files if epoch else ()
    counters = epoch.counters if epoch else {}
    summary.facts |= {
        "archive": str(config.to),
        "epoch": len(manifest.epochs),
        "messages": sum(file.rows for file in files),
        "files": len(files),
        "file_bytes": sum(file.size_bytes for file in files),
        "log_bytes": plan.bytes,
        "damaged": counters.get("damaged", 0),
        "archived_messages": manifest.rows,
        "archived_files": len(manifest.files),
    }
    counts = Manifest(config.to, [epoch] if epoch else []).topics
    if files:
        summary.facts["oldest"] = show_time(min(file.min_ts for file in files))
        summary.facts["newest"] = show_time(max(file.max_ts for file in files))
    summary.tables.append(_ranges(plan))
    summary.tables.append(Table("topics", "Archived topics", ("topic", "messages"), sorted(counts.items())))
    if is_resumed:
        summary.notes.append(
            f"an earlier run had begun epoch {plan.epoch} and not finished it: it was finished; run again for the rest"
        )
    _note_lacks(summary, plan)
    if not plan.splits and not plan.lost_ends:
        summary.notes.append("nothing new: the log ends where the archive does")
    if counters.get("damaged"):
        summary.exit_code = FAILED
    for name, (one, many) in _REMARKS.items():
        count = counters.get(name, 0)
        if count:
            summary.facts[name] = count
            summary.notes.append(count_of(count, one, many))


def _ranges(plan: Plan) -> Table:
    rows = [(broker, covered.start, covered.end) for broker, covered in sorted(plan.brokers.items())]
    return Table("brokers", "Ranges of the log", ("broker", "start", "end"), rows)
