"""A job that looks for ever goes on when a look fails. No Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from py4j import protocol  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

from headrace.errors import ConnectionLostError, HeadraceError
from headrace.spark.jobs import alerts, alerts_rounds
from headrace.spark.jobs.failure import JobFailedError
from headrace.spark.jobs.summary import FAILED, Summary

SPARK = cast(Any, SimpleNamespace(conf=SimpleNamespace(get=lambda key: None, set=lambda key, value: None)))
LOST = ConnectionLostError("127.0.0.1:1", "refused")

Run = Callable[..., Summary]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a job whose looks raise what is given, or end at the time that is given."""

    def run(looks: list[Any], **options: Any) -> Summary:
        coming, asked = iter(looks), []

        def look_once(spark: Any, config: alerts.Config, summary: Summary) -> list[Any]:
            asked.append(config.since)
            result = next(coming)
            if isinstance(result, BaseException):
                raise result
            summary.facts["until_ms"] = result
            return []

        monkeypatch.setattr(alerts_rounds, "look_once", look_once)
        monkeypatch.setattr(alerts_rounds, "look_for_brokers", lambda *_: [])
        settings: dict[str, Any] = {"servers": "a:1", "since": 1, "every_ms": 1, "rounds": len(looks)} | options
        summary = Summary(job="alerts")
        alerts_rounds.look(SPARK, alerts.Config(**settings), summary)
        summary.facts["asked"] = asked
        return summary

    return run


def test_a_look_that_fails_is_logged_once_and_the_next_takes_its_minutes(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that was killed and back after 12 seconds ended the job."""
    caplog.set_level(logging.INFO)
    summary = run([10, LOST, AnalysisException("gone"), OSError(28, "No space left on device"), 20, 30])
    assert summary.facts["asked"] == [1, 10, 10, 10, 10, 20]
    assert summary.facts["failed_looks"] == 3
    assert (summary.exit_code, summary.notes) == (0, [])
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert f"look failed, the next one takes its minutes too error={LOST}" in caplog.text
    assert "looks succeed again failed=3" in caplog.text


def test_a_folder_that_is_away_for_a_look_is_a_look_that_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are checked again with each look's own times, folders among them."""
    folder = tmp_path / "minute"
    folder.mkdir()
    between = iter([folder.rmdir, folder.mkdir])
    monkeypatch.setattr("headrace.spark.jobs.alerts_rounds.time.sleep", lambda _: next(between)())
    summary = run([10, 20], tables=tmp_path, rounds=3)
    assert summary.facts["asked"] == [1, 10]
    assert (summary.facts["failed_looks"], summary.exit_code) == (1, 0)


def test_so_many_in_a_row_end_the_job(run: Run) -> None:
    looks = [10, LOST, LOST, 20, LOST, LOST, LOST, 30]
    with pytest.raises(JobFailedError, match=r"^3 looks in a row failed: .*127\.0\.0\.1:1"):
        run(looks, failures=3)
    assert run(looks, failures=0).facts["failed_looks"] == 5


def test_what_the_last_looks_did_not_judge_is_said(run: Run) -> None:
    summary = run([10, LOST])
    assert summary.exit_code == FAILED
    assert summary.notes == ["1 look at the end failed: what came since is not judged"]


@pytest.mark.parametrize("error", [LOST, AnalysisException("gone"), KeyError("ours")])
def test_what_never_worked_ends_the_job(run: Run, error: Exception) -> None:
    """A wrong address is seen at once."""
    with pytest.raises(type(error)):
        run([error, 10])
    with pytest.raises(type(error)):
        run([error], every_ms=0, rounds=0)


@pytest.mark.parametrize("error", [KeyError("ours"), KeyboardInterrupt()])
def test_errors_of_ours_and_interrupts_end_the_job(run: Run, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run([10, error, 20])


def test_a_job_whose_spark_is_gone_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_rounds, "is_java_gone", lambda spark: True)
    with pytest.raises(protocol.Py4JNetworkError):
        run([10, protocol.Py4JNetworkError("closed"), 20])


def test_the_bound_is_an_option() -> None:
    assert alerts.Config(servers="a:1").failures == 60
    with pytest.raises(HeadraceError, match="--failures"):
        alerts.Config(servers="a:1", failures=-1)
