"""When a connection gets a heartbeat, and when it is given up.

Read deadline: two heartbeat intervals from the last whole command, so a client that sends one byte at a time does not
live longer for it. Write deadline: one interval in which the peer has taken none of what waits for it. Both are
looked at when the timer wheel brings the connection up; between that, a read costs one assignment.

The rules are those of NSQ (nsq.md 1.10) and fit any protocol whose client answers heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T", int, float)


def call_behind_reads(loop: asyncio.AbstractEventLoop, look: Callable[[T], None], now: T) -> None:
    """Have a timer's look at who is late come behind the reads of this turn of the loop.

    In a turn timers come before reads, and what is to be called soon is between: who sent something while the loop was
    busy is read from first. Those reads may take long as well, and what comes meanwhile lies unread: so who is late is
    told by the time before them, which ``look`` is given.
    """
    loop.call_soon(loop.call_soon, look, now)


class Deadlines:
    """The clocks of one connection, in monotonic ms.

    Attributes:
        interval_ms: The heartbeat interval; 0 = the client wants none, and then has no deadlines either.
        last_command_ms: When the last whole command came; set by the connection.
    """

    __slots__ = (
        "_flushed_bytes",
        "_heartbeat_ms",
        "_patience_ms",
        "_stuck_ms",
        "_unfinished_ms",
        "interval_ms",
        "last_command_ms",
    )

    def __init__(self, *, interval_ms: int, now_ms: int, patience_ms: int) -> None:
        """``patience_ms`` is what an unfinished command gets from a client without heartbeats."""
        self._patience_ms = patience_ms
        self._stuck_ms = 0  # since when the peer has taken nothing; 0 = nothing waits for it
        self._flushed_bytes = 0  # what it had taken then
        self._unfinished_ms = 0  # first look that found the present command unfinished, if after last_command_ms
        self.negotiate(interval_ms, now_ms)

    def negotiate(self, interval_ms: int, now_ms: int) -> None:
        """Start anew with the interval the client asked for."""
        self.interval_ms = interval_ms
        self.last_command_ms = now_ms
        self._heartbeat_ms = now_ms + interval_ms

    def next_look_ms(self, now_ms: int) -> int:
        """Return when something may be due at the earliest."""
        if not self.interval_ms:
            return now_ms + self._patience_ms // 4
        due_ms = min(self._heartbeat_ms, self.last_command_ms + 2 * self.interval_ms)
        if self._stuck_ms:
            # Progress is noticed by looking: the time from the last one on is known to a quarter of the interval.
            due_ms = min(due_ms, self._stuck_ms + self.interval_ms, now_ms + self.interval_ms // 4)
        return max(due_ms, now_ms + 1)

    def is_read_overdue(self, now_ms: int, held_bytes: int) -> bool:
        """Return whether the client has completed no command for too long; ``held_bytes`` of one may be there."""
        if self.interval_ms:
            return now_ms >= self.last_command_ms + 2 * self.interval_ms
        # nsqd would wait for ever; an unfinished command must still end some time. A client without heartbeats may
        # have been silent for hours before it, so its time runs from the first look that finds it.
        if not held_bytes:
            return False
        if self._unfinished_ms <= self.last_command_ms:
            self._unfinished_ms = now_ms
        return now_ms >= self._unfinished_ms + self._patience_ms

    def is_write_overdue(self, now_ms: int, written_bytes: int, waiting_bytes: int) -> bool:
        """Return whether the peer has taken nothing for an interval; call it on every look and when writing stops."""
        if not waiting_bytes or not self.interval_ms:
            self._stuck_ms = 0
            return False
        flushed_bytes = written_bytes - waiting_bytes
        if not self._stuck_ms or flushed_bytes != self._flushed_bytes:
            self._stuck_ms = now_ms
            self._flushed_bytes = flushed_bytes
            return False
        return now_ms >= self._stuck_ms + self.interval_ms

    def take_heartbeat(self, now_ms: int) -> bool:
        """Return whether a heartbeat is due, and set the next one."""
        if not self.interval_ms or now_ms < self._heartbeat_ms:
            return False
        self._heartbeat_ms = now_ms + self.interval_ms
        return True
