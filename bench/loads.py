"""The loads: programs pinned to one core that publish or consume for a while and say how many messages went through."""

import json
import re
import resource
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.errors import BenchError
from bench.programs import LOADGEN, PEERS

# What a load may take longer than it was asked to run, before it counts as hung.
GRACE_S = 60.0
# Messages that a server may have in flight to each connection of a crowd.
CROWD_WINDOW = 10


@dataclass(frozen=True)
class LoadResult:
    """What one load moved. ``command`` leaves the server's address out: it is another one in every run."""

    command: str
    messages: float
    messages_per_s: float
    megabytes_per_s: float
    load_cpu_share: float
    latency_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where a load goes and the core it runs on."""

    address: str
    topic: str
    channel: str
    core: int


def run_bench_writer(target: Target, *, body_bytes: int, batch: int, seconds: float) -> LoadResult:
    """Run NSQ's own bench_writer: one connection per core, one MPUB in flight."""
    arguments = [f"-runfor={seconds}s", f"-size={body_bytes}", f"-batch-size={batch}", f"-topic={target.topic}"]
    return _run_nsq_tool("bench_writer", target, arguments, seconds, body_bytes)


def run_bench_reader(target: Target, *, body_bytes: int, seconds: float) -> LoadResult:
    """Run NSQ's own bench_reader: one connection per core with a window of 2,500 messages."""
    arguments = [f"-runfor={seconds}s", f"-size={body_bytes}", f"-topic={target.topic}", f"-channel={target.channel}"]
    return _run_nsq_tool("bench_reader", target, arguments, seconds, body_bytes)


def run_publisher(
    target: Target,
    *,
    body_bytes: int,
    batch: int,
    depth: int,
    connections: int,
    seconds: float,
    count: int = 0,
    spin: bool = False,
) -> LoadResult:
    """Run our own publisher with ``depth`` commands in flight on each connection.

    Given a ``count``, it publishes that many messages, rounded up to batches, however long it takes up to ``seconds``.
    ``spin`` waits without sleeping.
    """
    arguments = [
        f"-topic={target.topic}",
        f"-connections={connections}",
        f"-body={body_bytes}",
        f"-batch={batch}",
        f"-depth={depth}",
        f"-duration={seconds}s",
    ]
    if count:
        arguments.append(f"-count={count}")
    if spin:
        arguments.append("-spin")
    return _run_loadgen("nsq-pub", target, arguments, seconds)


def run_http_publisher(
    target: Target, *, body_bytes: int, batch: int, connections: int, seconds: float, fresh: bool = False
) -> LoadResult:
    """Publish over HTTP, one request in flight on each connection; ``fresh``: a new connection for each request."""
    arguments = [f"-topic={target.topic}", f"-connections={connections}", f"-body={body_bytes}", f"-batch={batch}"]
    if fresh:
        arguments.append("-fresh")
    return _run_loadgen("nsq-http", target, [*arguments, f"-duration={seconds}s"], seconds)


def run_consumer(
    target: Target, *, seconds: float, connections: int = 1, window: int = 2500, count: int = 0
) -> LoadResult:
    """Run our own consumer, a window (RDY) for each connection, finishing everything, until ``count`` messages came."""
    arguments = [f"-topic={target.topic}", f"-channel={target.channel}", f"-duration={seconds}s"]
    arguments += [f"-connections={connections}", f"-rdy={window}"]
    if count:
        arguments.append(f"-count={count}")
    return _run_loadgen("nsq-sub", target, arguments, seconds)


def run_live(
    target: Target, *, protocol: str, body_bytes: int, rate: int, publishers: int, seconds: float, topics: int = 1
) -> LoadResult:
    """Publish ``rate`` messages a second and consume them; ``protocol`` is ``nsq`` or ``rocket``.

    With more than one of ``topics``, which only ``nsq`` has, each has a consumer of its own. The latency is that from
    the write of a message to its arrival at a consumer; every message must arrive.
    """
    arguments = [f"-topic={target.topic}", f"-body={body_bytes}", f"-rate={rate}", f"-publishers={publishers}"]
    if protocol == "nsq":
        arguments.append(f"-channel={target.channel}")
    if topics > 1:
        arguments += [f"-topics={topics}", f"-consumers={topics}"]
    return _run_loadgen(f"{protocol}-live", target, [*arguments, f"-duration={seconds}s"], seconds)


def run_rocketmq_sender(
    target: Target,
    *,
    body_bytes: int,
    batch: int,
    depth: int,
    seconds: float,
    count: int = 0,
    connections: int = 1,
    with_keys: bool = False,
    spin: bool = False,
) -> LoadResult:
    """Send RocketMQ messages with ``depth`` requests in flight on each connection; every offset is checked.

    Given a ``count``, it sends that many messages, rounded up to batches, however long it takes up to ``seconds``.
    ``spin`` waits without sleeping.
    """
    arguments = [f"-topic={target.topic}", f"-body={body_bytes}", f"-batch={batch}", f"-depth={depth}"]
    arguments.append(f"-connections={connections}")
    arguments.append(f"-count={count}" if count else f"-duration={seconds}s")
    if with_keys:
        arguments.append("-keys")
    if spin:
        arguments.append("-spin")
    return _run_loadgen("rocket-send", target, arguments, seconds)


