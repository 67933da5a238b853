"""What all runs together say of the targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.history import HISTORY, Entry, read_entries, render_history
from bench.results import write_results
from tests.unit.bench.example_runs import make_run


def test_the_document_is_that_of_the_results() -> None:
    """Whoever adds a file of results runs ``python -m bench.history``."""
    assert HISTORY.read_text() == render_history(read_entries())


def test_runs_that_meet_a_target_are_counted(tmp_path: Path) -> None:
    """The newest run is told apart: what it misses is missed."""
    runs = [make_run({"headrace": [{"server_cpu_us": cpu}]}) for cpu in (0.2, 0.4, 0.3, 0.7)]
    runs = [replace(run, date=f"2026-01-0{day}T00:00:00+00:00") for day, run in enumerate(runs, 1)]
    text = render_history([Entry(tmp_path / f"{run.date[:10]}.json", run) for run in runs], tmp_path / "history.md")
    rows = [line for line in text.splitlines() if line.startswith("| MPUB of 200 ")]
    assert rows == [
        "| MPUB of 200 | server CPU us/msg at most 0.500 | 4 | 3 | 0.200 | 0.350 | 0.700 | 0.700 | missed |"
    ]
    shown = [line.split(" | ") for line in text.splitlines() if "`0123456789`" in line]
    assert [(row[0], row[-1]) for row in shown] == [
        ("| [2026-01-04](2026-01-04.json)", "mpub 0.700 |"),
        ("| [2026-01-03](2026-01-03.json)", " |"),
        ("| [2026-01-02](2026-01-02.json)", " |"),
        ("| [2026-01-01](2026-01-01.json)", " |"),
    ]


def test_runs_of_code_that_was_not_committed_are_left_out(tmp_path: Path) -> None:
    """Nobody can repeat them."""
    run = make_run({"headrace": [{"server_cpu_us": 0.2}]})
    write_results(run, tmp_path / "a.json")
    write_results(replace(run, commit="0123456789-dirty"), tmp_path / "rocketmq" / "b.json")
    assert [entry.path.name for entry in read_entries(tmp_path)] == ["a.json"]
