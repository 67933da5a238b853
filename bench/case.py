"""What every case has: the stage it runs on, the sample it takes, and what a load costs the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.loads import LoadResult, Target
from bench.machine import Cores
from bench.metrics import Sample
from bench.process import MemoryWatch, cpu_seconds, memory_mib
from bench.servers import Server, make_server

TOPIC = "bench"
CHANNEL = "ch"


@dataclass(frozen=True)
class Stage:
    """What the cases of a run share.

    ``write_s`` is four times ``read_s``: an NSQ reader must end before the backlog does, or its figure is the writer's.
    The rest is for RocketMQ's protocol: the messages that a server takes before it is measured, those of a backlog,
    those after which its memory is looked at, and those that are held.
    """

    scratch: Path
    cores: Cores
    write_s: float
    read_s: float
    warm_messages: int
    backlog: int
    memory_messages: int
    held_messages: int

    def target(self, server: Server) -> Target:
        """Return where loads against ``server`` go."""
        return Target(server.tcp_address, TOPIC, CHANNEL, self.cores.load)

    def server(self, contestant: str, body_bytes: int) -> Server:
        """Return a contestant's server, not started yet."""
        return make_server(contestant, self.scratch, self.cores.server, body_bytes)


@dataclass(frozen=True)
class Measurement:
    """One sample and the commands that led to it."""

    command: str
    sample: Sample


@dataclass(frozen=True)
class Case(ABC):
    """One row of the report: the same load on each of ``contestants``."""

    name: str
    title: str
    contestants: tuple[str, ...]

    @property
    def samples_at_most(self) -> int:
        """How many samples are worth their time, whatever the run takes of other cases."""
        return 1_000

    @abstractmethod
    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant.

        Raises:
            BenchError: the sample would not be what the case says.
        """


def measure_load(server: Server, load: Callable[[], LoadResult]) -> Measurement:
    """Run a load and take what it cost the server: processor time per message and memory."""
    cpu_before = cpu_seconds(server.pid)
    with MemoryWatch(server.pid) as watch:
        result = load()
    cpu_s = cpu_seconds(server.pid) - cpu_before
    if result.messages == 0:
        raise BenchError(f"no message went through: {result.command}")
    anonymous_mib = memory_mib(server.pid, "RssAnon")
    sample = {
        "messages_per_s": result.messages_per_s,
        "megabytes_per_s": result.megabytes_per_s,
        "server_cpu_us": cpu_s * 1e6 / result.messages,
        "rss_anon_mib": anonymous_mib,
        "rss_anon_peak_mib": max(watch.anonymous_peak_mib, anonymous_mib),
        "rss_peak_mib": memory_mib(server.pid, "VmHWM"),
        "server_cpu_share": cpu_s * result.messages_per_s / result.messages,
        "load_cpu_share": result.load_cpu_share,
    }
    for percentile in ("p50", "p99", "p999"):
        if percentile in result.latency_us:
            sample[f"latency_{percentile}_us"] = result.latency_us[percentile]
    return Measurement(result.command, sample)
