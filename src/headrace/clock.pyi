"""The time source. The core never asks it: it is given ``now`` with each call."""

from collections.abc import Callable
from typing import Final

STANDSTILL_MS: Final[int]
"""Time between two looks at the clock after which the loop is taken to stand still."""

class Clock:
    """The system's clocks."""

    def now_ms(self) -> int:
        """Return wall-clock time in ms since 1970: for what is stored and for due times that survive a restart."""
    def monotonic_ms(self) -> int:
        """Return monotonic time in ms: for deadlines inside one process."""

class LoopClock(Clock):
    """The clocks of an event loop, which may stand still: the disk blocks it, or the process is stopped or starved.

    What was sent in time lies unread meanwhile, and what is to be sent does not leave. So monotonic time goes on by
    ``STANDSTILL_MS`` only: no message times out, and no client is cut off, for what happened while nobody was served.
    It is told from the time between two calls of the loop's thread, of which a loop at work makes many: its ticks alone
    make twenty a second. Other threads may ask as well.
    """

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        """Take the system's monotonic clock, or what ``now_ns`` returns in its place."""
    def begin(self) -> None:
        """Leave out standstills from now on: the loop runs, in the calling thread."""
    @property
    def left_out_seconds(self) -> float:
        """How long the loop stood still so far, without the first ``STANDSTILL_MS`` each time."""

class ManualClock(Clock):
    """A clock for tests that moves only when told."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000) -> None: ...
    def advance_ms(self, milliseconds: int) -> None:
        """Move both clocks forward."""
    def step_ms(self, milliseconds: int) -> None:
        """Set the wall clock alone forward or back."""
