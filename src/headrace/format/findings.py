"""What is found in a store's files: one function for each kind that ``store check`` and ``job verify`` both find.

The two walk a log in their own ways, one in a single pass, the other in tasks beside each other. What they say of the
same damage is the same: the kinds, their meaning and these sentences are what users search for.

Ref: docs/formats/store-check.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing found; what does not apply is None. The kinds are listed in docs/formats/store-check.md."""

    kind: str
    message: str
    file: str | None = None
    """Path below the store's folder."""
    broker: str | None = None
    """Whose log it is, where several are looked at."""
    physical_offset: int | None = None
    end_offset: int | None = None
    """Physical offset behind the range."""
    record_bytes: int | None = None
    reason: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int | None = None
    """How many queue offsets, from ``queue_offset`` on."""
    channel: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that apply."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


# -- the log -----------------------------------------------------------------------------------------------------------


def missing_segment(first: int, end: int, file: str | None = None) -> Finding:
    """Say that physical offsets [first, end) are in no file; ``file`` is the one behind them."""
    return Finding(
        kind="missing_segment", file=file, physical_offset=first, end_offset=end,
        message=f"the log has no bytes {first} to {end}: a segment file is missing",
    )  # fmt: skip


def segment_size(file: str, found_bytes: int, segment_bytes: int, first_offset: int) -> Finding:
    """Say that a file of the log has another length."""
    return Finding(
        kind="segment_size", file=file, physical_offset=first_offset,
        message=f"{file} is {found_bytes} bytes long instead of {segment_bytes}",
    )  # fmt: skip


def durable_loss(end: int, durable: int, *, noted_as: str) -> Finding:
    """Say that the log ends before what was durable; ``noted_as`` is how whoever says so calls it."""
    return Finding(
        kind="durable_loss", physical_offset=end, end_offset=durable,
        message=f"the log ends at {end} below {noted_as} {durable}: {durable - end} bytes that were durable are lost",
    )  # fmt: skip


def checkpoint_beyond_log(checkpoint: int, end: int) -> Finding:
    """Say that the log ends before the checkpoint."""
    return Finding(
        kind="checkpoint_beyond_log", file="headrace/checkpoint.json", physical_offset=checkpoint, end_offset=end,
        message=f"the checkpoint stands at {checkpoint}, the log ends at {end}",
    )  # fmt: skip


def hole(first: int, end: int, reason: str, file: str) -> Finding:
    """Say that physical offsets [first, end) are damaged."""
    return Finding(
        kind="hole", physical_offset=first, end_offset=end, reason=reason, file=file,
        message=f"bytes {first} to {end} of the log hold no whole record: {reason}",
    )  # fmt: skip


def damaged_record(
    topic: str, queue_id: int, queue_offset: int, *, physical_offset: int, record_bytes: int, reason: str, file: str,
    is_misplaced: bool = False,
) -> Finding:  # fmt: skip
    """Name a damaged record by the queue entry that points at it."""
    return Finding(
        kind="misplaced_record" if is_misplaced else "damaged_record", physical_offset=physical_offset,
        record_bytes=record_bytes, reason=reason, file=file, topic=topic, queue_id=queue_id, queue_offset=queue_offset,
        message=f"record {queue_offset} of {topic}/{queue_id} at {physical_offset}, {record_bytes} bytes: {reason}",
    )  # fmt: skip


def claimed_record(
    claims: Mapping[str, Any], *, physical_offset: int, reason: str, file: str, is_misplaced: bool = False
) -> Finding:
    """Name a damaged record by its own fields, which may be what is damaged."""
    topic, queue_id, queue_offset = claims["topic"], claims["queue_id"], claims["queue_offset"]
    if is_misplaced:
        reason = f"{reason}: {claims['physical_offset']}"
    return Finding(
        kind="misplaced_record" if is_misplaced else "damaged_record", physical_offset=physical_offset,
        record_bytes=claims["record_bytes"], reason=reason, file=file, topic=topic, queue_id=queue_id,
        queue_offset=queue_offset,
        message=f"record at {physical_offset}, by its own fields {queue_offset} of {topic}/{queue_id}: {reason}",
    )  # fmt: skip


# -- the queues --------------------------------------------------------------------------------------------------------


def add_to_runs(runs: list[list[int]], queue_offset: int) -> None:
    """Add a queue offset, which come in order, to the runs [first, count] of those next to each other."""
    if runs and sum(runs[-1]) == queue_offset:
        runs[-1][1] += 1
    else:
        runs.append([queue_offset, 1])


def repeated_queue_offset(
    topic: str, queue_id: int, queue_offset: int, *, physical_offset: int, record_bytes: int | None = None,
    file: str | None = None,
) -> Finding:  # fmt: skip
    """Say that a record has a queue offset that was taken."""
    return Finding(
        kind="repeated_queue_offset", physical_offset=physical_offset, record_bytes=record_bytes, file=file,
        topic=topic, queue_id=queue_id, queue_offset=queue_offset,
        message=f"record at {physical_offset} has queue offset {queue_offset} of {topic}/{queue_id}, which a record "
        "before it has too",
    )  # fmt: skip


