"""Headrace and nsqd 1.3.0 push to a statsd each: the same commands give the same keys and figures (nsq.md 6.1)."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interop.nsq_peers import Node, serve_headrace, serve_nsqd
from tests.support.statsd import FakeStatsd
from tests.support.waiting import until
from tests.unit.nsq.fake_client import identify

INTERVAL_S = 2
"""With 1 s nsqd 1.3.0 ends itself at the first push."""
TOPIC_KEYS = {"message_count", "message_bytes", "depth", "backend_depth"}
CHANNEL_KEYS = {
    *("message_count", "depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count"),
    *("timeout_count", "clients"),
}
HEARTBEAT = b"_heartbeat_"


@dataclass
class Pushed:
    """A server, and the statsd that it pushes to."""

    node: Node
    statsd: FakeStatsd

    @property
    def prefix(self) -> str:
        return f"nsq.127_0_0_1_{self.node.http.rpartition(':')[2]}."

    def _strip(self, key: str) -> str:
        assert key.startswith(self.prefix), key
        return key.removeprefix(self.prefix)

    def figures(self) -> dict[str, int]:
        """Return what has been pushed of topics and channels: sums of counters, last values of gauges."""
        self.statsd.receive()
        figures = {self._strip(key): value for key, value in self.statsd.figures.counters.items()}
        figures |= {self._strip(key): value for key, value in self.statsd.figures.gauges.items()}
        return {key: value for key, value in figures.items() if not key.startswith("mem.")}

    def kinds(self) -> tuple[set[str], set[str]]:
        """Return the keys of all counters, and those of all gauges."""
        self.statsd.receive()
        counters, gauges = self.statsd.figures.counters, self.statsd.figures.gauges
        return {self._strip(key) for key in counters}, {self._strip(key) for key in gauges}


@contextlib.contextmanager
def both(folder: Path, *, mem_queue: int = 10_000, **options: str) -> Iterator[tuple[Pushed, Pushed]]:
    """Run nsqd and Headrace, each with a statsd of its own; options are nsqd's, without ``statsd_``."""
    with FakeStatsd() as theirs, FakeStatsd() as ours:
        nsqd = [f"-statsd-address={theirs.address}", f"-statsd-interval={INTERVAL_S}s", f"-mem-queue-size={mem_queue}"]
        nsqd += [f"-statsd-{name.replace('_', '-')}={value}" for name, value in options.items()]
        headrace = ["--nsq.statsd-address", ours.address, "--nsq.statsd-interval-ms", f"{INTERVAL_S}s"]
        for name, value in options.items():
            spelled = name.replace("udp_packet_size", "udp_packet_bytes").replace("_", "-")
            headrace += [f"--nsq.statsd-{spelled}", value]
        with serve_nsqd(folder / "nsqd", *nsqd) as first, serve_headrace(folder / "headrace", *headrace) as second:
            yield Pushed(first, theirs), Pushed(second, ours)


