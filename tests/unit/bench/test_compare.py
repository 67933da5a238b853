"""What bench.compare flags: over 5 %, in the direction that hurts, of Headrace, beyond doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import compare as module
from bench.compare import Change, compare, failed_of_ours, find_results
from bench.results import write_results
from tests.unit.bench.example_runs import make_run


def change(metric: str, base: list[float], new: list[float], contestant: str = "headrace") -> Change:
    return Change("mpub", contestant, metric, base=base, new=new)


@pytest.mark.parametrize(
    ("metric", "new", "verdict"),
    [
        ("messages_per_s", 94.9, "worse"),
        ("messages_per_s", 95.1, ""),
        ("messages_per_s", 104.9, ""),
        ("messages_per_s", 105.1, "better"),
        ("server_cpu_us", 105.1, "worse"),
        ("server_cpu_us", 94.9, "better"),
        ("latency_p99_us", 105.1, "worse"),
    ],
)
def test_a_change_over_five_percent_has_a_verdict(metric: str, new: float, verdict: str) -> None:
    assert change(metric, [100.0], [new]).verdict == verdict


def test_samples_that_overlap_leave_a_doubt() -> None:
    doubtful = change("messages_per_s", [80.0, 100.0, 110.0], [70.0, 85.0, 90.0])
    assert doubtful.verdict == "worse"
    assert doubtful.is_doubtful
    assert not doubtful.is_regression
    assert "worse?" in str(doubtful)


def test_headrace_worse_beyond_doubt_is_a_regression() -> None:
    assert change("messages_per_s", [99.0, 100.0, 101.0], [79.0, 80.0, 81.0]).is_regression
    assert not change("messages_per_s", [79.0, 80.0, 81.0], [99.0, 100.0, 101.0]).is_regression


@pytest.mark.parametrize("control", ["nsqd", "nsqd-memory", "null", "disk"])
def test_a_control_never_regresses(control: str) -> None:
    """Where the peers got slower, the machine did."""
    assert not change("messages_per_s", [100.0], [50.0], control).is_regression


def test_only_judged_figures_of_both_runs_are_compared() -> None:
    base = make_run(
        {"headrace": [{"messages_per_s": 100.0, "load_cpu_share": 1.0, "server_cpu_us": 1.0}], "nsqd": [{}]}
    )
    new = make_run({"headrace": [{"messages_per_s": 50.0, "load_cpu_share": 0.1}]})
    (found,) = compare(base, new)
    assert (found.case, found.contestant, found.metric) == ("mpub", "headrace", "messages_per_s")
    assert found.change == pytest.approx(-0.5)


def test_a_figure_of_zero_has_no_relative_change() -> None:
    run = make_run({"headrace": [{"server_cpu_us": 0.0}]})
    assert list(compare(run, run)) == []


def test_a_revision_names_its_newest_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "resolve_commit", lambda revision: "0123456789" if revision == "main" else None)
    for name in ("2026-01-01-0123456789", "2026-01-02-0123456789", "2026-01-03-0123456789-dirty", "2026-01-04-quick"):
        (tmp_path / f"{name}.json").touch()
    assert find_results("main").name == "2026-01-02-0123456789.json"
    assert find_results(str(tmp_path / "2026-01-04-quick.json")).name == "2026-01-04-quick.json"
    with pytest.raises(FileNotFoundError, match="no revision with one"):
        find_results("elsewhere")


def test_a_case_of_ours_that_failed_is_no_better_than_one_that_got_worse() -> None:
    """It has no figures: nothing in the comparison would say so."""
    run = make_run({"headrace": [{"messages_per_s": 1.0}]})
    run.failures = [
        "mpub nsqd: it did not start",
        "mpub headrace-fsync: server exited with 1: nsqd",
        "the session ended",
    ]
    assert failed_of_ours(run) == run.failures[1:]


def test_the_exit_code_counts_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run({"headrace": [{"messages_per_s": 1.0}]})
    write_results(run, tmp_path / "base.json")
    run.failures = ["pub headrace: no message went through"]
    write_results(run, tmp_path / "new.json")
    codes = []
    for new in ("base", "new"):
        monkeypatch.setattr("sys.argv", ["compare", str(tmp_path / "base.json"), str(tmp_path / f"{new}.json")])
        codes.append(module.main())
    assert codes == [0, 1]
