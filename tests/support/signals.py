"""Signals as a terminal gives them to a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unignored() -> Iterator[None]:
    """Have SIGINT and SIGHUP do what they do by default, here and in what is started.

    They are ignored below ``nohup`` and in what a script starts with ``&``, as a run of the tests may be.
    """
    defaults: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
