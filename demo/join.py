"""The query: each flight with the weather at its airport in its hour, from two streams in whatever order they come.

It has to be exactly-once and complete although publishers repeat themselves after a crash, one stream may be ahead of
the other, and some hours were never measured. Time comes from the data, not from clocks:

- Repetitions go by key: a flight is told by hour, carrier and number, an hour of weather by airport and hour.
- A flight waits for its weather and the weather for its flights, so the result does not depend on who came first.
- A flight whose weather never comes is given out without it once both streams have passed its hour by ``LATE``. The
  last message of each stream, which says that the year is over, gets the last of them out.

``LATE`` bounds what is remembered. Within it nothing is ever too late here: publishers keep at most 2,000 flights on
the way, some two days of them, and send again in order. The demo counts rows that were too late all the same: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

LATE: Final = "10 days"

_HOUR_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ssX"
# Fields of the lines that are published: demo.flights, demo.weather.
_DEP_DELAY, _CARRIER, _FLIGHT, _FLIGHT_ORIGIN, _FLIGHT_HOUR = 5, 9, 10, 12, 18
_TEMP, _WIND_SPEED, _PRECIP, _VISIBILITY, _WEATHER_HOUR = 5, 9, 11, 13, 14


def delays_by_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Join messages of the two topics; both have a column ``body``, and the result is a row for each flight.

    Layout: flight string | origin string | hour timestamp | dep_delay double (minutes, null: it never left) |
    temp, wind_speed, precip, visibility double (null: not measured) | weather string (null: no row for that hour).
    """
    left = parse_flights(flights).withWatermark("hour", LATE).dropDuplicates(["flight", "origin", "hour"])
    right = parse_weather(weather).withWatermark("at", LATE).dropDuplicates(["airport", "at"])
    joined = left.join(right, (f.col("origin") == f.col("airport")) & (f.col("hour") == f.col("at")), "left_outer")
    return joined.drop("airport", "at")


def parse_flights(messages: DataFrame) -> DataFrame:
    """Return flight, origin, hour and departure delay of each message."""
    field = _fields()
    return messages.select(
        f.concat_ws(",", field(_FLIGHT_HOUR), field(_CARRIER), field(_FLIGHT)).alias("flight"),
        field(_FLIGHT_ORIGIN).alias("origin"),
        f.to_timestamp(field(_FLIGHT_HOUR), _HOUR_FORMAT).alias("hour"),
        field(_DEP_DELAY).try_cast("double").alias("dep_delay"),
    )


def parse_weather(messages: DataFrame) -> DataFrame:
    """Return airport, hour, what was measured and a word for it, of each message."""
    field = _fields()
    measured = messages.select(
        field(0).alias("airport"),
        f.to_timestamp(field(_WEATHER_HOUR), _HOUR_FORMAT).alias("at"),
        field(_TEMP).try_cast("double").alias("temp"),
        field(_WIND_SPEED).try_cast("double").alias("wind_speed"),
        field(_PRECIP).try_cast("double").alias("precip"),
        field(_VISIBILITY).try_cast("double").alias("visibility"),
    )
    return measured.withColumn("weather", _word())


def _fields() -> Callable[[int], Column]:
    """Return what picks a field of a line by its number."""
    fields = f.split(f.col("body").cast("string"), ",")
    return fields.getItem


def _word() -> Column:
    """Return a word for the weather: Fahrenheit, miles an hour, inches, miles."""
    wet = f.col("precip") > 0
    return (
        f.when(wet & (f.col("temp") <= 34), "snow")
        .when(wet, "rain")
        .when(f.col("visibility") < 3, "fog")
        .when(f.col("wind_speed") >= 20, "wind")
        .otherwise("fair")
    )
