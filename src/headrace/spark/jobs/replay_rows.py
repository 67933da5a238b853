"""What one task of the replay job does: rows of an archive's files, in order, at a pace, through the sink.

The rows of a file are sorted by queue; they are sent in the order of the log, which keeps the order of queues that
become one, and is that of the times by which ``speed`` goes. So a task holds the rows of its topic in one range of the
log in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.spark.jobs.manifest import ArchiveError, sum_up
from headrace.spark.jobs.message_writer import MessageWriter
from headrace.spark.writing.plan import WritePlan

ORIGIN: Final = "REPLAY_OF"
SCHEMA: Final = pa.schema(
    [
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int32()),
        ("flag", pa.int32()),
        ("born_ts", pa.timestamp("us", tz="UTC")),
        ("sys_flag", pa.int32()),
        (ORIGIN, pa.string()),
        ("unique_key", pa.string()),
    ]
)
"""What is written; ``unique_key`` only when messages get new ones."""
COLUMNS: Final = ("body", "properties", "queue_id", "flag", "born_ts", "sys_flag", "store_ts", "log_offset")
"""What is read, as far as the archive has it."""
BATCH_ROWS: Final = 8_192
MIN_BORN_US: Final = 1000
"""The first ms behind 1970: brokers store what producers claim, and the sink writes no earlier time."""
TICK_S: Final = 0.05
"""Rows that are due within that go at once when the pace is set."""


@dataclass(frozen=True)
class ReplayTask:
    """One part of one topic of one broker; everything in it can be pickled.

    Attributes:
        groups: Files in the order of the log; those that lie beside each other in it are together.
        checksums: CRC-32 of each file.
        part, parts: Which queues: those whose id modulo ``parts`` is ``part``.
        queues: Queue ids of the target.
        rate: Messages a second for this task, 0 for no limit.
        speed: Pace of the original times this, 0 for none.
        oldest_ms: Store time of the oldest message of the whole replay.
        skip_unsendable: Leave out messages that cannot be sent.
    """

    groups: tuple[tuple[str, ...], ...]
    checksums: Mapping[str, int]
    broker: str
    topic: str
    part: int
    parts: int
    since: int | None
    until: int | None
    plan: WritePlan
    txn: str
    queues: int
    rate: float
    speed: float
    oldest_ms: int
    skip_unsendable: bool


def send_part(task: ReplayTask) -> dict[str, Any]:
    """Send the rows of one part; return what became of them, as ``MessageWriter.answer`` has it."""
    of = f" of topic {task.topic!r}"
    writer = MessageWriter(task.plan, task.txn, 0, task.part, named_by=ORIGIN, of=of, skip=task.skip_unsendable)
    writer.write(_outgoing(task, writer))
    return writer.answer()


def _outgoing(task: ReplayTask, writer: MessageWriter) -> Iterator[pa.RecordBatch]:
    pace = Pace(task.rate, task.speed, task.oldest_ms)
    for batch in read_rows(task):
        for part in pace.cut(batch):
            yield to_messages(part, task)
            if pace.is_set:
                writer.flush()  # not only when a request is full, which may take hours


def read_rows(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    """Yield the archived rows of one part in the order of the log."""
    wanted = ds.field("topic") == task.topic
    for limit, compare in ((task.since, "since"), (task.until, "until")):
        if limit is not None:
            moment = pa.scalar(limit * 1000, pa.timestamp("us", tz="UTC"))
            wanted &= ds.field("store_ts") >= moment if compare == "since" else ds.field("store_ts") < moment
    for paths in task.groups:
        with reading(*paths):
            for path in paths:
                require_unchanged(path, task.checksums[path])
            table = _read_table(paths, wanted, task)
        offsets = table.column("log_offset").to_numpy()
        if bool(np.any(np.diff(offsets) < 0)):
            table = table.take(pa.array(np.argsort(offsets, kind="stable")))
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


def require_unchanged(path: str, crc32: int) -> None:
    """Refuse a file of an archive that is not as it was written.

    Raises:
        ArchiveError: its CRC-32 is another one.
        OSError: it cannot be read.
    """
    _, found = sum_up(Path(path))
    if found != crc32:
        raise ArchiveError(
            f"{path} was changed after it was archived: its CRC-32 is {found:08x}, the manifest says {crc32:08x}; "
            "restore it from a copy"
        )


def _read_table(paths: Sequence[str], wanted: Any, task: ReplayTask) -> pa.Table:
    """Return the rows that are wanted of some files, in the order of the files."""
    dataset = ds.dataset(list(paths), format="parquet")
    present = set(dataset.schema.names)
    scanner = dataset.scanner(
        columns=[name for name in COLUMNS if name in present], filter=wanted, batch_size=BATCH_ROWS,
        use_threads=False, batch_readahead=2, fragment_readahead=1,
    )  # fmt: skip
    batches = scanner.to_batches()
    if task.parts > 1:
        batches = (b.filter(pa.array(b.column("queue_id").to_numpy() % task.parts == task.part)) for b in batches)
    return pa.Table.from_batches(batches, scanner.projected_schema).combine_chunks()


@contextmanager
def reading(*paths: str) -> Iterator[None]:
    """Say of which files it is what pyarrow finds wrong with those that are read inside.

    Raises:
        ArchiveError: one cannot be read.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(
            f"{' or '.join(paths)} belongs to the archive and cannot be read: {' '.join(str(error).split())}; restore "
            "it from a copy"
        ) from error


