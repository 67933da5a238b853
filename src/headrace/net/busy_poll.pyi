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

from collections.abc import Callable
from typing import Final

MAX_LEFT_OUT: Final[int]
"""Reads after which it is tried again at the latest."""

class BusyPoll:
    """One server's busy polling."""

    def __init__(self, look_us: int, now_ns: Callable[[], int] | None = None) -> None:
        """Look for up to ``look_us`` after a read; 0: never. Nor where one processor serves clients and broker.

        Args:
            now_ns: Stands for the system's monotonic clock.
        """
    @property
    def seconds(self) -> float:
        """How long it was looked so far; the processor was busy with that."""
    def served(self) -> None:
        """Note that a read was served, and look for the next one if that has paid lately."""
    def waits(self) -> None:
        """Note that an answer, to this read or another, waits for the disk.

        What was looked for has come, and the flusher needs the core.
        """
    def answered(self) -> None:
        """Note that no answer waits for the disk any more, and look for the next read if that has paid lately."""
