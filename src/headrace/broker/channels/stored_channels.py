"""Topics and channels as a store's files have them: for tools that look at a store without opening it.

Reads the catalog, the control records behind it, and the channel journal. Ref: docs/formats/control-records.md and
docs/formats/channel-journal.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.broker.catalog import ABOVE_ALL, Catalog
from headrace.broker.channels.journal import PREVIOUS_SNAPSHOT, Histories
from headrace.broker.channels.journal_file import (
    FILE_HEAD,
    FLAG_FORGOTTEN,
    KIND_JOURNAL,
    KIND_SNAPSHOT,
    HistoryScan,
    find_journals,
    lacks_beginning,
    scan_history,
)
from headrace.errors import SideFileError
from headrace.format.findings import Finding
from headrace.format.names import CONTROL_TOPIC
from headrace.format.queue_entry import FILLER_BYTES
from headrace.format.record import decode
from headrace.store.check import name_missing, read_checked
from headrace.store.check_report import CheckReport
from headrace.store.reader import CLOSED, StoreReader

STATE_VERSION: Final = 1
PAGE_BITS: Final = 32_768
_POSITION = struct.Struct("<Hqq")
_WORDS = struct.Struct("<HqH")
_WORD = struct.Struct("<HQ")
_PAGE = struct.Struct("<Hq")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<qQQ")


@dataclass(slots=True)
class StoredChannel:
    """What the journal says of one channel."""

    floors: dict[int, int] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)
    finished: dict[tuple[int, int], int] = field(default_factory=dict)
    """(queue id, queue offset of a word's first bit) -> bits of finished messages."""
    waiting: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """physical offset -> (due ms, attempts, queue id, queue offset)"""

    def apply(self, state: bytes) -> None:
        """Apply one state.

        Raises:
            ValueError: it ends early, or is of an unknown version or section.
        """
        if len(state) < 2 or state[0] not in (1, 2) or state[1] != STATE_VERSION:
            raise ValueError("unknown kind or version of a channel state")
        at = 2
        try:
            while at < len(state):
                at = self._apply_section(state[at], state, at + 1)
        except struct.error as error:
            raise ValueError(f"channel state ends early at byte {len(state)}") from error

    def _apply_section(self, section: int, state: bytes, at: int) -> int:
        if section == 1:
            queue_id, floor, cursor = _POSITION.unpack_from(state, at)
            self.floors[queue_id] = max(floor, self.floors.get(queue_id, 0))
            self.cursors[queue_id] = max(cursor, self.cursors.get(queue_id, 0))
            return at + _POSITION.size
        if section == 2:
            queue_id, page, count = _WORDS.unpack_from(state, at)
            at += _WORDS.size
            for _ in range(count):
                word, bits = _WORD.unpack_from(state, at)
                key = queue_id, page * PAGE_BITS + word * 64
                self.finished[key] = self.finished.get(key, 0) | bits
                at += _WORD.size
            return at
        if section == 3:
            queue_id, page = _PAGE.unpack_from(state, at)
            for word in range(PAGE_BITS // 64):
                self.finished[queue_id, page * PAGE_BITS + word * 64] = (1 << 64) - 1
            return at + _PAGE.size
        if section == 4:
            (count,) = _COUNT.unpack_from(state, at)
            at += _COUNT.size
            for _ in range(count):
                due_ms, place, queue = _ENTRY.unpack_from(state, at)
                self.waiting[place >> 16] = due_ms, place & 0xFFFF, queue & 0xFFFF, queue >> 16
                at += _ENTRY.size
            return at
        if section == 5:
            queue_id, end = _PAGE.unpack_from(state, at)
            self._cut(queue_id, end)
            return at + _PAGE.size
        raise ValueError(f"unknown section {section} of a channel state")

    def _cut(self, queue_id: int, end: int) -> None:
        """What was recorded at or above ``end`` never was."""
        for positions in (self.floors, self.cursors):
            if queue_id in positions:
                positions[queue_id] = min(positions[queue_id], end)
        for key in [key for key in self.finished if key[0] == queue_id and key[1] + 64 > end]:
            kept = self.finished[key] & ((1 << max(0, end - key[1])) - 1)
            if kept:
                self.finished[key] = kept
            else:
                del self.finished[key]
        for place in [p for p, entry in self.waiting.items() if entry[2] == queue_id and entry[3] >= end]:
            del self.waiting[place]

    def is_finished(self, queue_id: int, queue_offset: int) -> bool:
        """Return whether a message is finished."""
        if queue_offset < self.floors.get(queue_id, 0):
            return True
        first = queue_offset // 64 * 64
        return bool(self.finished.get((queue_id, first), 0) >> (queue_offset - first) & 1)

    def count_finished(self, queue_id: int) -> int:
        """Return how many messages above the floor are finished."""
        floor = self.floors.get(queue_id, 0)
        total = 0
        for (found, first), bits in self.finished.items():
            if found == queue_id and first + 64 > floor:
                total += (bits >> max(0, floor - first)).bit_count()
        return total

    def live_entries(self) -> list[tuple[int, int, int, int]]:
        """Return (due ms, attempts, queue id, queue offset) of the messages that wait."""
        return [entry for entry in self.waiting.values() if not self.is_finished(entry[2], entry[3])]


@dataclass(slots=True)
class JournalView:
    """The journal's files as they are."""

    channels: dict[bytes, StoredChannel] = field(default_factory=dict)
    records: int = 0
    damage: list[tuple[Path, int, str]] = field(default_factory=list)
    torn: list[tuple[Path, int, int]] = field(default_factory=list)
    unused: list[Path] = field(default_factory=list)
    """Journals that a kill, or a full disk, left without a head: nothing was written to them."""


def read_journal(directory: Path) -> JournalView:
    """Read every channel's state; nothing is changed.

    Raises:
        FormatVersionError: a file is of a newer version.
        SideFileError: a file cannot be read.
    """
    view = JournalView()
    histories: Histories = {}
    generation = _read_snapshot(directory, view, histories)
    for number, path in find_journals(directory):
        if number < generation:
            continue
        scan = _scan(path, KIND_JOURNAL, view)
        if scan is None:
            continue
        if scan.torn_bytes and scan.generation >= 0:
            view.torn.append((path, scan.end, scan.torn_bytes))
        for key, flags, payload in scan.records:
            if flags == FLAG_FORGOTTEN:
                histories.pop(key, None)
            else:
                histories.setdefault(key, []).append(payload)
    for key, states in histories.items():
        channel = view.channels[key] = StoredChannel()
        for state in states:
            try:
                channel.apply(state)
            except ValueError as error:
                view.damage.append((directory, 0, f"a state of channel {key.hex()}: {error}"))
    return view


def _read_snapshot(directory: Path, view: JournalView, histories: Histories) -> int:
    scan = _scan(directory / "snapshot", KIND_SNAPSHOT, view)
    if scan is None:
        return 0
    scans = [scan]
    if not scan.is_whole_snapshot:
        if not scan.damaged:
            view.damage.append((directory / "snapshot", scan.end, "its end is missing"))
        beneath = _scan(directory / PREVIOUS_SNAPSHOT, KIND_SNAPSHOT, JournalView())
        scans = [beneath, scan] if beneath is not None else scans
    for key, flags, payload in (record for each in scans for record in each.records):
        if flags == 0:
            histories.setdefault(key, []).append(payload)
    return max(scan.generation, 0)


def _scan(path: Path, kind: int, view: JournalView) -> HistoryScan | None:
    """Scan one file and note its damage; None when there is no such file (any more)."""
    if not path.exists():
        return None
    try:
        scan = scan_history(path, kind)
    except SideFileError:
        if path.exists():
            raise
        return None  # a living broker has just replaced it
    if scan.generation < 0 and (scan.records or scan.torn_bytes):
        view.damage.append((path, 0, "its header is damaged"))
    elif scan.generation < 0 and kind == KIND_JOURNAL and scan.end < FILE_HEAD.size:
        view.unused.append(path)
    elif scan.generation < 0 and kind == KIND_JOURNAL:
        view.torn.append((path, 0, scan.end))  # a power cut as it was made
    for start, end in scan.damaged:
        view.damage.append((path, start, f"{end - start} bytes are no record"))
    view.records += len(scan.records)
    return scan


def written_control_records(reader: StoreReader) -> Iterator[tuple[int, int, bytes]]:
    """Yield queue offset, physical offset and body of the control records that the consume queue's files know of.

    Unreadable ones are left out.
    """
    queue = next((queue for queue in reader.queues() if queue.topic == CONTROL_TOPIC), None)
    first, end = queue.extent() if queue is not None else (0, 0)
    for queue_offset, physical_offset, record_bytes, _ in queue.entries(first, end) if queue is not None else ():
        raw = reader.record_at(physical_offset, record_bytes) if record_bytes != FILLER_BYTES else None
        if raw is not None:
            yield queue_offset, physical_offset, decode(raw)["body"]


def read_catalog(payload: Any, records: Iterable[tuple[int, int, bytes]]) -> Catalog:
    """Return the catalog: its side file's payload, if any, and the control records behind it.

    Args:
        records: As ``written_control_records`` yields them.
    """
    catalog = Catalog() if payload is None else Catalog.from_payload(payload)
    for queue_offset, physical_offset, body in sorted(records):
        if queue_offset >= catalog.applied_offset:
            with suppress(msgspec.MsgspecError):  # the checker names it
                catalog.apply(_decode_change(body), physical_offset)
            catalog.applied_offset = queue_offset + 1
    return catalog


def _decode_change(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def check_channels(reader: StoreReader, report: CheckReport) -> None:
    """Check catalog, control records and channel journal; for ``check_store``."""
    payload = read_checked(
        reader, report, reader.directory.catalog, "catalog", "the next start rebuilds it from the control records"
    )
    _check_control_records(report)
    if payload is not None:
        _check_catalog(report, payload)
    name_missing(
        reader, report, reader.directory.catalog,
        "the next start rebuilds it from the control records, or is refused where the log no longer has them all",
    )  # fmt: skip
    catalog = read_catalog(payload, report.control)
    view = read_journal(reader.directory.channels)
    snapshot = reader.directory.channels / "snapshot"
    if lacks_beginning(reader.directory.channels) and any(topic.channels for topic in catalog.topics.values()):
        view.damage.append((snapshot, 0, "it is missing"))
    for path, position, reason in view.damage:
        report.damage.append(Finding(
            kind="channel_journal", file=reader.name_of(path), reason=reason, count=position,
            message=f"{reader.name_of(path)} at byte {position}: {reason}; messages may be delivered again",
        ))  # fmt: skip
    for path, position, torn_bytes in view.torn:
        report.add_unfinished(Finding(
            kind="channel_journal_tail", file=reader.name_of(path), count=torn_bytes,
            message=f"{reader.name_of(path)} ends in {torn_bytes} bytes of an unfinished write at byte {position}",
        ))  # fmt: skip
    for path in view.unused:
        report.info.append(Finding(
            kind="empty_journal", file=reader.name_of(path),
            message=f"{reader.name_of(path)} holds nothing, not even its head; nothing was written to it",
        ))  # fmt: skip
    report.channels.topics = len(catalog.topics)
    report.channels.channels = sum(len(topic.channels) for topic in catalog.topics.values())
    report.channels.journal_records = view.records
    _check_positions(report, catalog, view)


def _check_control_records(report: CheckReport) -> None:
    for queue_offset, physical_offset, body in report.control:
        try:
            _decode_change(body)
        except msgspec.MsgspecError as error:
            report.damage.append(
                Finding(
                    kind="control_record",
                    physical_offset=physical_offset,
                    topic=CONTROL_TOPIC,
                    queue_id=0,
                    queue_offset=queue_offset,
                    message=f"control record {queue_offset} at {physical_offset} cannot be read: {error}",
                )
            )


def _check_catalog(report: CheckReport, payload: dict[str, Any]) -> None:
    """Hold the catalog against the control records it was made of, where the log still has them all."""
    applied = int(payload["applied_offset"])
    rebuilt = Catalog()
    seen = 0
    for queue_offset, physical_offset, body in report.control:
        if queue_offset != seen:
            return  # some are damaged, or retention took them
        seen += 1
        if queue_offset < applied:
            with suppress(msgspec.MsgspecError):
                rebuilt.apply(_decode_change(body), physical_offset)
            rebuilt.applied_offset = queue_offset + 1
    if seen < applied:
        if report.state == CLOSED:  # a power cut may take records that the catalog had
            report.damage.append(
                Finding(
                    kind="catalog_beyond_log",
                    file="headrace/catalog.json",
                    count=applied - seen,
                    message=f"the catalog has {applied} control records applied, the log has {seen}",
                )
            )
        return
    saved = Catalog.from_payload(deepcopy(payload))
    for name, key in rebuilt.deleted.items():
        if saved.deleted.get(name) == ABOVE_ALL:  # an earlier build noted the name alone
            saved.deleted[name] = key
    if _as_saved(rebuilt) != _as_saved(saved):
        report.damage.append(Finding(
            kind="catalog_differs", file="headrace/catalog.json",
            message="the catalog differs from what the control records say; remove it, the next start rebuilds it",
        ))  # fmt: skip


def _as_saved(catalog: Catalog) -> Any:
    return msgspec.json.decode(msgspec.json.encode(catalog.to_payload()))


def _check_positions(report: CheckReport, catalog: Catalog, view: JournalView) -> None:
    """No channel's floor may lie beyond its queue; after a crash it may, and the next start clamps it."""
    if report.state != CLOSED:
        return
    for topic, entry in catalog.topics.items():
        for name, channel_entry in entry.channels.items():
            channel = view.channels.get(channel_entry.key.to_bytes(8, "big"))
            for queue_id, floor in channel.floors.items() if channel is not None else ():
                if floor > (end := report.queue_ends.get((topic, queue_id), 0)):
                    report.damage.append(Finding(
                        kind="floor_beyond_queue", topic=topic, queue_id=queue_id, channel=name, queue_offset=floor,
                        message=f"channel {name} of {topic} is finished below {floor}, its queue ends at {end}",
                    ))  # fmt: skip
