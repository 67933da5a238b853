"""The answers of a job's tasks: in the order of the tasks, none missing and none twice."""

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.errors import HeadraceError
from headrace.spark import tasks as spark_tasks
from headrace.spark.jobs.answers import answer, ask_tasks


@dataclass(frozen=True)
class Task:
    number: int


TASKS = [Task(0), Task(1)]
UNUSED: Any = None


def ask(monkeypatch, *answered):
    """Ask the two tasks, of which those of these numbers answer, in this order."""
    rows = [row for number in answered for row in answer(Task(number), [number]).to_pylist()]
    monkeypatch.setattr(spark_tasks, "collect_from_tasks", lambda *given, **more: rows)
    return ask_tasks(UNUSED, TASKS, UNUSED, "ranges were to be read")


def test_answers_are_in_the_order_of_the_tasks(monkeypatch):
    assert ask(monkeypatch, 1, 0) == [[0], [1]]


@pytest.mark.parametrize("answered", [(), (1,), (0, 0), (0, 1, 1)])
def test_an_answer_that_is_missing_or_comes_twice_is_an_error(monkeypatch, answered):
    with pytest.raises(HeadraceError, match=rf"2 ranges were to be read, {len(answered)} answers came: run it again"):
        ask(monkeypatch, *answered)


def test_spark_is_not_asked_without_tasks():
    assert ask_tasks(UNUSED, [], UNUSED, "ranges were to be read") == []
