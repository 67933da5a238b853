"""What bench.scale measures with RocketMQ's protocol: many topics in the registry, many clients with heartbeats."""

import asyncio
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.errors import BenchError
from bench.machine import Cores
from bench.process import cpu_seconds, memory_mib
from bench.scale_results import ScaleCase
from bench.servers import Headrace
from headrace.errors import ClientError
from headrace.remoting.client import RemotingClient
from headrace.remoting.codec import Command, decode_command, encode_request
from headrace.remoting.codes import RequestCode, ResponseCode

QUEUES = 4
IN_FLIGHT = 64
GROUP_MEMBERS = 20
HEARTBEAT_PERIOD_S = 30.0
CONNECTS_AT_ONCE = 50
CALL_TIMEOUT_S = 30.0
SETTLE_S = 3.0


@dataclass(frozen=True)
class RocketMqScale:
    """How much of it. Idle time is measured for ``idle_s`` where heartbeats or registrations come every 30 s."""

    cores: Cores
    topics: int
    clients: int
    idle_s: float


def measure_topics(scale: RocketMqScale, broker: Headrace) -> ScaleCase:
    """Make topics as tools do, wait until the registry routes the last one, and ask for every route."""
    before = memory_mib(broker.pid, "RssAnon")
    empty_percent = _idle_cpu_percent(broker, min(scale.idle_s, HEARTBEAT_PERIOD_S))
    figures = asyncio.run(_make_topics(scale, broker))
    idle_percent = _idle_cpu_percent(broker, scale.idle_s)
    after = memory_mib(broker.pid, "RssAnon")
    restart_s = broker.restart(kill=False)
    figures["routed_after_start_s"] = asyncio.run(_time_until_routed(broker, scale.topics - 1))
    return ScaleCase(
        "rocketmq-topics",
        f"{scale.topics:,} topics of {QUEUES} queues, registered and routed",
        [],
        {
            "topics": scale.topics,
            **figures,
            "rss_anon_before_mib": before,
            "rss_anon_after_mib": after,
            "kib_each": (after - before) * 1024 / scale.topics,
            "empty_cpu_percent": empty_percent,
            "idle_cpu_percent": idle_percent,
            "start_clean_s": restart_s,
        },
    )


def _idle_cpu_percent(broker: Headrace, seconds: float) -> float:
    time.sleep(SETTLE_S)
    before, start = cpu_seconds(broker.pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(broker.pid) - before) / (time.monotonic() - start)


def topic_name(number: int) -> str:
    """Return the name of a topic."""
    return f"scale-topic-{number:05d}"


