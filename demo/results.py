"""The results: a row for each flight, with the weather at its airport in its hour."""

from __future__ import annotations

from typing import Final

TOPIC: Final = "delays-by-weather"
FOLDER: Final = "delays"

# What is compared of a row; whether it has weather at all comes last.
COLUMNS: Final = ("flight", "origin", "dep_delay", "temp", "wind_speed", "precip", "visibility")
Row = tuple[str | float | None, ...]
