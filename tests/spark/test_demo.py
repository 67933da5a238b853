"""The demo's join and its judge: what ``make demo`` says must be true, also when it is bad news."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from demo.flights import flight_key
from demo.join import delays_by_weather
from demo.judge import ChannelJudge
from demo.results import COLUMNS, Row

result_judge = pytest.importorskip("demo.result_judge")

FLIGHTS = [
    b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    b"2013,1,1,NA,515,NA,NA,819,NA,UA,7,N14228,EWR,IAH,NA,1400,5,15,2013-01-01T10:00:00Z",
    b"2013,1,1,542,540,32,923,850,33,AA,1141,N619AA,JFK,MIA,160,1089,5,40,2013-01-01T10:00:00Z",
    b"2013,1,1,554,600,-6,812,837,-25,DL,461,N668DN,LGA,ATL,116,762,6,0,2013-01-01T11:00:00Z",
]
WEATHER = [
    b"EWR,2013,1,1,5,39.02,28.04,64.43,260,12.65858,NA,0,1011.9,10,2013-01-01T10:00:00Z",
    b"JFK,2013,1,1,5,30.02,26.96,61.63,NA,8.05546,NA,0.02,NA,1.5,2013-01-01T10:00:00Z",
    b"LGA,2013,1,1,5,39.92,26.96,59.45,230,13.80936,NA,0,1011.9,10,2013-01-01T10:00:00Z",
]
EXPECTED: dict[str, tuple[Any, ...]] = {
    "2013-01-01T10:00:00Z,UA,1545": ("EWR", 2.0, 39.02, 12.65858, 0.0, 10.0, "fair"),
    "2013-01-01T10:00:00Z,UA,7": ("EWR", None, 39.02, 12.65858, 0.0, 10.0, "fair"),
    "2013-01-01T10:00:00Z,AA,1141": ("JFK", 32.0, 30.02, 8.05546, 0.02, 1.5, "snow"),
    "2013-01-01T11:00:00Z,DL,461": ("LGA", -6.0, None, None, None, None, None),
}


def test_each_flight_comes_out_once_with_the_weather_it_had(spark: Any) -> None:
    """Repetitions are passed over on both sides; no weather for the hour, and no departure, are null."""

    def messages(lines: list[bytes]) -> Any:
        return spark.createDataFrame([(line,) for line in [*lines, *lines[:2]]], "body binary")

    rows = delays_by_weather(messages(FLIGHTS), messages(WEATHER)).collect()
    found = {row.flight: tuple(row[name] for name in [*COLUMNS[1:], "weather"]) for row in rows}
    assert len(rows) == len(FLIGHTS)
    assert found == EXPECTED


def expected_rows() -> dict[str, Row]:
    return {flight: (flight, *row[:-1], row[-1] is not None) for flight, row in EXPECTED.items()}


def test_the_judge_finds_what_is_lost_twice_and_wrong() -> None:
    rows = list(expected_rows().values())
    good = result_judge.judge(rows, expected_rows())
    assert (good.rows, good.with_weather, good.lost, good.twice, good.wrong) == (4, 3, 0, 0, 0)
    wrong = (*rows[3][:-1], True)
    bad = result_judge.judge([rows[0], rows[0], rows[2], wrong], expected_rows())
    assert (bad.rows, bad.lost, bad.twice, bad.wrong) == (4, 1, 1, 1)
    assert result_judge.judge([], expected_rows()).lost == 4


def test_rows_are_the_same_from_a_body_and_from_parquet(spark: Any, tmp_path: Path) -> None:
    """What the two places hold can be compared with one list."""
    names = [*COLUMNS, "weather"]
    types = "flight string, origin string, dep_delay double, temp double, wind_speed double, precip double"
    data = [(flight, *row) for flight, row in EXPECTED.items()]
    frame = spark.createDataFrame(data, f"{types}, visibility double, weather string")
    frame.write.parquet(str(tmp_path / "delays" / "batch=000000"))
    bodies = [
        json.dumps({name: value for name, value in zip(names, row, strict=True) if value is not None}).encode()
        for row in data
    ]
    of_bodies = set(result_judge.rows_of_bodies(bodies))
    assert of_bodies == set(result_judge.rows_of_parquet(tmp_path / "delays")) == set(expected_rows().values())


def test_the_key_of_a_flight_is_what_the_query_makes() -> None:
    assert {flight_key(line).decode() for line in FLIGHTS} == set(EXPECTED)


def test_a_story_that_got_stuck_lost_nothing(tmp_path: Path) -> None:
    """Flights that were not published yet were "lost", and a broker that nobody had killed "back after the kill"."""
    pytest.importorskip("nsq", reason="the demo publishes with pynsq: pip install -e '.[demo]'")
    from demo.publisher import PublishCounts
    from demo.report import Ending, print_report

    printed = StringIO()
    console = Console(file=printed, width=120)
    demo: Any = SimpleNamespace(
        judges=[ChannelJudge("archive", tmp_path / "notes", {flight_key(line): line for line in FLIGHTS})],
        publisher=SimpleNamespace(counts=PublishCounts(answered=2)),
        weather=SimpleNamespace(answered=1, resent=0),
        spark=SimpleNamespace(outcome={}, batches=0, restarts=[]),
        restart_seconds=0.0,
    )
    print_report(console, demo, Ending(0, 0, 1.0, tmp_path), ["nothing happened for 180 s"])
    said = printed.getvalue()
    (lost,) = [line for line in said.splitlines() if "lost" in line]
    assert not any(letter.isdigit() for letter in lost)
    assert "kill;" not in said
    assert "WRONG: nothing happened" in said
