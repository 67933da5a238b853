"""Sizes and durations as people write them: ``64MiB``, ``250ms``, ``1m30s``."""

import re
from decimal import Decimal, localcontext
from typing import Final

from headrace.errors import ConfigError

SIZE_UNITS: Final = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
# Go's unit names, so that nsqd's files can be read with the same code, and days.
DURATION_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
DURATION: Final = re.compile(rf"(?:{DURATION_PART.pattern})+")
INTEGER: Final = re.compile(r"-?[0-9]+(?:_[0-9]+)*")
_BEYOND: Final = Decimal(1 << 63)
"""More than any setting can take: a product of what is far beyond it would overflow."""
_MOST_SHOWN: Final = 40


def parse_size(text: str) -> int:
    """Return the bytes of ``"64MiB"``, ``"1.5 GiB"``, ``"10MB"`` or a plain number.

    Raises:
        ConfigError: no such unit, or not a whole number of bytes.
    """
    if INTEGER.fullmatch(text):
        return _whole(Decimal(text), "bytes")
    match = SIZE.fullmatch(text)
    factor = SIZE_UNITS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ConfigError(f"a size is a number of bytes or a number with one of {', '.join(SIZE_UNITS)}")
    return _whole_sum([(match[1], factor)], "bytes")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of ``"250ms"``, ``"1m30s"``, ``"72h"`` or a plain number of milliseconds.

    Raises:
        ConfigError: no such unit, or not a whole number of milliseconds.
    """
    if INTEGER.fullmatch(text):
        return _whole(Decimal(text), "milliseconds")
    if not DURATION.fullmatch(text):
        raise ConfigError(f"a duration is a number of milliseconds or numbers with {', '.join(DURATION_UNITS_MS)}")
    parts = DURATION_PART.findall(text)
    return _whole_sum([(number, DURATION_UNITS_MS[unit]) for number, unit in parts], "milliseconds")


def parse_delays_ms(text: str) -> tuple[int, ...]:
    """Return the delay of each level of ``"1s 5s 1m"``, the first is level 1.

    Raises:
        ConfigError: one is no duration.
    """
    return tuple(map(parse_duration_ms, text.split()))


def _whole_sum(parts: list[tuple[str, int]], unit: str) -> int:
    """Return the sum of numbers times their factors, as ``_whole``."""
    with localcontext() as context:
        # Else 28 digits of a product are kept: 0.999... of 5,000 digits was 1.
        context.prec += sum(len(number) for number, _ in parts)
        return _whole(sum((min(Decimal(number), _BEYOND) * factor for number, factor in parts), Decimal()), unit)


def _whole(number: Decimal, unit: str) -> int:
    """Return the number as an int, refusing a fraction of the smallest unit, and what no setting can take."""
    if number >= _BEYOND:  # abs() would round it, and fail for a million digits
        raise ConfigError(f"it is more than 2^63 {unit}")
    if number < -_BEYOND:
        raise ConfigError(f"it is less than -2^63 {unit}")
    if number != number.to_integral_value():
        shown = f"{number.normalize():f}"
        raise ConfigError(f"{shown if len(shown) <= _MOST_SHOWN else 'it'} is not a whole number of {unit}")
    return int(number)


def format_size(size_bytes: int) -> str:
    """Write a size with the largest binary unit that keeps it whole: ``1GiB``, ``6000000``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


def format_duration(duration_ms: int) -> str:
    """Write a duration with the largest unit that keeps it whole: ``72h``, ``250ms``."""
    for unit in ("h", "m", "s"):
        if duration_ms and duration_ms % DURATION_UNITS_MS[unit] == 0:
            return f"{duration_ms // DURATION_UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
