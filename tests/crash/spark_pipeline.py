"""Kill what a streaming pipeline consists of, at random, and compare what came out with what went in.

One round: rows are published to a topic of a new store; a Spark query copies them to another topic; while it does, its
driver (Python and JVM), one of its Python workers or the broker gets SIGKILL and is started again where it does not
start by itself. When the query has ended of its own accord the sink's topic must hold exactly the rows that were
published, as a multiset.

    python -m tests.crash.spark_pipeline --rounds 10 --rows 1000000
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from headrace.remoting.blocking import Cluster, require
from headrace.remoting.codes import RequestCode
from headrace.spark.scan import StoreSource, plan_log, read_split
from tests.crash.broker_process import BrokerProcess
from tests.crash.spark_query import SINK_TOPIC, SOURCE_TOPIC
from tests.support.ports import free_port

KINDS: Final = ("idempotent", "transactional")
QUEUES: Final = 4
_BATCH_ROWS: Final = 10_000
_ROUND_LIMIT_S: Final = 1_200


@dataclass
class Round:
    """What a round did, and what is wrong."""

    semantics: str
    rows: int
    seconds: float = 0.0
    drivers: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    repeated: int = 0
    foreign: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.repeated or self.foreign)


class Pipeline:
    """One store, one broker and one query after the other."""

    def __init__(self, folder: Path, semantics: str, rows: int, kills: int, rng: random.Random) -> None:
        self.folder = folder
        self._most_kills = kills
        self.result = Round(semantics, rows)
        self._rng = rng
        self._registry, remoting = (f"127.0.0.1:{free_port()}" for _ in range(2))
        nsq_tcp, nsq_http, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.broker = BrokerProcess(
            folder,
            (
                "--remoting.address", remoting, "--remoting.vip-listener", "false",
                "--registry.address", self._registry,
                "--nsq.tcp-address", nsq_tcp, "--nsq.http-address", nsq_http, "--admin.address", admin,
                "--store.segment-bytes", "64MiB",
            ),
            free_ports=False,
        )  # fmt: skip
        self._driver: subprocess.Popen[bytes] | None = None
        self._log = folder / "driver.log"

    def run(self) -> Round:
        """Publish, copy under kills, compare."""
        began = time.monotonic()
        self.broker.start()
        try:
            self.publish()
            self.copy(began + _ROUND_LIMIT_S)
        finally:
            self.kill_driver()
            with contextlib.suppress(AssertionError):
                self.broker.stop()
        self.compare()
        self.result.seconds = time.monotonic() - began
        return self.result

    def publish(self) -> None:
        """Send every row once: nothing is killed yet, so nothing is sent again."""
        with Cluster(self._registry) as cluster:
            name = next(iter(cluster.brokers()))
            for number, first in enumerate(range(0, self.result.rows, _BATCH_ROWS)):
                rows = range(first, min(first + _BATCH_ROWS, self.result.rows))
                ext = {
                    "a": "pipeline-input", "b": SOURCE_TOPIC, "c": "TBW102", "d": str(QUEUES),
                    "e": str(number % QUEUES), "f": "0", "g": str(int(time.time() * 1000)), "h": "0", "i": "",
                    "j": "0", "k": "false", "m": "true",
                }  # fmt: skip
                body = b"".join(map(encode_row, rows))
                require(cluster.ask(name, RequestCode.SEND_BATCH_MESSAGE, ext, body), name)

    def copy(self, until: float) -> None:
        """Run the query to its end, killing on the way."""
        while True:
            self.start_driver()
            offsets = self.offsets()
            next_kill = time.monotonic() + self._rng.uniform(0.5, 5.0)
            while (code := self.poll()) is None:
                if time.monotonic() > until:
                    raise TimeoutError(f"the query did not end; see {self._log}")
                time.sleep(0.05)
                may_kill = self.result.kills.total() < self._most_kills
                # A driver that is killed before its first batch of this run gets nowhere.
                if may_kill and time.monotonic() >= next_kill and self.offsets() > offsets:
                    self.kill(self._rng.choice(("driver", "worker", "broker")))
                    next_kill = time.monotonic() + self._rng.uniform(0.5, 6.0)
                    offsets = self.offsets()
            if code == 0:
                return

    def kill(self, what: str) -> None:
        """Kill one part; the broker is started again at once."""
        if what == "broker":
            self.broker.kill()
            time.sleep(self._rng.uniform(0, 1.0))
            self.broker.start()
        elif what == "driver":
            self.kill_driver()
        else:
            workers = [pid for pid in self.processes() if is_worker(pid)]
            if not workers:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(workers), signal.SIGKILL)
        self.result.kills[what] += 1

    def start_driver(self) -> None:
        rows_per_batch = max(self.result.rows // 40, 1_000)
        arguments = (self._registry, str(self.folder / "checkpoint"), self.result.semantics, str(rows_per_batch))
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.spark_query", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.result.drivers += 1

    def kill_driver(self) -> None:
        """SIGKILL to the driver's Python, its JVM and its workers: what a machine that goes down does."""
        if self._driver is None:
            return
        for pid in [*self.processes(), self._driver.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._driver.wait()

    def poll(self) -> int | None:
        """Return the driver's exit code, None while it runs."""
        assert self._driver is not None
        return self._driver.poll()

    def processes(self) -> list[int]:
        """Return the processes that the driver has started, and those that these have."""
        assert self._driver is not None
        children: dict[int, list[int]] = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = status.read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(status.parent.name))
        found: list[int] = []
        waiting = [self._driver.pid]
        while waiting:
            for pid in children.get(waiting.pop(), []):
                found.append(pid)
                waiting.append(pid)
        return found

    def offsets(self) -> int:
        """Return how many batches the query has planned in all its runs."""
        return len(list((self.folder / "checkpoint" / "offsets").glob("[0-9]*")))

    def compare(self) -> None:
        """Count the rows of the sink's topic."""
        seen = bytearray(self.result.rows)
        source = StoreSource(str(self.broker.data_dir))
        for split in plan_log(source):
            for batch in read_split(split, ["body"], topics=(SINK_TOPIC,)):
                for value in batch.column(0).to_pylist():
                    row = int(value) if value.isdigit() else -1
                    if not 0 <= row < len(seen):
                        self.result.foreign += 1
                    elif seen[row]:
                        self.result.repeated += 1
                    else:
                        seen[row] = 1
        self.result.lost = self.result.rows - sum(seen)


