"""What bench.scale measures: each case starts a broker of its own, at level ``fsync`` unless it says otherwise."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.loads import HeldConnections, LoadResult, Target, run_consumer, run_crowd, run_publisher
from bench.machine import Cores
from bench.process import MemoryWatch, cpu_seconds, memory_mib
from bench.rocketmq_scale import RocketMqScale, measure_clients, measure_topics
from bench.scale_results import ScaleCase
from bench.servers import Headrace
from bench.unfinished import UnfinishedConsumers

TOPIC = "scale"
CHANNEL = "ch"
BODY_BYTES = 100
BATCH = 200
MPUB_DEPTH = 16
# What a channel holds before the many come: its memory is the same as theirs.
FEW = 10
# Messages that each of many channels has in flight.
UNFINISHED_EACH = 1_000
# How long a broker may work off what was done to it, before it counts as idle.
SETTLE_S = 3.0
# A load that takes longer has failed.
LIMIT_S = 600.0
# As far as the settings go: nothing is behind a checkpoint that never comes.
NO_CHECKPOINT = ("--store.checkpoint-interval-ms=10m", "--store.checkpoint-bytes=64GiB")
ENOUGH_FOR_RATE_BYTES = 500_000_000
LOG_END = "headrace_store_end_offset_bytes"


@dataclass(frozen=True)
class Scale:
    """How much of everything, and where it runs. ``connections`` publish ``publish_each`` messages each."""

    scratch: Path
    cores: Cores
    messages: int
    channels: int
    connections: int
    publish_each: int
    log_bytes: int
    idle_s: float
    heartbeat_s: float
    topics: int = 0
    clients: int = 0

    def rocketmq(self) -> RocketMqScale:
        """Return what of it concerns RocketMQ's protocol; two periods of heartbeats and registrations are idle time."""
        return RocketMqScale(self.cores, self.topics, self.clients, 2 * self.heartbeat_s)

    def broker(self, durability: str = "fsync", options: tuple[str, ...] = ()) -> Headrace:
        """Return a broker, not started yet."""
        return Headrace(self.scratch, self.cores.server, durability=durability, options=options)

    def target(self, broker: Headrace) -> Target:
        """Return where loads go."""
        return Target(broker.tcp_address, TOPIC, CHANNEL, self.cores.load)


def measure_backlog(scale: Scale) -> ScaleCase:
    """Fill a channel, then consume it; ``before`` is the same channel with ten messages behind it."""
    with scale.broker() as broker, MemoryWatch(broker.pid) as watch:
        target = scale.target(broker)
        broker.create_channel(TOPIC, CHANNEL)
        _publish(target, FEW, batch=FEW)
        time.sleep(SETTLE_S)
        before = memory_mib(broker.pid, "RssAnon")
        published = _publish(target, scale.messages)
        time.sleep(SETTLE_S)
        after = memory_mib(broker.pid, "RssAnon")
        log_bytes = broker.metric(LOG_END)
        total = broker.channel_depth(TOPIC)
        cpu_before = cpu_seconds(broker.pid)
        consumed = run_consumer(target, seconds=LIMIT_S, count=total)
        if consumed.messages < total:
            raise BenchError(f"{consumed.messages:.0f} of {total} messages came in {LIMIT_S:.0f} s")
        cpu_s = cpu_seconds(broker.pid) - cpu_before
        return ScaleCase(
            "backlog",
            f"{scale.messages:,} messages of {BODY_BYTES} B behind a channel",
            [published.command, consumed.command],
            {
                "messages": total,
                "log_gb": log_bytes / 1e9,
                "rss_anon_before_mib": before,
                "rss_anon_after_mib": after,
                "rss_anon_consumed_mib": memory_mib(broker.pid, "RssAnon"),
                "rss_anon_peak_mib": watch.anonymous_peak_mib,
                "publish_per_s": published.messages_per_s,
                "consume_s": consumed.messages / consumed.messages_per_s,
                "consume_per_s": consumed.messages_per_s,
                "server_cpu_us": cpu_s * 1e6 / consumed.messages,
                "server_cpu_percent": 100 * cpu_s * consumed.messages_per_s / consumed.messages,
            },
        )


def measure_idle_channels(scale: Scale) -> ScaleCase:
    """Create many channels of one topic and look what they cost while nothing happens."""
    with scale.broker() as broker:
        before = memory_mib(broker.pid, "RssAnon")
        start = time.monotonic()
        broker.create_channels(TOPIC, [f"{CHANNEL}-{number}" for number in range(scale.channels)])
        create_s = time.monotonic() - start
        idle_percent = _idle_cpu_percent(broker, scale.idle_s)
        after = memory_mib(broker.pid, "RssAnon")
    return ScaleCase(
        "idle-channels",
        f"{scale.channels:,} idle channels",
        [],
        {
            "channels": scale.channels,
            "create_s": create_s,
            "rss_anon_before_mib": before,
            "rss_anon_after_mib": after,
            "kib_each": (after - before) * 1024 / scale.channels,
            "idle_cpu_percent": idle_percent,
        },
    )


