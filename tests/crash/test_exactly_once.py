"""A short run of what ``make crash`` does at length for batches with an identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.exactly_once import ExactlyOnceRun


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_everything_is_there_exactly_once(tmp_path: Path, durability: str) -> None:
    """spark.md 5.4.6: duplicates and losses counted = 0."""
    result = ExactlyOnceRun(tmp_path, seed=5, durability=durability, segment_bytes="1MiB").run(2)
    assert result.complaints == []
    assert result.messages > 100
    assert result.kills >= 2
    assert result.replays >= 2  # a kill under which nobody sent again would prove nothing
