"""What ``headrace doctor`` says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    status: Status
    name: str
    text: str
