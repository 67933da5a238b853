"""docs/spark/cluster.md on a standalone cluster of two workers, each a process of its own with its own executors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from tests.support.messages import publish_lines, read_bodies
from tests.support.spark_servers import environment, spark_home, standalone_cluster

pytestmark = pytest.mark.timeout(1000)

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "cluster.md"
RUN_SECONDS = 400.0
HEADRACE = str(Path(sys.executable).with_name("headrace"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__segment_bytes=16 << 20) as running:
        yield running


def run(command: list[str], folder: Path) -> str:
    """Run a driver; return what it printed."""
    ran = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert ran.returncode == 0, f"{command} exited with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def submit(url: str) -> list[str]:
    conf = ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    conf += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", url, *conf]


def test_the_program_of_the_page_reads_streams_and_writes(
    cluster: str, broker: testing.RunningBroker, tmp_path: Path
) -> None:
    """Batch read, stream and sink, twice: the second run takes what came after the first, and nothing again."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    program = tmp_path / "orders.py"
    program.write_text(code)
    command = [*submit(cluster), str(program), broker.registry, str(tmp_path / "checkpoint")]
    publish_lines(broker, "orders", [f"order {number}" for number in range(5000)])
    assert "orders by now: 5000" in run(command, tmp_path)
    publish_lines(broker, "orders", [f"order {number}" for number in range(5000, 6000)])
    assert "orders by now: 6000" in run(command, tmp_path)
    assert sorted(read_bodies(broker, "orders-upper")) == sorted(f"ORDER {number}" for number in range(6000))


@pytest.mark.parametrize("way", ["headrace job", "spark-submit"])
def test_a_job_runs_on_the_cluster(way: str, cluster: str, broker: testing.RunningBroker, tmp_path: Path) -> None:
    """The same job, started by the command and by ``spark-submit``."""
    publish_lines(broker, "orders", [f"order {number}" for number in range(3000)])
    job = ["stats", "--servers", broker.registry, "--to", str(tmp_path / "tables"), "--json"]
    if way == "headrace job":
        command = [HEADRACE, "job", *job, "--master", cluster, "--conf", "spark.executor.memory=512m"]
        command += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    else:
        script = run([sys.executable, "-m", "headrace.spark.submit", "--path"], tmp_path).strip()
        command = [*submit(cluster), script, *job]
    summary = json.loads(run(command, tmp_path))
    assert summary["put_messages"] == 3000
    assert (tmp_path / "tables" / "report.html").is_file()
