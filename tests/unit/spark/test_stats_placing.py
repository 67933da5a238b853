"""What a run of ``headrace job stats`` puts in place, killed at each step of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.jobs import stats_placing

OLD_HOURS = {
    "minute/dt=2026-01-01/hour=00/part-a.parquet": "a",
    "minute/dt=2026-01-01/hour=01/part-b.parquet": "a",
    "minute/dt=2026-01-01/hour=01/part-c.parquet": "a",
    "hour/dt=2026-01-01/hour=00/part-a.parquet": "a",
    "hour/dt=2026-01-01/hour=01/part-b.parquet": "a",
    "day/dt=2026-01-01/part-a.parquet": "a",
}
"""Rows of the broker a, which the run does not read."""
NEW_HOURS = {
    "minute/dt=2026-01-01/hour=01/part-d.parquet": "a and b",
    "minute/dt=2026-01-02/hour=00/part-d.parquet": "b",
    "hour/dt=2026-01-01/hour=01/part-d.parquet": "a and b",
    "hour/dt=2026-01-02/hour=00/part-d.parquet": "b",
    "day/dt=2026-01-01/part-d.parquet": "a and b",
    "day/dt=2026-01-02/part-d.parquet": "b",
}
BOTH = {path: text for path, text in OLD_HOURS.items() if path.endswith("hour=00/part-a.parquet")} | NEW_HOURS
CHANGES = ("rename", "mkdir", "unlink", "rmdir")
"""What changes a folder."""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def in_tables(folder: Path) -> dict[str, str]:
    return {name: text for name, text in contents(folder).items() if not name.startswith("_")}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write(tmp_path / "tables", OLD_HOURS)
    write(tmp_path / "tables" / "_new", {**NEW_HOURS, "minute/_SUCCESS": "", "day/_SUCCESS": ""})
    return tmp_path / "tables"


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Have the process end at its n-th change of a folder; yield the names of those it made."""
    made: list[str] = []

    def count(change: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if len(made) == step:
                raise KeyboardInterrupt
            made.append(name)
            return change(*args, **options)

        return counted

    with monkeypatch.context() as patched:
        for name in CHANGES:
            patched.setattr(os, name, count(getattr(os, name), name))
        yield made


def test_what_is_put_in_place_keeps_all_other_hours(tables: Path) -> None:
    stats_placing.put_in_place(tables)
    assert contents(tables) == BOTH


def test_a_run_that_is_killed_at_any_step_loses_nothing(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of brokers that it did not read were lost for good, where Spark had deleted an hour and not yet renamed."""
    ends = []
    for step in range(100):
        folder = tmp_path / str(step)
        write(folder, contents(tables))
        with killed_at(step, monkeypatch) as made:
            try:
                stats_placing.put_in_place(folder)
            except KeyboardInterrupt:
                is_done = False
            else:
                is_done = True
        assert in_tables(folder) in (OLD_HOURS, BOTH) or stats_placing.mark_of(folder) is None
        for again in range(3):  # the next run, which is killed too
            with killed_at(again, monkeypatch), suppress(KeyboardInterrupt):
                stats_placing.finish(folder)
        stats_placing.finish(folder)
        ends.append(contents(folder))
        assert {path.name for path in folder.iterdir()} == {"minute", "hour", "day"}
        if is_done:
            break
    assert is_done
    assert len(made) > 20
    assert ends == [OLD_HOURS, *[BOTH] * (len(ends) - 1)]


def test_what_runs_left_is_removed(tables: Path) -> None:
    """Folders of Spark's too: those of a run that was killed while it wrote, and of overwritten partitions."""
    write(tables, {"minute/.spark-staging-20a28577/dt=2026-01-01/hour=00/part-x.parquet": "x"})
    write(tables, {"minute/_temporary/0/part-x.parquet": "x", "_old/minute/dt=2026-01-01/hour=00/part-a.parquet": "x"})
    stats_placing.finish(tables)
    assert contents(tables) == OLD_HOURS
    stats_placing.finish(tables)
    assert contents(tables) == OLD_HOURS


def test_what_others_have_in_the_folder_stays(tables: Path) -> None:
    """A run removed the folder in which another job of Spark had all that it had not finished."""
    others = {"lake/_temporary/0/part-x.parquet": "x", "lake/.spark-staging-1/part-x.parquet": "x"}
    write(tables, others)
    stats_placing.put_in_place(tables)
    assert contents(tables) == BOTH | others


@pytest.mark.parametrize("name", ["_old/letters.txt", "_new/src/main.py", "_ready/minute.csv"])
def test_a_folder_where_others_have_what_a_run_removes_is_refused(tables: Path, name: str) -> None:
    stats_placing.require_own(tables)
    write(tables, {name: "mine"})
    with pytest.raises(ConfigError, match=rf"holds .*/{name.rpartition('/')[0]}.*, which no job has written"):
        stats_placing.require_own(tables)


@pytest.mark.parametrize("name", ["report.html", "stores.json"])
def test_a_file_of_others_in_a_folder_where_no_run_was_is_refused(tmp_path: Path, name: str) -> None:
    """It was written over; one that lies beside tables, or where a run was killed, is ours."""
    write(tmp_path, {name: "mine"})
    with pytest.raises(ConfigError, match=f"holds .*/{name}, which no job has written"):
        stats_placing.require_own(tmp_path, "report.html", "stores.json")
    (tmp_path / ".lock").touch()
    stats_placing.require_own(tmp_path, "report.html", "stores.json")


def test_what_cannot_be_moved_is_said_and_the_next_run_goes_on(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, calls = os.rename, []

    def refuse(path: Any, target: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise PermissionError(13, "Permission denied", str(path))
        rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        with pytest.raises(HeadraceError, match=r"the tables cannot be replaced: Permission denied .* not lost"):
            stats_placing.put_in_place(tables)
    stats_placing.finish(tables)
    assert contents(tables) == BOTH


def test_readers_see_that_the_tables_were_changed(tables: Path) -> None:
    before = stats_placing.mark_of(tables)
    assert before is not None
    assert stats_placing.mark_of(tables) == before
    os.utime(tables, ns=(0, 0))
    stats_placing.put_in_place(tables)
    assert stats_placing.mark_of(tables) not in (None, 0)
    (tables / "_ready").mkdir()
    assert stats_placing.mark_of(tables) is None
