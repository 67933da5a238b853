"""Commands of the log of which a part was lost: what their first record says must not be believed as a whole.

A command is written a piece at a time, and what a crash of the process leaves of it is cut off by the next start. A
disk that loses power may keep a later page of it and not an earlier one; a start finds a hole then, with valid records
on both sides. What was durable may be damaged at the end of the log; a start gives that up and goes on behind it.
Records that speak of the messages behind them (``producer_log``, ``transactions``) are compared with both here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from headrace.format import record

if TYPE_CHECKING:
    from headrace.store.commit_log import CommitLog
    from headrace.store.store import Store


class Torn(NamedTuple):
    """A command of which something behind its first record was lost."""

    left: int
    """Its messages before what was lost, the first record not counted."""
    messages: int
    """All that there were, the first record not counted."""


def find_torn(store: Store, records: Callable[[], Iterable[tuple[int, int]]]) -> dict[int, Torn]:
    """Return which of some records, each the first of its command, have a hole in it.

    Args:
        records: Returns any number, under which it is returned, and the physical offset of each, in the order of the
            log; not called when nothing of the log was lost.
    """
    holes = sorted([*(hole.first_offset for hole in store.holes), *(start for start, _ in store.epochs.gaps)])
    torn: dict[int, Torn] = {}
    if not holes:
        return torn
    for (number, at), (_, end) in pairwise([*records(), (0, store.log.end_offset)]):
        index = bisect_left(holes, at)
        if index < len(holes) and holes[index] < end:
            found = _messages_before(store.log, at, holes[index])
            if found is not None:
                torn[number] = found
    return torn


def records_from(log: CommitLog, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield position and bytes of the record at a place of the log and of those behind it, up to what is no record."""
    while True:
        raw = log.read(at)
        if raw is None and at % log.segment_bytes:
            # No hole, so the rest of a segment that is not used.
            at = (at // log.segment_bytes + 1) * log.segment_bytes
            raw = log.read(at)
        if raw is None:
            return
        yield at, raw
        at += len(raw)


def _messages_before(log: CommitLog, at: int, hole: int) -> Torn | None:
    """Return what is left of the command that begins at ``at``; None when all of it stands before the hole."""
    raw = log.read(at)
    if raw is None:
        return None
    entries = int(record.properties_of(record.decode(raw)["properties"]).get("__BATCH#", "1"))
    left = sum(place < hole for place, _ in islice(records_from(log, at), entries))
    return Torn(max(left - 1, 0), entries - 1) if left < entries else None
