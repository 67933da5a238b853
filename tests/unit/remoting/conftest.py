"""What the tests of the handlers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.remoting import RemotingRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemotingRig]:
    """A broker with default settings."""
    made = RemotingRig(tmp_path / "store")
    yield made
    made.close()
