"""What Spark's workers do for themselves. Ref: docs/spark/source.md."""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from headrace.spark.workers import DAEMON, REUSED, quiet_worker, settle_worker


@pytest.mark.parametrize(("worker", "settled"), [({}, 0), ({REUSED: "1"}, 1)])
def test_a_reused_worker_is_settled_once(worker, settled, monkeypatch):
    """In other processes, tests and drivers among them, garbage is collected as ever."""
    calls: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(None))
    monkeypatch.delenv(REUSED, raising=False)
    for name, value in worker.items():
        monkeypatch.setenv(name, value)
    settle_worker.cache_clear()
    settle_worker()
    settle_worker()
    assert len(calls) == settled
    settle_worker.cache_clear()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(BrokenPipeError(32, "Broken pipe"), False), (ConnectionResetError(), False), (ZeroDivisionError("told"), True)],
)
def test_a_worker_that_nobody_hears_prints_nothing(error, is_told, monkeypatch, capsys):
    daemon = ModuleType("__main__")
    daemon.__spec__ = ModuleSpec(DAEMON, None)
    monkeypatch.setitem(vars(daemon), "traceback", traceback)
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    quiet_worker()
    try:
        raise error
    except (OSError, ZeroDivisionError):
        daemon.traceback.print_exc()
    assert ("Traceback" in capsys.readouterr().err) is is_told


def test_other_programs_print_all(monkeypatch):
    program = ModuleType("__main__")
    monkeypatch.setitem(vars(program), "traceback", traceback)
    monkeypatch.setitem(sys.modules, "__main__", program)
    quiet_worker()
    assert program.traceback is traceback


@pytest.mark.parametrize(
    "module",
    [
        "source", "partitions", "tasks", "writing.sink",
        *(f"jobs.{name}" for name in ("alerts_looking", "broker_counts", "publishing", "stats_merge", "stats_tables")),
    ],
)  # fmt: skip
def test_what_spark_loads_into_workers_quiets_them(module):
    """What plans a query runs in a worker too, and loads the source alone; what a job gives Spark brings its module."""
    code = f"import sys, headrace.spark.{module}; sys.exit('headrace.spark.workers' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
