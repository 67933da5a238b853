"""Interop tests wait for other programs most of the time, so files run beside each other, each in one process.

``--dist loadgroup`` would say the same with marks, but pytest 9.2 ignores what pytest-xdist 3.8 adds to a
test's id for it: each test is then on its own, and a module's broker is started again and again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.interop.nsq_peers import Node, serve_headrace, serve_nsqd


class FileScheduling(LoadScopeScheduling):
    """Keeps a file's tests together, those of the Java client's scenarios by the version of the client."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if not path.endswith("test_rocketmq_java.py"):
            return path
        version = test.partition("[")[2].partition("-")[0]
        return f"{path}[{version}]"


def pytest_xdist_make_scheduler(config, log):
    """Take the place of pytest-xdist's own scheduler."""
    return FileScheduling(config, log)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """nsqd and Headrace, both empty."""
    directory = tmp_path_factory.mktemp("nodes")
    with serve_nsqd(directory / "nsqd") as nsqd, serve_headrace(directory / "headrace") as headrace:
        yield nsqd, headrace
