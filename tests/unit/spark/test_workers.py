"""What Spark's workers do for themselves. Ref: docs/spark/source.md."""

from __future__ import annotations

import gc

import pytest

from headrace.spark.workers import REUSED, settle_worker


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
