"""Make the consume queues and the key index of a store anew, from its commit log alone.

Writes to a new folder, byte for byte what the broker itself writes for such a log; queue offsets without a record
(damaged, or given up by a recovery) become fillers and are named. With --replace the new files are checked against the
log and then take the place of the old ones; the broker must be stopped, which its lock shows.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.errors import ConfigError, HeadraceError, StoreError, StoreLockedError
from headrace.format.epochs import Epochs, noted_queue_ends
from headrace.format.layout import CONSUME_QUEUES, StoreLayout
from headrace.format.queue_entry import DEFAULT_FILE_BYTES, ENTRY, FILLER_BYTES, StoredQueue, whole_entries
from headrace.format.side_file import read_side_file, sync_folder, write_side_file
from headrace.format.side_shapes import IndexFileNote, IndexNote
from headrace.lock_file import LockHeldError, is_held, release_lock, take_lock
from headrace.settings import StoreSettings
from headrace.settings.units import parse_delays_ms
from headrace.spark.jobs.config import JobConfig, option
from headrace.spark.jobs.exchange import exchange_folder
from headrace.spark.jobs.log_rows import note_missing
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import FAILED, Summary, Table, count_of
from headrace.spark.jobs.target import require_outside
from headrace.spark.jobs.verify import DEFAULT_LEVELS
from headrace.spark.jobs.verify import Config as VerifyConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.files import LogExtent

MIB: Final = 1 << 20
FOLDER: Final = "headrace.rebuild"
LEAST_OF_INDEX: Final = 1_000
"""As of ``store.index_slots`` and ``store.index_entries``. A file of one entry has room for no key at all."""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job rebuild``."""

    without = frozenset({"servers", "access_key", "secret_file", "topics", "since", "until"})

    to: Path | None = option(None, help="New folder for consumequeue/ and index/.", metavar="DIR")
    replace: bool = option(False, help="Put the new files in the place of the store's; the broker must be stopped.")
    what: Literal["all", "queues", "index"] = option("all", help="What to make anew.")
    index_slots: int = option(0, help="Slots of an index file; 0: as the store has them.", least=0, most=50_000_000)
    index_entries: int = option(0, help="Entries of an index file; 0: as the store has them.", least=0, most=50_000_000)
    split_bytes: int = option(64 * MIB, help="Bytes of log in a range.", least=64 * 1024, most=1 << 30)
    delay_levels: str = option(DEFAULT_LEVELS, help="The broker's delay levels.", metavar="LIST", form="delays")

    def validate(self) -> None:
        """Check that there is a store, and one place for the result."""
        if self.store is None:
            raise ConfigError("--store is missing: the folder of the store, a broker's --data-dir", key="store")
        self.require_source()
        for name, value in (("index_slots", self.index_slots), ("index_entries", self.index_entries)):
            if 0 < value < LEAST_OF_INDEX:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} is {value}: accepted is 0, and {LEAST_OF_INDEX} on, as of a broker", key=name
                )
        if (self.to is None) == (not self.replace):
            raise ConfigError("name either --to DIR (a new folder) or --replace (the store's own)", key="to")
        if self.replace and not StoreLayout(self.store).identity.exists():
            raise ConfigError(
                f"--replace is for a store of Headrace, and {self.store} has no headrace/store.json: name --to DIR",
                key="replace",
            )
        if self.to is not None and self.to.exists() and (not self.to.is_dir() or any(self.to.iterdir())):
            raise ConfigError(f"--to {self.to} is there already: name a new folder", key="to")
        require_outside(self.to, "to")


@dataclass
class _Queue:
    """One queue over the whole log: runs of queue offsets that have a record."""

    runs: list[tuple[int, int]]
    end: int = 0


