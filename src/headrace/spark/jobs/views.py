"""What records say that their consume queues and the key index must hold; shared by ``verify`` and ``rebuild``.

Headers are decoded by the compiled decoder a batch at a time; everything here is arithmetic on columns. Layouts:
docs/formats/consume-queue.md and index-file.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.format.layout import CONSUME_QUEUES
from headrace.format.names import SCHEDULE_TOPIC
from headrace.format.queue_entry import StoredQueue
from headrace.format.record import SYS_PREPARED, tag_hash
from headrace.spark.decode import Decoder
from headrace.spark.scan import LogSplit, decode_split

COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "log_offset", "store_size", "store_ts", "sys_flag", "tags", "body_crc_ok",
)  # fmt: skip
KEY_COLUMNS: Final = ("unique_key", "keys")
ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])
INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
INDEX_HEADER_BYTES: Final = 40

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Headers:
    """Some records in the order of the log; each array has a number for each of them.

    Attributes:
        names: Topics; ``topic`` are positions in it.
        store_ms: When they were stored, ms since 1970; 0 for those stored in no year from 1 to 9999.
        tag: What a consume-queue entry holds as tag hash.
        is_right: Whether the record's checksums fit.
        batch: The record batch, for the columns that are no numbers.
    """

    names: list[str]
    topic: Array
    queue: Array
    queue_offset: Array
    offset: Array
    size: Array
    store_ms: Array
    sys_flag: Array
    tag: Array
    is_right: Array
    batch: pa.RecordBatch

    @property
    def is_queued(self) -> Array:
        """Which of them have an entry in a consume queue."""
        queued: Array = self.is_right & ((self.sys_flag & SYS_PREPARED) == 0)
        return queued

    def groups(self, rows: Array) -> Iterator[tuple[str, int, Array]]:
        """Yield (topic, queue id, rows of it in the order of the log) for the rows given."""
        if not len(rows):
            return
        queue = self.queue[rows].astype(np.int64)
        code = self.topic[rows].astype(np.int64) * (int(queue.max()) + 1) + queue
        order = np.argsort(code, kind="stable")
        cuts = np.flatnonzero(np.diff(code[order])) + 1
        for part in np.split(rows[order], cuts):
            yield self.names[self.topic[part[0]]], int(self.queue[part[0]]), part

    def entries(self, rows: Array) -> Array:
        """Return the consume-queue entries of some rows."""
        made = np.zeros(len(rows), ENTRY)
        made["offset"], made["size"], made["tag"] = self.offset[rows], self.size[rows], self.tag[rows]
        return made


def read_headers(split: LogSplit, decoder: Decoder, delays_ms: Sequence[int]) -> Iterator[Headers]:
    """Yield the headers of a split's records, damaged ones too.

    Args:
        decoder: Made by ``header_decoder``; its counters are right when the iteration ends.
        delays_ms: Of the queues of the delay topic.
    """
    for batch in decode_split(split, decoder):
        if batch.num_rows:
            yield headers_of(batch, delays_ms)


def header_decoder(split: LogSplit, *, keys: bool = False) -> Decoder:
    """Return a decoder of headers for one split."""
    columns = COLUMNS + KEY_COLUMNS if keys else COLUMNS
    return Decoder(columns, broker=split.broker, verify_crc=True, system_topics=True, retry_topics=True)


def headers_of(batch: pa.RecordBatch, delays_ms: Sequence[int]) -> Headers:
    """Return the headers in a batch with the columns ``COLUMNS``."""

    def numbers(name: str) -> Array:
        return batch.column(name).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    topic = topics.indices.to_numpy(zero_copy_only=False)
    store_ms = batch.column("store_ts").cast(pa.int64()).fill_null(0).to_numpy() // 1000
    tags = batch.column("tags").dictionary_encode()
    hashes = np.array([*(tag_hash(text) for text in tags.dictionary.to_pylist()), 0], np.int64)
    tag = hashes[tags.indices.fill_null(len(hashes) - 1).to_numpy(zero_copy_only=False)]
    queue = numbers("queue_id")
    if SCHEDULE_TOPIC in names:
        # Entries of the delay topic hold the time at which the message is due.
        rows = np.flatnonzero(topic == names.index(SCHEDULE_TOPIC))
        known = range(len(delays_ms))
        delay = np.array([delays_ms[level] if level in known else 0 for level in queue[rows].tolist()], np.int64)
        tag = tag.copy()
        tag[rows] = store_ms[rows] + delay
    return Headers(
        names=names,
        topic=topic,
        queue=queue,
        queue_offset=numbers("queue_offset"),
        offset=numbers("log_offset"),
        size=numbers("store_size").astype(np.int64),
        store_ms=store_ms,
        sys_flag=numbers("sys_flag"),
        tag=tag,
        is_right=batch.column("body_crc_ok").fill_null(True).to_numpy(zero_copy_only=False),
        batch=batch,
    )


def index_hash(topic: str, key: str) -> int:
    """Return what an index entry holds for a key: docs/formats/index-file.md, "Hash"."""
    value = abs(tag_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def index_keys(headers: Headers, rows: Array) -> tuple[Array, Array]:
    """Return (row, hash) of each key of some rows, in the order of the log: its UNIQ_KEY, then the parts of KEYS."""
    unique = headers.batch.column("unique_key").take(pa.array(rows)).to_pylist()
    keys = headers.batch.column("keys").take(pa.array(rows)).to_pylist()
    of_row: list[int] = []
    hashes: list[int] = []
    for row, own, texts in zip(rows.tolist(), unique, keys, strict=True):
        if not own and not texts:
            continue
        topic = headers.names[headers.topic[row]]
        for key in ([own] if own else []) + [part for part in (texts or "").split(" ") if part]:
            of_row.append(row)
            hashes.append(index_hash(topic, key))
    return np.array(of_row, np.int64), np.array(hashes, np.int64)


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """The key index of a store, as far as its note counts it; nothing stays open.

    Attributes:
        files: Path and number of keys of each file, oldest first.
        slots: Slots of each file.
        begin, end: Physical offsets between which every record's keys are in the files.
    """

    files: tuple[tuple[str, int], ...]
    slots: int
    begin: int
    end: int

    def entries(self, start: int, end: int) -> Array:
        """Return the entries of records at physical offsets [start, end), in the order of the log.

        Raises:
            OSError: a file cannot be read.
        """
        found = [self._entries(path, count, start, end) for path, count in self.files]
        return np.concatenate(found) if found else np.zeros(0, INDEX_ENTRY)

    def _entries(self, path: str, count: int, start: int, end: int) -> Array:
        at = INDEX_HEADER_BYTES + 4 * self.slots + INDEX_ENTRY.itemsize
        with Path(path).open("rb") as file:

            def offset_of(number: int) -> int:
                file.seek(at + number * INDEX_ENTRY.itemsize + 4)
                return int.from_bytes(file.read(8), signed=True)

            first = bisect_left(range(count), start, key=offset_of)
            after = bisect_left(range(count), end, key=offset_of)
            file.seek(at + first * INDEX_ENTRY.itemsize)
            return np.frombuffer(file.read((after - first) * INDEX_ENTRY.itemsize), INDEX_ENTRY)


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The consume queues of a store, read from their files; nothing stays open."""

    root: str
    file_bytes: int

    def queue(self, topic: str, queue_id: int) -> StoredQueue:
        """Return one queue; its files need not exist."""
        return StoredQueue(Path(self.root, CONSUME_QUEUES), topic, queue_id, self.file_bytes)

    def read(self, topic: str, queue_id: int, first: int, count: int) -> Array:
        """Return entries from a queue offset on; those that no file has are zeros."""
        return np.frombuffer(self.queue(topic, queue_id).read(first, count), ENTRY)
