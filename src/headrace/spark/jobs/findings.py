"""What a check finds: the kinds are those of ``headrace store check`` (docs/formats/store-check.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing found; what does not apply is None."""

    kind: str
    message: str
    file: str | None = None
    broker: str | None = None
    physical_offset: int | None = None
    end_offset: int | None = None
    record_bytes: int | None = None
    reason: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that apply."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


@dataclass(slots=True)
class Findings:
    """What was found in one log.

    Attributes:
        broker: Whose log it is.
        is_closed: Whether its broker noted a clean end.
    """

    broker: str
    is_closed: bool = True
    damage: list[Finding] = field(default_factory=list)
    info: list[Finding] = field(default_factory=list)

    def add_unfinished(self, finding: Finding) -> None:
        """Add what a kill or a power cut leaves: it is damage only where there was none."""
        (self.damage if self.is_closed else self.info).append(finding)
