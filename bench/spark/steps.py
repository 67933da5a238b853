"""Steps: each takes one figure of one contestant of a case in a session."""

import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.machine import REPOSITORY
from bench.metrics import Sample
from bench.process import cpu_seconds
from bench.servers import Server
from bench.spark.data import TOPIC
from bench.spark.kafka import KAFKA_PYTHON
from bench.spark.session import Session

# What a worker reads: ``format``, ``options`` and what to ``select``.
Source = dict[str, Any]
WARM_ACTIONS = 2


@dataclass(frozen=True)
class Step(ABC):
    """One contestant of one case; ``session`` is the kind that it needs, ``servers`` whose processor time counts."""

    case: str
    contestant: str
    session: str
    server: Server | None
    rows: int

    @property
    def samples(self) -> int:
        """How many samples a session takes."""
        return 3

    @abstractmethod
    def warm_up(self, session: Session) -> None:
        """Do what is not measured, and check what can be checked."""

    @abstractmethod
    def measure(self, session: Session) -> Sample:
        """Take one sample."""

    @property
    @abstractmethod
    def command(self) -> str:
        """What is done, for the report."""

    def _timed(self, session: Session, op: str, **arguments: Any) -> tuple[dict[str, Any], Sample]:
        before = cpu_seconds(self.server.pid) if self.server else 0.0
        result = session.ask(op, **arguments)
        sample: Sample = {
            "rows_per_s": self.rows / result["seconds"],
            "spark_cpu_us": result["cpu_s"] * 1e6 / self.rows,
        }
        if self.server:
            sample["server_cpu_us"] = (cpu_seconds(self.server.pid) - before) * 1e6 / self.rows
        return result, sample


@dataclass(frozen=True)
class ScanStep(Step):
    """Read everything and throw it away."""

    source: Source = field(default_factory=dict)
    log_bytes: int = 0

    def warm_up(self, session: Session) -> None:
        """Count once, which must give every row, and scan once."""
        rows = session.ask("count", source=self.source)["rows"]
        if rows != self.rows:
            raise BenchError(f"{rows} rows were read, {self.rows} were sent")
        for _ in range(WARM_ACTIONS - 1):
            session.ask("scan", source=self.source)

    def measure(self, session: Session) -> Sample:
        """Time one scan."""
        _, sample = self._timed(session, "scan", source=self.source)
        sample["megabytes_per_s"] = sample["rows_per_s"] * self.log_bytes / self.rows / 1e6
        return sample

    @property
    def command(self) -> str:
        """The read, without places of this machine."""
        return f'{show_source(self.source)}.write.format("noop")'


@dataclass(frozen=True)
class ParquetStep(Step):
    """Write everything to Parquet with Spark's own writer."""

    source: Source = field(default_factory=dict)
    folder: Path = Path()

    def warm_up(self, session: Session) -> None:
        """Write as often as is not measured."""
        for _ in range(WARM_ACTIONS):
            self.measure(session)

    def measure(self, session: Session) -> Sample:
        """Time one write."""
        with emptied(self.folder) as folder:
            result, sample = self._timed(session, "parquet", source=self.source, folder=str(folder))
        sample["output_bytes_per_row"] = result["bytes"] / self.rows
        return sample

    @property
    def command(self) -> str:
        """The write, without places of this machine."""
        return f"{show_source(self.source)}.write.parquet"


@dataclass(frozen=True)
class ArchiveStep(Step):
    """Archive everything with the packaged job."""

    options: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()

    def warm_up(self, session: Session) -> None:
        """Archive as often as is not measured."""
        for _ in range(WARM_ACTIONS):
            self.measure(session)

    def measure(self, session: Session) -> Sample:
        """Time one archive, which must hold every row."""
        with emptied(self.folder) as folder:
            options = {**self.options, "to": str(folder)}
            result, sample = self._timed(session, "job", name="archive", options=options, folder=str(folder))
        if (rows := result["summary"]["messages"]) != self.rows:
            raise BenchError(f"{rows} rows were archived, {self.rows} were sent")
        sample["output_bytes_per_row"] = result["bytes"] / self.rows
        return sample

    @property
    def command(self) -> str:
        """The job's command line, without places of this machine."""
        return " ".join(["headrace job archive", *(f"--{key} {value}" for key, value in shown(self.options).items())])


