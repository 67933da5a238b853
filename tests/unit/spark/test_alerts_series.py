"""What is usual, and what is an alert: on made-up minutes with planted anomalies. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.spark.jobs.alerts_series import (
    COUNTS,
    FEATURES,
    LEVELS,
    MinuteSeries,
    baseline,
    features,
    judge,
    reach_minutes,
)
from tests.support.minute_series import BEGIN, DAY, MINUTE, Traffic, rules_of

RULES = rules_of()


def series_of(rows: list[dict[str, Any]], group: str, end_ms: int) -> MinuteSeries:
    rows = [row for row in rows if row["group"] == group]
    measures = {name: [row.get(name) for row in rows] for name in (*COUNTS, *LEVELS)}
    return MinuteSeries([row["time_ms"] for row in rows], measures, end_ms)


def judged(traffic: Traffic, begin_day: int) -> list[tuple[str, int]]:
    rows = traffic.rows()
    found = []
    for group in ("", "billing"):
        series = series_of(rows, group, traffic.end_ms)
        found += [(one.rule, one.at) for one in judge(series, begin_day * DAY, traffic.days * DAY, RULES)]
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_planted_anomaly_is_found_within_minutes(seed: int) -> None:
    """spark.md 4.7."""
    traffic = Traffic(seed=seed)
    planted = traffic.plant(7)
    found = judged(traffic, 7)
    delays = {
        "throughput_high": 0, "no_traffic": 6, "lag_growing": 12, "latency_high": 0, "dead_letters": 3,
        "throughput_low": 0,
    }  # fmt: skip
    for rule, at in planted.items():
        hits = [place for name, place in found if name == rule and at - 1 <= place <= at + delays[rule]]
        assert hits, (rule, at, found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clean_days_raise_few_false_alarms(seed: int) -> None:
    """Two series, a day, 1,440 minutes each: at most two alarms that nothing was planted for."""
    assert len(judged(Traffic(seed=seed), 7)) <= 2


def test_few_false_alarms_beside_the_planted_ones() -> None:
    traffic = Traffic(seed=4)
    planted = traffic.plant(7)
    near = {minute for at in planted.values() for minute in range(at - 2, at + 40)}
    false = [(rule, at) for rule, at in judged(traffic, 7) if at not in near]
    assert len(false) <= 2, false


def test_a_level_that_stays_is_one_episode() -> None:
    traffic = Traffic(seed=5)
    traffic.lag[traffic.minute(7, 12) :][:60] += 5_000
    found = [at for rule, at in judged(traffic, 7) if rule == "lag_high"]
    assert found == [traffic.minute(7, 12)]


def test_an_episode_that_began_before_is_not_said_again() -> None:
    traffic = Traffic(seed=6)
    at = traffic.minute(7, 12)
    traffic.puts[at : at + 10] *= 6
    series = series_of(traffic.rows(), "", traffic.end_ms)
    assert "throughput_high" in {one.rule for one in judge(series, at, at + 20, RULES)}
    assert "throughput_high" not in {one.rule for one in judge(series, at + 4, at + 20, RULES)}


def test_a_pause_of_one_minute_ends_no_episode_between_two_looks() -> None:
    """A standing job looks at a few minutes each time; all of them together say what one look would."""
    traffic = Traffic(seed=6)
    at = traffic.minute(7, 12)
    traffic.puts[at : at + 9] *= 6
    traffic.puts[at + 4] = traffic.puts[at - 1]
    series = series_of(traffic.rows(), "", traffic.end_ms)
    for first in (at + 4, at + 5, at + 6):
        looks = [*judge(series, at - 5, first, RULES), *judge(series, first, at + 20, RULES)]
        assert [one.at for one in looks if one.rule == "throughput_high"] == [at]


@pytest.mark.parametrize("history_days", [2, 3])
def test_the_oldest_day_of_the_history_counts_whole(history_days: int) -> None:
    """A job that looks at a minute each time read exactly so many days: the first of them was dropped as begun."""
    rules = rules_of(history_days=history_days)
    traffic = Traffic(days=5, seed=3)
    minute = np.arange(5 * DAY)
    traffic.puts = np.where(minute % DAY // 60 == 12, 400.0, 20.0)
    noon = 4 * DAY + 720

    def found(reach: int) -> list[str]:
        rows = [row for row in traffic.rows() if row["time_ms"] >= BEGIN + (noon - reach) * MINUTE]
        return [one.rule for one in judge(series_of(rows, "", traffic.end_ms), reach, reach + 1, rules)]

    assert found(reach_minutes(rules)) == []
    if history_days < 3:  # of three the two newest are enough
        assert found(history_days * DAY) == ["throughput_high"]


def test_the_same_time_of_day_is_what_is_usual() -> None:
    traffic = Traffic(seed=7)
    series = series_of(traffic.rows(), "", traffic.end_ms)
    places = np.array([7 * DAY + 360, 7 * DAY + 1080])
    medians = baseline(series.values["put_messages"], places, RULES).median
    assert medians[0] == pytest.approx(480, rel=0.05)
    assert medians[1] == pytest.approx(120, rel=0.05)


def test_wild_days_do_not_change_what_is_usual() -> None:
    """Median and MAD: three of seven days may be anything."""
    traffic = Traffic(seed=8)
    for day in (2, 4, 6):
        traffic.puts[day * DAY : (day + 1) * DAY] *= 50
    series = series_of(traffic.rows(), "", traffic.end_ms)
    medians = baseline(series.values["put_messages"], np.array([7 * DAY + 360]), RULES).median
    assert medians[0] == pytest.approx(480, rel=0.15)


def test_without_days_of_history_the_last_hours_count() -> None:
    traffic = Traffic(days=1, seed=9)
    traffic.puts[600:603] *= 6
    found = judged(traffic, 0)
    assert ("throughput_high", 600) in found
    assert len(found) <= 4


def test_a_short_series_is_not_judged() -> None:
    rows = Traffic(days=1).rows()[:40]
    series = series_of(rows, "", BEGIN + 20 * MINUTE)
    assert judge(series, 0, 20, RULES) == []


def test_gaps_are_no_messages_for_counts_and_the_last_value_for_lags() -> None:
    measures: dict[str, list[float | None]] = {name: [1.0, 2.0] for name in (*COUNTS, *LEVELS)}
    series = MinuteSeries([BEGIN, BEGIN + 3 * MINUTE], measures, BEGIN + 5 * MINUTE)
    assert series.values["put_messages"].tolist() == [1, 0, 0, 2, 0]
    assert series.values["lag_messages"].tolist() == [1, 1, 1, 2, 2]
    assert np.isnan(series.values["latency_p99_ms"]).tolist() == [False, True, True, False, True]


def test_a_lag_lasts_on_each_broker_by_itself() -> None:
    """What waits on one that says nothing new still waits; what another says in that minute is no fall of it."""
    rows = [  # minute, broker, messages published, lag, age of the oldest
        (0, "a", 10, 5.0, 1.0), (0, "b", 20, 3_000.0, None), (1, "a", 10, 7.0, 1.0), (2, "a", 10, None, None),
        (3, "b", 20, 0.0, 0.0), (3, "b", 1, 40.0, 9.0), (9, "b", 20, 0.0, 0.0),
    ]  # fmt: skip
    measures: dict[str, list[float | None]] = {name: [None] * len(rows) for name in (*COUNTS, *LEVELS)}
    measures["put_messages"] = [row[2] for row in rows]
    measures["lag_messages"], measures["lag_seconds"] = [row[3] for row in rows], [row[4] for row in rows]
    times = [BEGIN + row[0] * MINUTE for row in rows]
    series = MinuteSeries(times, measures, BEGIN + 5 * MINUTE, [row[1] for row in rows])
    assert series.values["put_messages"].tolist() == [30, 10, 10, 21, 0]
    assert series.values["lag_messages"].tolist() == [3_005, 3_007, 3_007, 47, 47]
    assert series.values["lag_seconds"].tolist() == [1, 1, 1, 9, 9]


def test_features_are_finite_whatever_is_missing() -> None:
    traffic = Traffic(days=2, seed=10)
    traffic.latency[:] = np.nan
    for group in ("", "billing"):
        rows = features(series_of(traffic.rows(), group, traffic.end_ms), 0, 2 * DAY, RULES)
        assert rows.shape == (2 * DAY, len(FEATURES))
        assert np.isfinite(rows).all()


def puts_of(rate: Callable[[int], float], days: int = 8, seed: int | None = None) -> Any:
    """Return what is published in each minute of some days; with a seed, with the noise of counting."""
    rates = np.array([rate(minute) for minute in range(days * DAY)], dtype=float)
    return rates if seed is None else np.random.default_rng(seed).poisson(rates).astype(float)


def alerts_of(puts: Any, begin: int) -> list[tuple[str, int]]:
    """Judge minutes from ``begin`` on; those in which nothing was published have no row, as in the tables."""
    places = np.flatnonzero(puts)
    measures = {name: [0.0] * len(places) for name in COUNTS} | {name: [None] * len(places) for name in LEVELS}
    measures["put_messages"] = puts[places].tolist()
    series = MinuteSeries([BEGIN + int(at) * MINUTE for at in places], measures, BEGIN + len(puts) * MINUTE)
    shift = (series.begin_ms - BEGIN) // MINUTE
    end = series.place(BEGIN + len(puts) * MINUTE)
    return [(one.rule, one.at + shift) for one in judge(series, max(0, begin - shift), end, RULES)]


def office(minute: int) -> float:
    """Traffic from 8 to 18 o'clock, which begins and ends a few minutes earlier or later each day."""
    shift = (0, 2, -1, 1, 0, -2, 1, 2)[minute // DAY % 8]
    return 200.0 if 480 <= minute % DAY - shift < 1080 else 0.0


REGULAR: dict[str, Callable[[int], float]] = {
    "all day": lambda minute: 200.0,
    "five minutes of each hour": lambda minute: 5_000.0 if minute % 60 < 5 else 0.0,
    "ten minutes of each hour": lambda minute: 5_000.0 if minute % 60 < 10 else 0.0,
    "one minute of each hour": lambda minute: 5_000.0 if minute % 60 == 0 else 0.0,
    "every ten minutes, more or less": lambda minute: 300.0 if (minute + minute // DAY) % 10 == 0 else 0.0,
    "bursts over a constant flow": lambda minute: 4_000.0 if minute % 60 < 3 else 100.0,
    "six minutes at two in the night": lambda minute: 5_000.0 if 120 <= minute % DAY < 126 else 0.0,
    "office hours sharp": lambda minute: 200.0 if 480 <= minute % DAY < 1080 else 0.0,
    "office hours": office,
}


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("kind", REGULAR)
def test_what_comes_each_day_is_no_alert(kind: str, seed: int | None) -> None:
    """Bursts shorter than half of the quarter of an hour have a median of none; the first day begins with a row."""
    assert alerts_of(puts_of(REGULAR[kind], seed=seed), 7 * DAY) == []


def test_an_hourly_burst_is_regular_before_there_are_two_days() -> None:
    assert alerts_of(puts_of(REGULAR["five minutes of each hour"], days=1), 4 * 60) == []


@pytest.mark.parametrize(
    ("kind", "minutes", "times", "rule"),
    [
        ("five minutes of each hour", (0, 5), 4, "throughput_high"),
        ("ten minutes of each hour", (0, 10), 0, "no_traffic"),
        ("bursts over a constant flow", (20, 25), 5, "throughput_high"),
        ("bursts over a constant flow", (0, 3), 4, "throughput_high"),
        ("office hours", (-30, 0), 1, "throughput_high"),
        ("office hours", (0, 30), 0, "no_traffic"),
        ("office hours", (60, 70), 0, "throughput_low"),
        ("office hours", (60, 70), 3, "throughput_high"),
    ],
)
def test_what_is_unlike_other_days_is_an_alert(kind: str, minutes: tuple[int, int], times: float, rule: str) -> None:
    """At 8 o'clock of the last day the traffic is so many times as much, or is there before its time."""
    puts = puts_of(REGULAR[kind], seed=3)
    first, end = (7 * DAY + 480 + minute for minute in minutes)
    puts[first:end] = 200.0 if minutes[0] < 0 else puts[first:end] * times
    found = alerts_of(puts, 7 * DAY)
    assert [place for name, place in found if name == rule and first - 1 <= place <= first + 9], found
    assert all(first - 1 <= place <= end + 2 for _, place in found), found
