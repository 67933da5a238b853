"""``headrace store inspect``: what a store holds, without reading the whole of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import SideFileError
from headrace.format.epochs import Epochs, noted_queue_ends
from headrace.format.names import CONTROL_TOPIC
from headrace.format.record import check, decode
from headrace.store import log_walk
from headrace.store.index_check import inspect_index
from headrace.store.log_walk import LogWalk
from headrace.store.reader import SegmentFile, StoreReader

_FIRST_RECORD_BYTES = 8 << 20


def inspect_store(root: Path) -> tuple[dict[str, Any], Tail]:
    """Return what a store holds, and what of it lies behind the checkpoint.

    The keys are those of ``--json`` (docs/formats/store-check.md).

    Raises:
        StoreError, FormatVersionError: there is no store, or its identity cannot be read.
    """
    reader = StoreReader(root)
    directory = reader.directory
    epochs = Epochs.of(_payload(reader, directory.epochs, "epochs"))
    checkpoint = _payload(reader, directory.checkpoint, "checkpoint")
    index_note = _payload(reader, directory.index_note, "index")
    mark, is_damaged = reader.durable_mark()
    identity = reader.identity
    tail = read_tail(reader, checkpoint["physical_offset"] if checkpoint else 0)
    return {
        "directory": str(root),
        "state": reader.state(),
        "identity": {
            "store_id": identity.store_id,
            "format_version": identity.format_version,
            "segment_bytes": identity.segment_bytes,
            "queue_file_bytes": reader.queue_file_bytes,
            "created_ms": identity.created_ms,
        },
        "epoch": epochs.newest.number,
        "epochs": epochs.to_payload(),
        "holes": _payload(reader, directory.holes, "holes") or [],
        "durable_mark": None if is_damaged else mark,
        "checkpoint": checkpoint,
        "segments": [_segment(reader, segment) for segment in reader.segments()],
        "index": None if index_note is None else inspect_index(reader, index_note),
        "topics": _topics(reader, tail, noted_queue_ends(epochs, checkpoint)),
        "unreadable": tail.unreadable,
    }, tail


def _payload(reader: StoreReader, path: Path, kind: str) -> Any:
    """Return a side file's payload, None where it is damaged: ``check`` is what judges."""
    try:
        return reader.side_file(path, kind)
    except SideFileError:
        return None


def _segment(reader: StoreReader, segment: SegmentFile) -> dict[str, Any]:
    """Describe one segment by its first record."""
    first_ms = None
    try:
        with segment.path.open("rb", buffering=0) as file:
            head = os.pread(file.fileno(), min(_FIRST_RECORD_BYTES, segment.size_bytes), 0)
            allocated = os.fstat(file.fileno()).st_blocks * 512
    except FileNotFoundError:
        head, allocated = b"", 0
    if check(head, 0, segment.first_offset, False) > 0:
        first_ms = decode(head)["store_timestamp_ms"]
    return {
        "file": reader.name_of(segment.path),
        "first_offset": segment.first_offset,
        "size_bytes": segment.size_bytes,
        "allocated_bytes": allocated,
        "first_store_timestamp_ms": first_ms,
        "is_used": first_ms is not None,
    }


@dataclass(slots=True)
class Tail:
    """What the log has behind the checkpoint: its queues' files may not have it yet."""

    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    control: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Queue offset, physical offset and body of control records."""
    unreadable: list[str] = field(default_factory=list)
    """What a failed read leaves out, a sentence for each segment."""


def read_tail(reader: StoreReader, from_offset: int) -> Tail:
    """Walk the log from a physical offset at which a record begins to its end; damage is stepped over."""
    size = reader.identity.segment_bytes
    walk = LogWalk(size, 0)
    tail = Tail()
    for segment in reader.segments():
        if segment.first_offset + size > from_offset:
            with suppress(FileNotFoundError):
                walk.open(str(segment.path), segment.first_offset)
                walk.seek(max(0, from_offset - segment.first_offset))
                if _walk_segment(walk, tail) == log_walk.UNREADABLE:
                    tail.unreadable.append(
                        f"{reader.name_of(segment.path)} cannot be read from physical offset "
                        f"{segment.first_offset + walk.position} on: {os.strerror(walk.read_errno())}"
                    )
    for index in range(walk.track_count):
        topic, queue_id = walk.name(index)
        tail.next_offsets[topic.decode("utf-8", "replace"), queue_id] = walk.totals(index)[0]
    walk.close()
    return tail


def _walk_segment(walk: LogWalk, tail: Tail) -> int:
    """Walk one segment as far as its records can be found; return ``UNREADABLE`` where a read failed, else ``END``."""
    while (event := walk.walk()) != log_walk.END:
        if event == log_walk.NEW_QUEUE:
            record = walk.claims(walk.position)
            if record is None:
                return log_walk.UNREADABLE if walk.read_errno() else log_walk.END
            walk.add_queue(record["topic"].encode(), record["queue_id"])
        elif event == log_walk.FETCH:
            # Nothing is compared here: entries of zeros count as not yet written.
            is_control = walk.name(walk.track)[0] == CONTROL_TOPIC.encode()
            if is_control and (record := walk.claims(walk.position)) is not None:
                tail.control.append((walk.queue_offset, walk.first_offset + walk.position, record["body"]))
            walk.put_entries(walk.track, walk.queue_offset, bytes(20 if is_control else 20 * 4096))
        elif event == log_walk.GAP:
            walk.accept_offset(walk.track, walk.queue_offset)
        elif event == log_walk.REPEAT:
            walk.skip_record()
        elif event == log_walk.INVALID:
            position = walk.find(walk.position + 1)
            if position < 0:
                return log_walk.UNREADABLE if walk.read_errno() else log_walk.END
            walk.seek(position)
        elif event == log_walk.UNREADABLE:
            return event
    return log_walk.END


def _topics(
    reader: StoreReader, tail: Tail, noted_ends: Mapping[tuple[str, int], int]
) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    queues = {(queue.topic, queue.queue_id): queue for queue in reader.queues()}
    for key in sorted(tail.next_offsets.keys() - queues.keys()):
        queues[key] = reader.queue(*key)
    for key, queue in sorted(queues.items()):
        first, end = queue.extent()
        end = max(end, tail.next_offsets.get(key, 0), noted_ends.get(key, 0))
        topics.setdefault(queue.topic, []).append({
            "queue_id": queue.queue_id, "min_offset": first, "next_offset": end, "entries": end - first,
            "files": len(queue.files()),
        })  # fmt: skip
    return topics