class Consumer:
    """A subscribed connection that takes messages one by one."""

    def __init__(self, node: Node, topic: str, channel: str, ready: int, msg_timeout: int = 60_000) -> None:
        host, _, port = node.tcp.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._file = self._socket.makefile("rb")
        self.send(
            b"  V2"
            + identify(json.dumps({"msg_timeout": msg_timeout}))
            + f"SUB {topic} {channel}\nRDY {ready}\n".encode()
        )
        assert [self._frame()[1] for _ in range(2)] == [b"OK", b"OK"]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def message(self) -> bytes:
        """Return the id of the next message."""
        kind, data = self._frame()
        assert kind == 2
        return data[10:26]

    def _frame(self) -> tuple[int, bytes]:
        while True:
            size, kind = struct.unpack(">II", self._file.read(8))
            data = self._file.read(size - 4)
            if data != HEARTBEAT:
                return kind, data
            self.send(b"NOP\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def run_commands(node: Node, consumers: contextlib.ExitStack) -> None:
    """Give a server something to count: of each figure at least one that is not 0."""

    def consume(topic: str, channel: str, ready: int) -> Consumer:
        consumer = Consumer(node, topic, channel, ready)
        consumers.callback(consumer.close)
        return consumer

    node.post("/topic/create?topic=plain")
    for channel in ("worked", "left.alone"):
        node.post(f"/channel/create?topic=plain&channel={channel}")
    worker = consume("plain", "worked", 3)
    node.post("/mpub?topic=plain", b"one\ntwo\nthree\nfour\nfive")
    first, second, third = (worker.message() for _ in range(3))
    worker.send(b"FIN %b\nREQ %b 0\nREQ %b 60000\nRDY 3\n" % (first, second, third))
    for _ in range(3):  # these stay in flight
        worker.message()
    consume("plain", "worked", 0)

    node.post("/topic/create?topic=late")
    node.post("/channel/create?topic=late&channel=c")
    slow = Consumer(node, "late", "c", 1, msg_timeout=1_000)
    node.post("/pub?topic=late", b"x")
    slow.message()
    slow.send(b"RDY 0\n")
    until(lambda: node.channel("late", "c")["timeout_count"] == 1)
    slow.close()
    node.post("/pub?topic=late&defer=60000", b"deferred")

    node.post("/mpub?topic=waits", b"nobody\nis there")
    node.post("/topic/create?topic=dotted.name_-1")
    node.post("/topic/create?topic=brief%23ephemeral")
    brief = consume("brief%23ephemeral".replace("%23", "#"), "tail#ephemeral", 1)
    node.post("/pub?topic=brief%23ephemeral", b"x")
    brief.send(b"FIN %b\n" % brief.message())
    for gone in ("gone", "gone%23ephemeral"):
        node.post(f"/topic/create?topic={gone}")
        node.post(f"/topic/delete?topic={gone}")


def without_backend(figures: dict[str, int]) -> dict[str, int]:
    """nsqd has in ``backend_depth`` what its queue in memory does not hold, Headrace all that is in the log."""
    return {key: value for key, value in figures.items() if not key.endswith(".backend_depth")}


def test_the_same_commands_give_the_same_keys_and_figures(tmp_path: Path) -> None:
    """C-LIFE-09; nsq.md 6.1: UDP packets with counters and gauges, of every topic and channel, and of the memory."""
    with both(tmp_path) as (theirs, ours), contextlib.ExitStack() as consumers:
        for each in (theirs, ours):
            run_commands(each.node, consumers)
        until(lambda: without_backend(theirs.figures()).get("topic.plain.channel.worked.in_flight_count") == 3, 20)

        def same() -> bool:
            return without_backend(ours.figures()) == without_backend(theirs.figures())

        with contextlib.suppress(AssertionError):
            until(same, 5 * INTERVAL_S)
        time.sleep(2 * INTERVAL_S)  # nothing is told twice
        figures = ours.figures()
        assert without_backend(figures) == without_backend(theirs.figures())
        assert ours.kinds() == theirs.kinds()
        assert {key for key in figures if key.startswith("topic.plain.channel.worked.")} == {
            f"topic.plain.channel.worked.{name}" for name in CHANNEL_KEYS
        }
        expected = {
            "topic.plain.message_count": 5,
            "topic.plain.message_bytes": 19,
            "topic.waits.depth": 2,
            "topic.dotted.name_-1.message_count": 0,
            "topic.late.channel.c.timeout_count": 1,
            "topic.late.channel.c.depth": 1,
            "topic.late.channel.c.deferred_count": 1,
            "topic.brief#ephemeral.channel.tail#ephemeral.message_count": 1,
            "topic.plain.channel.worked.requeue_count": 2,
            "topic.plain.channel.worked.in_flight_count": 3,
            "topic.plain.channel.worked.deferred_count": 1,
            "topic.plain.channel.worked.clients": 2,
            "topic.plain.channel.left.alone.depth": 5,
            "topic.plain.channel.left.alone.backend_depth": 5,
        }
        assert {key: figures[key] for key in expected} == expected
        assert not any(".gone" in key for key in figures)
        # Of what /stats shows nothing else is there.
        rows = ours.node.ask("GET", "/stats?format=json").json()["topics"]
        names = {f"topic.{row['topic_name']}.{key}" for row in rows for key in TOPIC_KEYS}
        for row in rows:
            names |= {
                f"topic.{row['topic_name']}.channel.{channel['channel_name']}.{key}"
                for channel in row["channels"]
                for key in CHANNEL_KEYS
            }
        assert figures.keys() == names


def test_where_nothing_is_kept_in_memory_all_of_nsqd_s_depth_is_in_its_backend(tmp_path: Path) -> None:
    """As with Headrace, so that every figure is the same."""
    with both(tmp_path, mem_queue=0, mem_stats="false") as (theirs, ours):
        for each in (theirs, ours):
            each.node.post("/mpub?topic=waits", b"one\ntwo")
            each.node.post("/topic/create?topic=t")
            each.node.post("/channel/create?topic=t&channel=c")
            each.node.post("/mpub?topic=t", b"one\ntwo\nthree")
        until(lambda: ours.figures().get("topic.t.channel.c.backend_depth") == 3, 20)
        until(lambda: theirs.figures() == ours.figures(), 20)
        assert ours.figures()["topic.waits.backend_depth"] == 2
        assert not any(key.startswith("mem.") for keys in ours.kinds() for key in keys)
        assert ours.kinds() == theirs.kinds()


def test_what_is_ephemeral_can_be_left_out(tmp_path: Path) -> None:
    """nsq.md 8.1, statsd-exclude-ephemeral."""
    with both(tmp_path, exclude_ephemeral="true") as (theirs, ours), contextlib.ExitStack() as consumers:
        for each in (theirs, ours):
            for topic in ("kept", "brief%23ephemeral"):
                each.node.post(f"/topic/create?topic={topic}")
                each.node.post(f"/channel/create?topic={topic}&channel=c")
                each.node.post(f"/channel/create?topic={topic}&channel=c%23ephemeral")
                name = topic.replace("%23", "#")
                consumers.callback(Consumer(each.node, name, "c#ephemeral", 1).close)
        for each in (theirs, ours):
            until(lambda each=each: "topic.kept.channel.c.depth" in each.figures(), 20)  # type: ignore[misc]
        time.sleep(2 * INTERVAL_S)
        assert ours.kinds() == theirs.kinds()
        assert not any("#ephemeral" in key for key in ours.figures())


def first_whole_push(statsd: FakeStatsd) -> list[bytes]:
    """Return the packets of the first push that has all twenty channels."""
    last = b"topic.t.channel.c19.clients:0|g\n"

    def find() -> list[bytes]:
        statsd.receive()
        packets: list[bytes] = []
        for packet in statsd.packets:
            packets.append(packet)
            if packet.endswith(last):
                if b"".join(packets).count(b"\n") == 4 + 20 * 8:
                    return packets
                packets = []
        return []

    return until(find, 20)


def test_packets_are_as_full_as_nsqd_s(tmp_path: Path) -> None:
    """nsq.md 6.1: the same lines in the same packets, where the order of topics and channels is the same."""
    for packet_bytes in ("508", "1432"):
        with both(tmp_path / packet_bytes, mem_stats="false", udp_packet_size=packet_bytes, prefix="p.") as servers:
            for each in servers:
                each.node.post("/topic/create?topic=t")
                for number in range(20):
                    each.node.post(f"/channel/create?topic=t&channel=c{number:02}")
            theirs, ours = (first_whole_push(each.statsd) for each in servers)
            assert ours == theirs
            assert max(map(len, ours)) <= int(packet_bytes)


def test_options_are_told_as_nsqd_tells_them(tmp_path: Path) -> None:
    """nsq.md 3.2: /config/statsd_prefix is what the keys begin with."""
    names = ("interval", "mem_stats", "udp_packet_size", "exclude_ephemeral")
    with both(tmp_path, prefix="a.%s.b") as servers:
        for each in servers:
            assert each.node.ask("GET", "/config/statsd_address").body == each.statsd.address.encode()
            prefix = each.prefix.replace("nsq.", "a.") + "b."
            assert each.node.ask("GET", "/config/statsd_prefix").body == prefix.encode()
            assert each.node.ask("PUT", "/config/statsd_address", b"x").status == 400
        theirs, ours = ([each.node.ask("GET", f"/config/statsd_{name}").body for name in names] for each in servers)
        assert ours == theirs == [b"2000000000", b"true", b"508", b"false"]
