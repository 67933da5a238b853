"""The judge of the results: the same join done by hand, compared row by row with what Spark wrote in two places."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from demo.flights import flight_key, read_flights
from demo.results import COLUMNS, Row
from demo.weather import read_weather


@dataclass(frozen=True)
class Findings:
    """What one place holds.

    Attributes:
        rows: All rows.
        with_weather: Rows that have weather, also where nothing of it was measured.
        lost: Flights of which there is no row.
        twice: Rows of a flight beyond its first.
        wrong: Rows that are not what the join by hand says.
    """

    rows: int
    with_weather: int
    lost: int
    twice: int
    wrong: int

    def to_dict(self) -> dict[str, int]:
        """Return it as JSON can say it."""
        return asdict(self)


def join_by_hand() -> dict[str, Row]:
    """Return what each flight's row must be, by flight, from the files that were published."""
    measured = {}
    for line in read_weather():
        fields = line.decode().split(",")
        measured[fields[0], fields[14]] = tuple(_number(fields[field]) for field in (5, 9, 11, 13))
    rows: dict[str, Row] = {}
    for line in read_flights():
        fields = line.decode().split(",")
        flight, origin = flight_key(line).decode(), fields[12]
        found = measured.get((origin, fields[18]))
        rows[flight] = (flight, origin, _number(fields[5]), *(found or (None,) * 4), found is not None)
    return rows


def judge(rows: Iterable[Row], expected: dict[str, Row]) -> Findings:
    """Compare rows of one place with what they must be."""
    counts = Counter(rows)
    flights = Counter[Any]()
    for row, count in counts.items():
        flights[row[0]] += count
    return Findings(
        rows=counts.total(),
        with_weather=sum(count for row, count in counts.items() if row[-1]),
        lost=len(expected.keys() - flights.keys()),
        twice=sum(count - 1 for count in flights.values()),
        wrong=sum(count for row, count in counts.items() if expected.get(str(row[0])) != row),
    )


def rows_of_bodies(bodies: Sequence[bytes]) -> Iterator[Row]:
    """Yield the rows of messages of the result topic."""
    for body in bodies:
        fields = json.loads(body)
        yield (*(fields.get(column) for column in COLUMNS), fields.get("weather") is not None)


def rows_of_parquet(folder: Path) -> Iterator[Row]:
    """Yield the rows of the Parquet files."""
    table = pq.read_table(folder, columns=[*COLUMNS, "weather"])
    for *row, weather in zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True):
        yield (*row, weather is not None)


def _number(text: str) -> float | None:
    return float(text) if text not in ("", "NA") else None
