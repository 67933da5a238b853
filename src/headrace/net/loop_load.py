"""How busy the event loop is: the part of the time in which its thread had the processor and did not just poll."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns


@dataclass(frozen=True, slots=True)
class Load:
    """What the loop was between two looks.

    Attributes:
        seconds: Time that passed.
        busy: The part of it, 0 to 1, in which the loop worked.
    """

    seconds: float
    busy: float


class LoopLoad:
    """Looks at the loop whose thread calls ``look``.

    A thread that waits for a processor is not busy: on a machine that others use, the loop seems to have time to spare.
    """

    def __init__(self) -> None:
        self._last = (0, 0, 0.0)

    def look(self, polled_s: float) -> Load:
        """Return what the loop was since the last call; ``polled_s``: how long it has busy-polled since it began."""
        before_ns, before_worked_ns, before_polled_s = self._last
        now_ns, worked_ns = perf_counter_ns(), thread_time_ns()
        self._last = (now_ns, worked_ns, polled_s)
        seconds = (now_ns - before_ns) / 1e9
        worked_s = (worked_ns - before_worked_ns) / 1e9 - (polled_s - before_polled_s)
        return Load(seconds, min(max(worked_s / seconds, 0.0), 1.0) if seconds else 0.0)
