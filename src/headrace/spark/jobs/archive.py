"""Write topics or the whole log to Parquet, exactly once.

Reads the commit log of a store's files or of running brokers and writes Parquet files sorted by topic, queue and queue
offset. A manifest says which files count and how far each broker's log is in them: the next run goes on there and adds
only what is new. A run that was killed leaves a plan; the next one carries out the same plan, which makes the same
files again, and nothing is archived twice or left out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.jobs import lake
from headrace.spark.jobs.config import BROKER_OF_STORE, JobConfig, option, require_known_topics, show_time
from headrace.spark.jobs.failure import JobFailedError, explain
from headrace.spark.jobs.manifest import (
    FOLDER,
    LOCK,
    PLAN,
    TEMPORARY,
    VERSION,
    ArchiveError,
    ArchiveFile,
    BrokerRange,
    Epoch,
    Manifest,
    Selection,
    load_epochs,
    read_selection,
    seal,
    unseal,
    write_epoch,
    write_json,
)
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import FAILED, Summary, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.files import LogExtent
    from headrace.spark.scan import LogSplit, ServersSource, StoreSource

    Source = StoreSource | ServersSource

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
    retry_topics: bool = option(False, help="Also messages of %RETRY% and %DLQ% topics.")
    system_topics: bool = option(False, help="Also messages of the broker's own topics.")
    split_bytes: int = option(64 * MIB, help="Bytes of log that one task takes.", least=64 * 1024, most=1 << 30)
    max_bytes: int = option(0, help="Most bytes of each log for one run, 0 for no limit.", least=0)
    on_data_loss: Literal["fail", "continue"] = option(
        "fail", help="What to do when retention has removed messages that are not archived yet."
    )
    broker: str = option("", help="What to call the broker of --store; by default the folder's name.", metavar="NAME")

    def validate(self) -> None:
        """Check that there is one source and that the folder is one."""
        self.require_source()
        if self.broker and self.store is None:
            raise ConfigError(BROKER_OF_STORE, key="broker")
        if self.to.exists() and not self.to.is_dir():
            raise ConfigError(f"--to {self.to} is not a directory", key="to")

    @property
    def selection(self) -> Selection:
        """What the archive is to hold."""
        from headrace.spark.jobs.archive_files import NEEDED  # noqa: PLC0415  # needs pyarrow
        from headrace.spark.schema import parse_columns  # noqa: PLC0415  # needs pyarrow

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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is about to write: the next epoch and its ranges of the log."""

    epoch: int
    selection: Selection
    splits: list[tuple[str, int, int]]
    """Broker, first and end physical offset, in the order of the tasks."""
    starts: Mapping[str, int]
    """Broker -> where the epoch begins: where the one before ended."""
    segment_bytes: Mapping[str, int]
    store_ids: Mapping[str, str]
    voids: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Broker -> ranges without a file that a recovery left out of its log: nobody has lost anything there."""

    @property
    def bytes(self) -> int:
        """Bytes of log."""
        return sum(end - start for _, start, end in self.splits)

    @property
    def brokers(self) -> dict[str, BrokerRange]:
        """What the epoch covers of each log."""
        return {
            broker: BrokerRange(
                start=self.starts[broker],
                end=max(end for name, _, end in self.splits if name == broker),
                store_id=self.store_ids[broker],
            )
            for broker in sorted({name for name, _, _ in self.splits})
        }

    @property
    def voided_bytes(self) -> int:
        """Bytes between what is archived and the end that a recovery left out."""
        return sum(
            max(0, min(high, covered.end) - max(low, covered.start))
            for broker, covered in self.brokers.items()
            for low, high in self.voids.get(broker, ())
        )

    @property
    def missing_bytes(self) -> int:
        """Bytes between what is archived and the end that the log no longer has."""
        covered_bytes = sum(covered.end - covered.start for covered in self.brokers.values())
        return covered_bytes - self.bytes - self.voided_bytes


def run(spark: SparkSession, config: Config) -> Summary:
    """Archive what is new and return what was added.

    Raises:
        ConfigError: the folder holds something else, or an archive of something else.
        ArchiveError: the archive is damaged, or another run writes to it.
        HeadraceError: the log cannot be read.
    """
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.cut_source import CutSource  # noqa: PLC0415  # needs pyarrow

    summary = Summary(job="archive", dry_run=config.dry_run)
    check_folder(config.to)
    lake.require(config.table_format)
    phase("planning")
    source: Source
    if config.store is not None:
        source = CutSource(str(config.store), config.broker)
    else:
        source = scan.ServersSource(config.servers, config.access_key, config.secret_key())
    if not is_begun(config.to):
        require_topics(source, config.topics)
    if config.dry_run:
        manifest = load_epochs(config.to)
        plan, is_resumed = make_plan(source, config, manifest)
        describe_plan(summary, config, manifest, plan, is_resumed=is_resumed)
        return summary
    with lock_archive(config.to):
        manifest = load_epochs(config.to)
        shutil.rmtree(config.to / TEMPORARY, ignore_errors=True)
        check_files(manifest)
        plan, is_resumed = make_plan(source, config, manifest)
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


def require_topics(source: Source, topics: Sequence[str], also: Collection[str] = ()) -> None:
    """Refuse topics that do not exist, of which a job would find nothing and say no more than that.

    Args:
        also: Topics that are known from elsewhere, as those of an archive beside the log.

    Raises:
        ConfigError: there is no such topic, with the nearest one.
        ClientError: the brokers do not answer.
        StoreError: there is no store.
    """
    topics = [topic for topic in topics if topic not in also]
    if not topics:
        return
    from headrace.spark.scan import StoreSource  # noqa: PLC0415  # needs pyarrow

    known = source.files().topics() if isinstance(source, StoreSource) else ask_topics(source, topics)
    if known is not None:
        require_known_topics(topics, {*known, *also})


def ask_topics(source: ServersSource, topics: Sequence[str]) -> list[str]:
    """Return the ordinary topics of all brokers, and those of ``topics`` that one of them has.

    The registries learn of a new topic some seconds after its broker, so the brokers are asked.
    """
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # needs pyarrow

    cluster = cluster_of(source)
    known: set[str] = set()
    for address in cluster.brokers().values():
        for wanted in (None, sorted(topics)):
            body = json.dumps({"topics": wanted, "log": False}).encode()
            state = cluster.reader_state(address, body, group="", wait_ms=0)
            if state is not None:
                known |= state["topics"].keys()
    return sorted(known)


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
    if names and FOLDER not in names:
        raise ConfigError(
            f"--to {root} is not empty and is no archive (it has no {FOLDER}): name a new folder, or the one of an "
            "archive",
            key="to",
        )


def check_files(manifest: Manifest) -> None:
    """Refuse to add to an archive whose files are not all there.

    Raises:
        ArchiveError: one is missing or has another length.
    """
    for file in manifest.files:
        manifest.locate(file)


@contextmanager
def lock_archive(root: Path) -> Iterator[None]:
    """Make the archive's folder and hold its lock.

    Raises:
        ConfigError: the folder cannot be written.
        ArchiveError: another run holds the lock.
    """
    try:
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / FOLDER / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"--to {root} cannot be written: {error.strerror} ({error.filename})", key="to") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(f"another run writes to {root}: wait for its end; nothing was done") from None
        yield
    finally:
        os.close(descriptor)


def make_plan(source: Source, config: Config, manifest: Manifest) -> tuple[Plan, bool]:
    """Return what to write, and whether that is the plan of a run that was killed.

    Raises:
        ConfigError: the archive holds another selection or another store, or its log has lost what was archived.
        DataLossError: what comes next is gone, and ``on_data_loss`` does not say to go on.
        ArchiveError: the plan is damaged.
    """
    selection = config.selection
    left = read_plan(config.to)
    if left is not None and left.epoch != len(manifest.epochs) + 1:
        left = None  # its epoch was written
    held = left.selection if left is not None else manifest.selection
    if held is not None:
        refuse_other(selection, held, config.to)
    extents = {extent.broker: on_disk(source, extent) for extent in source.extents()}
    store_ids = manifest.store_ids | (dict(left.store_ids) if left is not None else {})
    refuse_other_stores(extents, manifest.ends, store_ids, config.to)
    if left is not None:
        return fit_plan(left, extents, config), True
    starts = {broker: manifest.ends.get(broker, extent.start) for broker, extent in extents.items()}
    splits = plan_splits(source, config, starts, extents)
    return Plan(
        epoch=len(manifest.epochs) + 1,
        selection=selection,
        splits=[(split.broker, split.start, split.end) for split in splits],
        starts=starts,
        segment_bytes={broker: extent.segment_bytes for broker, extent in extents.items()},
        store_ids={broker: extent.store_id for broker, extent in extents.items()},
        voids={broker: voids_of(extent) for broker, extent in extents.items()},
    ), False


def fit_plan(plan: Plan, extents: Mapping[str, LogExtent], config: Config) -> Plan:
    """Return the plan of a run that was killed without what the logs have lost since.

    A broker that is away is left out: the next run plans its log anew. Of one that has lost all that was planned an
    empty range stays, so that the epoch covers the loss.

    Raises:
        DataLossError: a log has lost something, and ``on_data_loss`` does not say to go on.
    """
    splits: list[tuple[str, int, int]] = []
    for broker, start, end in plan.splits:
        extent = extents.get(broker)
        if extent is None:
            continue
        there = [(max(start, low), min(end, high)) for low, high in extent.runs if low < end and high > start]
        if there != [(start, end)] and config.on_data_loss != "continue":
            raise lost_range(extent, start, end)
        splits += [(broker, first, last) for first, last in there] or [(broker, end, end)]
    return replace(plan, splits=splits)


def on_disk(source: Source, extent: LogExtent) -> LogExtent:
    """Return an extent without what files of a store's log lack that are too short."""
    from headrace.spark.jobs.cut_source import CutSource  # noqa: PLC0415  # needs pyarrow

    return source.on_disk(extent) if isinstance(source, CutSource) else extent


