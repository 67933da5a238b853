"""Judging one series of minutes, in numpy: what is usual at this time of day, and what is not.

*Usual* is the median of the same quarter of an hour on the days before; while there are fewer than two days of history,
of the last three hours. How far values stray is the median absolute deviation, which a few wild values do not move, but
never less than the noise of counting. The score is the distance from usual in such units.

A median knows nothing of bursts that take less than half of the time, and jumps where traffic regularly begins. So what
such a quarter of an hour has at least and at most, on the median of the days (of three parts of the last three hours),
is usual too, and nothing is an alert that is not as far from that.

Rules that need no history stand beside it: lag that grows minute after minute, no traffic where there always is some,
and bursts of dead letters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headrace.spark.jobs.alerts import Config
from headrace.spark.jobs.summary import count_of

MINUTE_MS: Final = 60_000
DAY: Final = 1_440
"""Minutes."""
COUNTS: Final = ("put_messages", "put_bytes", "get_messages", "sent_back", "dead_letters")
"""Of which there are none in a minute that says nothing."""
LEVELS: Final = ("lag_messages", "lag_seconds", "latency_p99_ms")
"""Which hold until something else is said (lag), or are not known then (latency)."""
FEATURES: Final = (
    "put_messages", "put_bytes", "get_messages", "sent_back", "lag_messages", "lag_seconds", "latency_p99_ms",
    "lag_slope", "hour_sin", "hour_cos",
)  # fmt: skip
"""What the model sees of each minute: scores, softened by arsinh, and the time of day."""

_SEASON_MINUTES: Final = 7
"""On either side of the same minute of the day."""
_LEAST_SAMPLES: Final = 30
_LOCAL_MINUTES: Final = 180
_CHUNK: Final = 2_000
_LOCAL_PARTS: Final = 3
_MAD_TO_SIGMA: Final = 1.4826

Vector = np.ndarray[Any, Any]


def reach_minutes(rules: Config) -> int:
    """Return how far before the first judged minute a series has to begin for the oldest day to count whole."""
    return rules.history_days * DAY + _SEASON_MINUTES + max(rules.quiet_minutes, rules.gone_minutes) + 2


@dataclass(frozen=True, slots=True)
class Episode:
    """Minutes in a row for which one rule holds.

    Attributes:
        at: First minute, as a place in the series.
        minutes: How many.
        score: The largest.
        value, baseline: Of the minute with that score.
    """

    rule: str
    at: int
    minutes: int
    score: float
    value: float
    baseline: float
    explanation: str


# What is judged: measure, rule for more than usual, rule for less, least deviation, share of the median, says what.
_JUDGED: Final = (
    ("put_messages", "throughput_high", "throughput_low", 2.0, 0.1, "messages published in a minute"),
    ("get_messages", "throughput_high", "throughput_low", 2.0, 0.1, "messages consumed in a minute"),
    ("lag_messages", "lag_high", "", -1.0, 0.25, "messages left to do"),
    ("lag_seconds", "lag_old", "", 20.0, 0.25, "seconds behind"),
    ("latency_p99_ms", "latency_high", "", 5.0, 0.25, "ms from producer to store (p99)"),
)


class MinuteSeries:
    """One topic's or group's minutes, without gaps. ``values[measure][place]``; nan where nothing is known."""

    def __init__(
        self,
        times_ms: Sequence[int],
        measures: Mapping[str, Sequence[float | None]],
        end_ms: int,
        said_by: Sequence[str] | None = None,
    ) -> None:
        """Lay the given rows out on a grid from the first of them to ``end_ms``, exclusive.

        Args:
            said_by: Which broker a row is of; None: all are of one. A minute may have rows of several: what is counted
                adds up, and so does the lag that each of them was last known to have.
        """
        times = np.asarray(times_ms, dtype=np.int64)
        self.begin_ms = int(times.min()) // MINUTE_MS * MINUTE_MS
        self.length = max(1, (end_ms - self.begin_ms) // MINUTE_MS)
        places = (times - self.begin_ms) // MINUTE_MS
        is_inside = places < self.length
        places = places[is_inside]
        brokers = np.zeros(len(times)) if said_by is None else np.asarray(said_by)
        given = {
            name: np.array([np.nan if value is None else value for value in measures[name]], dtype=float)[is_inside]
            for name in (*COUNTS, *LEVELS)
        }
        self.values: dict[str, Vector] = {
            name: np.bincount(places, np.nan_to_num(given[name]), self.length) for name in COUNTS
        }
        self.values["latency_p99_ms"] = self._most(places, given["latency_p99_ms"])
        of_brokers = [(brokers == one)[is_inside] for one in np.unique(brokers)]
        for name, together in (("lag_messages", np.sum), ("lag_seconds", np.max)):
            held = [_hold(self._most(places[its], given[name][its])) for its in of_brokers]
            self.values[name] = together(held, axis=0)

    def _most(self, places: Vector, given: Vector) -> Vector:
        """Return the largest of what is given for each place; nan where nothing is."""
        grid = np.full(self.length, np.nan)
        np.fmax.at(grid, places, given)
        return grid

    def place(self, time_ms: int) -> int:
        """Return the place of a minute, within the series."""
        return int(np.clip((time_ms - self.begin_ms) // MINUTE_MS, 0, self.length))

    def time_ms(self, place: int) -> int:
        """Return the minute of a place."""
        return self.begin_ms + place * MINUTE_MS


class Usual(NamedTuple):
    """What is usual at some places, and how far each of it strays (as a standard deviation); nan without history."""

    median: Vector
    spread: Vector
    least: Vector
    least_spread: Vector
    most: Vector
    most_spread: Vector


def baseline(values: Vector, places: Vector, rules: Config) -> Usual:
    """Return what is usual at some places."""
    width = np.arange(-_SEASON_MINUTES, _SEASON_MINUTES + 1)
    seasonal = width - DAY * np.arange(1, rules.history_days + 1)[:, None]
    # The last minutes are left out: what begins just now must not become usual at once.
    part = (_LOCAL_MINUTES - rules.lag_minutes + 1) // _LOCAL_PARTS
    local = np.arange(1 - _LOCAL_PARTS * part, 1).reshape(_LOCAL_PARTS, part) - rules.lag_minutes
    usual = Usual(*(np.full(len(places), np.nan) for _ in Usual._fields))
    for first in range(0, len(places), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        for offsets in (seasonal, local):
            is_open = np.flatnonzero(np.isnan(usual.median[chunk]))
            if not len(is_open):
                break
            samples = _samples(values, places[chunk][is_open], offsets, is_whole=offsets is seasonal)
            enough = (~np.isnan(samples)).sum(axis=(1, 2)) >= _LEAST_SAMPLES
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of rows without a number, which are not used
                parts = (samples.reshape(len(samples), -1), np.nanmin(samples, axis=2), np.nanmax(samples, axis=2))
                found = [of_part for part in parts for of_part in _median_and_spread(part)]
            for column, of_places in zip(usual, found, strict=True):
                column[chunk][is_open[enough]] = of_places[enough]
    return usual


def _median_and_spread(samples: Vector) -> tuple[Vector, Vector]:
    median = np.nanmedian(samples, axis=1)
    return median, np.nanmedian(np.abs(samples - median[:, None]), axis=1) * _MAD_TO_SIGMA


def _samples(values: Vector, places: Vector, offsets: Vector, *, is_whole: bool) -> Vector:
    """Return the values at rows of offsets from each place; nan before the series, if ``is_whole`` for all of a row.

    Of a day that begins within its quarter of an hour only what comes late would count.
    """
    index = places[:, None, None] + offsets
    is_there = index[:, :, :1] >= 0 if is_whole else index >= 0
    return np.where(is_there, values[np.clip(index, 0, len(values) - 1)], np.nan)


def scores(values: Vector, places: Vector, usual: Usual, least: float, share: float) -> Vector:
    """Return how many deviations places are above (or below: negative) the usual median; nan if that is not known."""
    return (values[places] - usual.median) / _noise(usual.median, usual.spread, least, share)


def range_scores(values: Vector, places: Vector, usual: Usual, least: float, share: float) -> Vector:
    """Return the same, 0 where bursts and pauses that are usual say more: the smaller of the two distances."""
    score = scores(values, places, usual, least, share)
    above = (values[places] - usual.most) / _noise(usual.most, usual.most_spread, least, share)
    below = (values[places] - usual.least) / _noise(usual.least, usual.least_spread, least, share)
    with np.errstate(invalid="ignore"):
        return np.clip(score, np.minimum(below, 0), np.maximum(above, 0))


def _noise(centers: Vector, spreads: Vector, least: float, share: float) -> Vector:
    """Return what one deviation is at least: that of counting."""
    with np.errstate(invalid="ignore"):
        counting = np.sqrt(np.maximum(centers, 0))
        noise: Vector = np.maximum.reduce([spreads, counting, share * centers, np.full(len(centers), least)])
    return noise


def judge(series: MinuteSeries, begin: int, end: int, rules: Config) -> list[Episode]:
    """Return the episodes that begin in the minutes [begin, end) of a series.

    One that was on when ``begin`` came belongs to an earlier look, unless the series begins there.
    """
    looked = np.arange(max(0, begin - 2), end)  # two minutes more, to see what began before, and may pause for one
    found: list[Episode] = []
    if not len(looked):
        return found
    for name, high, low, least, share, what in _JUDGED:
        values = series.values[name]
        if not np.nansum(np.abs(values)):
            continue
        least = rules.lag_least if least < 0 else least
        usual = baseline(values, looked, rules)
        score = np.nan_to_num(range_scores(values, looked, usual, least, share))
        for rule, wanted in ((high, score >= rules.threshold), (low, score <= -rules.threshold)):
            if rule:
                found += [
                    _episode(rule, first, last, score, values[looked], usual.median, looked, what)
                    for first, last in _runs(wanted)
                ]
    found += _growing(series, looked, rules)
    found += _quiet(series, looked, rules)
    found += _bursts(series, looked, rules)
    return sorted(
        (one for one in found if one.at >= begin and (one.at > 0 or begin == 0)), key=lambda one: (one.at, one.rule)
    )


def _episode(
    rule: str, first: int, last: int, score: Vector, values: Vector, usual: Vector, looked: Vector, what: str
) -> Episode:
    peak = first + int(np.argmax(np.abs(score[first:last])))
    return Episode(
        rule,
        int(looked[first]),
        last - first,
        round(float(abs(score[peak])), 2),
        float(values[peak]),
        float(usual[peak]),
        f"{values[peak]:,.4g} {what}, usual at this time is {usual[peak]:,.4g}",
    )


def _growing(series: MinuteSeries, looked: Vector, rules: Config) -> Iterator[Episode]:
    lag = np.nan_to_num(series.values["lag_messages"])
    if not lag.any():
        return
    steps = np.diff(lag, prepend=lag[0])
    count = rules.lag_minutes
    is_up, is_down = np.cumsum(steps > 0), np.cumsum(steps < 0)
    before = np.maximum(looked - count, 0)
    ups, downs = is_up[looked] - is_up[before], is_down[looked] - is_down[before]
    growth = lag[looked] - lag[before]
    wanted = (
        (looked >= count)
        & (downs == 0)
        & (ups >= 0.8 * count)
        & (growth >= np.maximum(rules.lag_least, 0.2 * lag[before]))
    )
    for first, last in _runs(wanted):
        now, then = float(lag[looked[last - 1]]), float(lag[before[first]])
        minutes = last - first + count
        text = f"{now:,.0f} messages left to do, growing for {minutes} minutes from {then:,.0f}"
        yield Episode("lag_growing", int(looked[first]), last - first, float(growth[last - 1]), now, then, text)


def _quiet(series: MinuteSeries, looked: Vector, rules: Config) -> Iterator[Episode]:
    puts = series.values["put_messages"]
    if not puts.any():
        return
    for first, last, usual in silences(puts, looked, rules.quiet_minutes, rules.quiet_least, rules):
        minutes = count_of(last - first + rules.quiet_minutes - 1, "minute", "minutes")
        yield Episode(
            "no_traffic", int(looked[first]), last - first, usual, 0.0, usual,
            f"nothing published for {minutes}, usual at this time is {usual:,.4g} messages a minute",
        )  # fmt: skip


def silences(
    values: Vector, looked: Vector, minutes: int, least: float, rules: Config
) -> Iterator[tuple[int, int, float]]:
    """Yield (first, behind the last, what is usual in the first) of each run of places behind minutes of nothing.

    Args:
        looked: Places in a row that are judged; the runs are in numbers of them.
        minutes: So many in a row have nothing.
        least: What is usual in each of these at least.
    """
    # Silence counts where all of it lies in minutes with traffic, not in those before the first of a day.
    behind = np.arange(looked[0] - minutes + 1, looked[-1] + 1)
    medians = np.nan_to_num(baseline(values, behind, rules).median)
    usual = sliding_window_view(medians, minutes).min(axis=1)
    total = np.cumsum(values)
    before = looked - minutes
    recent = total[looked] - np.where(before >= 0, total[np.maximum(before, 0)], 0)
    for first, last in _runs((before >= 0) & (recent == 0) & (usual >= least)):
        yield first, last, float(usual[first])


def _bursts(series: MinuteSeries, looked: Vector, rules: Config) -> Iterator[Episode]:
    dead = series.values["dead_letters"]
    if not dead.any():
        return
    total = np.cumsum(dead)
    recent = total[looked] - np.where(looked >= 5, total[np.maximum(looked - 5, 0)], 0)
    # The mean of the history: dead letters are rare, their median is none.
    first = np.maximum(looked - rules.history_days * DAY, 0)
    past = np.maximum(looked - 5, 0)
    usual = 5 * (total[past] - total[first]) / np.maximum(past - first, 1)
    wanted = (recent >= rules.dead_burst) & (recent >= 5 * usual)
    for start, stop in _runs(wanted):
        peak = start + int(np.argmax(recent[start:stop]))
        yield Episode(
            "dead_letters", int(looked[start]), stop - start, float(recent[peak]), float(recent[peak]),
            float(usual[peak]), f"{recent[peak]:,.0f} dead letters in 5 minutes, usual is {usual[peak]:,.3g}",
        )  # fmt: skip


def features(series: MinuteSeries, begin: int, end: int, rules: Config) -> Vector:
    """Return a row of ``FEATURES`` for each minute of [begin, end); 0 where nothing is known."""
    places = np.arange(begin, end)
    columns = []
    for name in FEATURES[:7]:
        values = series.values[name]
        least = rules.lag_least if name == "lag_messages" else 5.0
        score = np.zeros(len(places))
        if np.nansum(np.abs(values)):
            score = scores(values, places, baseline(values, places, rules), least, 0.1)
        columns.append(np.arcsinh(np.nan_to_num(score)))
    lag = np.nan_to_num(series.values["lag_messages"])
    slope = lag[places] - lag[np.maximum(places - rules.lag_minutes, 0)]
    columns.append(np.arcsinh(slope / rules.lag_least))
    angle = 2 * np.pi * ((series.begin_ms // MINUTE_MS + places) % DAY) / DAY
    return np.stack([*columns, np.sin(angle), np.cos(angle)], axis=1)


def _runs(wanted: Vector) -> list[tuple[int, int]]:
    """Return (first, behind the last) of each run of true values; one minute of pause does not end a run."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8)))
    runs: list[tuple[int, int]] = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if runs and first - runs[-1][1] <= 1:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return runs


def _hold(values: Vector) -> Vector:
    """Fill what is not known with what was last known; before anything was, with 0."""
    known = np.where(~np.isnan(values), np.arange(len(values)), -1)
    last = np.maximum.accumulate(known)
    return np.where(last >= 0, values[np.maximum(last, 0)], 0.0)
