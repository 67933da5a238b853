"""``headrace store dump``: records and consume-queue entries, one dict each."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import CorruptRecordError, QueueNotFoundError, StoreError
from headrace.format.names import CONTROL_TOPIC
from headrace.format.queue_entry import FILLER_BYTES, StoredQueue
from headrace.format.record import BLANK, UNWRITTEN, decode, describe
from headrace.store.log_walk import LogWalk
from headrace.store.reader import SegmentFile, StoreReader

if TYPE_CHECKING:
    from headrace.format.record import DecodedRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which records to dump, and how."""

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    """Queue offset of the first record; needs a topic."""
    physical_offset: int | None = None
    limit: int | None = None
    body: str = "text"


def dump_records(reader: StoreReader, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the records of the log in its order, those of a queue range in the queue's order.

    What is no record is yielded too, as {"physical_offset", "end_offset", "damage"}.

    Raises:
        CorruptRecordError: no record begins at the physical offset asked for.
        QueueNotFoundError: there is no such queue, or it had no message yet.
        StoreError: the log does not hold the physical offset asked for.
    """
    if selection.physical_offset is not None:
        records = _single(reader, selection.physical_offset)
    elif selection.from_offset is not None:
        records = _of_queue(reader, selection)
    else:
        records = _of_log(reader)
    found = 0
    for offset, record in records:
        if found == selection.limit:
            return
        if isinstance(record, DamagedRange):
            yield {"physical_offset": offset, "end_offset": record.end_offset, "damage": record.reason}
        elif _is_selected(record, selection):
            found += 1
            yield to_json(record, selection.body)
    if not found and selection.topic != CONTROL_TOPIC:  # whose queue is made with the first control record
        _queues(reader, selection)  # nothing there, or no such topic or queue?


def dump_entries(reader: StoreReader, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield consume-queue entries.

    Raises:
        QueueNotFoundError: there is no such queue, or it had no message yet.
    """
    found = 0
    for queue in _queues(reader, selection):
        first, end = queue.extent()
        for queue_offset, physical_offset, record_bytes, tag_hash in queue.entries(
            max(first, selection.from_offset or 0), end
        ):
            if found == selection.limit:
                return
            found += 1
            yield {
                "topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": queue_offset,
                "physical_offset": physical_offset, "record_bytes": record_bytes, "tag_hash": tag_hash,
                "is_filler": record_bytes == FILLER_BYTES,
            }  # fmt: skip


def to_json(record: DecodedRecord, body: str) -> dict[str, Any]:
    """Return a record as the dump shows it; ``body`` is text, base64 or none."""
    shown: dict[str, Any] = {key: value for key, value in record.items() if key not in {"body", "properties"}}
    shown["body_bytes"] = len(record["body"])
    shown["properties"] = _properties(record["properties"])
    if body == "text":
        shown["body"] = record["body"].decode("utf-8", "replace")
    elif body == "base64":
        shown["body_base64"] = base64.b64encode(record["body"]).decode("ascii")
    return shown


def _properties(raw: bytes) -> dict[str, str]:
    pairs = (item.partition(b"\x01") for item in raw.split(b"\x02"))
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, mark, value in pairs if mark}


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of the log that are no record."""

    end_offset: int
    reason: str
    is_unwritten: bool = False
    """Nothing follows in the segment: the log may just end here."""


Found = tuple[int, "DecodedRecord | DamagedRange"]


def _is_selected(record: DecodedRecord, selection: Selection) -> bool:
    return (selection.topic is None or record["topic"] == selection.topic) and (
        selection.queue_id is None or record["queue_id"] == selection.queue_id
    )


def _single(reader: StoreReader, physical_offset: int) -> Iterator[Found]:
    size = reader.identity.segment_bytes
    for segment in reader.segments():
        if segment.first_offset <= physical_offset < segment.first_offset + size:
            found = _open(segment, size).record(physical_offset - segment.first_offset)
            if isinstance(found, int):
                raise CorruptRecordError(
                    f"no whole record begins at physical offset {physical_offset}: {describe(found)}",
                    physical_offset=physical_offset,
                )
            yield physical_offset, found
            return
    raise StoreError(f"the log does not hold physical offset {physical_offset}")


def _queues(reader: StoreReader, selection: Selection) -> list[StoredQueue]:
    found = [
        queue
        for queue in reader.queues()
        if selection.topic in (None, queue.topic) and selection.queue_id in (None, queue.queue_id)
    ]
    if not found and (selection.topic, selection.queue_id) != (None, None):
        which = "" if selection.queue_id is None else f" {selection.queue_id}"
        whose = "" if selection.topic is None else f" of topic {selection.topic!r}"
        raise QueueNotFoundError(f"the store has no consume queue{which}{whose}")
    return found


def _of_queue(reader: StoreReader, selection: Selection) -> Iterator[Found]:
    for queue in _queues(reader, selection):
        first, end = queue.extent()
        for queue_offset, physical_offset, record_bytes, _ in queue.entries(
            max(first, selection.from_offset or 0), end
        ):
            if record_bytes == FILLER_BYTES:
                continue
            raw = reader.record_at(physical_offset, record_bytes)
            if record_bytes <= 0:
                lost = f"entry {queue_offset} of {queue.topic}/{queue.queue_id} is missing"
                yield physical_offset, DamagedRange(physical_offset, lost)
            elif raw is None:
                yield physical_offset, DamagedRange(physical_offset + record_bytes, "no whole record there")
            else:
                yield physical_offset, decode(raw)


def _of_log(reader: StoreReader) -> Iterator[Found]:
    unwritten: Found | None = None  # the log's end, unless something follows
    for segment in reader.segments():
        for offset, found in _of_segment(segment, reader.identity.segment_bytes):
            if isinstance(found, DamagedRange) and found.is_unwritten:
                unwritten = (unwritten[0] if unwritten is not None else offset), found
                continue
            if unwritten is not None:
                yield unwritten
                unwritten = None
            yield offset, found


def _of_segment(segment: SegmentFile, segment_bytes: int) -> Iterator[Found]:
    walk = _open(segment, segment_bytes)
    position = 0
    while position < segment_bytes:
        found = walk.record(position)
        if found == BLANK:
            return
        if not isinstance(found, int):
            yield segment.first_offset + position, found
            position += found["record_bytes"]
            continue
        following = walk.find(position + 1)
        end = following if following >= 0 else segment_bytes
        is_unwritten = found == UNWRITTEN and following < 0
        yield segment.first_offset + position, DamagedRange(segment.first_offset + end, describe(found), is_unwritten)
        position = end


def _open(segment: SegmentFile, segment_bytes: int) -> LogWalk:
    walk = LogWalk(segment_bytes, 0)
    walk.open(str(segment.path), segment.first_offset)
    return walk
