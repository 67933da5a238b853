"""How many tasks run at once, and how much one of them is given, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.spark.tasks import parallelism, tasks_for


def a_session(master: str, settings: dict[str, str], cores: int = 3) -> Any:
    context = SimpleNamespace(
        master=master, defaultParallelism=cores, getConf=lambda: SimpleNamespace(contains=settings.__contains__)
    )
    return SimpleNamespace(_jsparkSession=1, sparkContext=context)


@pytest.mark.parametrize(
    ("master", "settings", "tasks"),
    [
        ("local[3]", {}, 3),
        ("local[3]", {"spark.default.parallelism": "1"}, None),
        ("spark://h:7077", {}, None),
    ],
)
def test_tasks_at_once_are_known_in_local_mode_only(master, settings, tasks):
    """A rate is shared by the tasks that run at once: more than were counted would go over it."""
    session = a_session(master, settings)
    assert parallelism(session) == tasks
    del session._jsparkSession  # Spark Connect has none
    assert parallelism(session) is None


@pytest.mark.parametrize(
    ("items", "cores", "tasks"),
    [(0, 2, 0), (1, 2, 1), (4, 2, 4), (7, 2, 4), (16, 2, 4), (17, 2, 6), (20, 2, 6), (1_000, 2, 250), (16, 4, 8)],
)
def test_each_core_gets_as_many_tasks_as_the_others_and_several(items, cores, tasks):
    assert tasks_for(a_session(f"local[{cores}]", {}, cores), items) == tasks


def test_each_item_is_a_task_where_nobody_knows_the_cores():
    assert tasks_for(a_session("spark://h:7077", {}), 1_000) == 1_000
