"""What one task of the verify job does with a range of a log: every record is checked, and its queue entry compared.

The compiled decoder checks each record (size, magic, lengths, own physical offset, checksums). Records that follow each
other must touch: what lies between two of them is a gap that the driver judges (a blank record, or damage). Queue
offsets must rise by one in each queue; entries of the consume queues are compared as whole arrays. Python looks at
single records only where something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from headrace.format.names import SCHEDULE_TOPIC
from headrace.format.queue_entry import FILLER_BYTES
from headrace.format.record import SYS_TRANSACTION
from headrace.spark.jobs.views import (
    Array,
    Headers,
    IndexFiles,
    QueueFiles,
    header_decoder,
    index_keys,
    read_headers,
)
from headrace.spark.scan import LogSplit

KEY: Final = np.dtype([("offset", "<i8"), ("hash", "<i8")])
MAX_LISTED: Final = 10_000
"""Gaps, breaks and wrong entries of one task that are listed one by one; more are counted."""


@dataclass(frozen=True)
class LogTask:
    """One range of a log to check; everything in it can be pickled.

    Attributes:
        queues: The consume queues to compare; None over the network.
        promised_offset: Entries of records that end at or below it must be there.
        delays_ms: Of the queues of the delay topic.
        tolerance_ms: How far store times may go back.
        index: The key index to compare; None: it is not.
    """

    split: LogSplit
    queues: QueueFiles | None
    promised_offset: int
    delays_ms: Sequence[int]
    tolerance_ms: int
    index: IndexFiles | None = None


@dataclass
class _Queue:
    """One queue as this task saw it."""

    first: int
    first_offset: int
    """Physical offset of its first record."""
    next: int
    last_offset: int = -1
    pending: int = 0
    breaks: list[list[int]] = field(default_factory=list)
    """[expected, found, physical offset, physical offset of the record before]; found < expected is a repeat."""


class LogPass:
    """The state of one task."""

    def __init__(self, task: LogTask) -> None:
        self.task = task
        self.first: int | None = None
        self.end: int | None = None
        self.records = 0
        self.last_ms = 0
        self.backwards = 0
        self.gaps: list[list[int]] = []
        self.claims: list[dict[str, Any]] = []
        self.wrong: list[dict[str, Any]] = []
        self.missing: list[dict[str, Any]] = []
        self.queues: dict[tuple[str, int], _Queue] = {}
        self.unlisted = 0
        self._keys: list[Array] = []
        self.unindexed: list[int] = []
        self.stray: list[int] = []

    def take(self, headers: Headers) -> None:
        """Check some records."""
        self._note_claims(headers)
        rows = np.flatnonzero(headers.is_right)
        if not len(rows):
            return
        if self.task.index is not None:
            self._take_keys(self.task.index, headers, rows)
        self._follow(headers.offset[rows], headers.size[rows])
        self._follow_time(headers.store_ms[rows])
        self.records += len(rows)
        for topic, queue_id, part in headers.groups(np.flatnonzero(headers.is_queued)):
            self._take_queue(headers, topic, queue_id, part)

    def result(self) -> dict[str, Any]:
        """Return what was found, as JSON values."""
        queues = [
            [topic, queue_id, one.first, one.first_offset, one.next, one.last_offset, one.pending, one.breaks]
            for (topic, queue_id), one in self.queues.items()
        ]
        return {
            "first": self.first, "end": self.end, "records": self.records, "backwards": self.backwards,
            "gaps": self.gaps, "claims": self.claims, "wrong": self.wrong, "missing": self.missing, "queues": queues,
            "unlisted": self.unlisted, "unindexed": self.unindexed, "stray": self.stray,
        }  # fmt: skip

    def _take_keys(self, index: IndexFiles, headers: Headers, rows: Array) -> None:
        is_indexed = (headers.sys_flag[rows] & SYS_TRANSACTION) != SYS_TRANSACTION
        is_noted = (headers.offset[rows] >= index.begin) & (headers.offset[rows] < index.end)
        of_row, hashes = index_keys(headers, rows[is_indexed & is_noted])
        if len(of_row):
            keys = np.zeros(len(of_row), KEY)
            keys["offset"], keys["hash"] = headers.offset[of_row], hashes
            self._keys.append(keys)

    def compare_index(self, index: IndexFiles) -> None:
        """Compare all keys of the range with the entries of the index for it."""
        split = self.task.split
        entries = index.entries(max(split.start, index.begin), min(split.end, index.end))
        found = np.zeros(len(entries), KEY)
        found["offset"], found["hash"] = entries["offset"], entries["hash"]
        wanted = np.concatenate(self._keys) if self._keys else np.zeros(0, KEY)
        if np.array_equal(found, wanted):
            return
        for offset in np.unique(np.setdiff1d(wanted, found)["offset"]).tolist():
            self._list(self.unindexed, offset)
        for offset in np.unique(np.setdiff1d(found, wanted)["offset"]).tolist():
            self._list(self.stray, offset)

    def _list(self, where: list[Any], what: Any) -> None:
        if len(where) < MAX_LISTED:
            where.append(what)
        else:
            self.unlisted += 1

    def _note_claims(self, headers: Headers) -> None:
        """Remember what damaged records say they are."""
        for row in np.flatnonzero(~headers.is_right).tolist():
            self._list(self.claims, {
                "physical_offset": int(headers.offset[row]), "record_bytes": int(headers.size[row]),
                "topic": headers.names[headers.topic[row]], "queue_id": int(headers.queue[row]),
                "queue_offset": int(headers.queue_offset[row]),
            })  # fmt: skip

    def _follow(self, offset: Array, size: Array) -> None:
        """Find where records do not touch."""
        ends = offset + size
        if self.end is None:
            self.first = int(offset[0])
        elif self.end != offset[0]:
            self._list(self.gaps, [self.end, int(offset[0])])
        for row in np.flatnonzero(ends[:-1] != offset[1:]).tolist():
            self._list(self.gaps, [int(ends[row]), int(offset[row + 1])])
        self.end = int(ends[-1])

    def _follow_time(self, store_ms: Array) -> None:
        highest = np.maximum.accumulate(np.concatenate(([self.last_ms], store_ms)))
        self.backwards += int(np.count_nonzero(store_ms < highest[:-1] - self.task.tolerance_ms))
        self.last_ms = int(highest[-1])

    def _take_queue(self, headers: Headers, topic: str, queue_id: int, part: Array) -> None:
        offsets = headers.queue_offset[part]
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            first = int(offsets[0])
            queue = self.queues[topic, queue_id] = _Queue(first, int(headers.offset[part[0]]), first)
        keep = np.ones(len(part), bool)
        expected = np.concatenate(([queue.next], offsets[:-1] + 1))
        if bool(np.any(expected != offsets)):
            keep = self._note_breaks(queue, headers, part)
        part, offsets = part[keep], offsets[keep]
        if len(part):
            queue.next = int(offsets[-1]) + 1
            queue.last_offset = int(headers.offset[part[-1]])
            if self.task.queues is not None:
                self._compare(self.task.queues, queue, headers, topic, queue_id, part)

    def _note_breaks(self, queue: _Queue, headers: Headers, part: Array) -> Array:
        """List where offsets do not rise by one; return which rows count (repeats do not)."""
        keep = np.ones(len(part), bool)
        expected, before = queue.next, queue.last_offset
        for at, row in enumerate(part.tolist()):
            found, offset = int(headers.queue_offset[row]), int(headers.offset[row])
            if found != expected:
                self._list(queue.breaks, [expected, found, offset, before])
            if found < expected:
                keep[at] = False
                continue
            expected, before = found + 1, offset
        return keep

    def _compare(
        self, files: QueueFiles, queue: _Queue, headers: Headers, topic: str, queue_id: int, part: Array
    ) -> None:
        """Compare the entries of some records, whose offsets rise but may have gaps."""
        offsets = headers.queue_offset[part]
        wanted = headers.entries(part)
        for run in np.split(np.arange(len(part)), np.flatnonzero(np.diff(offsets) != 1) + 1):
            first = int(offsets[run[0]])
            found = files.read(topic, queue_id, first, len(run))
            expected = wanted[run]
            is_same = (found["offset"] == expected["offset"]) & (found["size"] == expected["size"])
            if topic != SCHEDULE_TOPIC:
                is_same &= found["tag"] == expected["tag"]
            if not bool(np.all(is_same)):
                self._name_entries(queue, topic, queue_id, first, found, expected, is_same)

    def _name_entries(
        self, queue: _Queue, topic: str, queue_id: int, first: int, found: Array, expected: Array, is_same: Array
    ) -> None:
        for at in np.flatnonzero(~is_same).tolist():
            offset, size = int(expected["offset"][at]), int(expected["size"][at])
            common = {"topic": topic, "queue_id": queue_id, "queue_offset": first + at, "physical_offset": offset}
            has, has_size = int(found["offset"][at]), int(found["size"][at])
            if has_size == 0:
                if offset + size > self.task.promised_offset:
                    queue.pending += 1
                else:
                    self._list(self.missing, common)
                continue
            if has_size == FILLER_BYTES:
                reason = "it is a filler"
            elif has != offset:
                reason = f"it points at {has}"
            else:
                reason = f"it says {has_size} bytes" if has_size != size else "its tag hash is another"
            self._list(self.wrong, {**common, "record_bytes": size, "reason": reason})


def check_log(task: LogTask) -> dict[str, Any]:
    """Check one range; return what was found, as JSON has it."""
    checked = LogPass(task)
    decoder = header_decoder(task.split, keys=task.index is not None)
    for headers in read_headers(task.split, decoder, task.delays_ms):
        checked.take(headers)
    if task.index is not None:
        checked.compare_index(task.index)
    return checked.result()
