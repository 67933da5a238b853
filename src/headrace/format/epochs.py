"""The epochs of a log: a recovery that cuts something off begins one, and the log goes on in a later file.

Physical offsets between the end of an epoch and the first offset of the next one are left out: a gap. An epoch whose
start ended before it made a file holds nothing; its gap and that of the next one touch, so whoever asks what was left
out goes from gap to gap (``Epochs.behind``).

Ref: docs/formats/side-files.md, "Side file".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch, as ``epochs.json`` has it.

    Attributes:
        number: From 1 on.
        first_offset: Physical offset at which it begins.
        previous_end: Where the log of the epoch before ended; None for the first.
        began_ms: None where nobody noted it.
        queue_ends: Queue offset behind the last issued one of each (topic, queue id) when it began.
    """

    number: int
    first_offset: int
    previous_end: int | None = None
    began_ms: int | None = None
    queue_ends: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Epoch:
        """Build from one row of the file."""
        return cls(
            int(row["epoch"]),
            int(row["first_physical_offset"]),
            _number_or_none(row.get("previous_end_offset")),
            _number_or_none(row.get("began_ms")),
            read_queue_ends(row),
        )

    def to_row(self) -> dict[str, Any]:
        """Return its row of the file."""
        row: dict[str, Any] = {"epoch": self.number, "first_physical_offset": self.first_offset}
        if self.previous_end is not None:
            row["previous_end_offset"] = self.previous_end
            if self.began_ms is not None:
                row["began_ms"] = self.began_ms
            row["queue_ends"] = queue_ends_row(self.queue_ends)
        return row


class Epochs:
    """Every epoch of one log, oldest first; there is at least one. Never changed.

    Attributes:
        gaps: Ranges [start, end) of physical offsets that were left out, in order.
    """

    def __init__(self, epochs: Sequence[Epoch] = ()) -> None:
        """Keep them; without any there is one, from 0 on."""
        self._epochs = tuple(epochs) or (Epoch(1, 0),)
        self.gaps = sorted((e.previous_end, e.first_offset) for e in self._epochs if e.previous_end is not None)

    @classmethod
    def of(cls, payload: Sequence[Mapping[str, Any]] | None) -> Epochs:
        """Build from the payload of ``epochs.json``, None where there is no such file."""
        return cls([Epoch.of(row) for row in payload or ()])

    def to_payload(self) -> list[dict[str, Any]]:
        """Return what ``epochs.json`` holds."""
        return [epoch.to_row() for epoch in self._epochs]

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self._epochs)

    @property
    def newest(self) -> Epoch:
        """The one that is written to."""
        return self._epochs[-1]

    @property
    def beginning(self) -> int:
        """Where the log began; what was imported may begin later than at 0."""
        return self._epochs[0].first_offset

    def begin(self, at: int, *, end: int, now_ms: int, queue_ends: Mapping[tuple[str, int], int]) -> Epochs:
        """Return these and one more.

        Args:
            at: Where it begins.
            end: Where the log of the newest one ended.
        """
        return Epochs([*self._epochs, Epoch(self.newest.number + 1, at, end, now_ms, queue_ends)])

    def behind(self, offset: int) -> int:
        """Return where the log goes on: at ``offset`` itself, or behind the gaps that it lies in or is led to."""
        for start, end in self.gaps:
            if start <= offset < end:
                offset = end
        return offset

    def is_gap(self, first: int, end: int) -> bool:
        """Whether all of a range was left out, by one epoch or by several in a row."""
        return end <= self.behind(first)

    def missing(self, runs: Iterable[tuple[int, int]], beginning: int) -> list[tuple[int, int]]:
        """Return the ranges from ``beginning`` to the last of ``runs`` that neither stand in one nor were left out."""
        found = []
        for start, end in runs:
            beginning = self.behind(beginning)
            if beginning < start:
                found.append((beginning, start))
            beginning = max(beginning, end)
        return found

    def ends_after(self, number: int) -> list[int]:
        """Return where the log ended each time when an epoch above ``number`` began."""
        return [e.previous_end for e in self._epochs if e.number > number and e.previous_end is not None]


def read_queue_ends(row: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return what a side file's row has as ``queue_ends``, by topic and queue id."""
    return {_queue_of(name): int(end) for name, end in row.get("queue_ends", {}).items()}


def queue_ends_row(ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return what a side file has as ``queue_ends``."""
    return {f"{topic}/{queue_id}": end for (topic, queue_id), end in ends.items()}


def noted_queue_ends(epochs: Epochs, checkpoint: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    """Return the queue offset behind the last issued one of each queue, as far as it is noted beside the queues' files.

    Args:
        checkpoint: The payload of ``checkpoint.json``, None where there is none.
    """
    ends = dict(epochs.newest.queue_ends)
    for key, end in read_queue_ends(checkpoint or {}).items():
        ends[key] = max(end, ends.get(key, 0))
    return ends


def _number_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _queue_of(name: str) -> tuple[str, int]:
    topic, _, queue_id = name.rpartition("/")
    return topic, int(queue_id)
