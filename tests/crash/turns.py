"""Loads that one thread drives, with one selector for all connections: what else a load does, it does in its turn."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Turning(Protocol):
    """A load."""

    def begin_turn(self, now: float) -> None:
        """Send what is to be sent."""

    def end_turn(self, now: float, busy: set[Any]) -> None:
        """Do what is due; ``busy`` connections had something to read or write."""


def take_turns(
    loads: Sequence[Turning],
    selector: selectors.BaseSelector,
    until_at: float,
    until: Callable[[], bool] | None = None,
) -> None:
    """Drive loads until a time, or until ``until()`` is true."""
    while True:
        now = time.monotonic()
        if now >= until_at or (until is not None and until()):
            return
        for load in loads:
            load.begin_turn(now)
        ready = selector.select(min(0.01, until_at - now))
        for key, events in ready:
            key.data.on_ready(events)
        busy = {key.data for key, _ in ready}
        for load in loads:
            load.end_turn(now, busy)
