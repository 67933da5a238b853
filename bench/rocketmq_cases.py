"""What is measured of RocketMQ's protocol: sends, batches, a backlog, starts and memory.

Every contestant but ``null`` is warmed up before a sample: a Java broker on one core needs some 25 seconds until its
code is compiled. All get the same load for it: single messages with 256 in flight to another topic, and then once the
load of the case.
"""

from dataclasses import dataclass, replace

from bench.case import CHANNEL, Case, Measurement, Stage, measure_load
from bench.errors import BenchError
from bench.loads import LoadResult, Target, run_live, run_rocketmq_holder, run_rocketmq_puller, run_rocketmq_sender
from bench.process import memory_mib
from bench.rocketmq_servers import make_rocketmq_server
from bench.servers import Server

TOPIC = "bench"
WARM_TOPIC = "warm"
WARM_DEPTH = 256
QUEUES = 4
BATCH = 32
BATCH_DEPTH = 16
# A load that takes longer has failed.
LIMIT_S = 600.0
PEERS = ("rocketmq-4.9.7", "rocketmq-5.5.0")
SYNC_PEERS = ("rocketmq-4.9.7-sync", "rocketmq-5.5.0-sync")


@dataclass(frozen=True)
class RocketMqCase(Case):
    """A case against one broker of RocketMQ's protocol, which is new for every sample."""

    def _server(
        self, contestant: str, stage: Stage, body_bytes: int, backlog: int = 0, *, filters_properties: bool = False
    ) -> Server:
        return make_rocketmq_server(
            contestant,
            stage.scratch,
            stage.cores.server,
            body_bytes=body_bytes,
            backlog=-(-backlog // QUEUES),
            filters_properties=filters_properties,
        )

    @staticmethod
    def _target(server: Server, stage: Stage, topic: str = TOPIC) -> Target:
        return Target(server.rocketmq_address, topic, CHANNEL, stage.cores.load)

    def _warm_up(self, contestant: str, server: Server, stage: Stage, body_bytes: int) -> Target | None:
        """Send what is not measured; return where more of it may go, None where nothing can be warmed."""
        if contestant == "null":
            return None
        target = self._target(server, stage, WARM_TOPIC)
        run_rocketmq_sender(
            target, body_bytes=body_bytes, batch=1, depth=WARM_DEPTH, seconds=LIMIT_S, count=stage.warm_messages
        )
        return target


@dataclass(frozen=True)
class SendCase(RocketMqCase):
    """Our sender on some connections with ``depth`` requests in flight on each."""

    body_bytes: int = 100
    batch: int = 1
    depth: int = 256
    connections: int = 1
    with_keys: bool = False
    spin: bool = False

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with self._server(contestant, stage, self.body_bytes) as server:
            warm = self._warm_up(contestant, server, stage, self.body_bytes)
            if warm is not None:
                self._send(warm, stage)
            return measure_load(server, lambda: self._send(self._target(server, stage), stage))

    def _send(self, target: Target, stage: Stage) -> LoadResult:
        return run_rocketmq_sender(
            target,
            body_bytes=self.body_bytes,
            batch=self.batch,
            depth=self.depth,
            seconds=stage.write_s,
            connections=self.connections,
            with_keys=self.with_keys,
            spin=self.spin,
        )


@dataclass(frozen=True)
class HoldCase(RocketMqCase):
    """Messages that are not delivered at once: delayed, or committed or sent back after they were stored."""

    kind: str
    body_bytes: int = 100
    depth: int = 256

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with self._server(contestant, stage, self.body_bytes) as server:
            warm = self._warm_up(contestant, server, stage, self.body_bytes)
            if warm is not None:
                self._hold(warm, stage)
            return measure_load(server, lambda: self._hold(self._target(server, stage), stage))

    def _hold(self, target: Target, stage: Stage) -> LoadResult:
        return run_rocketmq_holder(
            target,
            kind=self.kind,
            body_bytes=self.body_bytes,
            depth=self.depth,
            seconds=LIMIT_S,
            count=stage.held_messages,
        )


@dataclass(frozen=True)
class PullCase(RocketMqCase):
    """Consumers that each read a backlog once, with a pull of 32 messages in flight for each of four queues."""

    body_bytes: int
    consumers: int = 1
    sql: str = ""  # a filter that lets every message through

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        filters = bool(self.sql)
        with self._server(contestant, stage, self.body_bytes, stage.backlog, filters_properties=filters) as server:
            target = self._target(server, stage)
            written = self._write_backlog(contestant, server, stage)
            measurement = measure_load(server, lambda: self._read(target, stage))
            return Measurement(written + measurement.command, measurement.sample)

    def _write_backlog(self, contestant: str, server: Server, stage: Stage) -> str:
        """Fill the queues and warm up pulls; return the command, empty where the server has its backlog anyway."""
        warm = self._warm_up(contestant, server, stage, self.body_bytes)
        if warm is None:
            return ""
        result = run_rocketmq_sender(
            self._target(server, stage),
            body_bytes=self.body_bytes,
            batch=BATCH,
            depth=BATCH_DEPTH,
            seconds=LIMIT_S,
            count=stage.backlog,
        )
        # The single messages of the warm-up are read as often as it takes for as many messages as the backlog has.
        read = 0.0
        while read < stage.backlog:
            read += run_rocketmq_puller(warm, seconds=LIMIT_S, sql=self.sql).messages
        return f"{result.command}; "

    def _read(self, target: Target, stage: Stage) -> LoadResult:
        result = run_rocketmq_puller(target, seconds=LIMIT_S, connections=self.consumers, sql=self.sql)
        wanted = stage.backlog * self.consumers
        if result.messages < wanted:
            raise BenchError(f"{result.messages:.0f} of {wanted} messages came in {LIMIT_S:.0f} s")
        return result


@dataclass(frozen=True)
class LiveCase(RocketMqCase):
    """Producers that send ``rate`` messages a second together, and a group that pulls them: how long does it take?"""

    rate: int
    producers: int
    body_bytes: int = 200

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with self._server(contestant, stage, self.body_bytes) as server:
            warm = self._warm_up(contestant, server, stage, self.body_bytes)
            if warm is not None:
                self._live(warm, stage)
            return measure_load(server, lambda: self._live(self._target(server, stage), stage))

    def _live(self, target: Target, stage: Stage) -> LoadResult:
        return run_live(
            target,
            protocol="rocket",
            body_bytes=self.body_bytes,
            rate=self.rate,
            publishers=self.producers,
            seconds=stage.write_s,
        )


@dataclass(frozen=True)
class StartCase(RocketMqCase):
    """From the launch of a broker with an empty store until it is ready; RocketMQ's without its name server."""

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with self._server(contestant, stage, body_bytes=1) as server:
            figures = {"start_s": server.start_s, "rss_anon_mib": memory_mib(server.pid, "RssAnon")}
            return Measurement("start with an empty store", figures)


@dataclass(frozen=True)
class MemoryCase(RocketMqCase):
    """What a broker takes after many messages of 100 B, sent in batches: they are the same records, only sooner."""

    @property
    def samples_at_most(self) -> int:
        """How many samples are worth their time."""
        return 1

    def measure(self, contestant: str, stage: Stage) -> Measurement:
        """Take one sample of one contestant."""
        with self._server(contestant, stage, body_bytes=100) as server:
            target = self._target(server, stage)
            return measure_load(
                server,
                lambda: run_rocketmq_sender(
                    target,
                    body_bytes=100,
                    batch=BATCH,
                    depth=BATCH_DEPTH,
                    seconds=LIMIT_S,
                    count=stage.memory_messages,
                ),
            )


def _make_cases() -> tuple[RocketMqCase, ...]:
    served = ("headrace", *PEERS, "null")
    send_256 = SendCase("rocket-send-256", "RocketMQ send, 256 in flight, 100 B", served)
    return (
        SendCase("rocket-send-1", "RocketMQ send, one at a time, 100 B", served, depth=1),
        SendCase("rocket-send-16", "RocketMQ send, 16 in flight, 100 B", served, depth=16),
        SendCase(
            "rocket-send-64",
            "RocketMQ send, one at a time on each of 64 connections, 100 B",
            served,
            depth=1,
            connections=64,
        ),
        # As with NSQ: where few are in flight, waking a sleeping client costs as much as a fast server takes.
        SendCase(
            "rocket-send-1-spin",
            "RocketMQ send, one at a time, client never sleeps, 100 B",
            served,
            depth=1,
            spin=True,
        ),
        SendCase(
            "rocket-send-16-spin",
            "RocketMQ send, 16 in flight, client never sleeps, 100 B",
            served,
            depth=16,
            spin=True,
        ),
        send_256,
        SendCase("rocket-send-256-1k", "RocketMQ send, 256 in flight, 1024 B", served, body_bytes=1024),
        SendCase("rocket-send-256-keys", "RocketMQ send with a key, 256 in flight, 100 B", served, with_keys=True),
        replace(
            send_256,
            name="rocket-fsync-256",
            title="RocketMQ send, 256 in flight, fsync against SYNC_FLUSH, 100 B",
            contestants=("headrace-fsync", *SYNC_PEERS),
        ),
        SendCase(
            "rocket-batch-32",
            f"RocketMQ batches of {BATCH}, {BATCH_DEPTH} in flight, 100 B",
            served,
            batch=BATCH,
            depth=BATCH_DEPTH,
        ),
        HoldCase("rocket-delay-256", "RocketMQ delayed message, 256 in flight, 100 B", served, "delay"),
        HoldCase("rocket-commit-256", "RocketMQ half message and commit, 256 in flight, 100 B", served, "commit"),
        HoldCase("rocket-back-256", "RocketMQ message and send-back, 256 in flight, 100 B", served, "back"),
        PullCase("rocket-pull-100", "RocketMQ pull of a backlog, 4 queues, 100 B", served, 100),
        PullCase("rocket-pull-1k", "RocketMQ pull of a backlog, 4 queues, 1024 B", served, 1024),
        # One consumer has two pulls under way while it works on two: each side waits for the other a part of the time.
        PullCase("rocket-pull-100-two", "RocketMQ pull of a backlog by two consumers, 100 B", served, 100, consumers=2),
        PullCase(
            "rocket-pull-1k-two", "RocketMQ pull of a backlog by two consumers, 1024 B", served, 1024, consumers=2
        ),
        PullCase(
            "rocket-pull-100-sql",
            "RocketMQ pull of a backlog with a SQL92 filter, 100 B",
            ("headrace", *PEERS),
            100,
            sql="TAGS IN ('TagA', 'TagB') AND UNIQ_KEY <> 'none'",
        ),
        LiveCase(
            "rocket-live-1k", "1,000 RocketMQ sends a second, pulled at once, 200 B", ("headrace", *PEERS), 1_000, 4
        ),
        StartCase("rocket-start", "start with an empty store", ("headrace", *PEERS)),
        MemoryCase("rocket-memory", "memory after many RocketMQ messages, 100 B", ("headrace", *PEERS)),
    )


ROCKETMQ_CASES = _make_cases()
