"""What crash tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.damage import fast_folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory where there is room, else on the disk."""
    made = fast_folder(tmp_path)
    yield made
    if made.is_relative_to("/dev/shm"):
        shutil.rmtree(made, ignore_errors=True)
