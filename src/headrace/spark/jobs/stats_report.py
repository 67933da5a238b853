"""The report of ``headrace job stats``: one HTML file with its plots inside, readable without a network or a script.

Made of the tables, not of the log; what is collected on the driver is a few hundred points in time and the top rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from headrace.spark.jobs import stats_tables
from headrace.spark.jobs.stats_merge import fold, quantiles
from headrace.spark.jobs.stats_partials import LATENCY_BOUNDS_MS, SIZE_BOUNDS
from headrace.spark.jobs.stats_plots import Series, bars, lines
from headrace.spark.times import LAST_MS

MAX_POINTS: Final = 800
"""Points in time of a plot; with more the next longer span is drawn."""
MAX_DAYS: Final = 10_000
"""As far as a plot has those without messages too. More are between messages of clocks that were wrong: each day is 300
bytes of a page, the way to the year 9999 a gigabyte."""
MAX_LINES: Final = 6
"""Topics or groups that have a line of their own."""


@dataclass
class ReportTable:
    """A table of the report; numbers are texts already."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass
class ReportData:
    """What the report shows."""

    title: str
    period: str
    made: str
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, value, what it means in small print)."""
    plots: list[tuple[str, str, str]] = field(default_factory=list)
    """(heading, SVG, sentence below)."""
    tables: list[ReportTable] = field(default_factory=list)


def report_data(spark: SparkSession, folder: Path, hours: Sequence[str], *, title: str, top: int) -> ReportData:
    """Collect what the report of some hours shows.

    Args:
        hours: As ``2026-01-3107``, in ascending order, at least one.
    """
    span = choose_span(hours)
    stored = _rows_of(spark, folder, span, hours)
    table = stats_tables.together(stored, ("time", "topic", "group", "source", "broker")).toArrow()
    hosts = stats_tables.together(stored.where("put_messages > 0"), ("host",)).toArrow()
    seconds = stats_tables.SPANS[span]
    moments = {int(row["time"].timestamp()): row for row in fold(table, ("time",)).to_pylist()}
    axis = axis_of(moments, seconds)
    end = min(axis[-1] + seconds, LAST_MS // 1000)  # behind the last day of all there is no time
    first, last = (datetime.fromtimestamp(at, UTC) for at in (axis[0], end))
    (total,) = fold(table, ()).to_pylist()
    return ReportData(
        title=title,
        period=f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        figures=_figures(table, total, hosts),
        plots=_plots(table, moments, axis, total, span),
        tables=_tables(table, hosts, top),
    )


def render(data: ReportData) -> str:
    """Return the HTML page."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # an extra

    source = (files("headrace.spark.jobs") / "templates" / "stats.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(data=data)


def choose_span(hours: Sequence[str]) -> str:
    """Return the shortest span of which a plot has not too many points."""
    first, last = (datetime.strptime(hour + "+0000", "%Y-%m-%d%H%z") for hour in (hours[0], hours[-1]))
    seconds = (last - first).total_seconds() + 3600
    return next((name for name, length in stats_tables.SPANS.items() if seconds / length <= MAX_POINTS), "day")


def axis_of(moments: Iterable[int], seconds: int) -> list[int]:
    """Return the points in time of a plot, s since 1970: from the first on without gaps, unless those are ages."""
    there = sorted(moments)
    every = range(there[0], there[-1] + 1, seconds)
    return list(every) if len(every) <= MAX_DAYS else there


def _rows_of(spark: SparkSession, folder: Path, span: str, hours: Sequence[str]) -> DataFrame:
    table = stats_tables.read_table(spark, folder, span)
    if span == "day":
        return table.where(F.col("dt").between(hours[0][:10], hours[-1][:10]))
    return table.where(F.concat("dt", "hour").between(hours[0], hours[-1]))


# -- figures ---------------------------------------------------------------------------------------------------------


def _figures(table: pa.Table, total: Mapping[str, Any], hosts: pa.Table) -> list[tuple[str, str, str]]:
    names = {name: len(set(table.column(name).to_pylist()) - {""}) for name in ("topic", "group", "broker")}
    p99 = _quantile(total["latencies"], LATENCY_BOUNDS_MS, 0.99)
    where = f"{count(names['broker'])} broker{'s' * (names['broker'] != 1)}, {count(len(hosts))} hosts"
    return [
        ("Messages in", count(total["put_messages"]), f"{size(total['put_bytes'])} in {count(names['topic'])} topics"),
        ("Messages out", count(total["get_messages"]), f"to {count(names['group'])} groups and channels"),
        ("Peak", f"{count(total['put_per_second_max'])}/s", "one topic from one host, busiest second"),
        ("Latency p99", "-" if p99 is None else milliseconds(p99), "made → stored"),
        ("Sent back", count(total["sent_back"]), "to be tried again"),
        ("Dead letters", count(total["dead_letters"]), where),
    ]


def _quantile(counts: Sequence[int] | None, bounds: Sequence[int], share: float) -> float | None:
    if counts is None:
        return None
    found: float | None = quantiles(np.array([counts]), bounds, share)[0].as_py()
    return found


# -- plots -----------------------------------------------------------------------------------------------------------


def _plots(
    table: pa.Table, moments: Mapping[int, Mapping[str, Any]], axis: Sequence[int], total: Mapping[str, Any], span: str
) -> list[tuple[str, str, str]]:
    seconds = stats_tables.SPANS[span]

    def per_second(name: str) -> list[float]:
        return [moments[at][name] / seconds if at in moments else 0.0 for at in axis]

    plots = [
        (
            "Messages per second",
            lines(
                axis,
                [Series("in", per_second("put_messages")), Series("out", per_second("get_messages"))],
                "messages/s",
            ),
            f"Means of each {span}. In: from the log. Out: what brokers counted, each group and channel for itself.",
        )
    ]
    topics = _by_name(table, "topic", "put_bytes", axis, seconds)
    if len(topics) > 1:
        drawn = lines(axis, topics, "bytes/s", unit="bytes", stacked=True)
        plots.append(("Bytes per second by topic", drawn, "Whole records, as stored."))
    latencies = [
        Series(
            f"p{share * 100:.0f}",
            [_quantile(moments[at]["latencies"], LATENCY_BOUNDS_MS, share) if at in moments else None for at in axis],
        )
        for share in (0.5, 0.9, 0.99)
    ]
    if any(value is not None for series in latencies for value in series.values):
        plots.append(
            (
                "Latency from producer to store",
                lines(axis, latencies, "ms", log=True),
                "By the clocks of producer and broker. NSQ messages carry no time of their own and count as 0.",
            )
        )
    lags = _by_name(table, "group", "lag_messages", axis, 0)
    if lags:
        plots.append(
            ("Lag by group", lines(axis, lags, "messages"), "Messages left to do; what brokers wrote down last.")
        )
    if total["sizes"]:
        plots.append(("Size of records", bars(_labels(SIZE_BOUNDS, size), total["sizes"], "messages"), ""))
    if total["latencies"]:
        names = _labels(LATENCY_BOUNDS_MS, milliseconds)
        plots.append(("Distribution of latency", bars(names, total["latencies"], "messages"), ""))
    return plots


def _by_name(table: pa.Table, dimension: str, measure: str, axis: Sequence[int], seconds: int) -> list[Series]:
    """Return a series for each of the largest names of a dimension, and one for the rest.

    Args:
        seconds: What sums are divided by; 0: the measure is a level, whose last known value holds.
    """
    sums: dict[str, dict[int, float]] = {}
    # A group's lags in its topics and brokers stand side by side, those of its hosts do not.
    for row in fold(table, ("time", "topic", "group", "broker")).to_pylist():
        if row[dimension] and row[measure] is not None:
            values = sums.setdefault(row[dimension], {})
            at = int(row["time"].timestamp())
            values[at] = values.get(at, 0) + row[measure]
    totals = {name: sum(values.values()) for name, values in sums.items()}
    names = sorted((name for name in totals if totals[name]), key=lambda name: (-totals[name], name))
    shown, rest = names[:MAX_LINES], names[MAX_LINES:]
    if not seconds:
        return [Series(name, _held([sums[name].get(at) for at in axis])) for name in shown]
    series = [Series(name, [sums[name].get(at, 0) / seconds for at in axis]) for name in shown]
    if rest:
        series.append(
            Series(f"{len(rest)} others", [sum(sums[name].get(at, 0) for name in rest) / seconds for at in axis])
        )
    return series


def _held(values: Sequence[float | None]) -> list[float | None]:
    """Fill gaps with the value before them."""
    held: list[float | None] = []
    for value in values:
        held.append(held[-1] if value is None and held else value)
    return held


def _labels(bounds: Sequence[int], write: Any) -> list[str]:
    return [f"≤ {write(bound)}" for bound in bounds] + [f"> {write(bounds[-1])}"]


# -- tables ----------------------------------------------------------------------------------------------------------


def _tables(table: pa.Table, hosts: pa.Table, top: int) -> list[ReportTable]:
    pairs = {(row["group"], row["topic"]) for row in table.select(["group", "topic"]).to_pylist()}
    found = [
        ReportTable(
            "Topics",
            ("topic", "in", "size", "peak/s", "p50", "p99", "out", "sent back", "dead letters"),
            [
                [
                    row["topic"],
                    *_put_cells(row),
                    *(count(row[n]) for n in ("get_messages", "sent_back", "dead_letters")),
                ]
                for row in _largest(fold(table, ("topic",)), "put_messages", top)
            ],
        ),
        ReportTable(
            "Consumer groups and channels",
            ("group", "topics", "out", "size", "most lag", "oldest", "sent back", "dead letters"),
            [
                [
                    row["group"],
                    count(sum(group == row["group"] for group, _ in pairs)),
                    count(row["get_messages"]),
                    size(row["get_bytes"]),
                    count(row["lag_messages"]),
                    "-" if row["lag_seconds"] is None else duration(row["lag_seconds"]),
                    *(count(row[name]) for name in ("sent_back", "dead_letters")),
                ]
                for row in _largest(fold(table, ("group",)), "get_messages", top)
                if row["group"]
            ],
            "From the records of the brokers in HR_STATS; empty without such records.",
        ),
        ReportTable(
            "Producing hosts",
            ("host", "in", "size", "peak/s", "p50", "p99"),
            [[row["host"] or "unknown", *_put_cells(row)] for row in _largest(hosts, "put_messages", top)],
        ),
        ReportTable(
            "Sources",
            ("source", "in", "size", "out"),
            [
                [row["source"], count(row["put_messages"]), size(row["put_bytes"]), count(row["get_messages"])]
                for row in _largest(fold(table, ("source",)), "put_messages", top)
            ],
        ),
    ]
    return [one for one in found if one.rows or one.note]


def _largest(table: pa.Table, measure: str, top: int) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: -row[measure])[:top]


def _put_cells(row: Mapping[str, Any]) -> list[str]:
    latencies = (_quantile(row["latencies"], LATENCY_BOUNDS_MS, share) for share in (0.5, 0.99))
    return [
        count(row["put_messages"]),
        size(row["put_bytes"]),
        count(row["put_per_second_max"]),
        *("-" if value is None else milliseconds(value) for value in latencies),
    ]


# -- writing numbers -------------------------------------------------------------------------------------------------


def count(value: float | None) -> str:
    """Write a number with its thousands apart; "-" for none."""
    return "-" if value is None else f"{int(value):,}".replace(",", "\u202f")


def size(value: float | None) -> str:
    """Write bytes with a unit."""
    if value is None:
        return "-"
    unit, *larger = ("B", "KiB", "MiB", "GiB", "TiB")
    while abs(value) >= 1024 and larger:
        value, unit = value / 1024, larger.pop(0)
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"


def milliseconds(value: float) -> str:
    """Write a time given in ms with the unit that suits it."""
    return f"{value:.3g} ms" if value < 1000 else duration(value / 1000)


def duration(seconds: float) -> str:
    """Write seconds, minutes or hours."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
