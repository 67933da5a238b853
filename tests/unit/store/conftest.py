"""Stores for these tests; what is still open at the end is closed, and the checker must find it whole."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import MakeBench, StoreBench, store_bench


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(name: str = "store", **changes: Any) -> StoreBench:
            return stack.enter_context(store_bench(tmp_path / name, **changes))

        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> StoreBench:
    return make_bench()
