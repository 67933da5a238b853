"""``headrace store inspect``: what a store holds, without reading the whole of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.errors import SideFileError
from headrace.format.record import check, decode
from headrace.store.log_check import Epochs
from headrace.store.reader import SegmentFile, StoreReader

_FIRST_RECORD_BYTES = 8 << 20


def inspect_store(root: Path) -> dict[str, Any]:
    """Return what a store holds; the keys are those of ``--json`` (docs/formats/store-check.md).

    Raises:
        StoreError, FormatVersionError: there is no store, or its identity cannot be read.
    """
    reader = StoreReader(root)
    directory = reader.directory
    epochs = _payload(reader, directory.epochs, "epochs") or [{"epoch": 1, "first_physical_offset": 0}]
    checkpoint = _payload(reader, directory.checkpoint, "checkpoint")
    mark, is_damaged = reader.durable_mark()
    identity = reader.identity
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
        "epoch": Epochs.of(epochs).newest,
        "epochs": epochs,
        "holes": _payload(reader, directory.holes, "holes") or [],
        "durable_mark": None if is_damaged else mark,
        "checkpoint": checkpoint,
        "segments": [_segment(reader, segment) for segment in reader.segments()],
        "topics": _topics(reader),
    }


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


def _topics(reader: StoreReader) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for queue in reader.queues():
        first, end = queue.extent()
        topics.setdefault(queue.topic, []).append({
            "queue_id": queue.queue_id, "min_offset": first, "next_offset": end, "entries": end - first,
            "files": len(queue.files()),
        })  # fmt: skip
    return topics