def voids_of(extent: LogExtent) -> list[tuple[int, int]]:
    """Return the ranges between the runs of a log that are not missing: a recovery left them out."""
    voids: list[tuple[int, int]] = []
    for (_, low), (high, _) in pairwise(extent.runs):
        for first, last in (*extent.missing, (high, high)):
            if low < first <= high:
                voids.append((low, first))
            if first <= high:
                low = max(low, last)
    return voids


def require_files(extent: LogExtent, start: int) -> None:
    """Refuse a store that lacks a file of its log, or the end of one, behind ``start``.

    Raises:
        DataLossError: it does.
    """
    for low, high in extent.missing:
        if high > start:
            raise lost_range(extent, max(low, start), high)


def lost_range(extent: LogExtent, start: int, end: int) -> DataLossError:
    """Return the error of a range that is to be archived next and that a log no longer has."""
    first, last, reason = start, min(end, extent.start), "retention has removed them"
    if start >= extent.start:
        first = next((high for low, high in reversed(extent.runs) if low <= start), start)
        first, last, reason = max(start, first), end, "a file of the log is missing or was cut short"
        if first >= extent.end:
            reason = f"the log ends at {extent.end}"
    return DataLossError(
        f"physical offsets {first} to {last} of broker {extent.broker!r} are to be archived next and are gone: "
        f"{reason}; --on-data-loss continue goes on behind them and counts them",
        broker=extent.broker,
        first_offset=first,
        end_offset=last,
    )


