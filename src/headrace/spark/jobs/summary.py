"""What a job has done: the same facts as JSON for programs and as lines and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

DONE: Final = 0
FAILED: Final = 1
"""Something is damaged, or a part of the job could not be done."""
NOT_CHECKED: Final = 2
"""The job could not look at what it was asked to look at."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; ``to_dict`` has the same as a list of objects.

    Attributes:
        key: Name of the list in the JSON summary.
        title: Heading.
        columns: Names of the columns; also the keys of the objects.
        rows: JSON values; None is shown as "-".
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(kw_only=True)
class Summary:
    """The result of a job.

    Attributes:
        job: Its name.
        facts: Numbers and texts in the order in which they are shown; JSON values, keys in snake_case with units.
        tables: Lists, shown as tables.
        notes: Sentences that a person should read.
        exit_code: 0 done, 1 failed or damaged, 2 could not check.
        seconds: How long it took; the framework fills it in.
        dry_run: Nothing was changed.
        damage: A Spark accumulator in which tasks count damage of a log, see ``log_rows.watched``.
    """

    job: str
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exit_code: int = DONE
    seconds: float = 0.0
    dry_run: bool = False
    damage: Any = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        shown: dict[str, Any] = {"job": self.job, "exit_code": self.exit_code, "dry_run": self.dry_run, **self.facts}
        for table in self.tables:
            shown[table.key] = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return {**shown, "notes": self.notes, "seconds": round(self.seconds, 3)}

    def rows(self) -> list[tuple[str, str]]:
        """Return the facts as (name, text), for a table that people read."""
        return [(name.replace("_", " "), show(value, name)) for name, value in self.facts.items()]


def count_of(number: int, one: str, many: str) -> str:
    """Return a number with what it counts, and the verb if there is one: 1 hour stays, 2 hours stay."""
    return f"{number} {one if number == 1 else many}"


def show(value: Any, name: str = "") -> str:
    """Write one value for people: thousands apart, bytes with a unit, "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("_bytes") and abs(value) >= 1 << 20:
            return f"{value:,} ({value / (1 << 20):,.1f} MiB)"
        # Offsets and times are compared digit by digit: no separators in them.
        return str(value) if name.endswith(("_ms", "offset", "_id", "start", "end")) else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={show(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(show(item) for item in value) or "-"
    return str(value)
