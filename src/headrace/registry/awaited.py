"""Brokers that a registry which has just started waits for.

Its tables are empty then, and each broker brings its own part of them. Whoever is told of the first ones alone takes
the others for gone: clients let their queues go until they ask again. So a registry writes down which brokers it has,
and after its start tells no routes until these have come, or until ``wait_ms`` have passed. What a client asks
meanwhile is held for ``HOLD_MS`` at most, less than any client waits for an answer, and refused after that.

Which brokers there are is not known at the first start, nor where a registry keeps no files: then all of the time is
waited. But the registry of a broker that registers nowhere else waits for that one, and for those it has written down.

Content of the file: ``{"brokers":[NAME, ...]}``.

Ref: docs/protocols/registry.md, docs/adr/0018.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

AWAITED_FILE: Final = "brokers.json"
"""Where they are written down, in the folder of the registry."""

HOLD_MS: Final = 2_000
"""Java's clients wait 3 s for a route, Go's 6 s."""


class AwaitedBrokers:
    """Who has to come before routes are told.

    Attributes:
        missing: Names that are known and have not come.
    """

    def __init__(self, wait_ms: int) -> None:
        """Nobody is waited for before ``begin``."""
        self.missing: set[str] = set()
        self._wait_ms = wait_ms
        self._began_ms = 0
        self._ends_on_arrival = False
        self._is_over = True

    def begin(self, names: Iterable[str], now_ms: int) -> None:
        """Wait for ``names``; where there are none, for whoever comes. Time is monotonic."""
        self.missing = set(names)
        self._ends_on_arrival = bool(self.missing)
        self._began_ms = now_ms
        self._is_over = not self._wait_ms

    def arrived(self, name: str) -> None:
        """Note that a broker has registered its topics."""
        self.missing.discard(name)

    def is_over(self, now_ms: int) -> bool:
        """Return whether routes are told; once true it stays so."""
        if not self._is_over:
            all_came = self._ends_on_arrival and not self.missing
            self._is_over = all_came or now_ms - self._began_ms >= self._wait_ms
        return self._is_over

    def is_held(self, now_ms: int) -> bool:
        """Return whether a request is to wait for its answer, while it is not over."""
        return now_ms - self._began_ms < HOLD_MS

    def waited_ms(self, now_ms: int) -> int:
        """Return how long it has been going on."""
        return now_ms - self._began_ms


def find_awaited_fault(content: Mapping[str, Any]) -> str:
    """Say what keeps the content of a file from being read; empty when it is whole."""
    names = content.get("brokers")
    is_whole = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return "" if is_whole else "there is no list of brokers"
