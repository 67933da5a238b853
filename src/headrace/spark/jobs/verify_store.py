"""The driver's part of checking one log: side files, the log's own gaps and its end.

Tasks report where records do not touch and where queue offsets jump. Most gaps are blank records at the end of a file;
what else lies there is damage. The queues are judged by ``verify_queues``. The kinds of findings and
what counts as damage are those of ``headrace store check``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace.errors import SideFileError
from headrace.format import findings
from headrace.format.durable_mark import decode_mark, is_whole, read_mark
from headrace.format.epochs import Epochs
from headrace.format.findings import Finding
from headrace.format.layout import INDEX, ROCKETMQ_CHECKPOINT_BYTES, SIDE_KINDS, StoreLayout, log_files, segment_file
from headrace.format.lost_ranges import LostRange, LostRanges
from headrace.format.names import segment_name
from headrace.format.queue_entry import DEFAULT_FILE_BYTES, whole_entries
from headrace.format.record import BAD_OFFSET, BLANK_MAGIC, check, decode, describe
from headrace.format.side_file import naming, read_side_file
from headrace.format.side_shapes import IndexNote
from headrace.format.sparse import has_bytes
from headrace.settings.units import parse_delays_ms
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.jobs.findings import Findings
from headrace.spark.jobs.summary import count_of
from headrace.spark.jobs.verify import Config
from headrace.spark.jobs.verify_log import LogTask
from headrace.spark.jobs.verify_queues import QueueCheck
from headrace.spark.jobs.views import (
    INDEX_ENTRY,
    INDEX_HEADER_BYTES,
    IndexFiles,
    QueueFiles,
)
from headrace.spark.scan import Source, plan_log

PEEK_BYTES: Final = 8 << 20


class StoreCheck:
    """The check of one broker's log.

    Attributes:
        damage, info: What was found.
        queues: The check of the queues, when it was judged.
    """

    def __init__(self, source: Source, extent: LogExtent, config: Config) -> None:
        self.source = source
        self.extent = extent
        self.broker = extent.broker
        self.config = config
        self._found = Findings(extent.broker)
        self.damage, self.info = self._found.damage, self._found.info
        self._lost = LostRanges(extent.segment_bytes)
        self._is_cut = False
        self._has_mark = True
        self._delays = parse_delays_ms(config.delay_levels)
        self._layout = StoreLayout(config.store) if config.store is not None else None
        self._side: dict[str, Any] = {}
        self._queues: QueueFiles | None = None
        if self._layout is not None:
            self._read_side_files(self._layout)
            file_bytes = int((self._side.get("store") or {}).get("queue_file_bytes", DEFAULT_FILE_BYTES))
            self._queues = QueueFiles(str(self._layout.root.absolute()), whole_entries(file_bytes))
            self._found.is_closed = not self._layout.abort.exists()
            if self._side.get("store") is not None:
                self._check_rocketmq_checkpoint(self._layout.rocketmq_checkpoint)
        self._index = self._find_index() if config.index else None
        self._epochs = Epochs.of(self._side.get("epochs"))

    # -- before -----------------------------------------------------------------------------------------------------

    def tasks(self) -> list[LogTask]:
        """Return the ranges to check."""
        checkpoint = self._side.get("checkpoint") or {}
        return [
            LogTask(
                split=split, queues=self._queues, promised_offset=int(checkpoint.get("physical_offset", 0)),
                delays_ms=self._delays, index=self._index, tolerance_ms=self.config.time_tolerance_ms,
            )
            for split in plan_log(self.source, split_bytes=self.config.split_bytes)
            if split.broker == self.broker
            and not self._epochs.is_gap(split.start, split.end)
        ]  # fmt: skip

    def _read_side_files(self, layout: StoreLayout) -> None:
        for kind in SIDE_KINDS:
            self._side[kind] = self._read_side_file(layout, layout.side_file(kind), kind)
        backup = self._read_side_file(layout, layout.identity_backup, "store")
        if backup is not None and self._side["store"] is None:
            raise SideFileError(layout.identity, "is missing", f"copy {layout.identity_backup} over it")
        self._check_mark(layout)

    def _read_side_file(self, layout: StoreLayout, path: Path, kind: str) -> Any:
        """Return the payload of a side file, None where it is missing or, which is a finding, damaged."""
        try:
            return read_side_file(path, kind, "see docs/formats/side-files.md")
        except (SideFileError, OSError) as error:
            self._found.add(Finding(kind="side_file", file=layout.name_of(path), message=str(error)))
            return None

    def _check_rocketmq_checkpoint(self, path: Path) -> None:
        if self._found.is_closed and path.is_file() and path.stat().st_size != ROCKETMQ_CHECKPOINT_BYTES:
            self._found.add(findings.rocketmq_checkpoint_size(path.stat().st_size, ROCKETMQ_CHECKPOINT_BYTES))

    def _check_mark(self, layout: StoreLayout) -> None:
        """A store of Headrace says how far it is durable; without that the log ends at its last right record."""
        raw = read_mark(layout.durable_mark)
        if raw is None:
            offset, reason = 0, "missing" if self._side.get("store") is not None and self.extent.end else ""
        else:
            _, offset, is_damaged = decode_mark(raw)
            is_left_so = is_whole(raw) or layout.abort.exists() or not self.extent.end
            reason = "damaged" if is_damaged or not is_left_so else ""
        self._has_mark = offset > 0
        if reason:
            self._found.add(findings.unusable_mark(reason))

    def _find_index(self) -> IndexFiles | None:
        """Return the key index as its note counts it; a file that is missing or cut is damage."""
        note: IndexNote | None = self._side.get("index")
        if self._layout is None or note is None:
            return None
        size = INDEX_HEADER_BYTES + 4 * note.slot_count + INDEX_ENTRY.itemsize * note.capacity
        files = []
        for noted in note.files:
            path = self._layout.index.absolute() / noted.name
            found = path.stat().st_size if path.is_file() else -1
            if found != size:
                reason = "it is missing" if found < 0 else f"it is not {size} bytes long"
                self._found.add(_index_finding(noted.begin_offset, reason, f"{INDEX}/{noted.name}"))
                return None
            files.append((str(path), noted.count - 1))
        begin = note.files[0].begin_offset if note.files else 0
        return IndexFiles(tuple(files), note.slot_count, begin, note.physical_offset)

    def _judge_index(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            for offset in result["unindexed"]:
                self._found.add(_index_finding(offset, f"a key of the record at {offset} is not in it"))
            for offset in result["stray"]:
                if self._lost.at(offset) is None:
                    self._found.add(_index_finding(offset, f"it has a key at {offset} that no record there has"))

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
        durable = max([self.extent.end, *(end for _, end in self.extent.missing)])
        if at < durable:
            self._judge_end(at, durable)
        elif not self._has_mark:
            self._judge_checkpoint()
        if self._queues is None:
            # Over the network there are no entries: each damaged record is named by its own fields.
            self._lost.name_claims(claims)
        self.queues = QueueCheck(self._found, self.extent, self._lost, self._epochs, self._queues)
        self.queues.judge(results)
        self._judge_index(results)
        for finding in self._lost.findings():
            self._found.add(finding)
        self._note_rest(results)

    def _check_files(self) -> None:
        """Files of the log that are missing or have another length."""
        # It begins where a store or its broker says: RocketMQ removes files.
        beginning = self.extent.origin if self._side.get("store") is None else self._epochs.beginning
        size = self.extent.segment_bytes
        for first, end in self._epochs.missing(self.extent.runs, beginning):
            self._found.add(findings.missing_segment(first, end))
            self._lost.add(LostRange(first, end, "segment file is missing", segment_file(first, size)))
        if self._layout is None:
            return
        paths = log_files(self._layout.commit_log)
        for path in paths:
            found = path.stat().st_size
            if found != size and not (path is paths[-1] and not self._found.is_closed):
                self._found.add(findings.segment_size(self._layout.name_of(path), found, size, int(path.name)))

    def _judge_gap(self, first: int, end: int, claims: dict[int, dict[str, Any]]) -> None:
        """Say what lies between two whole records."""
        first = self._epochs.behind(first)
        for run_end, run_start in zip(
            (e for _, e in self.extent.runs), (s for s, _ in self.extent.runs[1:]), strict=False
        ):
            if first < run_end <= run_start < end:
                self._judge_gap(first, run_end, claims)
                self._judge_gap(run_start, end, claims)
                return
        if first >= end or any(lost.first == first and lost.end == end for lost in self._lost.ranges):
            return
        data = self._peek(first)
        size = self.extent.segment_bytes
        segment_end = (first // size + 1) * size
        if self._is_blank(data, first, segment_end):
            self._judge_gap(segment_end, end, claims)
            return
        found = check(data, 0, first)
        reason = describe(found) if data else "it cannot be read"
        claim = claims.get(first) or _decode(data)
        is_misplaced = found == BAD_OFFSET and check(data) > 0
        self._lost.add(LostRange(first, end, reason, segment_file(first, size), claim, is_misplaced))

    def _is_blank(self, data: bytes | memoryview, first: int, segment_end: int) -> bool:
        return (
            len(data) >= 8
            and int.from_bytes(data[4:8]) == BLANK_MAGIC
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

    def _judge_end(self, at: int, durable: int) -> None:
        """The last whole record ends before the durable end, up to which there may be no files."""
        size = self.extent.segment_bytes
        while at < self.extent.end:
            segment_end = (at // size + 1) * size
            if self._epochs.is_gap(at, self.extent.end):
                at = self.extent.end
            elif self._is_blank(self._peek(at), at, segment_end):
                at = segment_end
            else:
                break
        if at >= durable:
            return
        self._found.add(findings.durable_loss(at, durable, noted_as="its durable end"))
        if self.extent.runs:
            runs = (*self.extent.runs[:-1], (self.extent.runs[-1][0], at))
            self.extent = replace(self.extent, runs=runs)
        self._is_cut = True
        self._judge_checkpoint()

    def _judge_checkpoint(self) -> None:
        """What the checkpoint has noted was durable, also where no mark says so."""
        checkpoint, end = int((self._side.get("checkpoint") or {}).get("physical_offset", 0)), self.extent.end
        if checkpoint > end:
            self._found.add(findings.checkpoint_beyond_log(checkpoint, end))

    # -- the rest ---------------------------------------------------------------------------------------------------

    def _note_rest(self, results: list[dict[str, Any]]) -> None:
        backwards = sum(result["backwards"] for result in results)
        if backwards:
            self._found.note(Finding(
                kind="store_time", count=backwards,
                message=f"{count_of(backwards, 'record was', 'records were')} stored by a clock that had gone back",
            ))  # fmt: skip
        unlisted = sum(result["unlisted"] for result in results)
        if unlisted:
            self._found.add(Finding(
                kind="unlisted", count=unlisted,
                message=f"{unlisted} more findings of this kind are not listed one by one",
            ))  # fmt: skip
        if self._layout is not None and self._found.is_closed and not self._is_cut:
            self._check_tail(self._layout)

    def _check_tail(self, layout: StoreLayout) -> None:
        """Behind the end of a log that was closed there is nothing."""
        size = self.extent.segment_bytes
        at = self.extent.end
        path = layout.commit_log / segment_name(at // size * size)
        if at % size == 0 or not path.is_file():
            return
        with path.open("rb") as file, naming(path):
            if has_bytes(file.fileno(), at % size, size):
                self._found.add(Finding(
                    kind="torn_tail", physical_offset=at, file=layout.name_of(path),
                    message=f"bytes behind the end of the log at {at} are no record",
                ))  # fmt: skip


def _index_finding(offset: int, reason: str, file: str | None = None) -> Finding:
    return Finding(
        kind="index_file", file=file, physical_offset=offset, reason=reason,
        message=f"{file or 'key index'}: {reason}; headrace job rebuild --what index makes it anew",
    )  # fmt: skip


def _decode(data: bytes) -> dict[str, Any] | None:
    """Return what the fields of a damaged record say, None when they do not add up."""
    try:
        return dict(decode(data))
    except ValueError:
        return None