def to_messages(batch: pa.RecordBatch, task: ReplayTask) -> pa.RecordBatch:
    """Return rows as the sink takes them, in the columns of the task's plan."""
    rows = batch.num_rows
    offsets = batch.column("log_offset").cast(pa.string())
    origin = pc.binary_join_element_wise(pa.scalar(task.broker), offsets, ":")
    queue = pa.array(batch.column("queue_id").to_numpy() % task.queues, pa.int32())
    made = {
        "body": batch.column("body"),
        "properties": batch.column("properties").cast(SCHEMA.field("properties").type),
        "queue_id": queue,
        "flag": batch.column("flag") if "flag" in batch.schema.names else pa.nulls(rows, pa.int32()),
        "born_ts": _born(batch.column("born_ts" if "born_ts" in batch.schema.names else "store_ts")),
        "sys_flag": batch.column("sys_flag") if "sys_flag" in batch.schema.names else pa.nulls(rows, pa.int32()),
        ORIGIN: origin,
    }
    if "unique_key" in task.plan.columns.roles:
        made["unique_key"] = origin
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _born(times: pa.Array) -> pa.Array:
    """Return when messages were made; null, the time of sending, where they claim a time before 1970."""
    return pc.if_else(pc.greater_equal(times.cast(pa.int64()), MIN_BORN_US), times, pa.scalar(None, times.type))


class Pace:
    """Lets rows go at a rate, or as far apart as they were stored.

    Attributes:
        is_set: Whether rows ever wait.
    """

    def __init__(
        self,
        rate: float,
        speed: float,
        oldest_ms: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.is_set = bool(rate or speed)
        self._rate = rate
        self._speed = speed
        self._oldest_ms = oldest_ms
        self._clock = clock
        self._sleep = sleep
        self._began = self._free_at = clock()

    def cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in pieces, each when its time has come."""
        if self._rate:
            yield from self._by_rate(batch)
        elif self._speed:
            yield from self._by_times(batch)
        else:
            yield batch

    def _by_rate(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        # What was held up is not made up for: that would be more than the rate.
        step = max(1, int(min(self._rate * TICK_S, BATCH_ROWS)))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            self._wait_until(self._free_at)
            self._free_at = max(self._free_at, self._clock()) + part.num_rows / self._rate
            yield part

    def _by_times(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        stored_us = batch.column("store_ts").cast(pa.int64())
        stored_ms = stored_us.fill_null(self._oldest_ms * 1000).to_numpy() // 1000  # no time to wait for
        due = self._began + np.maximum.accumulate(stored_ms - self._oldest_ms) / 1000 / self._speed
        at = 0
        while at < batch.num_rows:
            self._wait_until(float(due[at]))
            end = max(at + 1, int(np.searchsorted(due, self._clock() + TICK_S, side="right")))
            yield batch.slice(at, end - at)
            at = end

    def _wait_until(self, moment: float) -> None:
        wait = moment - self._clock()
        if wait > 0:
            self._sleep(wait)
