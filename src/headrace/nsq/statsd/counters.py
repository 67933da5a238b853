"""What became of the pushes to a statsd, counted. Plain integers; ``admin`` makes metrics of them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NAME: Final = "name"
REFUSED: Final = "refused"
FULL: Final = "full"
UNREACHABLE: Final = "unreachable"
SYSTEM: Final = "system"
INTERNAL: Final = "internal"

CAUSES: Final[Mapping[int, str]] = {
    errno.ECONNREFUSED: REFUSED,
    errno.EAGAIN: FULL,
    errno.ENOBUFS: FULL,
    errno.EADDRNOTAVAIL: UNREACHABLE,
    errno.ENETDOWN: UNREACHABLE,
    errno.ENETUNREACH: UNREACHABLE,
    errno.EHOSTUNREACH: UNREACHABLE,
}


@dataclass
class StatsdCounters:
    """Events since the start.

    Attributes:
        pushes: Those of which every packet was given to the system, or lost and counted.
        failed_pushes: Those that were not made, by cause: their figures come with the next.
        skipped_pushes: Those left out because the one before was not over, or the event loop stood still.
        packets: Packets that the system took. Whether they arrive nobody knows.
        lost_packets: Those that it did not, or that came back refused, by cause: their figures are lost.
    """

    pushes: int = 0
    failed_pushes: Counter[str] = field(default_factory=Counter)
    skipped_pushes: int = 0
    packets: int = 0
    lost_packets: Counter[str] = field(default_factory=Counter)


def cause_of(error: OSError) -> str:
    """Return what the counters call what the system said."""
    return CAUSES.get(error.errno or 0, SYSTEM)
