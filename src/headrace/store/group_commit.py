"""Group commit: which flush begins when, and how far each made the log durable.

``request`` starts an fdatasync unless one runs; what is appended meanwhile goes with the next one, which the flusher
begins by itself: the loop may be in the middle of a turn, reading one socket after the other. A flush smaller than the
last two were on average is asked for at the end of a turn: of many publishers, one that wakes the flusher at once would
have it sync that batch alone, and each flush costs as much as some hundred messages. So publishers that wait for their
answers fall into two parts of one size: the loop takes those of one while the disk has the other's.

Results come in the order of the requests, so a segment that was rolled from is synced before what follows counts.
Ref: docs/adr/0006-write-path.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import FlushError
from headrace.store.flusher import Flusher

if TYPE_CHECKING:
    from headrace.store.commit_log import CommitLog
    from headrace.store.segment import Segment

_SMALL_FLUSH_BYTES: Final = 32 << 10
"""Bytes up to which a flush always waits for what else the loop's turn brings."""
_LARGE_FLUSH_BYTES: Final = 4 << 20
"""Bytes from which on it never does: that it is a flush of its own is little of what it costs."""


class GroupCommit:
    """The flushes of one open store.

    Attributes:
        flusher: The thread that syncs.
        call_soon: Has something called at the end of the loop's turn.
    """

    def __init__(
        self,
        log: CommitLog,
        call_soon: Callable[[Callable[[], None]], object],
        on_flushed: Callable[[int, float], None],
        on_failed: Callable[[FlushError], None],
    ) -> None:
        """Take the log, before its first append.

        Args:
            on_flushed: Told of each flush: up to which physical offset the log is durable, and how long it took, s.
            on_failed: Told of one that failed.
        """
        self.flusher = Flusher()
        self.call_soon = call_soon
        self._log = log
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._asked_offset = 0  # everything below was given to the flusher
        self._is_put_off = False  # to the end of the loop's turn
        self._is_over = False  # no other flush begins
        self._recent_bytes = deque((0, 0), maxlen=2)
        self._rolled: list[Segment] = []  # left by a roll, and not given to the flusher yet
        self._in_flight: deque[Segment] = deque()  # of each result to come; holds their descriptors open

    def begin_at(self, durable_offset: int) -> None:
        """Take what recovery has synced for durable."""
        self._asked_offset = durable_offset

    def add_rolled(self, segment: Segment) -> None:
        """Have a segment synced that the log has rolled from, with the next flush."""
        self._rolled.append(segment)

    def request(self, *, is_waited_for: bool = True) -> None:
        """Have everything appended so far made durable; see ``Store.request_flush``."""
        if self._in_flight and not is_waited_for:
            return
        unasked_bytes = self._log.end_offset - self._asked_offset
        usual_bytes = min(sum(self._recent_bytes) // 2, _LARGE_FLUSH_BYTES)
        if unasked_bytes >= max(usual_bytes, _SMALL_FLUSH_BYTES):
            self._begin()
        elif unasked_bytes > 0 and not self._is_put_off:
            self._is_put_off = True
            self.call_soon(self._begin)

    def _begin(self) -> None:
        """Give everything appended so far to the flusher."""
        self._is_put_off = False
        active = self._log.active
        if self._is_over or self._log.end_offset <= self._asked_offset or active is None:
            return
        self._asked_offset = self._log.end_offset
        for segment in self._rolled:
            self._ask(-1, segment)
        self._rolled.clear()
        self._ask(self._asked_offset, active)

    def _ask(self, target: int, segment: Segment) -> None:
        """Have a segment synced; ``target`` is -1 where others must be synced too."""
        if self.flusher.request(target, segment.fd):
            self._in_flight.append(segment)

    def finish(self) -> None:
        """Take the flusher's next result: call this when ``flusher.done_read`` is readable, else it blocks."""
        target, error, seconds = self.flusher.take_result()
        segment = self._in_flight.popleft()
        if error:
            self._on_failed(FlushError(segment.path, error))
        # A roll asks for two flushes: when the older segment's failed, the newer one's success makes nothing durable.
        if target >= 0 and not self._is_over:
            self._recent_bytes.append(target - self._log.durable_offset)
            self._on_flushed(target, seconds)

    def flush(self) -> None:
        """Make everything durable before returning, unless a flush fails. Blocks."""
        while not self._is_over and (self._in_flight or self._log.end_offset > self._log.durable_offset):
            self._begin()
            self.finish()

    def end(self) -> None:
        """Begin no other flush, and take no result for success any more."""
        self._is_over = True

    def close(self) -> None:
        """End the thread, and let go of the segments."""
        self.end()
        self.flusher.close()
        self._rolled.clear()
        self._in_flight.clear()
