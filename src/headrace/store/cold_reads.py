"""Reads of what is not in memory: a thread has the pages read, and whoever wanted them asks again then.

So do those who met a file that could not be read at all: descriptors and memory are given back, disks mended.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import remedy_for
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.log_pace import LogPace
    from headrace.store.commit_log import CommitLog
    from headrace.store.segment import Segment
    from headrace.store.store import StoreCounters

logger = logging.getLogger(__name__)

_AGAIN_MS: Final = 1000
_GONE: Final = "put it back; where it is gone for good restart, the start steps over what it held"


class ColdReads:
    """Those of one open store."""

    def __init__(
        self,
        log: CommitLog,
        clock: Clock,
        counters: StoreCounters,
        pace: LogPace,
        notify: Callable[[Callable[[], None]], object],
        on_warm: Callable[[], None],
    ) -> None:
        """Serve a log.

        Args:
            notify: Has something called on the event loop.
            on_warm: Told when it pays to ask again.
        """
        self._notify = notify
        self._on_warm = on_warm
        self._log = log
        self._clock = clock
        self._counters = counters
        self._pace = pace
        # Threads of their own: many readers of a cold backlog must not hold up the next segment.
        self._threads = Threads("headrace-cold", 2)
        self._warming: set[tuple[int, int]] = set()
        self._again_ms: int | None = None  # when those who met a file that could not be read try again
        log.on_cold = self._read_ahead
        log.on_unreadable = self._note_unreadable

    def _read_ahead(self, segment: Segment, position: int, size: int) -> None:
        key = (segment.first_offset, position)
        if key in self._warming:
            return
        self._warming.add(key)
        self._counters.cold_reads += 1
        self._threads.submit(self._warm, segment, position, size)

    def _warm(self, segment: Segment, position: int, size: int) -> None:
        segment.touch(position, size)
        self._notify(lambda: self._warmed(segment, position))

    def _warmed(self, segment: Segment, position: int) -> None:
        self._warming.discard((segment.first_offset, position))
        self._log.mark_warm(segment.first_offset, position)
        self._on_warm()

    def _note_unreadable(self, error: OSError) -> None:
        """Have those who cannot go on without a file try again."""
        self._counters.read_errors += 1
        if self._again_ms is None:
            self._again_ms = self._clock.monotonic_ms() + _AGAIN_MS
        if self._pace.is_due("read"):
            logger.error(
                "messages not read, tried again path=%s error=%s remedy=%s",
                error.filename,
                error.strerror,
                _GONE if error.errno == errno.ENOENT else remedy_for(error),
            )

    def tick(self, now_ms: int) -> None:
        """Have unreadable files tried again when that is due."""
        if self._again_ms is not None and now_ms >= self._again_ms:
            self._again_ms = None
            self._on_warm()

    def close(self) -> None:
        """End the threads; nobody waits for what they read any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