def measure_idle_consumers(scale: Scale) -> ScaleCase:
    """Connect many consumers of one channel that get nothing but heartbeats, each at least one."""
    hold_s = SETTLE_S + scale.heartbeat_s + 60
    with scale.broker() as broker:
        before = memory_mib(broker.pid, "RssAnon")
        start = time.monotonic()
        with HeldConnections(scale.target(broker), connections=scale.channels, seconds=hold_s) as consumers:
            broker.wait_consumers(TOPIC, scale.channels)
            connect_s = time.monotonic() - start
            idle_percent = _idle_cpu_percent(broker, scale.heartbeat_s)
            after = memory_mib(broker.pid, "RssAnon")
            broker.wait_consumers(TOPIC, scale.channels, timeout_s=1)  # none was lost
    return ScaleCase(
        "idle-consumers",
        f"{scale.channels:,} idle consumers of one channel, a heartbeat every 30 s",
        [consumers.command],
        {
            "consumers": scale.channels,
            "connect_s": connect_s,
            "rss_anon_before_mib": before,
            "rss_anon_after_mib": after,
            "kib_each": (after - before) * 1024 / scale.channels,
            "idle_cpu_percent": idle_percent,
        },
    )


def measure_in_flight(scale: Scale) -> ScaleCase:
    """Deliver to consumers of many channels that finish nothing, until all has come twice. Ref: C-SCAN-09."""
    count = scale.connections * UNFINISHED_EACH
    # Only what has waited for the idle time is to time out.
    timeout_s = 2 * SETTLE_S + scale.idle_s
    with scale.broker() as broker:
        target = scale.target(broker)
        with UnfinishedConsumers(
            target,
            channels=scale.connections,
            window=UNFINISHED_EACH,
            msg_timeout_s=timeout_s,
            body_bytes=BODY_BYTES,
        ) as consumers:
            before = memory_mib(broker.pid, "RssAnon")
            published = _publish(target, UNFINISHED_EACH)
            consumers.take(count, LIMIT_S)
            idle_percent = _idle_cpu_percent(broker, scale.idle_s)
            after = memory_mib(broker.pid, "RssAnon")
            cpu_before = cpu_seconds(broker.pid)
            consumers.take(count, timeout_s + LIMIT_S)
            cpu_s = cpu_seconds(broker.pid) - cpu_before
    return ScaleCase(
        "in-flight",
        f"{UNFINISHED_EACH:,} messages in flight on each of {scale.connections:,} channels",
        [published.command],
        {
            "channels": scale.connections,
            "messages": count,
            "rss_anon_before_mib": before,
            "rss_anon_after_mib": after,
            "bytes_each": (after - before) * 1024 * 1024 / count,
            "idle_cpu_percent": idle_percent,
            "timeout_cpu_us": cpu_s * 1e6 / count,
        },
    )


def measure_connections(scale: Scale, durability: str) -> ScaleCase:
    """Let many connections publish one message at a time and consume, all at once."""
    with scale.broker(durability) as broker, MemoryWatch(broker.pid) as watch:
        before = memory_mib(broker.pid, "RssAnon")
        cpu_before = cpu_seconds(broker.pid)
        crowd = run_crowd(
            scale.target(broker), connections=scale.connections, publish=scale.publish_each, seconds=LIMIT_S
        )
        cpu_s = cpu_seconds(broker.pid) - cpu_before
    report = crowd.report
    return ScaleCase(
        f"connections-{durability}",
        f"{scale.connections:,} connections publish one at a time and consume, {durability}",
        [crowd.command],
        {
            "connections": report["opened"],
            "messages": report["published"],
            "errors": report["errors"],
            "missing": report["missing"],
            "duplicates": report["duplicates"],
            "messages_per_s": report["consumed"] / report["traffic_seconds"],
            # Connecting and subscribing are in it too.
            "server_cpu_us": cpu_s * 1e6 / (report["published"] + report["consumed"]),
            "server_cpu_percent": 100 * cpu_s / (report["connect_seconds"] + report["traffic_seconds"]),
            "latency_p50_ms": report["latency_us"]["p50"] / 1e3,
            "latency_p99_ms": report["latency_us"]["p99"] / 1e3,
            "latency_p999_ms": report["latency_us"]["p999"] / 1e3,
            "rss_anon_before_mib": before,
            "rss_anon_peak_mib": watch.anonymous_peak_mib,
        },
    )


