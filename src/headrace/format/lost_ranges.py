"""Ranges of a log without whole records, and the records that stood there, as far as somebody can name them.

The queue entries that still point into a range name its records; where none are read, the records' own fields do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.format import findings
from headrace.format.findings import Finding
from headrace.format.layout import segment_file


@dataclass(slots=True)
class LostRange:
    """A range of the log without whole records, with whole ones behind it.

    Attributes:
        first, end: Physical offsets, ``end`` exclusive.
        file: Which the finding about it names.
        claims: What the fields of the record at ``first`` say, as far as they add up.
        is_misplaced: That record is whole, and of another place.
        named: Records in it.
    """

    first: int
    end: int
    reason: str
    file: str
    claims: Mapping[str, Any] | None = None
    is_misplaced: bool = False
    named: list[Finding] = field(default_factory=list)


class LostRanges:
    """All of one log.

    Attributes:
        ranges: In the order of the log; none overlaps another.
    """

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self.ranges: list[LostRange] = []

    def add(self, lost: LostRange) -> None:
        """Add a range."""
        self.ranges.append(lost)
        self.ranges.sort(key=lambda known: known.first)

    def at(self, physical_offset: int) -> LostRange | None:
        """Return the range that holds an offset, None for an offset that is not lost."""
        index = bisect_right(self.ranges, physical_offset, key=lambda lost: lost.first) - 1
        if index >= 0 and physical_offset < self.ranges[index].end:
            return self.ranges[index]
        return None

    def name_claims(self, claims: Mapping[int, Mapping[str, Any]]) -> None:
        """Name damaged records by their own fields, which may be what is damaged."""
        for offset, claim in claims.items():
            lost = self.at(offset)
            if lost is not None:
                file = segment_file(offset, self._segment_bytes)
                lost.named.append(findings.claimed_record(claim, physical_offset=offset, reason=lost.reason, file=file))

    def name_entry(self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> bool:
        """Name a damaged record by the queue entry that points at it; False when its place is not lost."""
        lost = self.at(offset)
        if lost is None:
            return False
        lost.named.append(findings.damaged_record(
            topic, queue_id, queue_offset, physical_offset=offset, record_bytes=size,
            reason=lost.reason if offset == lost.first else "inside a damaged range",
            file=segment_file(offset, self._segment_bytes), is_misplaced=lost.is_misplaced and offset == lost.first,
        ))  # fmt: skip
        return True

    def findings(self) -> Iterator[Finding]:
        """Yield each range, and behind it the records in it that somebody has named."""
        for lost in self.ranges:
            yield findings.hole(lost.first, lost.end, lost.reason, lost.file)
            if lost.claims is not None and all(named.physical_offset != lost.first for named in lost.named):
                yield findings.claimed_record(
                    lost.claims, physical_offset=lost.first, reason=lost.reason, file=lost.file,
                    is_misplaced=lost.is_misplaced,
                )  # fmt: skip
            yield from sorted(lost.named, key=lambda named: named.physical_offset or 0)
