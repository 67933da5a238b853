"""The report's page and plots, from tables made here. No Spark."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from headrace.spark.jobs import stats_report
from headrace.spark.jobs.stats_plots import Series, bars, lines
from headrace.spark.jobs.stats_report import ReportData, ReportTable, axis_of, choose_span, render

AXIS = list(range(1_767_225_600, 1_767_229_200, 60))


@pytest.mark.parametrize("name", ["orders", "_hidden", "$x^2$", "<b>&", "%RETRY%group", "ü" * 60, ""])
def test_any_name_can_be_drawn(name: str) -> None:
    """Topics are called what people like; a plot stays well-formed and shows it."""
    for stacked in (False, True):
        svg = lines(AXIS, [Series(name, [1.0] * len(AXIS)), Series("b", [2.0] * len(AXIS))], "x", stacked=stacked)
        texts = "".join(ET.fromstring(svg).itertext())
        assert name[:30] in texts


def test_gaps_and_single_points_can_be_drawn() -> None:
    ET.fromstring(lines(AXIS, [Series("a", [None] * len(AXIS))], "x", log=True))
    ET.fromstring(lines(AXIS[:1], [Series("a", [3.0])], "x", unit="bytes", stacked=True))
    ET.fromstring(bars(["≤ 1", "≤ 2", "> 2"], [0, 5, 0], "messages"))
    ET.fromstring(bars(["≤ 1"], [0], "messages"))


@pytest.mark.parametrize("at", [-62_135_596_800, 253_402_300_740, 253_402_214_400])
@pytest.mark.parametrize("points", [1, 2])
def test_the_first_and_the_last_times_of_all_can_be_drawn(at: int, points: int) -> None:
    """As of messages that a broker stored whose clock was wrong: around them matplotlib leaves room."""
    axis = [at, at + 60][:points] if at < 0 else [at - 60, at][-points:]
    for stacked in (False, True):
        ET.fromstring(lines(axis, [Series("a", [1.0] * points)], "x", stacked=stacked))


def test_a_page_escapes_what_it_shows() -> None:
    table = ReportTable("Topics", ("topic", "in"), [["<script>alert(1)</script>", "3"]])
    page = render(ReportData("<i>T</i>", "now", "today", [("in", "3", "")], [("plot", "<svg></svg>", "")], [table]))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<svg></svg>" in page


@pytest.mark.parametrize(
    ("hours", "span"),
    [
        (["2026-01-0100"], "minute"),
        (["2026-01-0100", "2026-01-0112"], "minute"),
        (["2026-01-0100", "2026-01-0200"], "hour"),
        (["2026-01-0100", "2026-03-0100"], "day"),
    ],
)
def test_long_periods_are_drawn_by_longer_spans(hours: list[str], span: str) -> None:
    assert choose_span(hours) == span


def test_the_ages_before_a_message_of_a_wrong_clock_are_not_drawn() -> None:
    """One of the year 9999 beside those of today made a page of a gigabyte, day by day."""
    day, last = 86_400, 253_402_214_400
    assert axis_of([2 * day, 0, 5 * day], day) == [number * day for number in range(6)]
    assert len(axis_of([0, 9_999 * day], day)) == 10_000
    assert axis_of([last, 0, day], day) == [0, day, last]


def test_numbers_are_written_for_people() -> None:
    assert stats_report.size(0) == "0 B"
    assert stats_report.size(1536) == "1.5 KiB"
    assert stats_report.size(5 << 40) == "5 TiB"
    assert stats_report.milliseconds(12.34) == "12.3 ms"
    assert stats_report.milliseconds(90_000) == "1.5 min"
    assert stats_report.count(1_234_567) == "1\u202f234\u202f567"
    assert stats_report.count(None) == "-"
