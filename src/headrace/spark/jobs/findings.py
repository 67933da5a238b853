"""What a check finds: the kinds are those of ``headrace store check`` (docs/formats/store-check.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
