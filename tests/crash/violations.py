"""What every history checker has: the violations it found, and when the broker crashed or was held."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tests.crash.history import Held

MOST_KEPT: Final = 1000
"""Violations beyond it are counted only."""


@dataclass(frozen=True)
class Violation:
    """One broken promise; each checker has rules of its own."""

    rule: StrEnum
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.rule} at={self.at:.3f} {self.text}"


class HistoryChecker:
    """Feed it every event of a history (``observe``); read ``violations``."""

    def __init__(self, handlers: Mapping[type, Callable[[Any], None]]) -> None:
        """``handlers`` say what is done with each type of event, but for ``Held``."""
        self.violations: list[Violation] = []
        self.violation_count = 0
        self._crashes: list[float] = []
        self._held: list[Held] = []
        self._handlers = {**handlers, Held: self._held.append}

    def observe(self, event: tuple[Any, ...]) -> None:
        """Take the next event."""
        self._handlers[type(event)](event)

    def _blame(self, rule: StrEnum, at: float, text: str) -> None:
        self.violation_count += 1
        if len(self.violations) < MOST_KEPT:
            self.violations.append(Violation(rule, at, text))

    def _first_crash_after(self, at: float) -> float | None:
        number = bisect_left(self._crashes, at)
        return self._crashes[number] if number < len(self._crashes) else None
