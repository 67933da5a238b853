"""The weather: what New York's three airports measured each hour of 2013."""

from __future__ import annotations

from typing import Final

from demo.data import read_table

TOPIC: Final = "weather"
COUNT: Final = 26_115

# The last message of the year: see demo.flights. Its airport is no airport, so no flight has this weather.
END_OF_YEAR: Final = b"(end of year),,,,,,,,,,,,,,2014-03-01T00:00:00Z"

_COLUMNS: Final = (
    b"origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
)


def read_weather() -> list[bytes]:
    """Return every airport's hours as lines of CSV, hour by hour as they would come in.

    Raises:
        ValueError: the package holds other data than expected.
    """
    return sorted(read_table("weather", _COLUMNS, COUNT), key=lambda line: line.rpartition(b",")[2])