def refuse_other_stores(
    extents: Mapping[str, LogExtent], ends: Mapping[str, int], store_ids: Mapping[str, str], root: Path
) -> None:
    """Refuse to go on at an offset that means something else, or under another name.

    Args:
        ends: Up to where each broker's log is archived.
        store_ids: Identity of each broker's store, of the archive and of what a run that was killed had begun.

    Raises:
        ConfigError: a broker has another store than the one archived, or a store comes under another broker's name.
    """
    names = {store_id: broker for broker, store_id in store_ids.items() if store_id}
    for broker, extent in extents.items():
        end = ends.get(broker)
        if extent.store_id and store_ids.get(broker, extent.store_id) not in ("", extent.store_id):
            raise ConfigError(
                f"the archive {root} holds another store of broker {broker!r}: its offsets mean other messages; begin "
                "another archive in another folder",
                key="to",
            )
        if end is not None and end > extent.end:
            raise ConfigError(
                f"the log of broker {broker!r} ends at {extent.end}, the archive {root} has it up to {end}: it lost "
                "its end or is another one; begin another archive in another folder",
                key="to",
            )
        if names.get(extent.store_id, broker) != broker:
            raise ConfigError(
                f"the archive {root} holds this store as broker {names[extent.store_id]!r}, not {broker!r}: name it "
                f"with --broker {names[extent.store_id]}",
                key="broker",
            )


def plan_splits(
    source: Source, config: Config, starts: Mapping[str, int], extents: Mapping[str, LogExtent]
) -> list[LogSplit]:
    """Return the ranges of the log behind what is archived, at most ``max_bytes`` of each broker.

    Raises:
        DataLossError: what comes next is gone, and ``on_data_loss`` does not say to go on.
    """
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow

    for broker, start in starts.items():
        if config.on_data_loss != "continue":
            if start < extents[broker].start:
                raise lost_range(extents[broker], start, extents[broker].end)
            require_files(extents[broker], start)
    starts = {broker: max(start, extents[broker].start) for broker, start in starts.items()}
    splits = scan.plan_log(source, split_bytes=config.split_bytes, start=starts, extents=list(extents.values()))
    if not config.max_bytes:
        return splits
    taken: dict[str, int] = {}
    full: set[str] = set()
    chosen = []
    for split in splits:
        before = taken.get(split.broker, 0)
        # At least one, so that a run always gets on.
        if split.broker in full or (before and before + split.size_bytes > config.max_bytes):
            full.add(split.broker)
            continue
        taken[split.broker] = before + split.size_bytes
        chosen.append(split)
    return chosen


