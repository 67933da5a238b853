"""The same thing is logged once a minute, and what is remembered for that has a bound."""

from __future__ import annotations

from headrace.clock import ManualClock
from headrace.log_pace import INTERVAL_MS, MAX_KNOWN, LogPace


def test_each_thing_has_a_line_a_minute() -> None:
    """Others do not count for it, and the minute begins with the line, not with what came since."""
    clock = ManualClock()
    pace = LogPace(clock)
    assert [pace.is_due("a"), pace.is_due("a"), pace.is_due("b")] == [True, False, True]
    clock.advance_ms(INTERVAL_MS - 1)
    assert not pace.is_due("a")
    clock.advance_ms(1)
    assert [pace.is_due("a"), pace.is_due("a")] == [True, False]


def test_what_is_remembered_has_a_bound() -> None:
    """Whoever comes from ever new addresses makes lines, not memory."""
    pace = LogPace(ManualClock())
    for number in range(3 * MAX_KNOWN):
        assert pace.is_due(str(number))
        assert len(pace._next_ms) <= MAX_KNOWN
