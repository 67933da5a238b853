"""Ranges of a log without whole records, and the records that stood there, as far as somebody can name them.

The queue entries that still point into a range name its records; where none are read, the records' own fields do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
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
        claims: What the fields of the record at ``first`` say, as far as they add up.
        named: Records in it, by physical offset.
    """

    first: int
    end: int
    reason: str
    claims: dict[str, Any] | None = None
    named: dict[int, Finding] = field(default_factory=dict)


class LostRanges:
    """All of one log, in its order."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._ranges: list[LostRange] = []

    def __iter__(self) -> Iterator[LostRange]:
        return iter(self._ranges)

    def add(self, lost: LostRange) -> None:
        """Add a range; none overlaps another."""
        self._ranges.append(lost)
        self._ranges.sort(key=lambda known: known.first)

    def at(self, physical_offset: int) -> LostRange | None:
        """Return the range that holds an offset, None for an offset that is not lost."""
        index = bisect_right(self._ranges, physical_offset, key=lambda lost: lost.first) - 1
        if index >= 0 and physical_offset < self._ranges[index].end:
            return self._ranges[index]
        return None

    def name_claims(self, claims: dict[int, dict[str, Any]]) -> None:
        """Name damaged records by their own fields, which may be what is damaged."""
        for offset, claim in claims.items():
            lost = self.at(offset)
            if lost is not None:
                lost.named[offset] = self._claimed(lost, claim, offset)

    def name_entry(self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> bool:
        """Name a damaged record by the queue entry that points at it; False when its place is not lost."""
        lost = self.at(offset)
        if lost is None:
            return False
        lost.named[offset] = findings.damaged_record(
            topic, queue_id, queue_offset, physical_offset=offset, record_bytes=size,
            reason=lost.reason if offset == lost.first else "inside a damaged range", file=self._segment_at(offset),
        )  # fmt: skip
        return True

    def _claimed(self, lost: LostRange, claim: dict[str, Any], offset: int) -> Finding:
        file = self._segment_at(offset)
        return findings.claimed_record(claim, physical_offset=offset, reason=lost.reason, file=file)

    def findings(self) -> Iterator[Finding]:
        """Yield each range, and behind it the records in it that somebody has named."""
        for lost in self._ranges:
            yield findings.hole(lost.first, lost.end, lost.reason, self._segment_at(lost.first))
            if lost.first not in lost.named and lost.claims is not None:
                lost.named[lost.first] = self._claimed(lost, lost.claims, lost.first)
            yield from (lost.named[offset] for offset in sorted(lost.named))

    def _segment_at(self, physical_offset: int) -> str:
        return segment_file(physical_offset, self._segment_bytes)