def refuse_other(wanted: Selection, held: Selection, root: Path) -> None:
    """Refuse to add another selection to an archive: its messages would be there from now on only.

    Raises:
        ConfigError: they differ.
    """
    for name, value in asdict(held).items():
        now = asdict(wanted)[name]
        if now != value:
            shown = ", ".join(value) if isinstance(value, tuple) else value
            raise ConfigError(
                f"the archive {root} was begun with --{name.replace('_', '-')} {shown or '(none)'}: go on with that, "
                "or begin another archive in another folder",
                key=name,
            )


def read_plan(root: Path) -> Plan | None:
    """Return the plan that a killed run left, None when there is none.

    Raises:
        ArchiveError: it is damaged.
    """
    path = root / FOLDER / PLAN
    try:
        payload = unseal(path, "remove it: files of that run then stay behind, which headrace job verify names")
    except FileNotFoundError:
        return None
    return Plan(
        epoch=payload["epoch"],
        selection=read_selection(payload["selection"]),
        splits=[(broker, start, end) for broker, start, end in payload["splits"]],
        starts=payload["starts"],
        segment_bytes=payload["segment_bytes"],
        store_ids=payload["store_ids"],
        voids={broker: [(low, high) for low, high in ranges] for broker, ranges in payload.get("voids", {}).items()},
    )


def write_files(spark: SparkSession, source: Source, config: Config, plan: Plan) -> Epoch:
    """Write the files of the next epoch, the plan first.

    Raises:
        ArchiveError: a file cannot be written.
        HeadraceError: a task gave no answer.
        JobFailedError: a task failed; of a loss of data it says the remedy.
    """
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415
    from headrace.spark.jobs.archive_files import ArchiveTask, archive_split  # noqa: PLC0415

    selection = plan.selection
    try:
        write_json(config.to / FOLDER / PLAN, seal({"version": VERSION, **asdict(plan)}))
    except OSError as error:
        raise ConfigError(f"--to {config.to} cannot be written: {error.strerror}", key="to") from None
    options: dict[str, Any] = {
        "topics": selection.topics or None,
        "start_ms": selection.since,
        "system_topics": selection.system_topics,
        "retry_topics": selection.retry_topics,
    }
    located = source.located()
    tasks = [
        ArchiveTask(
            number=number,
            split=scan.LogSplit(located, broker, start, end, plan.segment_bytes[broker]),
            root=str(config.to.absolute()),
            columns=selection.columns,
            layout=selection.layout,
            selection=options,
        )
        for number, (broker, start, end) in enumerate(split for split in plan.splits if split[1] < split[2])
    ]
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
        selection=selection,
        brokers=plan.brokers,
        files=files,
        counters=counters,
        written_ms=time.time_ns() // 1_000_000,
    )


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
        "archive": str(config.to), "epoch": plan.epoch, "tasks": len(plan.splits), "log_bytes": plan.bytes,
        "archived_messages": manifest.rows, "archived_files": len(manifest.files),
    }  # fmt: skip
    summary.tables.append(_ranges(plan))
    if is_resumed:
        summary.notes.append(f"epoch {plan.epoch} was begun and not finished: it would be finished first")


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
    counts: dict[str, int] = {}
    for file in files:
        for topic, rows in file.topics.items():
            counts[topic] = counts.get(topic, 0) + rows
    if files:
        summary.facts["oldest"] = show_time(min(file.min_ts for file in files))
        summary.facts["newest"] = show_time(max(file.max_ts for file in files))
    summary.tables.append(_ranges(plan))
    summary.tables.append(Table("topics", "Archived topics", ("topic", "messages"), sorted(counts.items())))
    if is_resumed:
        summary.notes.append(
            f"a run that was killed had begun epoch {plan.epoch}: it was finished; run again for the rest"
        )
    if not plan.splits:
        summary.notes.append("nothing new: the log ends where the archive does")
    if counters.get("damaged"):
        summary.exit_code = FAILED
        summary.notes.append(
            f"{counters['damaged']} places of the log hold no whole record and are not in the archive: headrace job "
            "verify names them"
        )
    if counters.get("missing_bytes"):
        summary.facts["missing_bytes"] = counters["missing_bytes"]
        summary.notes.append(
            f"{counters['missing_bytes']} bytes of the log are not there: removed before they were archived, or cut "
            "off; the archive goes on behind them"
        )
    if counters.get("voided_bytes"):
        summary.facts["voided_bytes"] = counters["voided_bytes"]
        summary.notes.append(
            f"{counters['voided_bytes']} bytes of the log's offsets stand for nothing: a recovery of the broker left "
            "them out"
        )
    if counters.get("inflate_failures"):
        summary.notes.append(
            f"{counters['inflate_failures']} compressed bodies could not be decompressed: archived as they were stored"
        )


def _ranges(plan: Plan) -> Table:
    rows = [(broker, covered.start, covered.end) for broker, covered in sorted(plan.brokers.items())]
    return Table("brokers", "Ranges of the log", ("broker", "start", "end"), rows)
