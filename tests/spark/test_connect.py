"""docs/spark/connect.md against a Spark Connect server: its client has nothing of ours."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


SAVES = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

url, servers, folder, crashed = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
orders = spark.readStream.format("headrace").option("servers", servers).option("topics", "orders")
orders = orders.option("startingOffsets", "earliest")


def run(name, save):
    stream = orders.option("group", name).load().select("body")
    writer = stream.writeStream.foreachBatch(save).option("checkpointLocation", f"{folder}/{name}")
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        print(name, "fails:", str(error).replace(chr(10), " "))
    else:
        print(name, "ends")


def once(df, batch_id):
    from headrace.spark import write_batch

    write_batch(df, batch_id, txn_id="a", servers=servers, topic="large")
    if not Path(crashed).exists():
        Path(crashed).touch()
        raise RuntimeError("crashed behind its write")


def twice(df, batch_id):
    from headrace.spark import write_batch

    for _ in range(2):
        write_batch(df, batch_id, txn_id="b", servers=servers, topic="large")


run("once", once)
run("once", once)
run("twice", twice)
spark.stop()
"""


def test_a_micro_batch_that_runs_again_adds_nothing_and_one_that_writes_twice_is_refused(
    remote: str, tmp_path: Path
) -> None:
    """docs/spark/sink.md, "Identity": without the error a broker would drop the second write's rows as duplicates."""
    with testing.broker(store__segment_bytes=16 << 20) as broker:
        publish_lines(broker, "orders", [f"order {number}" for number in range(20)])
        script = [sys.executable, "-c", SAVES, remote, broker.registry, str(tmp_path), str(tmp_path / "crashed")]
        done = subprocess.run(script, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, cwd=tmp_path)
        first, again, twice = done.stdout.splitlines()
        assert "crashed behind its write" in first
        assert again == "once ends"
        assert "micro-batch 0 was written to topic 'large' as 'b' before: give every write_batch" in twice
        assert sorted(read_bodies(broker, "large")) == sorted([f"order {number}" for number in range(20)] * 2)


@pytest.mark.slow
def test_jobs_run_through_the_server(remote: str, tmp_path: Path) -> None:
    """docs/spark/jobs/README.md, --master sc://...: archive, verify, stats, search and replay."""
    lines = [f"order {number}" for number in range(300)]

    def job(name: str, *arguments: str) -> dict[str, Any]:
        command = [str(Path(sys.executable).parent / "headrace"), "job", name, "--master", remote, "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    with testing.broker(store__segment_bytes=16 << 20) as broker:
        publish_lines(broker, "orders", [*lines, "order 7"])
        archive = str(tmp_path / "archive")
        assert job("archive", "--servers", broker.registry, "--to", archive)["messages"] == 301
        assert job("archive", "--servers", broker.registry, "--to", archive)["messages"] == 0
        assert job("verify", "--archive", archive)["job"] == "verify"
        assert job("stats", "--servers", broker.registry, "--to", str(tmp_path / "stats"))["topics"] == 1
        assert job("search", "--archive", archive, "--contains", "order 77")["found"] == 1
        replayed = job("replay", "--archive", archive, "--servers", broker.registry, "--map", "orders=again")
        assert replayed["messages"] == 301
        assert sorted(read_bodies(broker, "again")) == sorted([*lines, "order 7"])