def run(spark: SparkSession, config: Config) -> Summary:
    """Make the views anew.

    Raises:
        ConfigError: the folder of the result cannot be written.
        StoreLockedError: a broker has the store open.
        StoreError: the log cannot be read.
        HeadraceError: the new files are not what the log says, or that has queue offsets twice; nothing was replaced.
    """
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow

    assert config.store is not None
    summary = Summary(job="rebuild", dry_run=config.dry_run)
    is_open = not config.replace and is_held(StoreLayout(config.store).lock)
    with _hold(config.store) if config.replace else contextlib.nullcontext():
        phase("planning")
        source = scan.StoreSource(str(config.store))
        (extent,) = source.extents()
        note_missing(summary, [extent])
        splits = scan.plan_log(source, split_bytes=config.split_bytes, extents=[extent])
        if config.dry_run:
            summary.facts |= {"ranges": len(splits), "log_bytes": extent.end - extent.start}
            return summary
        rebuild = Rebuild(spark, config, extent)
        try:
            rebuild.scan(splits)
            if config.replace:
                rebuild.refuse_repeated()
            if config.what != "index":
                rebuild.fill_gaps()
            if config.what != "queues":
                rebuild.make_index()
            shutil.rmtree(rebuild.target / "keys", ignore_errors=True)  # only the making needed them
            if config.replace:
                rebuild.check()
                rebuild.swap()
        except BaseException:
            rebuild.give_up()
            raise
    if is_open:
        summary.notes.append("a broker has the store open: the new files end where its log did when this began")
    rebuild.describe(summary)
    return summary


