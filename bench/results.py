"""One file per run: every sample of every case, with what is needed to judge and repeat it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import REPOSITORY
from bench.metrics import Sample, medians

RESULTS = REPOSITORY / "bench" / "results"
FORMAT_VERSION = 1


@dataclass
class ContestantResult:
    """What one contestant reached in one case."""

    command: str = ""
    samples: list[Sample] = field(default_factory=list)

    @property
    def medians(self) -> Sample:
        """The median of each figure over the samples."""
        return medians(self.samples)


@dataclass
class CaseResult:
    """One case with the contestants that took part, in the case's order."""

    name: str
    title: str
    contestants: dict[str, ContestantResult] = field(default_factory=dict)


@dataclass
class RunResult:
    """One run. ``failures`` names every sample that could not be taken, and why."""

    date: str
    commit: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    cases: list[CaseResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def case(self, name: str) -> CaseResult:
        """Return the case of a name.

        Raises:
            KeyError: the run has no such case.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)

    def by_contestant(self) -> dict[tuple[str, str], ContestantResult]:
        """Return the results by (case, contestant)."""
        return {
            (case.name, contestant): result for case in self.cases for contestant, result in case.contestants.items()
        }


def write_results(run: RunResult, path: Path) -> None:
    """Write a run to a file, with the medians beside the samples for whoever reads it without this code."""
    document = {"format": FORMAT_VERSION, **asdict(run)}
    for case_document, case in zip(document["cases"], run.cases, strict=True):
        for contestant, result in case.contestants.items():
            case_document["contestants"][contestant]["medians"] = result.medians
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def read_results(path: Path) -> RunResult:
    """Read a run.

    Raises:
        ValueError: the file has another format version.
    """
    document = json.loads(path.read_text())
    version = document.pop("format")
    if version != FORMAT_VERSION:
        raise ValueError(f"{path} has format {version}, this is {FORMAT_VERSION}")
    cases = [
        CaseResult(
            case["name"],
            case["title"],
            {
                contestant: ContestantResult(result["command"], result["samples"])
                for contestant, result in case["contestants"].items()
            },
        )
        for case in document.pop("cases")
    ]
    return RunResult(cases=cases, **document)
