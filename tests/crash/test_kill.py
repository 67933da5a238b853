"""A short run of what ``make crash`` does at length: kill -9 under load.

Ref: ``tests/crash/README.md``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.run import CrashRun


@pytest.mark.parametrize(
    ("protocol", "durability"),
    [("nsq", "fsync"), ("nsq", "async"), ("rocketmq", "fsync"), ("rocketmq", "async"), ("both", "fsync")],
)
def test_kill_under_load(tmp_path: Path, protocol: str, durability: str) -> None:
    """A few kills; at level async the page cache survives too, so nothing acknowledged is lost either.

    What one protocol's clients were acknowledged reaches the other's channels and groups, where both are there.

    Ref: A-STORE-43, X-STORE-02, X-NSQ-09.
    """
    run = CrashRun(tmp_path, seed=3, durability=durability, long_share=0, protocol=protocol)
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


def test_starts_take_one_of_two_builds(tmp_path: Path) -> None:
    """``--other``: what an upgrade, and the way back, does to a store."""
    other, started = tmp_path / "other", tmp_path / "started"
    other.mkdir()
    (other / "sitecustomize.py").write_text(f"with open({str(started)!r}, 'a') as file:\n    file.write('.')\n")
    run = CrashRun(tmp_path, seed=3, long_share=0, others=(other,))
    try:
        for number in range(3):
            run.cycle(number)
        run.finish()
    finally:
        run.broker.kill()
    assert [str(violation) for violation in run.violations[:10]] == []
    assert 0 < len(started.read_text()) < len(run.totals.start_seconds) + run.totals.kills_in_start
