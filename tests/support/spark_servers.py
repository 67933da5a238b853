"""Spark servers of the installed pyspark as processes of their own: a standalone cluster, a Connect server.

All of them listen on free ports of 127.0.0.1, keep their files in a folder of the test, and are ended by whoever
started them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.spark.java import java_home

START_SECONDS = 120.0
STOP_SECONDS = 20.0


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which is a whole Spark."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a Spark program: this Python in all of its processes, its files in ``folder``."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **known,
        "JAVA_HOME": java_home(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }


@contextlib.contextmanager
def program(command: list[str], log: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the ``with`` block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment(folder), cwd=folder)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until a log has what ``pattern`` looks for; return the pattern's last group or all of it."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        text = log.read_text(errors="replace")
        if found := re.search(pattern, text):
            return found[found.lastindex or 0]
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{log.name} never said {pattern!r}:\n{text[-3000:]}")
        time.sleep(0.1)


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Run a master and workers of one core each; yield the master's URL."""
    spark_class = str(spark_home() / "bin" / "spark-class")
    host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        master = [spark_class, "org.apache.spark.deploy.master.Master", *host]
        process = stack.enter_context(program(master, log, folder))
        url = said(log, r"Starting Spark master at (spark://\S+)", process)
        started = []
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", *host, "--cores", "1", "--memory", "1g"]
            worker += ["--work-dir", str(folder / f"worker-{number}"), url]
            started.append((log, stack.enter_context(program(worker, log, folder))))
        for log, process in started:
            said(log, "Successfully registered with master", process)
        yield url


@contextlib.contextmanager
def connect_server(folder: Path, *options: str) -> Iterator[str]:
    """Run a Spark Connect server with ``local[2]``; yield what clients are given as remote."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += [*options]
    log = folder / "connect.log"
    with program(command, log, folder) as process:
        said(log, r"Spark Connect server started at", process)
        yield f"sc://127.0.0.1:{port}"
