"""The clock of an event loop that may stand still."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from headrace.clock import STANDSTILL_MS, LoopClock


class Ticks:
    """Stands for the system's monotonic clock."""

    def __init__(self) -> None:
        self.ms = 5_000

    def now_ns(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def test_a_loop_that_turns_has_the_systems_time(ticks: Ticks) -> None:
    clock = LoopClock(ticks.now_ns)
    clock.begin()
    for _ in range(100):
        ticks.ms += STANDSTILL_MS
        assert clock.monotonic_ms() == ticks.ms
    assert clock.left_out_seconds == 0


def test_what_the_loop_stood_still_is_left_out(ticks: Ticks, caplog: pytest.LogCaptureFixture) -> None:
    clock = LoopClock(ticks.now_ns)
    clock.begin()
    before = clock.monotonic_ms()
    ticks.ms += 10_000
    with caplog.at_level(logging.WARNING):
        assert clock.monotonic_ms() == before + STANDSTILL_MS
    assert clock.left_out_seconds == 10 - STANDSTILL_MS / 1000
    assert "event loop stood still ms=9750" in caplog.text
    ticks.ms += 40
    assert clock.monotonic_ms() == before + STANDSTILL_MS + 40


def test_a_loop_that_is_always_late_has_time_that_goes_on(ticks: Ticks, caplog: pytest.LogCaptureFixture) -> None:
    """Deadlines must pass some time: each look counts for something. Short standstills are in the metric only."""
    clock = LoopClock(ticks.now_ns)
    clock.begin()
    before = clock.monotonic_ms()
    for _ in range(10):
        ticks.ms += 2 * STANDSTILL_MS
        clock.monotonic_ms()
    assert clock.monotonic_ms() == before + 10 * STANDSTILL_MS
    assert not caplog.records


def test_before_the_loop_runs_nothing_is_left_out(ticks: Ticks) -> None:
    """Recovery takes its time and looks at no clock."""
    clock = LoopClock(ticks.now_ns)
    clock.monotonic_ms()
    ticks.ms += 60_000
    assert clock.monotonic_ms() == ticks.ms
    ticks.ms += 60_000
    clock.begin()
    assert clock.monotonic_ms() == ticks.ms


def test_another_thread_hides_no_standstill(ticks: Ticks) -> None:
    """Nor does it end one: what it does is not what the loop does."""
    clock = LoopClock(ticks.now_ns)
    clock.begin()
    before = clock.monotonic_ms()
    for _ in range(20):
        ticks.ms += 100
        other = threading.Thread(target=clock.monotonic_ms)
        other.start()
        other.join()
    assert clock.monotonic_ms() == before + STANDSTILL_MS


def test_without_another_it_has_the_systems_clocks() -> None:
    """``time.monotonic_ns`` is compared with it, and stored times are read by others."""
    clock = LoopClock()
    clock.begin()
    for before, asked, after in (
        (time.monotonic_ns(), clock.monotonic_ms(), time.monotonic_ns()),
        (time.time_ns(), clock.now_ms(), time.time_ns()),
    ):
        assert before // 1_000_000 <= asked <= after // 1_000_000
