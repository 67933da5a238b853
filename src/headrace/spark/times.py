"""Points in time, as ms since 1970. Needs nothing: the help of jobs imports it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999: other times are in no column of a DataFrame."""


def first_ms(moment: datetime) -> int:
    """Return the first ms since 1970 that is not before a moment, in UTC unless it has a zone.

    Messages have whole ms: those at or after the moment are those at or after this, and so with those before. In the
    last ms of the year 9999 it is that one, as no later time is in a DataFrame.
    """
    whole, rest = divmod((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH, timedelta(milliseconds=1))
    return whole + (rest > timedelta(0) and whole < LAST_MS)
