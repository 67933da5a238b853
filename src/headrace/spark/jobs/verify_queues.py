"""Judging the queues of one log: where queue offsets jump, their entries tell what should have been there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.format import findings
from headrace.format.epochs import Epochs
from headrace.format.layout import CONSUME_QUEUES, queue_folder, queue_folders
from headrace.format.lost_ranges import LostRanges
from headrace.format.names import segment_name
from headrace.format.queue_entry import ENTRY, FILLER_BYTES, StoredQueue
from headrace.spark.files import LogExtent
from headrace.spark.jobs.findings import Findings
from headrace.spark.jobs.views import QueueFiles


@dataclass
class _Joined:
    """One queue over all tasks."""

    first: int
    next: int
    last_offset: int
    breaks: list[tuple[int, int, int, int]] = field(default_factory=list)


class QueueCheck:
    """The queues of one broker's log.

    Attributes:
        records, queue_count, pending: Totals for the summary; ``pending``: records whose entry is not written yet.
    """

    def __init__(
        self,
        found: Findings,
        extent: LogExtent,
        lost: LostRanges,
        epochs: Epochs,
        queues: QueueFiles | None,
    ) -> None:
        """Begin with nothing.

        Args:
            epochs: Of the log: where one begins, queue offsets may jump.
            queues: None over the network: their files are not read.
        """
        self.records = self.queue_count = self.pending = 0
        self._found = found
        self._extent = extent
        self._lost = lost
        self._epochs = epochs
        self._queues = queues

    def judge(self, results: list[dict[str, Any]]) -> None:
        """Judge what the tasks saw of the queues; ``results`` are in the order of the log."""
        joined = self._join(results)
        self.queue_count = len(joined)
        for (topic, queue_id), queue in sorted(joined.items()):
            if self._queues is not None:
                files = self._queues.queue(topic, queue_id).files()
                if files:
                    self._explain(topic, queue_id, files[0][0] // ENTRY.size, queue.first, self._extent.start - 1)
                elif queue.first > 0 and self._extent.start == 0:
                    self._explain(topic, queue_id, 0, queue.first, -1)
            for expected, found, offset, before in queue.breaks:
                if found > expected:
                    self._explain(topic, queue_id, expected, found, before, offset)
                else:
                    self._found.add(findings.repeated_queue_offset(topic, queue_id, found, physical_offset=offset))
            if self._queues is not None:
                end = self._queues.queue(topic, queue_id).extent()[1]
                self._explain(topic, queue_id, queue.next, end, queue.last_offset)
        self._report_entries(results)
        if self._queues is not None:
            self._check_queue_files(joined)

    def _join(self, results: list[dict[str, Any]]) -> dict[tuple[str, int], _Joined]:
        joined: dict[tuple[str, int], _Joined] = {}
        for result in results:
            self.records += result["records"]
            for topic, queue_id, first, first_offset, after, last_offset, pending, breaks in result["queues"]:
                self.pending += pending
                queue = joined.get((topic, queue_id))
                if queue is None:
                    queue = joined[topic, queue_id] = _Joined(first, first, -1)
                if first != queue.next:
                    queue.breaks.append((queue.next, first, first_offset, queue.last_offset))
                queue.breaks += [tuple(item) for item in breaks]
                queue.next = max(queue.next, after)
                queue.last_offset = last_offset
        return joined

    def _explain(self, topic: str, queue_id: int, first: int, end: int, after: int, until: int | None = None) -> None:
        """Say what stood at queue offsets [first, end), which no record of the log has.

        Args:
            after: Physical offset of the queue's last record before the gap.
            until: Of the one behind it; None: there is none.
        """
        runs: defaultdict[str, list[list[int]]] = defaultdict(list)
        for queue_offset, offset, size in self._entries(topic, queue_id, first, end):
            if size == FILLER_BYTES:
                findings.add_to_runs(runs["filler"], queue_offset)
            elif size <= 0:
                findings.add_to_runs(runs["none"], queue_offset)
            elif self._lost.name_entry(topic, queue_id, queue_offset, offset, size):
                continue
            elif offset < self._extent.start:
                continue  # retention removed its segment
            elif offset >= self._extent.end:
                findings.add_to_runs(runs["beyond"], queue_offset)
            else:
                self._found.add(findings.stray_entry(
                    topic, queue_id, queue_offset, physical_offset=offset, record_bytes=size
                ))  # fmt: skip
        for kind, found in runs.items():
            for queue_offset, count in found:
                self._report_run(kind, topic, queue_id, queue_offset, count, after, until)

    def _entries(self, topic: str, queue_id: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (queue offset, physical offset, size) of entries; size 0 where there is none, or no files are read."""
        if self._queues is None:
            yield from ((at, 0, 0) for at in range(first, end))
        else:
            for queue_offset, offset, size, _ in self._queues.queue(topic, queue_id).entries(first, end):
                yield queue_offset, offset, size

    def _report_run(
        self, kind: str, topic: str, queue_id: int, first: int, count: int, after: int, until: int | None
    ) -> None:
        where = (topic, queue_id, first, count)
        if kind == "filler":
            self._found.note(findings.skipped_offsets(*where))
        elif kind == "beyond":
            self._found.add_unfinished(findings.entries_beyond_log(*where))
        elif not self._is_broken_between(after, until):
            missing = findings.missing_records(*where)
            if self._queues is None:
                # Whether a recovery gave them up stands in the queue files, which are not read over the network.
                self._found.note(replace(missing, kind="skipped_offsets"))
            else:
                self._found.add(missing)

    def _is_broken_between(self, after: int, until: int | None) -> bool:
        points = [lost.end for lost in self._lost.ranges] + [start for _, start in self._epochs.gaps]
        stop = self._extent.end if until is None else until
        return any(after < point <= stop for point in points)

    def _report_entries(self, results: list[dict[str, Any]]) -> None:
        absent: defaultdict[tuple[str, int], list[list[int]]] = defaultdict(list)
        for result in results:
            for wrong in result["wrong"]:
                self._found.add(findings.wrong_entry(**wrong))
            for missing in result["missing"]:
                findings.add_to_runs(absent[missing["topic"], missing["queue_id"]], missing["queue_offset"])
        for (topic, queue_id), found in sorted(absent.items()):
            for first, count in found:
                self._found.add(findings.missing_entries(topic, queue_id, first, count))

    def _check_queue_files(self, joined: dict[tuple[str, int], _Joined]) -> None:
        """Queues without records, and the sizes of all files."""
        assert self._queues is not None
        folder = Path(self._queues.root, CONSUME_QUEUES)
        for topic, queue_id, _ in queue_folders(folder) if folder.is_dir() else ():
            queue = self._queues.queue(topic, queue_id)
            self._check_sizes(queue)
            if (topic, queue_id) not in joined:
                self._explain(topic, queue_id, *queue.extent(), self._extent.start - 1)

    def _check_sizes(self, queue: StoredQueue) -> None:
        topic, queue_id = queue.topic, queue.queue_id
        expected: int | None = None
        for first_byte, size in queue.files():
            name = str(queue_folder(CONSUME_QUEUES, topic, queue_id) / segment_name(first_byte))
            if first_byte % queue.file_bytes:
                self._found.add(findings.queue_file_name(topic, queue_id, name, queue.file_bytes))
            elif expected is not None and first_byte != expected:
                self._found.add(findings.missing_queue_file(topic, queue_id, name))
            if size != queue.file_bytes:
                found = findings.queue_file_size(topic, queue_id, name, size, queue.file_bytes)
                (self._found.add_unfinished if size < queue.file_bytes else self._found.note)(found)
            expected = first_byte + queue.file_bytes
