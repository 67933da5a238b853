"""The report of a check of a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headrace.format.findings import Finding
from headrace.store.reader import CLOSED

WHOLE: Final = 0
DAMAGED: Final = 1
UNREADABLE: Final = 2

STATUS: Final = {WHOLE: "whole", DAMAGED: "damaged", UNREADABLE: "unreadable"}


@dataclass(kw_only=True)
class LogSummary:
    """The extent of the commit log."""

    first_offset: int = 0
    end_offset: int = 0
    durable_mark: int = 0
    checkpoint_offset: int = 0
    epoch: int = 1
    segments: int = 0
    records: int = 0
    checked_bytes: int = 0


@dataclass(kw_only=True)
class QueueSummary:
    """The consume queues."""

    topics: int = 0
    queues: int = 0
    entries: int = 0
    pending_entries: int = 0


@dataclass(kw_only=True)
class IndexSummary:
    """The key index, as far as it was noted."""

    files: int = 0
    keys: int = 0
    damaged_files: int = 0
    indexed_offset: int = 0


@dataclass(kw_only=True)
class ChannelSummary:
    """Topics and channels as the broker knows them."""

    topics: int = 0
    channels: int = 0
    journal_records: int = 0


@dataclass(kw_only=True)
class CheckReport:
    """The result of ``headrace store check``."""

    directory: str
    state: str = CLOSED
    """``closed`` cleanly, ``open`` in a living broker, or ``crashed``: not closed, nobody has it open."""
    store_id: str = ""
    format_version: int = 0
    segment_bytes: int = 0
    log: LogSummary = field(default_factory=LogSummary)
    queues: QueueSummary = field(default_factory=QueueSummary)
    index: IndexSummary = field(default_factory=IndexSummary)
    channels: ChannelSummary = field(default_factory=ChannelSummary)
    damage: list[Finding] = field(default_factory=list)
    info: list[Finding] = field(default_factory=list)
    control: list[tuple[int, int, bytes]] = field(default_factory=list, repr=False)
    """Queue offset, physical offset and body of every whole control record: for checks of a higher layer."""
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    """Queue offset behind the last issued one of a topic's queue, by topic and queue id: the same."""
    error: str | None = None
    """Why the store cannot be read at all."""
    seconds: float = 0.0

    def note_queue_end(self, topic: str, queue_id: int, end: int) -> None:
        """Note that the offsets of a queue below ``end`` were issued."""
        self.queue_ends[topic, queue_id] = max(end, self.queue_ends.get((topic, queue_id), 0))

    def add_unfinished(self, finding: Finding) -> None:
        """Add what a kill or a power cut leaves: it is damage only in a store that was closed."""
        (self.damage if self.state == CLOSED else self.info).append(finding)

    @property
    def exit_code(self) -> int:
        """0 whole, 1 damaged but readable, 2 unreadable."""
        if self.error is not None:
            return UNREADABLE
        return DAMAGED if self.damage else WHOLE

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "directory": self.directory,
            "status": STATUS[self.exit_code],
            "exit_code": self.exit_code,
            "error": self.error,
            "state": self.state,
            "store_id": self.store_id,
            "format_version": self.format_version,
            "segment_bytes": self.segment_bytes,
            "log": asdict(self.log),
            "queues": asdict(self.queues),
            "index": asdict(self.index),
            "channels": asdict(self.channels),
            "damage": [finding.to_json() for finding in self.damage],
            "info": [finding.to_json() for finding in self.info],
            "seconds": round(self.seconds, 3),
        }
