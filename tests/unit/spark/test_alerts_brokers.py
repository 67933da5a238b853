"""Brokers that are gone. No Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.spark.jobs import alerts
from headrace.spark.jobs.alerts_brokers import KnownBrokers, silent_brokers
from tests.support.minute_series import BEGIN, DAY, MINUTE, rules_of

RULES = rules_of()
ALL = np.arange(4 * DAY)


def found_in(
    seen: dict[str, Any], since: int = 3 * DAY, until: int = 4 * DAY, rules: alerts.Config = RULES
) -> list[Any]:
    """Judge minutes; return broker, minute and length of each alert."""
    times = {broker: BEGIN + minutes[minutes < until] * MINUTE for broker, minutes in seen.items()}
    alerts_found = silent_brokers(times, BEGIN + since * MINUTE, BEGIN + until * MINUTE, rules)
    return [
        (one["broker"], (int(one["time"].timestamp() * 1000) - BEGIN) // MINUTE, one["minutes"]) for one in alerts_found
    ]


def without(first: int, end: int) -> Any:
    return ALL[(first > ALL) | (end <= ALL)]


def test_a_broker_that_says_nothing_while_others_go_on_is_gone() -> None:
    at = 3 * DAY + 600
    assert found_in({"a": ALL, "b": without(at, at + 30)}) == [("b", at + 9, 21)]
    assert found_in({"a": ALL, "b": without(at, at + 9)}) == []
    assert found_in({"a": ALL, "b": without(at, at + 9)}, rules=rules_of(gone_minutes=5)) == [("b", at + 4, 5)]
    assert found_in({"a": ALL, "b": without(at, 4 * DAY)})[0][:2] == ("b", at + 9)


def test_an_alert_of_an_earlier_look_is_not_said_again() -> None:
    at = 3 * DAY + 600
    seen = {"a": ALL, "b": without(at, 4 * DAY)}
    looks = [found_in(seen, minute, minute + 1) for minute in range(at, at + 15)]
    assert [bool(look) for look in looks] == [minute == at + 9 for minute in range(at, at + 15)]


def test_what_is_usual_or_of_all_is_no_alert() -> None:
    """The nights of a broker, one that has something twice an hour, the only one, tables that end, a new one."""
    by_day = ALL[ALL % DAY >= 480]
    assert found_in({"a": ALL, "b": by_day}) == []
    assert found_in({"a": ALL, "b": ALL[ALL % 30 == 0]}) == []
    assert found_in({"a": without(3 * DAY, 3 * DAY + 60)}) == []
    assert found_in({"a": without(3 * DAY, 3 * DAY + 60), "b": without(3 * DAY, 3 * DAY + 60)}) == []
    assert found_in({"a": ALL, "b": ALL[3 * DAY + 100 :]}) == []
    assert found_in({}) == []


def names(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(one["broker"], int(one["time"].timestamp() * 1000)) for one in found]


def test_a_broker_that_the_registries_do_not_know_any_more_is_said_once() -> None:
    known = KnownBrokers(alerts.Config(servers="a:1", gone_minutes=3))
    assert known.missing({"a", "b"}, BEGIN) == []
    assert known.missing({"a"}, BEGIN + 2 * MINUTE) == []
    found = known.missing({"a"}, BEGIN + 3 * MINUTE + 5)
    assert names(found) == [("b", BEGIN + 3 * MINUTE)]
    assert "no broker 'b': it was there last at 2026-01-01 00:00" in found[0]["explanation"]
    # As long as it is not written it is the same alert.
    assert names(known.missing({"a"}, BEGIN + 5 * MINUTE)) == [("b", BEGIN + 3 * MINUTE)]
    known.note(found)
    assert known.missing({"a"}, BEGIN + 9 * MINUTE) == []
    assert known.missing({"a", "b"}, BEGIN + 10 * MINUTE) == []
    assert names(known.missing({"a"}, BEGIN + 14 * MINUTE)) == [("b", BEGIN + 13 * MINUTE)]


def test_a_broker_that_has_to_be_there_and_never_was_is_said_at_once() -> None:
    known = KnownBrokers(alerts.Config(servers="a:1", brokers=("a", "b")))
    found = known.missing({"a"}, BEGIN + 7)
    assert names(found) == [("b", BEGIN)]
    known.note(found)
    assert known.missing({"a"}, BEGIN + MINUTE) == []
    assert names(known.missing(set(), BEGIN + 11 * MINUTE)) == [("a", BEGIN + 11 * MINUTE)]


def test_brokers_are_named_for_registries_only(tmp_path: Any) -> None:
    (tmp_path / "minute").mkdir()
    for options in ({"tables": tmp_path}, {"tables": tmp_path, "servers": "a:1"}):
        with pytest.raises(ConfigError, match="needs --servers, and no --tables"):
            alerts.Config(brokers=("b",), **options)
