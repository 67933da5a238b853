"""How busy the loop is: its thread's processor time, without what it polled."""

from __future__ import annotations

import time
from time import thread_time

from headrace.net.loop_load import LoopLoad


def work(seconds: float) -> None:
    """Use the processor for so long."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass


def test_work_is_load_and_sleep_is_not() -> None:
    load = LoopLoad()
    load.look(0.0)
    work(0.05)
    time.sleep(0.15)
    seen = load.look(0.0)
    assert seen.seconds >= 0.2
    assert 0.05 <= seen.busy * seen.seconds < 0.1
    time.sleep(0.1)
    assert load.look(0.0).busy < 0.5


def test_what_was_polled_is_not_load() -> None:
    load = LoopLoad()
    load.look(1.0)
    work(0.05)
    seen = load.look(1.04)
    assert seen.busy * seen.seconds < 0.03


def test_more_polled_than_worked_is_no_load() -> None:
    """A look that polls ends later than it is counted."""
    load = LoopLoad()
    load.look(0.0)
    assert load.look(5.0).busy == 0.0
