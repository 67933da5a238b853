"""Writes what channels have delivered and finished to the journal, behind the broker.

Changes are appended on the event loop every 100 ms (the page cache takes them) and synced each interval in a thread;
when the journal has grown, a snapshot of every channel replaces it, written a few milliseconds at a time. A journal
that cannot be written costs redelivery after a crash, never a message: it is counted, logged once until it is whole
again, and tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.broker.channels.channel import Channel
from headrace.broker.channels.journal import ChannelJournal
from headrace.broker.channels.journal_file import lacks_beginning
from headrace.clock import Clock
from headrace.errors import NoMemoryError, StoreError
from headrace.log_pace import Trouble

logger = logging.getLogger(__name__)

SLICE_MS: Final = 2
"""Time that one tick gives to writing the channels' snapshot; one part takes up to 2 ms more."""


WRITE_MS: Final = 100
"""Between two writes without a sync: what the page cache has, a kill -9 does not take (a REQ's delay, say)."""

WRITE_AT_ONCE: Final = 256
"""Channels of such a write; a broker with more busy ones leaves the rest to the interval's own."""

WRITE_SLICE_MS: Final = 5
"""Time that one tick gives to the interval's own; 256 channels take up to 2 ms more. Ten thousand take ten ticks."""


def journal_key(key: int) -> bytes:
    """Return the name of a channel's state in the journal: its creation record's physical offset, big-endian."""
    return key.to_bytes(8, "big")


class JournalWriter:
    """The open journal of one broker and what is still to be written to it.

    Attributes:
        keys: The broker's channels and their keys, kept by ``ChannelTable``; below 0 for those never written down.
        lacks_beginning: Whether what channels had finished before this start is missing.
    """

    def __init__(self, directory: Path, executor: ThreadPoolExecutor, clock: Clock, interval_ms: int) -> None:
        """Open the journal in ``directory``.

        Args:
            interval_ms: Longest time until a change is noted.
        """
        self.errors = 0
        self._trouble = Trouble(logger)
        self.keys: dict[Channel, int] = {}
        self._executor = executor
        self._clock = clock
        self._interval_ms = interval_ms
        self._journal = ChannelJournal(directory)
        self.lacks_beginning = lacks_beginning(directory)
        self._histories = self._journal.load()
        self._changed: dict[Channel, None] = {}  # whose changes are still to be written, longest first
        self._due = 0  # of them, those that the interval's write has to come to
        self._next_ms = 0
        self._next_write_ms = 0
        self._job: Future[None] | None = None
        self._compaction: Iterator[tuple[bytes, bytes]] | None = None

    def take_history(self, key: int) -> list[bytes]:
        """Return the states that were recorded of a channel before this start, and forget them."""
        return self._histories.pop(journal_key(key), [])

    def drop_histories(self) -> None:
        """Forget what was recorded of channels that no longer exist."""
        self._histories.clear()

    def look_at(self, channel: Channel) -> None:
        """Note that a channel may have changes to write."""
        self._changed[channel] = None

    def replace_all(self) -> None:
        """Have a snapshot soon take the place of all there is: some of what it says was taken back."""
        self._journal.replace_all()

    def forget(self, channel: Channel, key: int) -> None:
        """Drop the state of a channel that is deleted."""
        self._changed.pop(channel, None)
        if key < 0:
            return
        try:
            self._journal.forget(journal_key(key))
        except StoreError as error:
            # The catalog has no such channel any more, so its state is never asked for.
            self._note_error(error)

    def write(self, most: int = 1 << 62) -> None:
        """Write what changed in the channels, at most ``most`` of them, behind the journal's end."""
        try:
            blocks = self._take_changes(most)
            if blocks:
                self._journal.write(blocks)
        except StoreError as error:
            self._note_error(error)
        except MemoryError:
            self._journal.note_loss()
            self._note_error(NoMemoryError())

    def _take_changes(self, most: int) -> list[tuple[bytes, bytes]]:
        blocks = []
        for channel in list(islice(self._changed, min(most, len(self._changed)))):
            del self._changed[channel]
            changes = channel.take_changes()  # of an ephemeral one too: None, and it gives idle memory back
            key = self.keys.get(channel, -1)
            if changes is not None and key >= 0:
                blocks.append((journal_key(key), changes))
        return blocks

    def sync(self) -> None:
        """Wait until what was written is on disk. Blocks.

        Raises:
            UnsyncedError: it may not be.
        """
        self._journal.sync()

    def tick(self) -> None:
        """Do what is due: write the changes of an interval, have them synced, go on with a snapshot."""
        now = self._clock.monotonic_ms()
        if now >= self._next_ms and not self._due:
            self._next_ms = now + self._interval_ms
            self._due = len(self._changed)
            # Written also while a sync takes long: what the page cache has, a killed process does not forget.
            self._write_due(now)
        elif self._due:
            self._write_due(now)
        elif now >= self._next_write_ms:
            self.write(WRITE_AT_ONCE)
        if now >= self._next_write_ms:
            self._next_write_ms = now + WRITE_MS
        self._continue_compaction()

    def _write_due(self, now: int) -> None:
        """Go on with the interval's write for a few milliseconds; behind its end have the journal synced."""
        while self._due:
            some = min(self._due, WRITE_AT_ONCE)
            self.write(some)
            self._due -= some
            if self._clock.monotonic_ms() >= now + WRITE_SLICE_MS and self._due:
                return
        if self._job is None or self._job.done():
            self._start_job()

    def _start_job(self) -> None:
        """Have the journal synced in its thread; begin to replace it by a snapshot when it has grown."""
        try:
            self._journal.require_name()
        except StoreError as error:
            self._note_error(error)
        if self._journal.needs_compaction and self._compaction is None:
            try:
                self._journal.begin_compaction()
                self._compaction = self._snapshot_blocks()
            except StoreError as error:
                self._note_error(error)
        self._job = self._executor.submit(self._run, self._journal.sync)

    def _snapshot_blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every durable channel's state in parts of bounded size."""
        for channel, key in list(self.keys.items()):
            if key >= 0 and channel in self.keys:
                for part in channel.snapshot_parts():
                    yield journal_key(key), part

    def _continue_compaction(self) -> None:
        """Write a few milliseconds' worth of the snapshot; hand its end to the journal's thread.

        Whatever is raised on the way gives the snapshot up: without some channels it must not replace the journals.
        """
        compaction, self._compaction = self._compaction, None
        if compaction is None:
            return
        until = self._clock.monotonic_ms() + SLICE_MS
        try:
            for block in compaction:
                self._journal.add_to_snapshot([block])
                if self._clock.monotonic_ms() >= until:
                    self._compaction = compaction
                    return
            self._job = self._executor.submit(self._run, self._journal.finish_compaction)
        except StoreError as error:
            self._note_error(error)
        except MemoryError as error:
            self._note_error(self._journal.refuse_snapshot(error))

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except StoreError as error:
            self._note_error(error)
        except Exception:
            logger.exception("journal job failed by a bug")
            self.errors += 1
        else:
            if self._journal.is_whole:
                self._trouble.end()

    def _note_error(self, error: StoreError) -> None:
        self.errors += 1
        self._trouble.note("journal not written, a crash would redeliver error=%s", error)

    def write_all(self) -> None:
        """Replace the journal by a snapshot of everything. Blocks: for the end.

        Raises:
            StoreError: it could not be written; the old journal counts.
        """
        self._journal.compact(self._snapshot_blocks())

    def close(self) -> None:
        """Close the journal. What cannot be synced at the end is logged: the broker stops all the same."""
        self._run(self._journal.close)
