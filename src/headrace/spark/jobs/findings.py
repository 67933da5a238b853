"""What a check finds in one log: the kinds are those of ``headrace store check`` (docs/formats/store-check.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.format.findings import Finding


@dataclass(slots=True)
class Findings:
    """What was found in one log; each finding gets the name of its broker.

    Attributes:
        broker: Whose log it is.
        is_closed: Whether its broker noted a clean end.
        info: What is only worth knowing.
    """

    broker: str
    is_closed: bool = True
    damage: list[Finding] = field(default_factory=list)
    info: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Add damage."""
        self.damage.append(replace(finding, broker=self.broker))

    def note(self, finding: Finding) -> None:
        """Add what is only worth knowing."""
        self.info.append(replace(finding, broker=self.broker))

    def add_unfinished(self, finding: Finding) -> None:
        """Add what a kill or a power cut leaves: it is damage only where there was none."""
        (self.add if self.is_closed else self.note)(finding)
