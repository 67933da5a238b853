"""The version of a table that others copy: topics for registries, subscription groups for slaves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

logger = logging.getLogger(__name__)

_SMALLEST_NS: Final = 10**17
"""As ms this is the year 3,170,843, as ns it is 1973: the digits say which unit a file was written in."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """When a table last changed, and how often it did. Equal versions stand for equal tables (A-BROKER-17)."""

    timestamp_ms: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change."""
        return DataVersion(now_ms, self.counter + 1)

    def to_fields(self) -> dict[str, int]:
        """Return the version as RocketMQ's JSON has it; the time in ms, here and on the wire."""
        return {"counter": self.counter, "timestamp": self.timestamp_ms}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read a version from JSON. SmartGo's files have the time in ns: the number of digits decides (X-BROKER-05).

        Raises:
            ValueError: a member is no number.
        """
        try:
            timestamp, counter = int(fields.get("timestamp", 0)), int(fields.get("counter", 0))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"dataVersion is not two numbers: {error}") from error
        return cls(timestamp // 1_000_000 if timestamp >= _SMALLEST_NS else timestamp, counter)


def read_version(content: Mapping[str, Any]) -> DataVersion:
    """Return a config file's ``dataVersion``; the first one where it has none that can be read."""
    fields = content.get("dataVersion")
    try:
        return DataVersion.from_fields(fields if isinstance(fields, dict) else {})
    except ValueError as error:
        logger.warning("version of a config file begins anew error=%s", error)
        return DataVersion()
