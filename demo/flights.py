"""The flights: every departure from New York's three airports in 2013."""

from __future__ import annotations

from typing import Final

from demo.data import read_table

TOPIC: Final = "flights"
COUNT: Final = 336_776

# The last message of the year. It is no flight: it tells a reader by event time that nothing earlier is to come.
END_OF_YEAR: Final = b",,,,,,,,,,,,(end),,,,,,2014-03-01T00:00:00Z"

_COLUMNS: Final = (
    b"year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    b"origin,dest,air_time,distance,hour,minute,time_hour"
)
_CARRIER, _FLIGHT, _TIME_HOUR = 9, 10, 18


def read_flights() -> list[bytes]:
    """Return every flight as one line of CSV, hour by hour as they would leave.

    Raises:
        ValueError: the package holds other data than expected.
    """
    return sorted(read_table("flights", _COLUMNS, COUNT), key=lambda line: line.rpartition(b",")[2])


def flight_key(line: bytes) -> bytes:
    """Return what tells a flight from all others: scheduled hour, carrier, flight number."""
    fields = line.split(b",")
    return b",".join((fields[_TIME_HOUR], fields[_CARRIER], fields[_FLIGHT]))