def wrong_entry(
    topic: str, queue_id: int, queue_offset: int, *, physical_offset: int, record_bytes: int, reason: str,
    file: str | None = None,
) -> Finding:  # fmt: skip
    """Say that the entry of a record is not what it must be."""
    return Finding(
        kind="wrong_entry", physical_offset=physical_offset, record_bytes=record_bytes, reason=reason, topic=topic,
        queue_id=queue_id, queue_offset=queue_offset, file=file,
        message=f"entry {queue_offset} of {topic}/{queue_id} does not point at its record at {physical_offset} of "
        f"{record_bytes} bytes: {reason}",
    )  # fmt: skip


def stray_entry(
    topic: str, queue_id: int, queue_offset: int, *, physical_offset: int, record_bytes: int, file: str | None = None
) -> Finding:
    """Say that an entry points at a place without such a record."""
    return Finding(
        kind="wrong_entry", physical_offset=physical_offset, record_bytes=record_bytes, topic=topic,
        queue_id=queue_id, queue_offset=queue_offset, file=file, reason="no such record there",
        message=f"entry {queue_offset} of {topic}/{queue_id} points at {physical_offset}, where the log has no such "
        "record",
    )  # fmt: skip


def missing_entries(topic: str, queue_id: int, queue_offset: int, count: int, file: str | None = None) -> Finding:
    """Say that records have no entry."""
    return Finding(
        kind="missing_entries", topic=topic, queue_id=queue_id, queue_offset=queue_offset, count=count, file=file,
        message=f"{count} entries from {queue_offset} on are missing in {topic}/{queue_id}; the next start rebuilds "
        "the queues from the log",
    )  # fmt: skip


def missing_records(topic: str, queue_id: int, queue_offset: int, count: int, file: str | None = None) -> Finding:
    """Say that nothing is left of queue offsets that were issued."""
    return Finding(
        kind="missing_records", topic=topic, queue_id=queue_id, queue_offset=queue_offset, count=count, file=file,
        message=f"{count} queue offsets from {queue_offset} on of {topic}/{queue_id} have neither record nor entry",
    )  # fmt: skip


def skipped_offsets(topic: str, queue_id: int, queue_offset: int, count: int, file: str | None = None) -> Finding:
    """Say that queue offsets have fillers."""
    return Finding(
        kind="skipped_offsets", topic=topic, queue_id=queue_id, queue_offset=queue_offset, count=count, file=file,
        message=f"{count} queue offsets from {queue_offset} on of {topic}/{queue_id} were given up by a recovery",
    )  # fmt: skip


def entries_beyond_log(topic: str, queue_id: int, queue_offset: int, count: int, file: str | None = None) -> Finding:
    """Say that entries point behind the end of the log: unfinished business unless the store was closed."""
    return Finding(
        kind="entries_beyond_log", topic=topic, queue_id=queue_id, queue_offset=queue_offset, count=count, file=file,
        message=f"{count} entries from {queue_offset} on of {topic}/{queue_id} point behind the end of the log",
    )  # fmt: skip


def missing_queue_file(topic: str, queue_id: int, file: str) -> Finding:
    """Say that a queue has no file right before one."""
    return Finding(
        kind="missing_queue_file", file=file, topic=topic, queue_id=queue_id,
        message=f"a file is missing before {file}",
    )  # fmt: skip


def queue_file_name(topic: str, queue_id: int, file: str, file_bytes: int) -> Finding:
    """Say that a file of a queue is named as no such file can be."""
    return Finding(
        kind="queue_file_name", file=file, topic=topic, queue_id=queue_id,
        message=f"{file} is not a multiple of the file size {file_bytes}",
    )  # fmt: skip


def queue_file_size(topic: str, queue_id: int, file: str, found_bytes: int, file_bytes: int) -> Finding:
    """Say that a file of a queue has another length: one that is too short is damage in a closed store, no other is."""
    harmless = "; what is behind is never read" if found_bytes > file_bytes else ""
    return Finding(
        kind="queue_file_size", file=file, topic=topic, queue_id=queue_id,
        message=f"{file} is {found_bytes} bytes long instead of {file_bytes}{harmless}",
    )  # fmt: skip


# -- side files --------------------------------------------------------------------------------------------------------


def unusable_mark(reason: str) -> Finding:
    """Say that nothing tells how far the log was durable; ``reason`` is ``damaged`` or ``missing``."""
    return Finding(
        kind="side_file", file="headrace/durable", reason=reason,
        message=f"headrace/durable is {reason}; the next start sets it anew, loss cannot be told from a torn tail",
    )  # fmt: skip


def rocketmq_checkpoint_size(found_bytes: int, checkpoint_bytes: int) -> Finding:
    """Say that RocketMQ's checkpoint has another length."""
    return Finding(
        kind="side_file", file="checkpoint", reason="wrong length",
        message=f"checkpoint is {found_bytes} bytes long instead of {checkpoint_bytes}; only RocketMQ reads it",
    )  # fmt: skip
