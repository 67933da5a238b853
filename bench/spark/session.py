"""A Spark session in a process of its own, asked for one thing at a time."""

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.errors import BenchError
from bench.machine import REPOSITORY
from bench.spark.kafka import KAFKA_PYTHON, source_jars
from bench.spark.tree import tree_cpu_seconds

# A request that takes longer has failed.
LIMIT_S = 3600.0
START_S = 300.0
STOP_S = 60.0
MASTER = "local[2]"


class Session:
    """Spark with Headrace or with its own Kafka source.

    Kinds: ``headrace`` and ``kafka``, both with the same settings; ``prepared``, with Headrace and further settings as
    the command ``headrace job`` and ``headrace.spark.session`` have them.

    Attributes:
        version: Of Spark.
        pid: Of the driver's Python; everything else Spark starts is below it.
    """

    def __init__(self, kind: str, scratch: Path, *, driver_memory: str) -> None:
        self.kind = kind
        self.version = ""
        self.pid = 0
        self._scratch = scratch
        self._driver_memory = driver_memory

    def __enter__(self) -> Self:
        folder = Path(tempfile.mkdtemp(prefix=f"spark-{self.kind}-", dir=self._scratch))
        self._log = folder / "log"
        conf = {
            "spark.master": MASTER,
            "spark.driver.memory": self._driver_memory,
            # Kafka's stream overflows the default one now and then, in a regular expression over generated code.
            "spark.driver.extraJavaOptions": "-Xss8m",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        register = ["headrace", "ceiling"]
        python = Path(sys.executable)
        if self.kind == "kafka":
            conf["spark.jars"] = ",".join(map(str, source_jars()))
            register = []
            python = KAFKA_PYTHON
        settings = {"conf": conf, "register": register, "is_prepared": self.kind == "prepared"}
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        environment["PYTHONPATH"] = str(REPOSITORY)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "bench.spark.worker", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment,
            )
        self.pid = self._process.pid
        try:
            self.version = self._answer(START_S)["spark"]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Carry out an operation of ``bench.spark.worker``; return its result, and ``cpu_s`` that Spark took.

        Raises:
            BenchError: it failed, or took too long.
        """
        before = tree_cpu_seconds(self.pid)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise BenchError(f"Spark with {self.kind} is gone: {self._last_lines()}") from exc
        result = self._answer(LIMIT_S)
        result["cpu_s"] = tree_cpu_seconds(self.pid) - before
        return result

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            self._process.kill()  # or its answer would be taken for that to the next request
            raise BenchError(f"Spark with {self.kind} did not answer within {limit_s:.0f} s: {self._last_lines()}")
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"Spark with {self.kind} ended: {self._last_lines()}")
        result: dict[str, Any] = json.loads(line)
        if "error" in result:
            raise BenchError(f"Spark with {self.kind}: {result['error']}")
        return result

    def _last_lines(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-8:])

    def _stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # the JVM ends with the pipe to its Python
            self._process.wait()
        self._process.stdout.close()
