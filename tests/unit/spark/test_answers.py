"""The answers of a job's tasks: in the order of the tasks, none missing and none twice."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.errors import HeadraceError
from headrace.spark.jobs import answers

UNUSED: Any = None


def ask(monkeypatch, *answered):
    """Ask two tasks, of which those of these numbers answer, in this order."""

    def collect(spark, items, work, schema, **more):
        return [row for number in answered for batch in work(items[number]) for row in batch.to_pylist()]

    monkeypatch.setattr(answers, "collect_from_tasks", collect)
    return answers.ask_tasks(UNUSED, ["a", "b"], str.upper, "ranges were to be read")


def test_answers_are_in_the_order_of_the_tasks(monkeypatch):
    assert ask(monkeypatch, 1, 0) == ["A", "B"]


@pytest.mark.parametrize("answered", [(), (1,), (0, 0), (0, 1, 1)])
def test_an_answer_that_is_missing_or_comes_twice_is_an_error(monkeypatch, answered):
    with pytest.raises(HeadraceError, match=rf"2 ranges were to be read, {len(answered)} answers came: run it again"):
        ask(monkeypatch, *answered)


def test_spark_is_not_asked_without_tasks():
    assert answers.ask_tasks(UNUSED, [], UNUSED, "ranges were to be read") == []
