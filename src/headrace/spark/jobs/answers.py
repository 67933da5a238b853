"""Answers of a job's tasks: one JSON value from each, in the order of the tasks.

A task that gives none, or two, is an error: what it was to do would be missing, and nothing would say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.tasks import collect_from_tasks

SCHEMA: Final = pa.schema([("task", pa.int32()), ("answer", pa.string())])
Task = TypeVar("Task")


def ask_tasks(
    spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Any], wanted: str, *, in_tasks: int | None = None
) -> list[Any]:
    """Run tasks and return their answers, in the order of the tasks.

    Args:
        tasks: Picklable; none: Spark is not asked.
        work: Returns the answer to one, a JSON value.
        wanted: For the error: "ranges were to be read".
        in_tasks: How many tasks of Spark's share them; see ``collect_from_tasks``.

    Raises:
        HeadraceError: a task gave no answer, or more than one.
    """
    rows = collect_from_tasks(spark, list(enumerate(tasks)), partial(_answer, work), SCHEMA, tasks=in_tasks)
    answers = {row["task"]: json.loads(row["answer"]) for row in rows}
    if len(answers) != len(tasks) or len(rows) != len(tasks):
        raise HeadraceError(f"{len(tasks)} {wanted}, {len(rows)} answers came: run it again")
    return [answers[number] for number in range(len(tasks))]


def _answer(work: Callable[[Task], Any], numbered: tuple[int, Task]) -> Iterator[pa.RecordBatch]:
    number, task = numbered
    yield pa.record_batch([pa.array([number], pa.int32()), pa.array([json.dumps(work(task))])], schema=SCHEMA)
