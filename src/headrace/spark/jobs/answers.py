"""Answers of a job's tasks: one JSON value from each, in the order of the tasks.

A task that gives none, or two, is an error: what it was to do would be missing, and nothing would say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.tasks import collect_from_tasks

SCHEMA: Final = pa.schema([("task", pa.int32()), ("answer", pa.string())])


class NumberedTask(Protocol):
    """A task that knows its place among all tasks of its run; everything in it can be pickled."""

    @property
    def number(self) -> int:
        """Counted from 0."""


Task = TypeVar("Task", bound=NumberedTask)


def answer(task: NumberedTask, content: Any) -> pa.RecordBatch:
    """Return what a task yields, once: ``content``, a JSON value."""
    return pa.record_batch([pa.array([task.number], pa.int32()), pa.array([json.dumps(content)])], schema=SCHEMA)


def ask_tasks(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task], Iterator[pa.RecordBatch]],
    wanted: str,
    *,
    in_tasks: int | None = None,
) -> list[Any]:
    """Run tasks and return their answers, in the order of the tasks.

    Args:
        tasks: Numbered from 0; none: Spark is not asked.
        work: Yields one ``answer``; see ``collect_from_tasks``.
        wanted: For the error: "ranges were to be read".
        in_tasks: How many tasks of Spark's share them; see ``collect_from_tasks``.

    Raises:
        HeadraceError: a task gave no answer, or more than one.
    """
    rows = collect_from_tasks(spark, tasks, work, SCHEMA, tasks=in_tasks)
    answers = {row["task"]: json.loads(row["answer"]) for row in rows}
    if len(answers) != len(tasks) or len(rows) != len(tasks):
        raise HeadraceError(f"{len(tasks)} {wanted}, {len(rows)} answers came: run it again")
    return [answers[number] for number in range(len(tasks))]
