"""What is measured: every case names its contestants and takes one sample of one of them at a time.

A contestant is a server under one setting (see :func:`bench.servers.make_server`) or, where a case sets a limit beside
them, ``disk`` (the file system itself) or ``store`` (the store without a server). ``null`` is the ceiling of the load.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace

from bench.case import CHANNEL, TOPIC, Case, Measurement, Stage, measure_load
from bench.disk import BATCH_RECORDS, measure_fdatasync
from bench.errors import BenchError
from bench.loads import (
    LoadResult,
    Target,
    run_bench_reader,
    run_bench_writer,
    run_consumer,
    run_http_publisher,
    run_live,
    run_publisher,
)
from bench.machine import REPOSITORY
from bench.rocketmq_cases import ROCKETMQ_CASES
from bench.servers import Server

BATCH = 200
NSQ_PAIR = ("headrace", "nsqd")
# Enough that a server works on one part of the window while the next is on its way.
MPUB_DEPTH = 16
PUB_DEPTH = 1000


@dataclass(frozen=True)
class WriterCase(Case):
    """NSQ's bench_writer on a topic without a channel."""

    body_bytes: int

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with stage.server(contestant, self.body_bytes) as server:
            target = stage.target(server)
            return measure_load(
                server,
                lambda: run_bench_writer(target, body_bytes=self.body_bytes, batch=BATCH, seconds=stage.write_s),
            )


@dataclass(frozen=True)
class PublishCase(Case):
    """Our publisher on a topic without a channel; contestant ``disk`` is one fdatasync per batch."""

    body_bytes: int
    batch: int
    depth: int
    connections: int = 1
    spin: bool = False

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        if contestant == "disk":
            return _measure_disk(stage)
        with stage.server(contestant, self.body_bytes) as server:
            target = stage.target(server)
            return measure_load(
                server,
                lambda: run_publisher(
                    target,
                    body_bytes=self.body_bytes,
                    batch=self.batch,
                    depth=self.depth,
                    connections=self.connections,
                    seconds=stage.write_s,
                    spin=self.spin,
                ),
            )


@dataclass(frozen=True)
class HttpCase(Case):
    """Our publisher over HTTP on a topic without a channel, one request in flight on each connection.

    With ``fresh`` each request has a connection of its own.
    """

    batch: int
    connections: int
    fresh: bool = False
    body_bytes: int = 200

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with stage.server(contestant, self.body_bytes) as server:
            target = replace(stage.target(server), address=server.http_address)
            return measure_load(
                server,
                lambda: run_http_publisher(
                    target,
                    body_bytes=self.body_bytes,
                    batch=self.batch,
                    connections=self.connections,
                    seconds=stage.write_s,
                    fresh=self.fresh,
                ),
            )


@dataclass(frozen=True)
class BacklogCase(Case):
    """A consumer on a backlog that was published before it came and outlasts it.

    The channel exists before the first message: otherwise nsqd copies the backlog from topic to channel while it is
    being read, and its processor time per message looks much too large.
    """

    body_bytes: int
    with_bench_reader: bool
    connections: int = 1
    window: int = 2500

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with stage.server(contestant, self.body_bytes) as server:
            target = stage.target(server)
            written = self._write_backlog(server, target, stage)
            measurement = measure_load(server, lambda: self._read(target, stage))
            if not server.has_endless_channels and server.channel_depth(TOPIC) == 0:
                raise BenchError("the reader reached the end of the backlog: its figure would be too low")
            return Measurement(written + measurement.command, measurement.sample)

    def _write_backlog(self, server: Server, target: Target, stage: Stage) -> str:
        """Fill the channel; return the command, empty where the server's channel has no end anyway."""
        if server.has_endless_channels:
            return ""
        server.create_channel(TOPIC, CHANNEL)
        result = run_publisher(
            target, body_bytes=self.body_bytes, batch=BATCH, depth=MPUB_DEPTH, connections=1, seconds=stage.write_s
        )
        server.wait_fanned_out(TOPIC)
        return f"{result.command}; "

    def _read(self, target: Target, stage: Stage) -> LoadResult:
        if self.with_bench_reader:
            return run_bench_reader(target, body_bytes=self.body_bytes, seconds=stage.read_s)
        return run_consumer(target, connections=self.connections, window=self.window, seconds=stage.read_s)


@dataclass(frozen=True)
class LiveCase(Case):
    """Publishers that send ``rate`` messages a second together, and consumers that get them: how long does it take?

    With a rate of 0 each sends the next message when the last is answered. ``topics`` share the publishers, and have a
    consumer each where they are several.
    """

    rate: int
    publishers: int
    topics: int = 1
    body_bytes: int = 200

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with stage.server(contestant, self.body_bytes) as server:
            target = stage.target(server)
            server.create_channel(TOPIC, CHANNEL)
            return measure_load(
                server,
                lambda: run_live(
                    target,
                    protocol="nsq",
                    body_bytes=self.body_bytes,
                    rate=self.rate,
                    publishers=self.publishers,
                    seconds=stage.write_s,
                    topics=self.topics,
                ),
            )


