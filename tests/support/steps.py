"""Generators that do a little of their work at each step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def all_of(steps: Generator[object, None, T]) -> T:
    """Take every step; return what they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