def encode_row(row: int) -> bytes:
    """Return one message of a batch: size, magic, crc, flag, body, properties."""
    body = b"%010d" % row
    return struct.pack(">iiiii", 22 + len(body), 0, zlib.crc32(body) & 0x7FFFFFFF, 0, len(body)) + body + b"\0\0"


def is_worker(pid: int) -> bool:
    """Whether a process is a Python worker of Spark, and not the daemon that forks them."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return (
            b"pyspark" in command and b"daemon" in command and b"daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
        )
    except OSError:
        return False


@click.command()
@click.option("--rounds", default=10, show_default=True)
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of each round.")
@click.option("--semantics", default="both", show_default=True, type=click.Choice([*KINDS, "both"]))
@click.option("--kills", default=12, show_default=True, help="After so many a round is left alone, so that it ends.")
@click.option("--seed", default=1, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; a temporary folder by default.")
def main(rounds: int, rows: int, kills: int, semantics: str, seed: int, folder: Path | None) -> None:
    """Kill drivers, workers and brokers of a pipeline, and count what came out."""
    kinds = KINDS if semantics == "both" else (semantics,)
    is_temporary = folder is None
    folder = folder or Path(tempfile.mkdtemp(prefix="headrace-pipeline-"))
    is_right = True
    for number in range(rounds):
        where = folder / f"round-{number}"
        where.mkdir(parents=True)
        result = Pipeline(where, kinds[number % len(kinds)], rows, kills, random.Random(f"{seed}/{number}")).run()
        figures = {
            "round": number, "semantics": result.semantics, "rows": rows, "seconds": round(result.seconds, 1),
            "drivers": result.drivers, "kills": dict(result.kills),
            "lost": result.lost, "repeated": result.repeated, "foreign": result.foreign,
        }  # fmt: skip
        click.echo(json.dumps(figures))
        is_right &= result.is_right
        if result.is_right:
            shutil.rmtree(where)
    if is_right and is_temporary:
        shutil.rmtree(folder)
    elif not is_right:
        click.echo(f"stores, checkpoints and logs are in {folder}", err=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
