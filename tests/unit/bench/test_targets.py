"""Targets are decided by a run's medians, and only where it measured all they need."""

from __future__ import annotations

import pytest

from bench.cases import CASES
from bench.metrics import METRICS
from bench.results import CaseResult, ContestantResult, RunResult
from bench.targets import TARGETS, Target, missed_targets
from tests.unit.bench.example_runs import make_run


def run_of(figures: dict[str, dict[str, float]]) -> RunResult:
    """Return a run of server CPU times by case and contestant."""
    run = make_run({})
    run.cases = [
        CaseResult(
            case,
            f"title of {case}",
            {name: ContestantResult("load", [{"server_cpu_us": value}]) for name, value in contestants.items()},
        )
        for case, contestants in figures.items()
    ]
    return run


@pytest.mark.parametrize(
    ("target", "value", "text"),
    [
        (Target("a", "server_cpu_us", at_most=2.2), 4.0, "server CPU us/msg at most 2.200"),
        (Target("a", "server_cpu_us", at_most=1 / 3, than="peer"), 0.25, "server CPU us/msg at most 0.333 of peer"),
        (
            Target("b", "server_cpu_us", at_least=0.5, beyond="a"),
            1.0,
            "server CPU us/msg at least 0.500 more than a",
        ),
        (
            Target("a", "server_cpu_us", at_most=0.25, plus="b", than="peer"),
            0.375,
            "server CPU us/msg plus that of b at most 0.250 of peer",
        ),
        (
            Target("a", "server_cpu_us", at_least=5, than="peer", of_null=0.9),
            0.25,
            "server CPU us/msg at least 5.00 of peer, or 0.900 of null where that is less",
        ),
    ],
)
def test_a_target_is_a_figure_a_ratio_or_a_difference(target: Target, value: float, text: str) -> None:
    run = run_of({"a": {"headrace": 4.0, "peer": 16.0}, "b": {"headrace": 5.0, "peer": 8.0}})
    assert target.measure(run) == value
    assert str(target) == text


@pytest.mark.parametrize(
    "target",
    [
        Target("c", "server_cpu_us", at_most=1),
        Target("a", "latency_p50_us", at_most=1),
        Target("a", "server_cpu_us", at_most=1, than="peer"),
        Target("a", "server_cpu_us", at_most=1, beyond="c"),
        Target("a", "server_cpu_us", at_most=1, plus="c"),
        Target("a", "server_cpu_us", at_most=1, contestant="peer"),
    ],
)
def test_what_a_run_did_not_measure_is_not_judged(target: Target) -> None:
    assert target.measure(run_of({"a": {"headrace": 4.0}})) is None


def test_bounds_themselves_are_met() -> None:
    run = run_of({})
    assert Target("a", "server_cpu_us", at_most=1).is_met(1, run)
    assert Target("a", "server_cpu_us", at_least=1).is_met(1, run)
    assert not Target("a", "server_cpu_us", at_most=1).is_met(1.001, run)
    assert not Target("a", "server_cpu_us", at_least=1).is_met(0.999, run)


@pytest.mark.parametrize(("null", "least"), [(None, 5), (50, 5), (18, 16.2 / 4)])
def test_no_more_is_asked_for_than_the_load_can_give(null: float | None, least: float) -> None:
    """Issue 3, "Speed": or 90 % of the tool's own ceiling where that is lower."""
    contestants = {"headrace": 1.0, "nsqd": 4.0} | ({} if null is None else {"null": null})
    target = Target("a", "server_cpu_us", at_least=5, than="nsqd", of_null=0.9)
    assert target.is_met(least, run_of({"a": contestants}))
    assert not target.is_met(least - 0.001, run_of({"a": contestants}))


def test_missed_targets_are_named_with_what_was_measured() -> None:
    (line,) = missed_targets(run_of({"rocket-batch-32": {"headrace": 0.7}}))
    assert line == "rocket-batch-32: server CPU us/msg at most 0.600, measured 0.700"
    assert missed_targets(run_of({"rocket-batch-32": {"headrace": 0.5}})) == []


def test_every_target_is_of_a_case_and_contestants_that_exist() -> None:
    contestants = {case.name: set(case.contestants) for case in CASES}
    for target in TARGETS:
        assert {target.contestant, target.than or target.contestant} <= contestants[target.case]
        assert not target.beyond or target.contestant in contestants[target.beyond]
        assert not target.plus or {target.contestant, target.than or target.contestant} <= contestants[target.plus]
        assert target.metric in METRICS
        assert (target.at_least is None) != (target.at_most is None)
