"""What the broker remembers of producers that send with an identity: records in the log, and a copy that saves reading.

Every change is a record of queue 0 of the internal topic HR_PRODUCERS, appended together with the messages that it is
about: one command of the log, so a crash leaves both or neither, at whatever level of durability. ``parts`` keep the
state that the records make (``producers``, ``staged``); each knows its own kinds of records.

A copy of the state is saved to ``headrace/producers.json`` now and then, once everything that it says is durable: a
copy that knew more than the log would take what is sent again for duplicates of messages that nobody has. A start loads
the copy and reads the records behind it. Where the end of the log was lost since, the copy does know more: then it is
passed over, and all records are read. Ref: docs/formats/producer-records.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from headrace.broker.exactly_once.key_set import FINGERPRINT_BYTES
from headrace.broker.queue_search import NO_RECORD, places_from
from headrace.broker.torn_commands import Torn, find_torn
from headrace.errors import SideFileError, StoreClosedError, StoreError
from headrace.format import record
from headrace.format.names import PRODUCER_TOPIC
from headrace.format.queue_entry import FILLER_BYTES
from headrace.format.side_file import read_side_file, write_side_file
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.batch import PublishBatch
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

KIND: Final = "producers"

SAVE_EVERY: Final = 10_000
"""Records after which the copy is saved."""
SAVE_AFTER_MS: Final = 60_000
"""Time after which it is saved if there was any record."""
RETRY_MS: Final = 10_000


@dataclass
class ProducerLogCounters:
    """Events since the start."""

    replayed: int = 0
    """Records that the start read behind the saved copy."""
    unreadable: int = 0
    """Records that could not be read: what they said is forgotten."""
    torn: int = 0
    """Records of whose messages a power cut took some."""
    save_errors: int = 0


class Part(Protocol):
    """One kind of state that the records make."""

    name: str
    """Its member of the saved copy."""
    ops: Sequence[str]
    """The kinds of records that are its own."""

    def apply(self, change: dict[str, Any], tail: bytes, number: int) -> None:
        """Take in a record that was appended or is read again; ``number`` is its queue offset."""

    def snapshot(self) -> Callable[[], Any]:
        """Return what makes the saved form of the state as it is now; called in a thread, and later."""

    def restore(self, saved: Any, read: Callable[[int], tuple[dict[str, Any], bytes] | None]) -> None:
        """Take up a saved form; ``read`` returns the record of a number."""


class ProducerLog:
    """The records of one broker and the copy of what they say. Add it to ``Broker.tickers``."""

    def __init__(self, broker: Broker, parts: Sequence[Part]) -> None:
        """Bring the parts up to the end of the log.

        Raises:
            SideFileError: the saved copy is damaged and the log no longer reaches back to the first record.
        """
        self.counters = ProducerLogCounters()
        self.parts = parts
        self.queue = broker.store.queue(PRODUCER_TOPIC, 0)
        # It is as durable as what stands beside it: nobody waits for the record itself.
        self.queue.awaits_flush = False
        self._broker = broker
        self._path = broker.store.directory.producers
        self._executor = Threads("headrace-producers")
        self._part_of = {op: part for part in parts for op in part.ops}
        self._is_saving = False
        self._is_failing = False  # the last save failed: named, and tried again
        self._is_closed = False
        self._unsaved = 0
        self._next_save_ms = -1
        self._torn: dict[int, Torn] = {}
        self._load()

    # -- opening ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        applied = self._restore()
        self._replay(self.queue.min_offset if applied is None else applied)
        # What is damaged or ahead of the log is replaced at once: else the next start, too, reads everything.
        self._unsaved = SAVE_EVERY if applied is None else self.counters.replayed

    def _restore(self) -> int | None:
        """Take up the saved copy; return up to which record it is, None where it is useless."""
        queue = self.queue
        try:
            saved = read_side_file(self._path, KIND, "restore it from a backup: the log no longer has every record")
        except SideFileError as error:
            if queue.min_offset > 0:
                raise
            logger.warning("state of producers damaged, made anew from the log error=%s", error)
            return None
        if saved is None:
            return queue.min_offset
        if self._is_ahead(saved):
            logger.warning(
                "state of producers speaks of what the log has lost, made anew from the log applied=%d "
                "first_queue_offset=%d",
                saved["applied"],
                queue.min_offset,
            )
            return None
        self._torn = self._find_torn_keys(saved)
        for part in self.parts:
            part.restore(saved.get(part.name), self.read)
        return int(saved["applied"])

    def _replay(self, applied: int) -> None:
        """Apply the records behind the saved copy; of those torn by a power cut, what is left."""
        torn = find_torn(self._broker.store, lambda: [(number, at) for number, at, _, _ in self._read_from(applied)])
        for number, _, change, tail in self._read_from(applied):
            self.counters.replayed += 1
            if number in torn:
                logger.error(
                    "part of a batch is lost, the rest of it may be stored twice queue_offset=%d op=%s left=%d of=%d",
                    number,
                    change.get("op"),
                    *torn[number],
                )
                self.counters.torn += 1
                _keep_first(change, torn[number])
                tail = tail[: torn[number].left * FINGERPRINT_BYTES]
            self._apply(change, tail, number)

    def _is_ahead(self, saved: dict[str, Any]) -> bool:
        """Whether the saved copy knows of records or messages that the log has lost since: its end was cut off.

        The number of the next record does not tell: a queue goes on above what it ever issued.
        """
        store = self._broker.store
        known_end = saved.get("log_end")
        if known_end is None:  # of a build that did not note it
            return bool(store.epochs.gaps) or saved["applied"] > self.queue.next_offset
        return bool(min([store.log.end_offset, *store.epochs.ends_after(saved["epoch"])]) < known_end)

    def _find_torn_keys(self, saved: dict[str, Any]) -> dict[int, Torn]:
        """Return which of the records that the saved copy names have lost some of their messages."""
        numbers = sorted({number for _, _, epochs in saved.get("keys") or () for _, some in epochs for number in some})

        def places() -> Iterator[tuple[int, int]]:
            return ((number, place) for number in numbers if (place := self._place_of(number)) != NO_RECORD)

        return find_torn(self._broker.store, places)

    def _place_of(self, number: int) -> int:
        """Return where the record of a number stands in the log, ``NO_RECORD`` where it is gone."""
        entries = self.queue.entries(number, 1) if number >= self.queue.min_offset else []
        return entries[0][0] if entries and entries[0][1] != FILLER_BYTES else NO_RECORD

    def _read_from(self, number: int) -> Iterator[tuple[int, int, dict[str, Any], bytes]]:
        """Yield the records from ``number`` on: number, physical offset, what it says, and its tail."""
        for found, place in places_from(self.queue, number):
            # Fillers stand for records that a crash took with what they were about.
            content = self._decode(found, place) if place != NO_RECORD else None
            if content is not None:
                yield found, place, *content

    def read(self, number: int) -> tuple[dict[str, Any], bytes] | None:
        """Return a record and what follows its first line; None if it cannot be read, which is counted and logged."""
        place = self._place_of(number)
        if place == NO_RECORD:
            self.counters.unreadable += 1
            logger.error("record of producers is gone queue_offset=%d", number)
            return None
        found = self._decode(number, place)
        if found is None or number not in self._torn:
            return found
        return found[0], found[1][: self._torn[number].left * FINGERPRINT_BYTES]

    def _decode(self, number: int, physical_offset: int) -> tuple[dict[str, Any], bytes] | None:
        raw = self._broker.store.log.read(physical_offset)
        if raw is not None:
            head, _, tail = record.decode(raw)["body"].partition(b"\n")
            try:
                change = msgspec.json.decode(head)
            except msgspec.DecodeError:
                change = None
            if isinstance(change, dict):
                return change, tail
        self.counters.unreadable += 1
        logger.error(
            "record of producers unreadable, what it said is lost queue_offset=%d physical_offset=%d",
            number,
            physical_offset,
        )
        return None

    def _apply(self, change: dict[str, Any], tail: bytes, number: int) -> None:
        part = self._part_of.get(change.get("op", ""))
        if part is None:
            self.counters.unreadable += 1
            logger.error("record of producers of an unknown kind queue_offset=%d op=%s", number, change.get("op"))
            return
        part.apply(change, tail, number)

    # -- appending --------------------------------------------------------------------------------------------------

    @staticmethod
    def encode(change: dict[str, Any], tail: bytes = b"") -> bytes:
        """Return the body of a record: one line of JSON, then ``tail``."""
        head = msgspec.json.encode(change)
        return b"%b\n%b" % (head, tail) if tail else head

    def append(
        self,
        batch: PublishBatch,
        queues: Sequence[QueueBase],
        topics: Sequence[Topic | None],
        change: dict[str, Any],
        tail: bytes = b"",
        *,
        is_waited_for: bool = False,
    ) -> int:
        """Append a batch whose entry 0 is the record of ``change``, and apply that.

        Args:
            queues: Of the destinations from 1 on; destination 0 is the record's.
            topics: The same, None for a queue that belongs to no topic.
            is_waited_for: As ``Broker.publish_placed`` has it.

        Returns:
            The physical offset that must be durable before the producer is answered; 0 to answer at once.

        Raises:
            RequestError, StoreError: nothing was appended, and nothing is changed.
        """
        batch.destinations = [PRODUCER_TOPIC, *(queue.topic for queue in queues)]
        batch.queues = [self.queue, *queues]
        number = self.queue.next_offset
        wait = self._broker.publish_placed(batch, [None, *topics], is_waited_for=is_waited_for)
        self._unsaved += 1
        self._apply(change, tail, number)
        return wait

    # -- the saved copy ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Save the copy when enough has changed."""
        if not self._unsaved or self._is_saving:
            return
        mono_ms = self._broker.clock.monotonic_ms()
        if self._next_save_ms < 0:
            self._next_save_ms = mono_ms + SAVE_AFTER_MS
        if mono_ms < self._next_save_ms and (self._is_failing or self._unsaved < SAVE_EVERY):
            return
        self._is_saving = True
        self._next_save_ms = -1
        payload = self._snapshot()
        unsaved = self._unsaved
        self._unsaved = 0

        def opened(error: StoreError | None) -> None:
            if error is not None or self._is_closed:
                self._saved(unsaved, error or StoreClosedError("the broker stops"))
                return
            self._executor.submit(self._save, payload, unsaved)

        self._broker.store.gate.wait(self._broker.store.log.end_offset, opened)

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        """Take the state as it is now; the rest is for a thread."""
        store = self._broker.store
        known = {"applied": self.queue.next_offset, "epoch": store.epoch, "log_end": store.log.end_offset}
        makers = [(part.name, part.snapshot()) for part in self.parts]
        return lambda: known | {name: make() for name, make in makers}

    def _save(self, payload: Callable[[], dict[str, Any]], unsaved: int) -> None:
        failure: Exception | None = None
        try:
            write_side_file(self._path, KIND, payload())
        except OSError as error:
            failure = error
        except Exception as error:
            logger.exception("state of producers not saved by a bug")
            failure = error
        self._broker.store.notify(lambda: self._saved(unsaved, failure))

    def _saved(self, unsaved: int, error: Exception | None) -> None:
        self._is_saving = False
        if error is None:
            self._is_failing = False
            return
        if self._is_closed:
            return  # ``close`` saves everything
        # The log has every record: the next start reads more of it.
        self._unsaved += unsaved
        self.counters.save_errors += 1
        self._next_save_ms = self._broker.clock.monotonic_ms() + RETRY_MS
        if not self._is_failing:
            logger.warning("state of producers not saved, tried again later error=%s", error)
        self._is_failing = True

    def wait_for_file(self) -> None:
        """Return when a save that is under way has ended. Blocks: for tools and tests."""
        self._executor.submit(lambda: None).result()

    def close(self) -> None:
        """Save the copy. Blocks."""
        self._is_closed = True
        self._executor.shutdown(wait=True)
        if not self._unsaved and not self._is_saving:
            return
        try:
            self._broker.store.flush()
            write_side_file(self._path, KIND, self._snapshot()())
        except (StoreError, OSError) as error:
            logger.error("state of producers not saved, the next start reads more of the log error=%s", error)


def _keep_first(change: dict[str, Any], torn: Torn) -> None:
    """Make a record speak of the messages that are left: the others are sent again, or delivered again."""
    if "count" in change:
        change["count"] = torn.left
    elif change.get("op") == "progress":
        change["done"] = max(0, change["done"] - (torn.messages - torn.left))