class Rebuild:
    """The making of the views of one store.

    Attributes:
        target: Where they are made.
    """

    def __init__(self, spark: SparkSession, config: Config, extent: LogExtent) -> None:
        assert config.store is not None
        self._spark = spark
        self._config = config
        self._extent = extent
        self._store = StoreLayout(config.store)
        self.target = config.to if config.to is not None else config.store / FOLDER
        self._new = StoreLayout(self.target)
        self._new_note = self.target / self._store.index_note.name
        self._side = {
            kind: read_side_file(self._store.side_file(kind), kind, "headrace store check says more")
            for kind in ("store", "epochs", "checkpoint", "index")
        }
        self._file_bytes = whole_entries(int((self._side["store"] or {}).get("queue_file_bytes", DEFAULT_FILE_BYTES)))
        if config.replace:
            shutil.rmtree(self.target, ignore_errors=True)  # what a killed run left
        try:
            self.target.mkdir(parents=True, exist_ok=True)
            for name in ("keys", *(() if config.what == "index" else (CONSUME_QUEUES,))):
                (self.target / name).mkdir()
        except FileExistsError:
            raise ConfigError(
                f"--to {self.target}: another run has begun to write there: name a new folder", key="to"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.target} cannot be written: {error.strerror}", key="to") from None
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._key_parts: list[tuple[str, int]] = []
        self._notes: list[dict[str, Any]] = []
        self._counts = {"records": 0, "damaged": 0, "repeated": 0, "fillers": 0, "keys": 0}
        self._gaps: list[tuple[str, int, int, int]] = []

    # -- the log ----------------------------------------------------------------------------------------------------

    def scan(self, splits: list[Any]) -> None:
        """Write queue entries and note keys, a range of the log in each task."""
        from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415  # needs pyarrow
        from headrace.spark.jobs.rebuild_views import ScanTask, scan_range  # noqa: PLC0415  # needs pyarrow

        phase("scanning")
        target = self.target.absolute()
        tasks = [
            ScanTask(
                split=split, file_bytes=self._file_bytes,
                queues="" if self._config.what == "index" else str(self._new.consume_queues.absolute()),
                keys="" if self._config.what == "queues" else str(target / "keys"),
                delays_ms=parse_delays_ms(self._config.delay_levels),
            )
            for split in splits
        ]  # fmt: skip
        for found in ask_tasks(self._spark, tasks, scan_range, "ranges were to be read"):
            self._take(found)

    def _take(self, result: dict[str, Any]) -> None:
        for name in ("records", "damaged", "repeated", "keys"):
            self._counts[name] += result[name]
        if result["keys"]:
            self._key_parts.append((result["path"], result["keys"]))
        for topic, queue_id, runs in result["queues"]:
            queue = self._queues.setdefault((topic, queue_id), _Queue([]))
            for first, end in runs:
                if first < queue.end:
                    # The later task has written over what the earlier one had: nobody can say which is right.
                    self._counts["repeated"] += min(end, queue.end) - first
                if queue.runs and queue.runs[-1][1] == first:
                    queue.runs[-1] = (queue.runs[-1][0], end)
                else:
                    queue.runs.append((first, end))
                queue.end = max(queue.end, end)

    def refuse_repeated(self) -> None:
        """Refuse to replace queues of which somebody has to choose between two records of one offset.

        Of a topic that RocketMQ had deleted and made again the later ones count, of damage the earlier: a broker tells
        them apart by what comes next, and has done so in the queues that are there.

        Raises:
            HeadraceError: there are such offsets.
        """
        repeated = self._counts["repeated"]
        if repeated:
            offsets = count_of(repeated, "queue offset is", "queue offsets are")
            raise HeadraceError(
                f"{offsets} in the log twice, of a topic that RocketMQ deleted and made again, or by damage: nothing "
                "was replaced; a broker that starts without the folder consumequeue makes these queues right"
            )

    # -- the queues -------------------------------------------------------------------------------------------------

    def fill_gaps(self) -> None:
        """Put fillers where a queue offset was issued and has no record."""
        from headrace.spark.jobs.rebuild_views import QueueWriter, fillers  # noqa: PLC0415  # needs pyarrow

        phase("filling")
        writer = QueueWriter(self._new.consume_queues, self._file_bytes)
        per_file = self._file_bytes // ENTRY.size
        # What was cut off is not issued again.
        issued = noted_queue_ends(Epochs.of(self._side["epochs"]), self._side["checkpoint"])
        for topic, queue_id in issued.keys() - self._queues.keys():
            self._queues[topic, queue_id] = _Queue([])
        for (topic, queue_id), queue in sorted(self._queues.items()):
            end = max(queue.end, issued.get((topic, queue_id), 0), self._end_in_files(topic, queue_id))
            # A log from which retention has removed nothing had every queue from offset 0 on.
            first_kept = queue.runs[0][0] if queue.runs else max(end - 1, 0)
            at = 0 if self._extent.start == 0 else first_kept // per_file * per_file
            for first, after in [*sorted(queue.runs), (end, end)]:
                if first > at:
                    writer.write(topic, queue_id, at, fillers(first - at))
                    self._counts["fillers"] += first - at
                    self._gaps.append((topic, queue_id, at, first - at))
                at = max(at, after)

    def _end_in_files(self, topic: str, queue_id: int) -> int:
        """Return where a queue ends by its old files, as far as its last entry points into the log: else 0.

        The record of an offset that was issued may be what is damaged.
        """
        queue = StoredQueue(self._store.consume_queues, topic, queue_id, self._file_bytes)
        first, end = queue.extent()
        if end <= first:
            return 0
        offset, size, _ = ENTRY.unpack(queue.read(end - 1, 1))
        return end if size == FILLER_BYTES or offset < self._extent.end else 0

    # -- the index --------------------------------------------------------------------------------------------------

    def make_index(self) -> None:
        """Make the index files of the keys that were noted, one in each task."""
        from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415  # needs pyarrow
        from headrace.spark.jobs.rebuild_views import IndexTask, make_index_file, writing  # noqa: PLC0415

        phase("indexing")
        folder = self._new.index.absolute()
        folder.mkdir()
        noted: IndexNote | None = self._side["index"]
        defaults = StoreSettings()
        slots = self._config.index_slots or (noted.slot_count if noted else defaults.index_slots)
        capacity = self._config.index_entries or (noted.capacity if noted else defaults.index_entries)
        now_ms = time.time_ns() // 1_000_000
        tasks = [
            IndexTask(str(folder / _name(now_ms + number)), slots, capacity, tuple(parts))
            for number, parts in enumerate(cut_keys(self._key_parts, capacity - 1))
        ]
        self._notes = ask_tasks(self._spark, tasks, make_index_file, "index files were to be made")
        note = IndexNote(
            slot_count=slots,
            capacity=capacity,
            physical_offset=self._extent.end,
            files=[IndexFileNote(**noted) for noted in self._notes],
        )
        with writing(self._new_note):
            write_side_file(self._new_note, "index", asdict(note))

    # -- the end ----------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Remove everything that was made."""
        shutil.rmtree(self.target, ignore_errors=True)

    def check(self) -> None:
        """Hold the new queues against the log.

        Raises:
            HeadraceError: an entry does not point at its record.
        """
        from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
        from headrace.spark.jobs.verify import run_tasks  # noqa: PLC0415
        from headrace.spark.jobs.verify_log import LogTask  # noqa: PLC0415
        from headrace.spark.jobs.views import QueueFiles  # noqa: PLC0415

        if self._config.what == "index":
            return
        files = QueueFiles(str(self.target.absolute()), self._file_bytes)
        defaults = VerifyConfig(store=self._store.root)
        splits = scan.plan_log(scan.StoreSource(str(self._store.root)), split_bytes=self._config.split_bytes)
        tasks = [
            LogTask(split, files, self._extent.end, parse_delays_ms(self._config.delay_levels),
                    defaults.time_tolerance_ms)
            for split in splits
        ]  # fmt: skip
        wrong = sum(len(found["wrong"]) + len(found["missing"]) for found in run_tasks(self._spark, tasks))
        if wrong:
            raise HeadraceError(
                f"{wrong} of the new entries do not point at their records: nothing was replaced; headrace job verify "
                "--store says what is wrong with the log"
            )

    def swap(self) -> None:
        """Put the new folders in the place of the old ones, and note how far they go.

        Killed on the way, the broker finds the queues of before or the new ones, and makes those that do not match its
        checkpoint anew itself: without any it would give the offset of a damaged last record out again.
        """
        phase("replacing")
        if self._config.what != "index":
            self._put_in_place(self._new.consume_queues, self._store.consume_queues)
            before = self._side["checkpoint"] or {}
            write_side_file(self._store.checkpoint, "checkpoint", {
                "physical_offset": self._extent.end, "queue_entries": sum(q.end for q in self._queues.values()),
                "clean": bool(before.get("clean", False)), "written_ms": time.time_ns() // 1_000_000,
            })  # fmt: skip
        if self._config.what != "queues":
            with contextlib.suppress(FileNotFoundError):
                self._store.index_note.unlink()
            self._put_in_place(self._new.index, self._store.index)
            self._new_note.replace(self._store.index_note)
            sync_folder(self._store.side)
        shutil.rmtree(self.target, ignore_errors=True)

    def _put_in_place(self, new: Path, old: Path) -> None:
        exchange_folder(new, old, old.with_name(f"{FOLDER}.{old.name}"))

    def describe(self, summary: Summary) -> None:
        """Say what was made."""
        summary.facts |= {
            "store": str(self._store.root), "to": str(self._store.root if self._config.replace else self.target),
            "replaced": self._config.replace, "log_bytes": self._extent.end - self._extent.start, **self._counts,
            "queues": len(self._queues), "index_files": len(self._notes),
        }  # fmt: skip
        columns = ("topic", "queue_id", "queue_offset", "count")
        summary.tables.append(Table("gaps", "Queue offsets without a record", columns, self._gaps))
        if self._counts["repeated"] or self._counts["damaged"]:
            summary.exit_code = FAILED
            damaged = count_of(self._counts["damaged"], "damaged record", "damaged records")
            repeated = count_of(self._counts["repeated"], "repeated queue offset", "repeated queue offsets")
            summary.notes.append(f"passed over: {damaged} and {repeated}; headrace job verify names them")


