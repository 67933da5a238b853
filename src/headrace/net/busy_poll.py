"""Busy polling: the event loop stays awake for a moment after a read, as long as that pays.

To fall asleep and to be woken takes some 30 us, a good part of a publish that a client waits for. So after a read the
loop looks for the next one for a while without sleeping. Where nothing comes in that time, the next reads are not
looked behind: one, then two, then four, so that a quiet broker, or one whose clients take their time, spends next to
nothing on it. A look costs a microsecond, also where the next read is there already: that is no reason to stop looking,
because once the loop sleeps, and its clients with it, the next read is not there any more.

A read whose answer waits for the disk ends the looking, which the flusher's core is needed for; it begins again when no
answer waits any more.

Ref: docs/adr/0011-busy-polling.md.
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter_ns
from typing import Final

MAX_LEFT_OUT: Final = 1024
"""Reads after which it is tried again at the latest."""


class BusyPoll:
    """One server's busy polling. Invariant: a call of ``_look`` is due exactly while ``_is_looking``."""

    def __init__(self, look_us: int) -> None:
        """Look for up to ``look_us`` after a read; 0: never. Nor where one processor serves clients and broker."""
        self._look_ns = look_us * 1000 if os.cpu_count() != 1 else 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reads = 0
        self._seen = 0  # of them, when it was looked last
        self._left_out = 0  # reads still to come that are not looked behind
        self._next_left_out = 1  # when nothing comes again
        self._is_looking = False
        self._waits = False  # the last read's answer waits for the disk
        self._began_ns = 0
        self._in_vain_ns = 0  # since then
        self._looked_ns = 0

    @property
    def seconds(self) -> float:
        """How long it was looked so far; the processor was busy with that."""
        return self._looked_ns / 1e9

    def served(self) -> None:
        """Note that a read was served, and look for the next one if that has paid lately."""
        self._reads += 1
        self.answered()

    def waits(self) -> None:
        """Note that an answer, to this read or another, waits for the disk.

        What was looked for has come, and the flusher needs the core.
        """
        self._waits = True

    def answered(self) -> None:
        """Note that no answer waits for the disk any more, and look for the next read if that has paid lately."""
        self._waits = False
        if self._is_looking or not self._look_ns:
            return
        if self._left_out:
            self._left_out -= 1
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._is_looking = True
        self._look_on(self._loop)

    def _look_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for the next read."""
        self._seen = self._reads
        self._in_vain_ns = 0
        self._began_ns = perf_counter_ns()
        loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """See whether a read came in this turn of the loop, which has not slept before it."""
        if self._waits or self._reads != self._seen:
            self._looked_ns += self._in_vain_ns
            self._next_left_out = 1
            if self._waits:
                self._is_looking = False
            else:
                self._look_on(loop)
            return
        self._in_vain_ns = perf_counter_ns() - self._began_ns
        if self._in_vain_ns < self._look_ns:
            loop.call_soon(self._look, loop)
        else:
            self._looked_ns += self._in_vain_ns
            self._is_looking = False
            self._left_out = self._next_left_out
            self._next_left_out = min(2 * self._next_left_out, MAX_LEFT_OUT)
