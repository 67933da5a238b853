"""The timer that all connections of a listener share. Ref: X-NET-08."""

from __future__ import annotations

from headrace.net.timer_wheel import TimerWheel


def test_items_come_up_when_due_and_not_before():
    wheel: TimerWheel[str] = TimerWheel(1000)
    wheel.schedule("a", 1150)
    wheel.schedule("b", 1200)
    wheel.schedule("c", 5000)
    assert wheel.take_due(1199) == []
    assert wheel.take_due(1200) == ["a", "b"]
    assert wheel.take_due(4999) == []
    assert wheel.take_due(60_000) == ["c"]
    assert len(wheel) == 0


def test_what_is_due_at_the_end_of_a_long_pause_comes_up():
    """More ticks than dates have passed: a date that was skipped would never come up again."""
    wheel: TimerWheel[str] = TimerWheel(0)
    wheel.schedule("b", 5000)
    wheel.schedule("a", 4000)
    assert wheel.take_due(5000) == ["a", "b"]


def test_item_has_one_date():
    wheel: TimerWheel[str] = TimerWheel(0)
    wheel.schedule("a", 100)
    wheel.schedule("a", 900)
    assert wheel.take_due(800) == []
    assert wheel.take_due(900) == ["a"]
    assert wheel.take_due(2000) == []


def test_dates_in_the_past_come_up_at_the_next_tick():
    wheel: TimerWheel[str] = TimerWheel(1000)
    wheel.schedule("a", 5)
    assert wheel.take_due(1050) == []
    assert wheel.take_due(1100) == ["a"]


def test_cancelled_item_does_not_come_up():
    wheel: TimerWheel[str] = TimerWheel(0)
    wheel.schedule("a", 100)
    wheel.cancel("a")
    wheel.cancel("never there")
    assert wheel.take_due(1000) == []