def cut_keys(parts: list[tuple[str, int]], most: int) -> Iterator[list[tuple[str, int, int]]]:
    """Yield, for each index file, which of the noted keys become it: (path, first, end).

    Args:
        parts: Path and number of the keys of each range, in the order of the log.
        most: Keys that a file has room for.
    """
    chosen: list[tuple[str, int, int]] = []
    room = most
    for path, count in parts:
        first = 0
        while first < count:
            end = min(count, first + room)
            chosen.append((path, first, end))
            room -= end - first
            first = end
            if room == 0:
                yield chosen
                chosen, room = [], most
    if chosen:
        yield chosen


@contextmanager
def _hold(store: Path) -> Iterator[None]:
    """Hold the store's lock meanwhile: the result replaces its files.

    Raises:
        StoreLockedError: a broker has the store open.
        StoreError: the lock cannot be made.
    """
    lock = StoreLayout(store).lock
    try:
        held = take_lock(lock, with_folder=True)  # as a broker does: its lock file may have been removed
    except LockHeldError as error:
        raise StoreLockedError(
            f"{store} is open in a broker{f' (pid {error.owner})' if error.owner else ''}: stop it first, or write to "
            "another folder with --to; nothing was changed"
        ) from None
    except OSError as error:
        raise StoreError(f"{lock} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        release_lock(held)


def _name(time_ms: int) -> str:
    """Return the name of an index file: yyyyMMddHHmmssSSS in local time."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(time_ms // 1000)) + f"{time_ms % 1000:03d}"
