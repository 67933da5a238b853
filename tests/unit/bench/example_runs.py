"""Runs as the benchmarks leave them, with made-up figures."""

from __future__ import annotations

from typing import Any

from bench.metrics import Sample
from bench.results import CaseResult, ContestantResult, RunResult

MACHINE: dict[str, Any] = {
    "cpu": "Some CPU",
    "cores": 2,
    "memory_gib": 24,
    "system": "Linux 6.1",
    "file_system": "ext4",
    "python": "3.11.7",
    "pinned": {"server": 0, "load": 1},
}


def make_run(samples: dict[str, list[Sample]]) -> RunResult:
    """Return a run of the one case "mpub" from samples by contestant."""
    contestants = {name: ContestantResult(f"load for {name}", taken) for name, taken in samples.items()}
    return RunResult(
        date="2026-01-02T03:04:05+00:00",
        commit="0123456789",
        command="python -m bench.run --full",
        machine=MACHINE,
        versions={"nsqd": "1.3.0"},
        cases=[CaseResult("mpub", "MPUB of 200", contestants)],
    )
