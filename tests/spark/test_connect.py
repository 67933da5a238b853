"""docs/spark/connect.md against a Spark Connect server: its client has nothing of ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from tests.support.messages import publish_lines, read_bodies
from tests.support.notebook import run_page
from tests.support.spark_servers import connect_server
from tests.support.toolchain import cannot_run

pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "connect.md"
RUN_SECONDS = 250.0


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("grpc") is None:
        cannot_run("Spark Connect is not installed: pip install -e '.[connect]'")
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def test_the_page_reads_and_streams_through_the_server(remote: str, tmp_path: Path) -> None:
    """spark.md 1.7: the server has the package; batch read, stream and sink, all three from a thin client."""
    with testing.broker(store__segment_bytes=16 << 20) as broker:
        publish_lines(broker, "orders", [f"order {number}" for number in range(2000)])
        usual = {
            "sc://127.0.0.1:15002": remote,
            "127.0.0.1:9876": broker.registry,
            "/tmp/connect-tour": str(tmp_path / "checkpoint"),
        }
        blocks = run_page(PAGE, usual, cwd=tmp_path, seconds=RUN_SECONDS)
        assert [block.printed for block in blocks] == ["orders by now: 2000\n", "", "upper case by now: 2000\n"]
        assert all("headrace" not in line for block in blocks for line in block.code.splitlines() if "import" in line)
        assert sorted(read_bodies(broker, "orders-upper")) == sorted(f"ORDER {number}" for number in range(2000))
