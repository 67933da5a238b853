"""Waiting for what comes in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def until(ask: Callable[[], Result | None], seconds: float = 10.0) -> Result:
    """Return the first true answer of ``ask``."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s; last answer: {answer!r}")
        time.sleep(0.02)
