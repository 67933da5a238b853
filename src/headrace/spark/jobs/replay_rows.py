"""What one task of the replay job does: rows of an archive's files, in order, at a pace, through the sink."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.spark.sink import PartitionWriter, WritePlan

ORIGIN: Final = "REPLAY_OF"
SCHEMA: Final = pa.schema(
    [
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int32()),
        ("flag", pa.int32()),
        ("born_ts", pa.timestamp("us", tz="UTC")),
        (ORIGIN, pa.string()),
        ("unique_key", pa.string()),
    ]
)
"""What is written; ``unique_key`` only when messages get new ones."""
RESULT: Final = pa.schema([("task", pa.int32()), ("result", pa.string())])
BATCH_ROWS: Final = 8_192
PACED_ROWS: Final = 256
"""Rows that go at once when the pace is set."""


@dataclass(frozen=True)
class ReplayTask:
    """One part of one topic of one broker; everything in it can be pickled.

    Attributes:
        paths: Files in the order of the log.
        part, parts: Which queues: those whose id modulo ``parts`` is ``part``.
        queues: Queue ids of the target.
        rate: Messages a second for this task, 0 for no limit.
        speed: Pace of the original times this, 0 for none.
        oldest_ms: Store time of the oldest message of the whole replay.
    """

    number: int
    paths: tuple[str, ...]
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


def send_part(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    """Send the rows of one part; yield one row that says what became of them, as JSON."""
    written = PartitionWriter(task.plan, task.txn, 0, task.part).write(_outgoing(task))
    result = json.dumps({
        "rows": written.rows, "stored": written.stored, "duplicates": written.duplicates, "retries": written.retries,
    })  # fmt: skip
    yield pa.record_batch([pa.array([task.number], pa.int32()), pa.array([result], pa.string())], schema=RESULT)


def _outgoing(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    pace = Pace(task.rate, task.speed, task.oldest_ms)
    for batch in read_rows(task):
        for part in pace.cut(batch):
            yield to_messages(part, task)


def read_rows(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    """Yield the archived rows of one part, those of each queue in their order."""
    wanted = ds.field("topic") == task.topic
    for limit, compare in ((task.since, "since"), (task.until, "until")):
        if limit is not None:
            moment = pa.scalar(limit * 1000, pa.timestamp("us", tz="UTC"))
            wanted &= ds.field("store_ts") >= moment if compare == "since" else ds.field("store_ts") < moment
    for path in task.paths:
        dataset = ds.dataset(path, format="parquet")
        present = set(dataset.schema.names)
        columns = [name for name in ("body", "properties", "queue_id", "flag", "born_ts", "store_ts", "log_offset")
                   if name in present]  # fmt: skip
        scanner = dataset.scanner(
            columns=columns, filter=wanted, batch_size=BATCH_ROWS, use_threads=False, batch_readahead=2,
            fragment_readahead=1,
        )  # fmt: skip
        for batch in scanner.to_batches():
            if task.parts > 1:
                queue = batch.column("queue_id")
                is_mine = [queue_id % task.parts == task.part for queue_id in queue.to_pylist()]
                batch = batch.filter(pa.array(is_mine, pa.bool_()))
            if batch.num_rows:
                yield batch


def to_messages(batch: pa.RecordBatch, task: ReplayTask) -> pa.RecordBatch:
    """Return rows as the sink takes them, in the columns of the task's plan."""
    rows = batch.num_rows
    offsets = batch.column("log_offset").cast(pa.string())
    origin = pc.binary_join_element_wise(pa.scalar(task.broker), offsets, ":")
    queue = pa.array([queue_id % task.queues for queue_id in batch.column("queue_id").to_pylist()], pa.int32())
    made = {
        "body": batch.column("body"),
        "properties": batch.column("properties").cast(SCHEMA.field("properties").type),
        "queue_id": queue,
        "flag": batch.column("flag") if "flag" in batch.schema.names else pa.nulls(rows, pa.int32()),
        "born_ts": batch.column("born_ts") if "born_ts" in batch.schema.names else batch.column("store_ts"),
        ORIGIN: origin,
    }
    if "unique_key" in task.plan.columns.roles:
        made["unique_key"] = origin
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


class Pace:
    """Lets rows go at a rate, or as far apart as they were stored."""

    def __init__(
        self,
        rate: float,
        speed: float,
        oldest_ms: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._rate = rate
        self._speed = speed
        self._oldest_ms = oldest_ms
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._sent = 0

    def cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in pieces, each when its time has come."""
        if not self._rate and not self._speed:
            yield batch
            return
        step = max(1, min(PACED_ROWS, int(self._rate / 4))) if self._rate else PACED_ROWS
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            wait = self._due(part) - (self._clock() - self._began)
            if wait > 0:
                self._sleep(wait)
            self._sent += part.num_rows
            yield part

    def _due(self, part: pa.RecordBatch) -> float:
        """Return when a piece may go, in seconds since the beginning."""
        if self._rate:
            return self._sent / self._rate
        stored_ms = int(part.column("store_ts")[0].cast(pa.int64()).as_py()) // 1000
        return (stored_ms - self._oldest_ms) / 1000 / self._speed
