"""A short run of what ``make crash`` does at length for both protocols at once: kill -9 under load.

Ref: ``tests/crash/README.md``.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.run import CrashRun


def test_kill_under_load(tmp_path: Path) -> None:
    """A few kills: what one protocol's clients were acknowledged reaches the other's channels and groups."""
    run = CrashRun(tmp_path, seed=3, long_share=0, protocol="both")
    try:
        for number in range(2):
            run.cycle(number)
        run.finish()
        run.store_check()
    finally:
        run.broker.kill()
    assert [str(violation) for violation in run.violations[:10]] == []
    assert run.totals.acknowledged > 100
    assert run.totals.deliveries > 100
