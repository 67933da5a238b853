"""The control records: every change to what topics and channels exist, written to the log before it is made.

Also keeps the catalog they build up, and saves it now and then so that a start replays little.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from headrace.batch import PublishBatch
from headrace.broker.catalog import Catalog
from headrace.broker.queue_search import NO_RECORD, places_from
from headrace.clock import Clock
from headrace.errors import SideFileError
from headrace.format import record
from headrace.format.names import CONTROL_TOPIC
from headrace.format.side_file import read_side_file, write_side_file
from headrace.log_pace import Trouble
from headrace.store.store import Store

logger = logging.getLogger(__name__)


SAVE_EVERY: Final = 1000
"""Control records after which the catalog is saved, or as many as there are channels if that is more."""

RETRY_MS: Final = 10_000
SLICE: Final = 5_000
"""Topics and channels of the catalog that are encoded in one tick, some 4 ms."""
IN_ONE_GO: Final = 4
"""Times as many changes as it is saved after: then they come all the time, and it is encoded in one go."""

_FROM_RESERVE: Final = frozenset(
    ("pause_topic", "pause_channel", "empty_topic", "empty_channel", "delete_topic", "delete_channel")
)
"""What is asked for by hand, also where the log has no room for messages: a channel must go on then."""


class ControlRecords:
    """The control topic of one store and the catalog it stands for."""

    def __init__(self, store: Store, executor: ThreadPoolExecutor, clock: Clock) -> None:
        """Load the catalog: its saved form, then the control records behind it.

        Raises:
            SideFileError: the saved form is damaged and the log no longer reaches back to the first change.
            OSError: it is ahead of the log, and that it is not any more cannot be written.
        """
        self.catalog = Catalog()
        self.last_change = 0
        self.errors = 0
        self._store = store
        self._executor = executor
        self._clock = clock
        self._queue = store.queue(CONTROL_TOPIC, 0)
        self._queue.awaits_flush = True
        self._unsaved = 0
        self._next_save_ms = 0
        self._encoded: list[bytes] = []
        self._encoding: Iterator[tuple[bytes, bool]] | None = None  # the rest of it
        self._encoded_offset = 0  # up to where it was applied when that was begun
        self._trouble = Trouble(logger)
        self._load()

    def _load(self) -> None:
        path = self._store.directory.catalog
        queue = self._queue
        try:
            payload = read_side_file(
                path, "catalog", "where the log has not every change any more, restore it from a backup"
            )
            if payload is not None:
                self.catalog = Catalog.from_payload(payload)
        except SideFileError as error:
            if queue.min_offset > 0:
                raise
            logger.warning("catalog damaged, rebuilt from the log error=%s", error)
        if self.catalog.applied_offset > queue.next_offset:
            logger.warning(
                "catalog ahead of the log, clamped applied=%d end=%d", self.catalog.applied_offset, queue.next_offset
            )
            self.catalog.applied_offset = queue.next_offset
            self.save()  # now: the next start would take as many changes from now on for applied
        for queue_offset, physical_offset in places_from(queue, self.catalog.applied_offset):
            if physical_offset != NO_RECORD or self._store.has_losses:  # else cut off, and was not answered
                self._replay(queue_offset, physical_offset)
            self.catalog.applied_offset = queue_offset + 1

    def _replay(self, queue_offset: int, physical_offset: int) -> None:
        raw = self._store.log.read(physical_offset)
        if raw is None:
            logger.error("control record unreadable, its change is lost queue_offset=%d", queue_offset)
            return
        self.catalog.apply(msgspec.json.decode(record.decode(raw)["body"]), physical_offset)

    def write(self, change: dict[str, Any]) -> int:
        """Write one change, apply it to the catalog and return its record's physical offset.

        ``last_change`` is then the offset whose durability the answer has to wait for.

        Raises:
            StoreFullError, FlushError, StoreClosedError: nothing was changed.
        """
        batch = PublishBatch()
        batch.destinations = [CONTROL_TOPIC]
        batch.queues = [self._queue]
        batch.uses_reserve = change["op"] in _FROM_RESERVE
        batch.append(msgspec.json.encode(change))
        self.last_change = self._store.append(batch)
        key = batch.placed(0)[0]
        self.catalog.apply(change, key)
        self.catalog.applied_offset = self._queue.next_offset
        self._unsaved += 1
        self._store.request_flush()
        return key

    def tick(self, channels: int) -> None:
        """Save the catalog in a thread when enough has changed.

        It is encoded here, a slice in a tick: the thread must not see it change. If it has changed since the last
        slice, that begins anew.
        """
        wanted = max(SAVE_EVERY, channels)
        if self._unsaved < wanted or self._store.durable_offset < self.last_change:
            return
        if self._encoding is None or self._encoded_offset != self.catalog.applied_offset:
            now = self._clock.monotonic_ms()
            if self._encoding is None and now < self._next_save_ms:
                return
            self._next_save_ms = now + RETRY_MS
            self._encoded, self._encoding = [], self.catalog.encode_slices(SLICE)
            self._encoded_offset = self.catalog.applied_offset
        for part, is_last in self._encoding:
            self._encoded.append(part)
            if not is_last and self._unsaved < IN_ONE_GO * wanted:
                return
        payload = msgspec.Raw(b"".join(self._encoded))
        self._encoded, self._encoding = [], None
        self._executor.submit(self._save_encoded, payload, self._unsaved)

    def _save_encoded(self, payload: msgspec.Raw, changes: int) -> None:
        try:
            write_side_file(self._store.directory.catalog, "catalog", payload)
        except OSError as error:
            # The log has every change: the next start reads more of it.
            self.errors += 1
            self._trouble.note("catalog not saved, tried again error=%s", error)
            return
        self._trouble.end()
        self._unsaved -= changes

    def save(self) -> None:
        """Save the catalog. Blocks: for the end.

        Raises:
            OSError: it could not be written; the log has every change.
        """
        write_side_file(self._store.directory.catalog, "catalog", self.catalog.to_payload())
        self._unsaved = 0
