"""Transactions that were given up: what their producers may still decide, since RocketMQ delivers on a late commit.

Every change is a record of queue 0 of the internal topic HR_GIVEN_UP, in the command that it belongs to: that a
transaction was given up, or what was decided about it later. ``Transactions`` writes them; this is what they say. Only
the last MAX_RECORDS count, in memory as at a start: that bounds both. Ref: docs/formats/transactions.md, "Given up".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.broker.queue_search import NO_RECORD, places_from
from headrace.broker.torn_commands import find_torn
from headrace.format import record
from headrace.format.names import GIVEN_UP_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.store.store import Store

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 100_000
"""Records that count: some 150 bytes of memory each, and a second of a start."""

GIVE_UP: Final = "give_up"
DECIDE: Final = "decide"


class GivenUp:
    """The transactions of one broker that were given up and not decided since, by their first half message.

    Attributes:
        queue: Where the records stand.
        torn: Decisions that a start found without the message that was written with them; they do not count.
    """

    def __init__(self, store: Store) -> None:
        self.queue = store.queue(GIVEN_UP_TOPIC, 0)
        # It is as durable as what stands beside it: nobody waits for the record itself.
        self.queue.awaits_flush = False
        self.torn = 0
        self._store = store
        # The number of each one's record by the queue offset of its first half message, in the order of the records.
        self._number_of: dict[int, int] = {}
        self._load()

    def _load(self) -> None:
        start = self._oldest
        torn = find_torn(self._store, lambda: list(self._places_from(start)))
        undone: set[int] = set()
        for number, change in self._read_from(start):
            first_offset = change.get("half")
            if not isinstance(first_offset, int):
                continue
            if change.get("op") == GIVE_UP:
                self.add(first_offset, number)
            elif number in torn:
                undone.add(first_offset)
            else:
                undone.discard(first_offset)
                self.discard(first_offset)
        for first_offset in undone:
            logger.error("what followed from a decision is lost, it may come again half_offset=%d", first_offset)
        self.torn = len(undone)

    @property
    def _oldest(self) -> int:
        return max(self.queue.min_offset, self.queue.next_offset - MAX_RECORDS)

    def _places_from(self, number: int) -> Iterator[tuple[int, int]]:
        """Return number and physical offset of the records; fillers stand for what a crash took with its command."""
        return (place for place in places_from(self.queue, number) if place[1] != NO_RECORD)

    def _read_from(self, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and content of the records that can be read."""
        for found, physical_offset in self._places_from(number):
            raw = self._store.log.read(physical_offset)
            try:
                change = None if raw is None else msgspec.json.decode(record.decode(raw)["body"])
            except msgspec.DecodeError:
                change = None
            if isinstance(change, dict):
                yield found, change
            else:
                logger.error("record of a transaction lost topic=%s queue_offset=%d", GIVEN_UP_TOPIC, found)

    @staticmethod
    def encode(op: str, first_offset: int) -> bytes:
        """Return the body of a record."""
        return msgspec.json.encode({"op": op, "half": first_offset})

    def __contains__(self, first_offset: int) -> bool:
        number = self._number_of.get(first_offset)
        return number is not None and number >= self._oldest

    def add(self, first_offset: int, number: int) -> None:
        """Note that a transaction was given up, which the record of a number says."""
        self._number_of.pop(first_offset, None)
        self._number_of[first_offset] = number
        while self._number_of[oldest := next(iter(self._number_of))] < self._oldest:
            del self._number_of[oldest]

    def discard(self, first_offset: int) -> None:
        """Note that a transaction was decided."""
        self._number_of.pop(first_offset, None)