@dataclass(frozen=True)
class AppendCase(Case):
    """The store's append, timed in a process of its own on the server's core."""

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample."""
        with tempfile.TemporaryDirectory(prefix="append-", dir=stage.scratch) as directory:
            result = subprocess.run(
                [
                    *("taskset", "-c", str(stage.cores.server)),
                    *(sys.executable, "-m", "bench.append", f"--data-dir={directory}", f"--seconds={stage.write_s}"),
                ],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=False,
            )
        if result.returncode != 0:
            raise BenchError(f"bench.append exited with {result.returncode}: {result.stderr[-500:]}")
        ns_per_record = json.loads(result.stdout)["ns_per_record"]
        return Measurement(
            command=f"python -m bench.append --seconds={stage.write_s}",
            sample={"messages_per_s": 1e9 / ns_per_record, "ns_per_record": ns_per_record},
        )


def _measure_disk(stage: Stage) -> Measurement:
    """Measure on the servers' core: where the disk's interrupts go to another one, each fdatasync takes longer."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {stage.cores.server})
    try:
        syncs_per_s = measure_fdatasync(stage.scratch, stage.write_s)
    finally:
        os.sched_setaffinity(0, ours)
    return Measurement(
        command=f"append {BATCH_RECORDS} records to a file, fdatasync, repeat",
        sample={"messages_per_s": syncs_per_s * BATCH_RECORDS, "syncs_per_s": syncs_per_s},
    )


def _make_cases() -> tuple[Case, ...]:
    everyone = ("headrace", "nsqd", "nsqd-memory", "null")
    cases: list[Case] = []
    for size in (100, 200, 1024):
        cases.append(WriterCase(f"writer-{size}", f"bench_writer, MPUB of {BATCH}, {size} B", everyone, size))
    for size in (100, 200, 1024):
        cases.append(BacklogCase(f"reader-{size}", f"bench_reader on a backlog, {size} B", everyone, size, True))
    for size in (100, 200, 1024):
        cases.append(BacklogCase(f"consumer-{size}", f"our consumer on a backlog, {size} B", everyone, size, False))
    served = ("headrace", "nsqd", "null")
    for connections in (1, 16):
        name = f"RDY 1 on {connections} connections" if connections > 1 else "RDY 1 on one connection"
        cases.append(
            BacklogCase(
                f"window-{connections}", f"our consumer on a backlog, {name}, 200 B", served, 200, False, connections, 1
            )
        )
    cases += [
        PublishCase("mpub", f"MPUB of {BATCH}, {MPUB_DEPTH} in flight, 200 B", served, 200, BATCH, MPUB_DEPTH),
        PublishCase("pub", f"PUB, {PUB_DEPTH:,} in flight, 200 B", served, 200, 1, PUB_DEPTH),
        PublishCase("pub-64", "PUB, one at a time on each of 64 connections, 200 B", served, 200, 1, 1, connections=64),
        PublishCase("pub-4", "PUB, one at a time on each of 4 connections, 200 B", served, 200, 1, 1, connections=4),
        PublishCase("pub-latency", "PUB, one at a time, 100 B", served, 100, 1, 1),
        # Waking a sleeping client costs as much as a fast server takes: without it servers differ visibly.
        PublishCase("pub-latency-spin", "PUB, one at a time, client never sleeps, 100 B", served, 100, 1, 1, spin=True),
        HttpCase("http-16", "HTTP /pub, one at a time on each of 16 connections, 200 B", NSQ_PAIR, 1, 16),
        HttpCase("http-1", "HTTP /pub, one at a time, 200 B", NSQ_PAIR, 1, 1),
        HttpCase("http-fresh-16", "HTTP /pub, 16 at a time, each on a new connection, 200 B", NSQ_PAIR, 1, 16, True),
        HttpCase("http-mpub-16", f"HTTP /mpub of {BATCH}, 16 connections, 200 B", NSQ_PAIR, BATCH, 16),
        PublishCase(
            "fsync-1", f"MPUB of {BATCH}, 1 connection, fsync, 200 B", ("headrace-fsync", "disk"), 200, BATCH, 1
        ),
        PublishCase(
            "fsync-16",
            f"MPUB of {BATCH}, 16 connections, fsync and async, 200 B",
            ("headrace-fsync", "headrace", "disk"),
            200,
            BATCH,
            1,
            connections=16,
        ),
        LiveCase("live-1k", "1,000 PUBs a second, consumed at once, 200 B", NSQ_PAIR, 1_000, 4),
        LiveCase("live-10k", "10,000 PUBs a second, consumed at once, 200 B", NSQ_PAIR, 10_000, 16),
        LiveCase("live-4", "PUB, one at a time on each of 4 connections, consumed at once, 200 B", NSQ_PAIR, 0, 4),
        LiveCase(
            "live-500", "PUB, one at a time, in each of 500 topics, consumed at once, 200 B", NSQ_PAIR, 0, 500, 500
        ),
        AppendCase("append", "append in the store's own process, 200 B", ("store",)),
    ]
    return tuple(cases)


NSQ_CASES = _make_cases()
CASES = NSQ_CASES + ROCKETMQ_CASES
# Each has its own section in docs/performance.md.
CASES_OF = {"nsq": NSQ_CASES, "rocketmq": ROCKETMQ_CASES}