async def _make_topics(scale: RocketMqScale, broker: Headrace) -> dict[str, float]:
    client = RemotingClient()
    numbers = iter(range(scale.topics))
    start, cpu_before = time.monotonic(), cpu_seconds(broker.pid)
    try:
        await asyncio.gather(*(_make_some(client, broker, numbers) for _ in range(IN_FLIGHT)))
        create_s, create_cpu_s = time.monotonic() - start, cpu_seconds(broker.pid) - cpu_before
        await _wait_routed(client, broker, scale.topics - 1)
        routed_s = time.monotonic() - start
        cpu_before = cpu_seconds(broker.pid)
        times = [await _ask_route(client, broker, number) for number in range(scale.topics)]
        route_cpu_s = cpu_seconds(broker.pid) - cpu_before
    finally:
        await client.close()
    times.sort()
    return {
        "create_s": create_s,
        "create_cpu_us": create_cpu_s * 1e6 / scale.topics,
        "routed_s": routed_s,
        "route_p50_ms": times[len(times) // 2] * 1e3,
        "route_p99_ms": times[len(times) * 99 // 100] * 1e3,
        "route_cpu_us": route_cpu_s * 1e6 / scale.topics,
    }


async def _make_some(client: RemotingClient, broker: Headrace, numbers: Iterable[int]) -> None:
    for number in numbers:
        ext = {
            "topic": topic_name(number), "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        answer = await client.call(broker.rocketmq_address, command, CALL_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise BenchError(f"topic {number} was not made: {answer.code} {answer.remark}")


async def _ask_route(client: RemotingClient, broker: Headrace, number: int) -> float:
    """Return how long a registry takes to say where a topic is."""
    start = time.perf_counter()
    if not await _is_routed(client, broker, number):
        raise BenchError(f"{topic_name(number)} is not routed")
    return time.perf_counter() - start


async def _is_routed(client: RemotingClient, broker: Headrace, number: int) -> bool:
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic_name(number)})
    answer = await client.call(broker.registry_address, command, CALL_TIMEOUT_S)
    return answer.code == ResponseCode.SUCCESS and json.loads(answer.body)["queueDatas"][0]["readQueueNums"] == QUEUES


async def _wait_routed(client: RemotingClient, broker: Headrace, number: int) -> None:
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while not await _is_routed(client, broker, number):
        if time.monotonic() > deadline:
            raise BenchError(f"{topic_name(number)} is not routed after {CALL_TIMEOUT_S:.0f} s")
        await asyncio.sleep(0.002)


async def _time_until_routed(broker: Headrace, number: int) -> float:
    """Return how long after a broker is ready its registry knows a topic of it."""
    client = RemotingClient()
    start = time.monotonic()
    try:
        await _wait_routed(client, broker, number)
    except ClientError as exc:
        raise BenchError(str(exc)) from exc
    finally:
        await client.close()
    return time.monotonic() - start


@dataclass
class Crowd:
    """Raw clients: a connection each, a heartbeat every 30 s, nothing else."""

    broker: Headrace
    count: int
    accepted: int = 0
    refused: int = 0
    asked: int = 0
    lost: int = 0
    clients: list["RawClient"] = field(default_factory=list)

    async def connect(self) -> None:
        """Connect all, each with its first heartbeat, and wait until each is accepted."""
        host, _, port = self.broker.rocketmq_address.rpartition(":")
        gate = asyncio.Semaphore(CONNECTS_AT_ONCE)
        loop = asyncio.get_running_loop()

        async def one(number: int) -> None:
            async with gate:
                _, client = await loop.create_connection(lambda: RawClient(self, number), host, int(port))
                self.clients.append(client)
                await asyncio.wait_for(client.first, CALL_TIMEOUT_S)

        await asyncio.gather(*(one(number) for number in range(self.count)))

    async def beat(self, seconds: float) -> None:
        """Have each client send its heartbeats, spread over the period, for some time."""
        pause = HEARTBEAT_PERIOD_S / len(self.clients)
        start = time.monotonic()
        for turn in range(round(seconds / pause)):
            late = start + turn * pause - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
            self.clients[turn % len(self.clients)].beat()

    def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.transport.close()


class RawClient(asyncio.Protocol):
    """One of them: a producer group of its own, and a member of a consumer group of ``GROUP_MEMBERS``."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._held = bytearray()
        self.transport: asyncio.Transport
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frame = encode_request(0, RequestCode.HEART_BEAT, 1, False, None, heartbeat_body(number))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first heartbeat."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        """Count answers and what the broker asks."""
        held = self._held
        held += data
        while len(held) >= 4 and len(held) >= (size := 4 + int.from_bytes(held[:4], "big")):
            command = decode_command(bytes(held[:size]))
            del held[:size]
            if not command.is_response:
                self._crowd.asked += 1
            elif command.code == ResponseCode.SUCCESS:
                self._crowd.accepted += 1
                if not self.first.done():
                    self.first.set_result(None)
            else:
                self._crowd.refused += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it."""
        self._crowd.lost += 1


def heartbeat_body(number: int) -> bytes:
    """Return what a Java client says of itself: about 700 bytes."""
    group = f"scale-group-{number // GROUP_MEMBERS}"
    subscriptions = [
        {"classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*", "subVersion": 1,
         "tagsSet": [], "topic": topic}
        for topic in ("BenchmarkTest", f"%RETRY%{group}")
    ]  # fmt: skip
    body = {
        "clientID": f"10.0.{number >> 8}.{number & 255}@{os.getpid()}#{number}",
        "consumerDataSet": [
            {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": group,
             "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions, "unitMode": False}
        ],
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    }  # fmt: skip
    return json.dumps(body, separators=(",", ":")).encode()


def measure_clients(scale: RocketMqScale, broker: Headrace) -> ScaleCase:
    """Connect clients that only send heartbeats, and look what they cost."""
    before = memory_mib(broker.pid, "RssAnon")
    empty_percent = _idle_cpu_percent(broker, min(scale.idle_s, HEARTBEAT_PERIOD_S))
    figures = asyncio.run(_hold_clients(scale, broker))
    return ScaleCase(
        "rocketmq-clients",
        f"{scale.clients:,} RocketMQ clients in groups of {GROUP_MEMBERS}, a heartbeat every 30 s",
        [],
        {
            "clients": scale.clients,
            "rss_anon_before_mib": before,
            **figures,
            "kib_each": (figures["rss_anon_after_mib"] - before) * 1024 / scale.clients,
            "empty_cpu_percent": empty_percent,
        },
    )


async def _hold_clients(scale: RocketMqScale, broker: Headrace) -> dict[str, float]:
    crowd = Crowd(broker, scale.clients)
    start = time.monotonic()
    await crowd.connect()
    connect_s = time.monotonic() - start
    await crowd.beat(SETTLE_S)
    accepted, cpu_before, start = crowd.accepted, cpu_seconds(broker.pid), time.monotonic()
    await crowd.beat(scale.idle_s)
    cpu_s, seconds = cpu_seconds(broker.pid) - cpu_before, time.monotonic() - start
    await asyncio.sleep(1.0)
    figures = {
        "connect_s": connect_s,
        "heartbeats_per_s": (crowd.accepted - accepted) / seconds,
        "told_changes": crowd.asked,
        "heartbeat_cpu_percent": 100 * cpu_s / seconds,
        "heartbeat_cpu_us": cpu_s * 1e6 / max(1, crowd.accepted - accepted),
        "rss_anon_after_mib": memory_mib(broker.pid, "RssAnon"),
        "errors": crowd.refused + crowd.lost,
    }
    crowd.close()
    return figures
