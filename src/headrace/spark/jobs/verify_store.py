"""The driver's part of checking one log: joins what the tasks saw, and judges gaps and queues.

Tasks report where records do not touch and where queue offsets jump. Most gaps are blank records at the end of a file;
what else lies there is damage, named by the queue entries that still point into it, else by the record's own fields.
The kinds of findings and what counts as damage are those of ``headrace store check``.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import FormatVersionError, SideFileError
from headrace.format.durable_mark import decode_mark
from headrace.format.names import is_offset_name, segment_name, topic_of_directory
from headrace.format.record import check, decode, describe
from headrace.format.side_file import read_side_file
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.jobs.findings import Finding
from headrace.spark.jobs.verify_log import LogTask
from headrace.spark.jobs.views import (
    DEFAULT_QUEUE_FILE_BYTES,
    ENTRY,
    FILLER_BYTES,
    INDEX_ENTRY,
    INDEX_HEADER_BYTES,
    IndexFiles,
    QueueFiles,
)
from headrace.spark.scan import ServersSource, StoreSource, plan_log

if TYPE_CHECKING:
    from headrace.spark.jobs.verify import Config

MAGIC_BLANK: Final = 0xCBD43194
FORMAT_VERSION: Final = 1
PEEK_BYTES: Final = 8 << 20
SIDE_FILES: Final = ("store", "epochs", "holes", "checkpoint", "index", "catalog", "producers", "boot")
BACKUP: Final = "store.json.bak"
ROCKETMQ_CHECKPOINT_BYTES: Final = 4096


@dataclass(slots=True)
class LostRange:
    """A range of the log without whole records, with whole ones behind it."""

    first: int
    end: int
    reason: str
    claims: dict[str, Any] | None = None
    named: dict[int, Finding] = field(default_factory=dict)


@dataclass
class _Joined:
    """One queue over all tasks."""

    first: int
    next: int
    last_offset: int
    records: int = 0
    breaks: list[tuple[int, int, int, int]] = field(default_factory=list)


class StoreCheck:
    """The check of one broker's log.

    Attributes:
        damage, info: What was found.
        records, queue_count, pending: Totals for the summary.
    """

    def __init__(self, source: StoreSource | ServersSource, extent: LogExtent, config: Config) -> None:
        from headrace.spark.jobs.verify import parse_delays  # noqa: PLC0415  # that module imports this one

        self.source = source
        self.extent = extent
        self.broker = extent.broker
        self.config = config
        self.damage: list[Finding] = []
        self.info: list[Finding] = []
        self.records = self.queue_count = self.pending = 0
        self.lost: list[LostRange] = []
        self._missing: dict[tuple[str, int], list[list[int]]] = {}
        self._is_cut = False
        self._has_mark = True
        self._delays = parse_delays(config.delay_levels)
        self._root = config.store
        self._side: dict[str, Any] = {}
        self._queues: QueueFiles | None = None
        self._is_closed = True
        if self._root is not None:
            self._read_side_files(self._root)
            self._queues = QueueFiles(str(self._root.absolute()), self._queue_file_bytes())
            self._is_closed = not (self._root / "abort").exists()
            if self._side.get("store") is not None:
                self._check_rocketmq_checkpoint(self._root)
        self._index = self._find_index() if config.index else None
        epochs = self._side.get("epochs") or []
        self.gaps = [
            (int(epoch.get("previous_end_offset", 0)), int(epoch["first_physical_offset"]))
            for epoch in epochs if epoch["epoch"] > 1
        ]  # fmt: skip

    # -- before -----------------------------------------------------------------------------------------------------

    def tasks(self) -> list[LogTask]:
        """Return the ranges to check; ``number`` is set by whoever runs them."""
        checkpoint = self._side.get("checkpoint") or {}
        return [
            LogTask(
                number=0, split=split, queues=self._queues, promised_offset=int(checkpoint.get("physical_offset", 0)),
                delays_ms=self._delays, index=self._index, tolerance_ms=self.config.time_tolerance_ms,
            )
            for split in plan_log(self.source, split_bytes=self.config.split_bytes)
            if split.broker == self.broker
            and not any(before <= split.start and split.end <= start for before, start in self.gaps)
        ]  # fmt: skip

    def _read_side_files(self, root: Path) -> None:
        for kind in SIDE_FILES:
            self._side[kind] = self._read_side_file(root, f"{kind}.json", kind)
        backup = self._read_side_file(root, BACKUP, "store")
        if backup is not None and self._side["store"] is None:
            path = root / "headrace" / "store.json"
            raise SideFileError(path, "is missing", f"copy {path}.bak over it")
        self._check_mark(root)

    def _read_side_file(self, root: Path, name: str, kind: str) -> Any:
        """Return the payload of a side file, None where it is missing or, which is a finding, damaged."""
        try:
            return read_side_file(root / "headrace" / name, kind, FORMAT_VERSION, "see docs/formats/side-files.md")
        except FileNotFoundError:
            return None
        except FormatVersionError:
            raise
        except (SideFileError, OSError) as error:
            self.damage.append(Finding(
                kind="side_file", broker=self.broker, file=f"headrace/{name}", message=str(error),
            ))  # fmt: skip
            return None

    def _check_rocketmq_checkpoint(self, root: Path) -> None:
        path = root / "checkpoint"
        if self._is_closed and path.is_file() and path.stat().st_size != ROCKETMQ_CHECKPOINT_BYTES:
            self.damage.append(Finding(
                kind="side_file", broker=self.broker, file="checkpoint", reason="wrong length",
                message=f"checkpoint is {path.stat().st_size} bytes long instead of {ROCKETMQ_CHECKPOINT_BYTES}; only "
                "RocketMQ reads it",
            ))  # fmt: skip

    def _check_mark(self, root: Path) -> None:
        """A store of Headrace says how far it is durable; without that the log ends at its last right record."""
        try:
            _, offset, is_damaged = decode_mark((root / "headrace" / "durable").read_bytes())
            reason = "damaged" if is_damaged else ""
        except FileNotFoundError:
            offset, reason = 0, "missing" if self._side.get("store") is not None and self.extent.end else ""
        self._has_mark = offset > 0
        if reason:
            self.damage.append(Finding(
                kind="side_file", broker=self.broker, file="headrace/durable", reason=reason,
                message=f"headrace/durable is {reason}; the next start sets it anew, loss cannot be told from a torn "
                "tail",
            ))  # fmt: skip

    def _queue_file_bytes(self) -> int:
        found = int((self._side.get("store") or {}).get("queue_file_bytes", DEFAULT_QUEUE_FILE_BYTES))
        return -(-found // ENTRY.itemsize) * ENTRY.itemsize

    def _find_index(self) -> IndexFiles | None:
        """Return the key index as its note counts it; a file that is missing or cut is damage."""
        note = self._side.get("index")
        if self._root is None or note is None:
            return None
        slots, capacity = int(note["slot_count"]), int(note["capacity"])
        size = INDEX_HEADER_BYTES + 4 * slots + INDEX_ENTRY.itemsize * capacity
        files = []
        for noted in note["files"]:
            path = self._root.absolute() / "index" / noted["name"]
            found = path.stat().st_size if path.is_file() else -1
            if found != size:
                reason = "it is missing" if found < 0 else f"it is not {size} bytes long"
                self.damage.append(self._index_finding(int(noted["begin_offset"]), reason, f"index/{noted['name']}"))
                return None
            files.append((str(path), int(noted["count"]) - 1))
        begin = int(note["files"][0]["begin_offset"]) if note["files"] else 0
        return IndexFiles(tuple(files), slots, begin, int(note["physical_offset"]))

    def _index_finding(self, offset: int, reason: str, file: str | None = None) -> Finding:
        return Finding(
            kind="index_file", broker=self.broker, file=file, physical_offset=offset, reason=reason,
            message=f"{file or 'key index'}: {reason}; headrace job rebuild --what index makes it anew",
        )  # fmt: skip

    def _judge_index(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            for offset in result["unindexed"]:
                self.damage.append(self._index_finding(offset, f"a key of the record at {offset} is not in it"))
            for offset in result["stray"]:
                if self._lost_at(offset) is None:
                    self.damage.append(
                        self._index_finding(offset, f"it has a key at {offset} that no record there has")
                    )

    # -- the log ----------------------------------------------------------------------------------------------------

    def judge(self, results: list[dict[str, Any]]) -> None:
        """Judge what the tasks found; ``results`` are in the order of ``tasks``."""
        self._check_files()
        claims = {claim["physical_offset"]: claim for result in results for claim in result["claims"]}
        at = self.extent.start
        for result in results:
            if result["first"] is None:
                continue
            if at != result["first"]:
                self._judge_gap(at, result["first"], claims)
            for first, end in result["gaps"]:
                self._judge_gap(first, end, claims)
            at = result["end"]
        if at < self.extent.end:
            self._judge_end(at)
        elif not self._has_mark:
            self._judge_checkpoint()
        self._name_claims(claims)
        self._judge_queues(results)
        self._judge_index(results)
        for lost in self.lost:
            self._report_lost(lost)
        self._note_rest(results)

    def _check_files(self) -> None:
        """Files of the log that are missing or have another length."""
        size, runs = self.extent.segment_bytes, self.extent.runs
        for (_, end), (start, _) in pairwise(runs):
            if not self._is_epoch_gap(end, start):
                self.damage.append(Finding(
                    kind="missing_segment", broker=self.broker, physical_offset=end, end_offset=start,
                    message=f"the log has no bytes {end} to {start}: a segment file is missing",
                ))  # fmt: skip
                self.lost.append(LostRange(end, start, "segment file is missing"))
        if self._root is None:
            return
        paths = sorted(path for path in (self._root / "commitlog").iterdir() if is_offset_name(path.name))
        for path in paths:
            found = path.stat().st_size
            if found != size and not (path is paths[-1] and not self._is_closed):
                self.damage.append(Finding(
                    kind="segment_size", broker=self.broker, file=f"commitlog/{path.name}",
                    physical_offset=int(path.name), message=f"{path.name} is {found} bytes long instead of {size}",
                ))  # fmt: skip

    def _is_epoch_gap(self, first: int, end: int) -> bool:
        return any(before <= first and end <= start for before, start in self.gaps)

    def _judge_gap(self, first: int, end: int, claims: dict[int, dict[str, Any]]) -> None:
        """Say what lies between two whole records."""
        for run_end, run_start in zip(
            (e for _, e in self.extent.runs), (s for s, _ in self.extent.runs[1:]), strict=False
        ):
            if first < run_end <= run_start < end:
                self._judge_gap(first, run_end, claims)
                self._judge_gap(run_start, end, claims)
                return
        if (
            first >= end
            or self._is_epoch_gap(first, end)
            or any(lost.first == first and lost.end == end for lost in self.lost)
        ):
            return
        data = self._peek(first)
        size = self.extent.segment_bytes
        segment_end = (first // size + 1) * size
        if self._is_blank(data, first, segment_end):
            self._judge_gap(segment_end, end, claims)
            return
        reason = describe(check(data, 0, first)) if data else "it cannot be read"
        claim = claims.get(first) or _decode(data)
        self.lost.append(LostRange(first, end, reason, claim))
        self.lost.sort(key=lambda lost: lost.first)

    def _is_blank(self, data: bytes | memoryview, first: int, segment_end: int) -> bool:
        return (
            len(data) >= 8
            and int.from_bytes(data[4:8]) == MAGIC_BLANK
            and first + int.from_bytes(data[:4]) == segment_end
        )

    def _peek(self, first: int) -> bytes:
        """Return some of the log from a physical offset on, up to the end of its file."""
        size = self.extent.segment_bytes
        stop = min((first // size + 1) * size, first + PEEK_BYTES)
        parts: list[bytes] = []
        at = first
        with contextlib.suppress(DataLossError):
            for base, data in self.source.chunks(self.broker, first, stop, stop - first):
                if base != at or base >= stop:
                    break
                parts.append(bytes(data[: stop - base]))
                at += len(parts[-1])
                if at >= stop:
                    break
        return b"".join(parts)

    def _judge_end(self, at: int) -> None:
        """The last whole record ends before the durable end."""
        size = self.extent.segment_bytes
        while at < self.extent.end:
            segment_end = (at // size + 1) * size
            if self._is_epoch_gap(at, self.extent.end):
                return
            if not self._is_blank(self._peek(at), at, segment_end):
                break
            at = segment_end
        else:
            return
        self.damage.append(Finding(
            kind="durable_loss", broker=self.broker, physical_offset=at, end_offset=self.extent.end,
            message=f"the log ends at {at} below its durable end {self.extent.end}: {self.extent.end - at} bytes that "
            "were durable are lost",
        ))  # fmt: skip
        runs = (*self.extent.runs[:-1], (self.extent.runs[-1][0], at))
        self.extent = replace(self.extent, runs=runs)
        self._is_cut = True
        self._judge_checkpoint()

    def _judge_checkpoint(self) -> None:
        """What the checkpoint has noted was durable, also where no mark says so."""
        checkpoint, end = int((self._side.get("checkpoint") or {}).get("physical_offset", 0)), self.extent.end
        if checkpoint > end:
            self.damage.append(
                Finding(
                    kind="checkpoint_beyond_log", broker=self.broker, file="headrace/checkpoint.json",
                    physical_offset=checkpoint, end_offset=end,
                    message=f"the checkpoint stands at {checkpoint}, the log ends at {end}",
                )
            )  # fmt: skip

    def _lost_at(self, physical_offset: int) -> LostRange | None:
        index = bisect_right(self.lost, physical_offset, key=lambda lost: lost.first) - 1
        if index >= 0 and physical_offset < self.lost[index].end:
            return self.lost[index]
        return None

    # -- the queues -------------------------------------------------------------------------------------------------

    def _judge_queues(self, results: list[dict[str, Any]]) -> None:
        joined = self._join(results)
        self.queue_count = len(joined)
        for (topic, queue_id), queue in sorted(joined.items()):
            if self._queues is not None:
                files = self._queues.files(topic, queue_id)
                if files:
                    self._explain(topic, queue_id, files[0][0] // ENTRY.itemsize, queue.first, self.extent.start - 1)
                elif queue.first > 0 and self.extent.start == 0:
                    self._explain(topic, queue_id, 0, queue.first, -1)
            for expected, found, offset, before in queue.breaks:
                if found > expected:
                    self._explain(topic, queue_id, expected, found, before, offset)
                else:
                    self.damage.append(Finding(
                        kind="repeated_queue_offset", broker=self.broker, physical_offset=offset, topic=topic,
                        queue_id=queue_id, queue_offset=found,
                        message=f"record at {offset} has queue offset {found} of {topic}/{queue_id}, which a record "
                        "before it has too",
                    ))  # fmt: skip
            if self._queues is not None:
                end = self._queues.extent(topic, queue_id)[1]
                self._explain(topic, queue_id, queue.next, end, queue.last_offset)
        for result in results:
            self._report_entries(result)
        self._report_missing()
        if self._queues is not None:
            self._check_queue_files(joined)

    def _join(self, results: list[dict[str, Any]]) -> dict[tuple[str, int], _Joined]:
        joined: dict[tuple[str, int], _Joined] = {}
        for result in results:
            self.records += result["records"]
            for topic, queue_id, first, after, records, last_offset, pending, breaks in result["queues"]:
                self.pending += pending
                queue = joined.get((topic, queue_id))
                if queue is None:
                    queue = joined[topic, queue_id] = _Joined(first, first, -1)
                if first != queue.next:
                    queue.breaks.append((queue.next, first, result["first"], queue.last_offset))
                queue.breaks += [tuple(item) for item in breaks]
                queue.next = max(queue.next, after)
                queue.last_offset = last_offset
                queue.records += records
        return joined

    def _explain(self, topic: str, queue_id: int, first: int, end: int, after: int, until: int | None = None) -> None:
        """Say what stood at queue offsets [first, end), which no record of the log has.

        Args:
            after: Physical offset of the queue's last record before the gap.
            until: Of the one behind it; None: there is none.
        """
        runs: dict[str, list[list[int]]] = {}
        for queue_offset, offset, size in self._entries(topic, queue_id, first, end):
            if size == FILLER_BYTES:
                _add_to_run(runs, "filler", queue_offset)
            elif size <= 0:
                _add_to_run(runs, "none", queue_offset)
            elif offset < self.extent.start:
                continue  # retention removed its segment
            elif (lost := self._lost_at(offset)) is not None:
                lost.named[offset] = self._damaged(lost, topic, queue_id, queue_offset, offset, size)
            elif offset >= self.extent.end:
                _add_to_run(runs, "beyond", queue_offset)
            else:
                self.damage.append(Finding(
                    kind="wrong_entry", broker=self.broker, physical_offset=offset, record_bytes=size, topic=topic,
                    queue_id=queue_id, queue_offset=queue_offset, reason="no such record there",
                    message=f"entry {queue_offset} of {topic}/{queue_id} points at {offset}, where the log has no such "
                    "record",
                ))  # fmt: skip
        for kind, found in runs.items():
            for queue_offset, count in found:
                self._report_run(kind, topic, queue_id, queue_offset, count, after, until)

    def _entries(self, topic: str, queue_id: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (queue offset, physical offset, size) of entries; size 0 where there is none, or no files are read."""
        while first < end:
            count = min(4096, end - first)
            if self._queues is None:
                yield from ((first + at, 0, 0) for at in range(count))
            else:
                for at, entry in enumerate(self._queues.read(topic, queue_id, first, count)):
                    yield first + at, int(entry["offset"]), int(entry["size"])
            first += count

    def _report_run(
        self, kind: str, topic: str, queue_id: int, first: int, count: int, after: int, until: int | None
    ) -> None:
        where = f"{topic}/{queue_id}"
        common: dict[str, Any] = {
            "broker": self.broker, "topic": topic, "queue_id": queue_id, "queue_offset": first, "count": count,
        }  # fmt: skip
        if kind == "filler":
            self.info.append(Finding(
                kind="skipped_offsets", message=f"{count} queue offsets from {first} on of {where} were given up by a "
                "recovery", **common,
            ))  # fmt: skip
        elif kind == "beyond":
            finding = Finding(
                kind="entries_beyond_log", message=f"{count} entries from {first} on of {where} point behind the end "
                "of the log", **common,
            )  # fmt: skip
            (self.damage if self._is_closed else self.info).append(finding)
        elif not self._is_broken_between(after, until):
            message = f"{count} queue offsets from {first} on of {where} have neither record nor entry"
            if self._queues is None:
                # Whether a recovery gave them up stands in the queue files, which are not read over the network.
                self.info.append(Finding(kind="skipped_offsets", message=message, **common))
            else:
                self.damage.append(Finding(kind="missing_records", message=message, **common))

    def _is_broken_between(self, after: int, until: int | None) -> bool:
        points = [lost.end for lost in self.lost] + [start for _, start in self.gaps]
        stop = self.extent.end if until is None else until
        return any(after < point <= stop for point in points)

    def _report_entries(self, result: dict[str, Any]) -> None:
        for wrong in result["wrong"]:
            self.damage.append(Finding(
                kind="wrong_entry", broker=self.broker,
                message=f"entry {wrong['queue_offset']} of {wrong['topic']}/{wrong['queue_id']} does not point at its "
                f"record at {wrong['physical_offset']} of {wrong['record_bytes']} bytes: {wrong['reason']}", **wrong,
            ))  # fmt: skip
        for missing in result["missing"]:
            _extend(self._missing.setdefault((missing["topic"], missing["queue_id"]), []), missing["queue_offset"])

    def _report_missing(self) -> None:
        for (topic, queue_id), found in sorted(self._missing.items()):
            for first, count in found:
                self.damage.append(
                    Finding(
                        kind="missing_entries", broker=self.broker, topic=topic, queue_id=queue_id, queue_offset=first,
                        count=count, message=f"{count} entries from {first} on are missing in {topic}/{queue_id}; the "
                        "next start rebuilds the queues from the log",
                    )
                )  # fmt: skip

    def _check_queue_files(self, joined: dict[tuple[str, int], _Joined]) -> None:
        """Queues without records, and the sizes of all files."""
        assert self._root is not None
        assert self._queues is not None
        folder = self._root / "consumequeue"
        for topic_path in sorted(folder.iterdir()) if folder.is_dir() else ():
            for path in sorted(topic_path.iterdir()) if topic_path.is_dir() else ():
                if not path.name.isdigit():
                    continue
                topic, queue_id = topic_of_directory(topic_path.name), int(path.name)
                self._check_sizes(topic, queue_id)
                if (topic, queue_id) not in joined:
                    first, end = self._queues.extent(topic, queue_id)
                    self._explain(topic, queue_id, first, end, self.extent.start - 1)

    def _check_sizes(self, topic: str, queue_id: int) -> None:
        assert self._queues is not None
        expected: int | None = None
        for first_byte, size in self._queues.files(topic, queue_id):
            name = f"consumequeue/{topic}/{queue_id}/{segment_name(first_byte)}"
            common: dict[str, Any] = {"broker": self.broker, "file": name, "topic": topic, "queue_id": queue_id}
            if first_byte % self._queues.file_bytes:
                self.damage.append(Finding(kind="queue_file_name", message=f"{name} is misnamed", **common))
            elif expected is not None and first_byte != expected:
                self.damage.append(Finding(
                    kind="missing_queue_file", message=f"a file is missing before {name}", **common
                ))  # fmt: skip
            if size != self._queues.file_bytes:
                finding = Finding(
                    kind="queue_file_size", message=f"{name} is {size} bytes long instead of {self._queues.file_bytes}",
                    **common,
                )  # fmt: skip
                (self.damage if self._is_closed else self.info).append(finding)
            expected = first_byte + self._queues.file_bytes

    # -- what was lost ----------------------------------------------------------------------------------------------

    def _name_claims(self, claims: dict[int, dict[str, Any]]) -> None:
        """Over the network there are no entries: each damaged record is named by its own fields."""
        if self._queues is not None:
            return
        for offset, claim in claims.items():
            lost = self._lost_at(offset)
            if lost is not None:
                lost.named[offset] = self._claimed(lost, claim, offset)

    def _damaged(
        self, lost: LostRange, topic: str, queue_id: int, queue_offset: int, offset: int, size: int
    ) -> Finding:
        reason = lost.reason if offset == lost.first else "inside a damaged range"
        return Finding(
            kind="damaged_record", broker=self.broker, physical_offset=offset, record_bytes=size, reason=reason,
            topic=topic, queue_id=queue_id, queue_offset=queue_offset, file=self._segment_at(offset),
            message=f"record {queue_offset} of {topic}/{queue_id} at {offset}, {size} bytes: {reason}",
        )  # fmt: skip

    def _claimed(self, lost: LostRange, claim: dict[str, Any], offset: int) -> Finding:
        return Finding(
            kind="damaged_record", broker=self.broker, physical_offset=offset, record_bytes=claim["record_bytes"],
            reason=lost.reason, topic=claim["topic"], queue_id=claim["queue_id"], queue_offset=claim["queue_offset"],
            file=self._segment_at(offset),
            message=f"record at {offset}, by its own fields {claim['queue_offset']} of "
            f"{claim['topic']}/{claim['queue_id']}: {lost.reason}",
        )  # fmt: skip

    def _report_lost(self, lost: LostRange) -> None:
        self.damage.append(Finding(
            kind="hole", broker=self.broker, physical_offset=lost.first, end_offset=lost.end, reason=lost.reason,
            file=self._segment_at(lost.first),
            message=f"bytes {lost.first} to {lost.end} of the log hold no whole record: {lost.reason}",
        ))  # fmt: skip
        if lost.first not in lost.named and lost.claims is not None:
            lost.named[lost.first] = self._claimed(lost, lost.claims, lost.first)
        self.damage += [lost.named[offset] for offset in sorted(lost.named)]

    def _segment_at(self, physical_offset: int) -> str:
        size = self.extent.segment_bytes
        return f"commitlog/{segment_name(physical_offset // size * size)}"

    def _note_rest(self, results: list[dict[str, Any]]) -> None:
        backwards = sum(result["backwards"] for result in results)
        if backwards:
            self.info.append(Finding(
                kind="store_time", broker=self.broker, count=backwards,
                message=f"{backwards} records were stored by a clock that had gone back",
            ))  # fmt: skip
        unlisted = sum(result["unlisted"] for result in results)
        if unlisted:
            self.damage.append(Finding(
                kind="unlisted", broker=self.broker, count=unlisted,
                message=f"{unlisted} more findings of this kind are not listed one by one",
            ))  # fmt: skip
        if self._root is not None and self._is_closed and not self._is_cut:
            self._check_tail(self._root)

    def _check_tail(self, root: Path) -> None:
        """Behind the end of a log that was closed there is nothing."""
        size = self.extent.segment_bytes
        at = self.extent.end
        path = root / "commitlog" / segment_name(at // size * size)
        if at % size == 0 or not path.is_file():
            return
        with path.open("rb") as file:
            position = at % size
            while position < size:
                try:
                    position = max(position, os.lseek(file.fileno(), position, os.SEEK_DATA))
                except OSError:
                    return  # a hole up to the end
                raw = os.pread(file.fileno(), min(1 << 20, size - position), position)
                if any(raw):
                    self.damage.append(Finding(
                        kind="torn_tail", broker=self.broker, physical_offset=at, file=f"commitlog/{path.name}",
                        message=f"bytes behind the end of the log at {at} are no record",
                    ))  # fmt: skip
                    return
                if not raw:
                    return
                position += len(raw)


def _decode(data: bytes) -> dict[str, Any] | None:
    """Return what the fields of a damaged record say, None when they do not add up."""
    try:
        return dict(decode(data))
    except ValueError:
        return None


def _add_to_run(runs: dict[str, list[list[int]]], kind: str, queue_offset: int) -> None:
    _extend(runs.setdefault(kind, []), queue_offset)


def _extend(found: list[list[int]], queue_offset: int) -> None:
    if found and found[-1][0] + found[-1][1] == queue_offset:
        found[-1][1] += 1
    else:
        found.append([queue_offset, 1])
