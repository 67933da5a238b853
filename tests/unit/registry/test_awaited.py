"""Brokers that a registry which has just started waits for."""

import pytest

from headrace.registry.awaited import HOLD_MS, AwaitedBrokers, find_awaited_fault


def begun(*names: str, wait_ms: int = 10_000) -> AwaitedBrokers:
    awaited = AwaitedBrokers(wait_ms)
    awaited.begin(names, 1_000)
    return awaited


def test_it_is_over_when_all_have_come() -> None:
    awaited = begun("a", "b")
    for name in ("a", "a", "other"):
        awaited.arrived(name)
        assert not awaited.is_over(1_001)
    awaited.arrived("b")
    assert awaited.is_over(1_001)


@pytest.mark.parametrize("names", [(), ("a",)])
def test_it_is_over_when_the_time_is(names: tuple[str, ...]) -> None:
    """Where nobody is known, nobody's arrival ends it."""
    awaited = begun(*names)
    awaited.arrived("other")
    assert [awaited.is_over(now_ms) for now_ms in (1_000, 10_999, 11_000)] == [False, False, True]
    assert awaited.missing == set(names)


def test_it_does_not_begin_again() -> None:
    awaited = begun("a")
    awaited.arrived("a")
    assert awaited.is_over(1_001)
    assert awaited.is_over(0)


def test_without_a_wait_or_before_it_begins_routes_are_told() -> None:
    assert AwaitedBrokers(10_000).is_over(0)
    assert begun("a", wait_ms=0).is_over(1_000)


def test_requests_are_held_for_less_than_a_client_waits() -> None:
    awaited = begun("a")
    assert [awaited.is_held(now_ms) for now_ms in (1_000, 999 + HOLD_MS, 1_000 + HOLD_MS)] == [True, True, False]
    assert HOLD_MS < 3_000, "of Java's clients"


@pytest.mark.parametrize("content", [{}, {"brokers": None}, {"brokers": "a"}, {"brokers": ["a", 1]}])
def test_a_file_without_names_is_damaged(content: dict[str, object]) -> None:
    assert find_awaited_fault(content)
    assert not find_awaited_fault({"brokers": ["a"]})
    assert not find_awaited_fault({"brokers": []})
