"""How many tasks run at once, and how much one of them is given, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.spark.tasks import items_in_turn, parallelism


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
    ("items", "cores", "in_turn"),
    [(0, 2, 1), (1, 2, 1), (7, 2, 1), (8, 2, 2), (15, 2, 3), (16, 2, 4), (1_000, 2, 4), (15, 4, 1), (16, 4, 2)],
)
def test_each_core_gets_several_tasks(items, cores, in_turn):
    assert items_in_turn(a_session(f"local[{cores}]", {}, cores), items) == in_turn


def test_items_are_not_put_together_where_nobody_knows_the_cores():
    assert items_in_turn(a_session("spark://h:7077", {}), 1_000) == 1