@dataclass(frozen=True)
class SinkStep(Step):
    """Write made-up rows to a broker."""

    source: Source = field(default_factory=dict)
    sink: Source = field(default_factory=dict)

    def warm_up(self, session: Session) -> None:
        """Write as often as is not measured."""
        for _ in range(WARM_ACTIONS):
            session.ask("write", source={**self.source, "rows": max(1, self.rows // 4)}, sink=self.sink)

    def measure(self, session: Session) -> Sample:
        """Time one write."""
        return self._timed(session, "write", source=self.source, sink=self.sink)[1]

    @property
    def command(self) -> str:
        """The write, without places of this machine."""
        return f'spark.range({self.rows}).write.format("{self.sink["format"]}").options({shown(self.sink["options"])})'


@dataclass(frozen=True)
class LatencyStep(Step):
    """Messages one at a time, from being sent until ``foreachBatch`` has them."""

    source: Source = field(default_factory=dict)
    address: str = ""
    scratch: Path = Path()
    seconds: float = 0.0
    warm_batches: int = 20

    @property
    def samples(self) -> int:
        """One: it takes some ten seconds."""
        return 1

    def warm_up(self, session: Session) -> None:
        """Nothing: the stream's first batches do not count."""

    def measure(self, session: Session) -> Sample:
        """Run a query beside a feeder."""
        checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=self.scratch)
        python, broker = (str(KAFKA_PYTHON), "kafka") if self.session == "kafka" else (sys.executable, "headrace")
        feeder = [python, "-m", "bench.spark.feeder", broker, f"--address={self.address}", f"--topic={TOPIC}"]
        with running(feeder, self.scratch / f"feeder-{self.session}.log"):
            result = session.ask(
                "latency",
                source=self.source,
                checkpoint=checkpoint,
                warm_batches=self.warm_batches,
                seconds=self.seconds,
            )
        shutil.rmtree(checkpoint)
        latencies = sorted(result["latencies_ms"])
        if len(latencies) < self.seconds * 10:
            raise BenchError(f"only {len(latencies)} messages came in {self.seconds:.0f} s")
        return {
            **{f"latency_p{p}_ms": latencies[min(len(latencies) - 1, len(latencies) * p // 100)] for p in (50, 90, 99)},
            "batches_per_s": result["batches"] / self.seconds,
        }

    @property
    def command(self) -> str:
        """The query, without places of this machine."""
        session = ", session of headrace.spark.session" if self.session == "prepared" else ""
        return f"{show_source(self.source)}.writeStream.foreachBatch, a message every 20 ms{session}"


@dataclass(frozen=True)
class DiskStep(Step):
    """Bytes that messages take on the disk, which needs no session."""

    figures: Sample = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """One: it does not change."""
        return 1

    def warm_up(self, session: Session) -> None:
        """Nothing."""

    def measure(self, session: Session) -> Sample:
        """Return what was found when the data was complete."""
        return dict(self.figures)

    @property
    def command(self) -> str:
        """What is counted."""
        return "blocks of log and indexes, without room that is only preallocated"


def show_source(source: Source) -> str:
    """Return a source as a line of a program, without places of this machine."""
    select = f".select({', '.join(source['select'])})" if source.get("select") else ""
    return f'format("{source["format"]}").options({shown(source["options"])}){select}'


def shown(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without addresses and folders, which differ from run to run."""
    places = {
        "store": "DIR",
        "servers": "HOST:PORT",
        "kafka.bootstrap.servers": "HOST:PORT",
        "path": "FILE",
        "to": "DIR",
    }
    return {key: places.get(key, value) for key, value in options.items()}


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """Give a folder that is not there, and remove what is made of it."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """Run a program beside; it must still run at the end.

    Raises:
        BenchError: it ended by itself.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=REPOSITORY)
    try:
        yield
        if process.poll() is not None:
            raise BenchError(f"the feeder ended: {log.read_text(errors='replace')[-500:]}")
    finally:
        process.terminate()
        process.wait()
