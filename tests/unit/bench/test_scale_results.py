"""Results and tables of bench.scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale_results import ScaleCase, ScaleRun, missed_targets, read_scale_run, render_scale, write_scale_run
from tests.unit.bench.example_runs import MACHINE


def scale_run(figures: dict[str, float], note: str = "") -> ScaleRun:
    return ScaleRun(
        date="2026-01-02T03:04:05+00:00",
        commit="0123456789",
        command="python -m bench.scale",
        machine=MACHINE,
        versions={"headrace": "0.1.0"},
        note=note,
        cases=[ScaleCase("start-log", "Start behind 1 GB of log", ["loadgen nsq-pub"], figures)],
    )


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = scale_run({"s_per_gb": 1.5}, note="busy machine")
    write_scale_run(run, tmp_path / "scale" / "run.json")
    assert read_scale_run(tmp_path / "scale" / "run.json") == run


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 9, "cases": []}')
    with pytest.raises(ValueError, match="format 9"):
        read_scale_run(tmp_path / "run.json")


def test_a_table_names_targets_where_there_are_some() -> None:
    lines = render_scale(scale_run({"behind_gb": 1.0, "s_per_gb": 1.5}, note="busy machine")).splitlines()
    assert "| log behind the checkpoint, GB | 1.00 |  |" in lines
    assert "| start after kill -9, s per GB | 1.50 | at most 3.00 |" in lines
    assert "Note: busy machine" in lines
    assert "- `loadgen nsq-pub`" in lines


@pytest.mark.parametrize(("figure", "value"), [("s_per_gb", 3.01), ("missing", 1.0), ("errors", 1.0), ("start_s", 1.1)])
def test_a_figure_beyond_its_target_is_missed(figure: str, value: float) -> None:
    """Issue 3: ready within 3 s per GB; 0 errors; a start: under a second to ready."""
    (line,) = missed_targets(scale_run({figure: value, "channels": 10_000.0}))
    assert line.startswith("start-log: ")


def test_a_figure_at_its_target_is_met() -> None:
    assert missed_targets(scale_run({"s_per_gb": 3.0, "missing": 0.0, "start_s": 1.0})) == []
