"""The same thing is logged once a minute, or once until it works, and what is remembered for that has a bound."""

from __future__ import annotations

import logging

import pytest

from headrace.clock import ManualClock
from headrace.log_pace import INTERVAL_MS, MAX_KNOWN, LineLimit, LogPace, Trouble


def test_each_thing_has_a_line_a_minute() -> None:
    """Others do not count for it, and the minute begins with the line, not with what came since."""
    clock = ManualClock()
    pace = LogPace(clock)
    assert [pace.is_due("a"), pace.is_due("a"), pace.is_due("b")] == [True, False, True]
    clock.advance_ms(59_999)
    assert not pace.is_due("a")
    clock.advance_ms(1)
    assert [pace.is_due("a"), pace.is_due("a")] == [True, False]


def test_what_is_remembered_has_a_bound() -> None:
    """Whoever comes from ever new addresses makes lines, not memory."""
    pace = LogPace(ManualClock())
    for number in range(3 * MAX_KNOWN):
        assert pace.is_due(str(number))
        assert len(pace._next_ms) <= MAX_KNOWN


def test_all_things_together_have_a_bound() -> None:
    """Whoever comes under ever new names makes no more lines, either; that there is more is said once a minute."""
    clock, more = ManualClock(), []
    limit = LineLimit(clock, lambda: more.append(clock.monotonic_ms()), most=3)
    assert [limit.is_due(what) for what in "aabcde"] == [True, False, True, True, False, False]
    assert len(more) == 1
    clock.advance_ms(INTERVAL_MS)
    assert [limit.is_due(what) for what in "aefgh"] == [True, True, True, False, False]
    assert len(more) == 2


def test_trouble_is_logged_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Each try would write the same line; what fails again behind a success is new."""
    trouble = Trouble(logging.getLogger("headrace.test"))
    for fails in (True, True, False, True, True):
        if fails:
            trouble.note("file not written, tried again path=%s", "a")
        else:
            trouble.end()
    assert caplog.messages == ["file not written, tried again path=a"] * 2