def measure_start_empty(scale: Scale) -> ScaleCase:
    """Start on an empty folder and again after a clean stop."""
    with scale.broker() as broker:
        return ScaleCase(
            "start-empty",
            "Start of an empty store",
            [],
            {"start_s": broker.start_s, "start_clean_s": broker.restart(kill=False)},
        )


def measure_start_log(scale: Scale) -> ScaleCase:
    """Kill a broker whose log was never checkpointed; the page cache still has what recovery reads."""
    with scale.broker(options=NO_CHECKPOINT) as broker:
        target = scale.target(broker)
        broker.create_channel(TOPIC, CHANNEL)
        # One batch more or less does not matter here: the first one tells what a message takes.
        begin = broker.metric(LOG_END)
        probe = _publish(target, 100 * BATCH)
        message_bytes = (broker.metric(LOG_END) - begin) / probe.messages
        rest = _publish(target, max(BATCH, int(scale.log_bytes / message_bytes - probe.messages)))
        end = broker.metric(LOG_END)
        killed_s = broker.restart(kill=True)
        _expect_messages(broker, int(probe.messages + rest.messages))
        clean_s = broker.restart(kill=False)
    figures = {
        "messages": probe.messages + rest.messages,
        "behind_gb": end / 1e9,
        "start_killed_s": killed_s,
        "start_clean_s": clean_s,
    }
    # In a short log the figure would be that of starting Python.
    if end > ENOUGH_FOR_RATE_BYTES:
        figures["s_per_gb"] = killed_s / (end / 1e9)
    return ScaleCase(
        "start-log",
        f"Start behind {scale.log_bytes / 1e9:.2g} GB of log, messages of {BODY_BYTES} B",
        [rest.command, f"headrace serve {' '.join(NO_CHECKPOINT)}"],
        figures,
    )


def measure_start_queues(scale: Scale) -> ScaleCase:
    """Kill a broker that has many topics with a message each."""
    with scale.broker() as broker:
        before = memory_mib(broker.pid, "RssAnon")
        crowd = run_crowd(
            scale.target(broker),
            connections=scale.channels,
            topics=scale.channels,
            publish=1,
            consume=False,
            seconds=LIMIT_S,
        )
        time.sleep(SETTLE_S)
        after = memory_mib(broker.pid, "RssAnon")
        killed_s = broker.restart(kill=True)
        clean_s = broker.restart(kill=False)
    return ScaleCase(
        "start-queues",
        f"Start with {scale.channels:,} queues",
        [crowd.command],
        {
            "queues": scale.channels,
            "rss_anon_before_mib": before,
            "rss_anon_after_mib": after,
            "kib_each": (after - before) * 1024 / scale.channels,
            "start_killed_s": killed_s,
            "start_clean_s": clean_s,
        },
    )


def _publish(target: Target, messages: int, batch: int = BATCH) -> LoadResult:
    return run_publisher(
        target,
        body_bytes=BODY_BYTES,
        batch=batch,
        depth=MPUB_DEPTH,
        connections=1,
        seconds=LIMIT_S,
        count=messages,
    )


def _expect_messages(broker: Headrace, messages: int) -> None:
    depth = broker.channel_depth(TOPIC)
    if depth != messages:
        raise BenchError(f"{depth} messages after the restart instead of {messages}")


def _idle_cpu_percent(broker: Headrace, seconds: float) -> float:
    """Return how much of a core the broker takes while nobody asks it anything."""
    time.sleep(SETTLE_S)
    before, start = cpu_seconds(broker.pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(broker.pid) - before) / (time.monotonic() - start)


def measure_rocketmq_topics(scale: Scale) -> ScaleCase:
    """Make many topics and have the registry route them."""
    with scale.broker("async") as broker:
        return measure_topics(scale.rocketmq(), broker)


def measure_rocketmq_clients(scale: Scale) -> ScaleCase:
    """Hold many clients that only say that they live."""
    with scale.broker("async") as broker:
        return measure_clients(scale.rocketmq(), broker)


CASES: dict[str, Callable[[Scale], ScaleCase]] = {
    "backlog": measure_backlog,
    "idle-channels": measure_idle_channels,
    "idle-consumers": measure_idle_consumers,
    "in-flight": measure_in_flight,
    "connections-async": lambda scale: measure_connections(scale, "async"),
    "connections-fsync": lambda scale: measure_connections(scale, "fsync"),
    "start-empty": measure_start_empty,
    "start-log": measure_start_log,
    "start-queues": measure_start_queues,
    "rocketmq-topics": measure_rocketmq_topics,
    "rocketmq-clients": measure_rocketmq_clients,
}