def run_rocketmq_holder(
    target: Target, *, kind: str, body_bytes: int, depth: int, seconds: float, count: int
) -> LoadResult:
    """Send ``count`` RocketMQ messages that are delayed, or committed or sent back afterwards (``kind``)."""
    arguments = [f"-topic={target.topic}", f"-kind={kind}", f"-body={body_bytes}", f"-depth={depth}", f"-count={count}"]
    return _run_loadgen("rocket-hold", target, arguments, seconds)


def run_rocketmq_puller(target: Target, *, seconds: float, connections: int = 1, sql: str = "") -> LoadResult:
    """Pull a RocketMQ topic's backlog from its start to its end, or for ``seconds``; every offset is checked.

    Each of the connections reads all of it; ``sql`` is a filter that lets every message through.
    """
    arguments = [f"-topic={target.topic}", f"-connections={connections}", f"-duration={seconds}s"]
    if sql:
        arguments.append(f"-sql={sql}")
    return _run_loadgen("rocket-pull", target, arguments, seconds)


@dataclass(frozen=True)
class CrowdResult:
    """What a crowd of connections did. ``report`` is what ``loadgen nsq-conns`` says of it."""

    command: str
    report: dict[str, Any]


def run_crowd(
    target: Target, *, connections: int, publish: int, topics: int = 1, consume: bool = True, seconds: float
) -> CrowdResult:
    """Open many connections, each with one publish at a time, and consume on them as well.

    Raises:
        BenchError: there was an error on some connection, or a message did not come.
    """
    arguments = [
        f"-topic={target.topic}",
        f"-channel={target.channel}",
        f"-connections={connections}",
        f"-topics={topics}",
        f"-publish={publish}",
        "-depth=1",
        f"-consume={str(consume).lower()}",
        f"-rdy={CROWD_WINDOW}",
        f"-timeout={seconds}s",
    ]
    command = [str(LOADGEN), "nsq-conns", "-json", f"-address={target.address}", *arguments]
    output, _ = _run_pinned(command, target.core, seconds)
    return CrowdResult(" ".join(["loadgen", "nsq-conns", *arguments]), json.loads(output))


class HeldConnections:
    """Consumers that do nothing but answer heartbeats until the context ends, ``seconds`` at most."""

    def __init__(self, target: Target, *, connections: int, seconds: float) -> None:
        arguments = [
            f"-topic={target.topic}",
            f"-channel={target.channel}",
            f"-connections={connections}",
            "-publish=0",
            f"-hold={seconds}s",
        ]
        self.command = " ".join(["loadgen", "nsq-conns", *arguments])
        self._command_line = [
            *("taskset", "-c", str(target.core)),
            *(str(LOADGEN), "nsq-conns", "-json", f"-address={target.address}", *arguments),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command_line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        output, _ = self._process.communicate()
        # Ended by our signal is as it should be; a lost connection does not end it, and the server counts those.
        if error is None and self._process.returncode not in (0, -signal.SIGTERM):
            raise BenchError(f"idle consumers exited with {self._process.returncode}: {output[-500:]}")


def _run_nsq_tool(tool: str, target: Target, arguments: list[str], seconds: float, body_bytes: int) -> LoadResult:
    command = [str(PEERS / tool), f"-nsqd-tcp-address={target.address}", *arguments]
    output, cpu_s = _run_pinned(command, target.core, seconds)
    # "[bench_writer] <date> duration: 10.002s - 197.463mb/s - 2070549.631ops/s - 4.830us/op"
    figures = re.search(r"duration: (\S+) - \S+mb/s - ([0-9.]+)ops/s", output)
    if figures is None:
        raise BenchError(f"{tool} reported no result: {output[-500:]!r}")
    elapsed_s, messages_per_s = _parse_go_duration(figures[1]), float(figures[2])
    return LoadResult(
        command=" ".join([tool, *arguments]),
        messages=messages_per_s * elapsed_s,
        messages_per_s=messages_per_s,
        megabytes_per_s=messages_per_s * body_bytes / 1e6,
        load_cpu_share=cpu_s / elapsed_s,
    )


def _run_loadgen(subcommand: str, target: Target, arguments: list[str], seconds: float) -> LoadResult:
    command = [str(LOADGEN), subcommand, "-json", f"-address={target.address}", *arguments]
    output, _ = _run_pinned(command, target.core, seconds)
    result = json.loads(output)
    return LoadResult(
        command=" ".join(["loadgen", subcommand, *arguments]),
        messages=result["messages"],
        messages_per_s=result["messages_per_s"],
        megabytes_per_s=result["megabytes_per_s"],
        load_cpu_share=result["load_cpu_share"],
        latency_us=result.get("latency_us", {}),
    )


def _run_pinned(command: list[str], core: int, seconds: float) -> tuple[str, float]:
    """Run a program on one core; return its output and the processor time it took."""
    name = Path(command[0]).name
    before = _children_cpu_s()
    try:
        result = subprocess.run(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise BenchError(f"{name} did not end within {exc.timeout:.0f} s") from exc
    if result.returncode != 0:
        raise BenchError(f"{name} exited with {result.returncode}: {result.stdout[-500:]}")
    return result.stdout, _children_cpu_s() - before


def _children_cpu_s() -> float:
    """Return the processor time of all children waited for: servers still run, so only loads add to it meanwhile."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _parse_go_duration(text: str) -> float:
    """Return the seconds of a duration as Go prints it, such as ``1m2.5s`` or ``512.3ms``."""
    unit_s = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    parts = re.findall(r"([0-9.]+)(h|ms|m|s|µs|ns)", text)
    if not parts:
        raise BenchError(f"not a duration: {text!r}")
    return sum(float(number) * unit_s[unit] for number, unit in parts)
