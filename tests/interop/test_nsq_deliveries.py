"""Headrace beside nsqd where messages come back: the same deliveries of each, whoever of several consumers gets them.

What becomes of a delivery depends on its message and its attempts alone, so both servers have the same to do.
"""

from __future__ import annotations

import selectors
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.crash.nsq_client import ERROR, MESSAGE, NsqSocket, dpub, mpub
from tests.interop.nsq_peers import Node
from tests.support.waiting import until

CHANNELS = {"a": (1, 5, 100), "b": (2, 50)}
"""The windows of each one's consumers."""
FIN = b"FIN %b\n"
FATES = (
    *[FIN] * 6,
    *[b"REQ %b 0\n", b"REQ %b 200\n", b"REQ %b 1500\n", b"", b"TOUCH %b\n"],
    *[FIN + FIN, b"REQ %b 200\n" + FIN, b"REQ %b 300\nREQ %b 0\nTOUCH %b\n"],
)
MAX_DELIVERIES = 4
SETTLED_SECONDS = 60
COUNTED = ("message_count", "requeue_count", "timeout_count", "depth", "in_flight_count", "deferred_count")


class Seen:
    """What the consumers of one channel of one server were sent."""

    def __init__(self) -> None:
        self.deliveries: Counter[tuple[bytes, int]] = Counter()
        self.errors: Counter[bytes] = Counter()


class Consumer(NsqSocket):
    """Does with each delivery what is its fate."""

    def __init__(self, selector: selectors.BaseSelector, node: Node, topic: str, channel: str, seen: Seen) -> None:
        super().__init__(selector, node.tcp, {"msg_timeout": 2000, "heartbeat_interval": 60_000})
        self._channel = channel
        self._seen = seen
        self.send(f"SUB {topic} {channel}\n".encode())

    def frame(self, kind: int, data: bytes) -> None:
        """Settle a message; remember an error without the id in it."""
        if kind == ERROR:
            code, _, _, *reason = data.split()
            self._seen.errors[b" ".join([code, *reason])] += 1
        if kind != MESSAGE:
            return
        attempts, message_id, body = int.from_bytes(data[8:10]), data[10:26], data[26:]
        self._seen.deliveries[body, attempts] += 1
        fate = FIN if attempts == MAX_DELIVERIES else Random(f"{self._channel} {body!r} {attempts}").choice(FATES)
        self.send(fate.replace(b"%b", message_id))


class Publisher(NsqSocket):
    """Counts its answers."""

    answers = 0

    def frame(self, kind: int, data: bytes) -> None:
        """Take an answer."""
        assert data == b"OK"
        self.answers += 1


def deliver(node: Node, topic: str) -> dict[str, Seen]:
    """Publish to a topic with consumers and return what these saw once nothing is left."""
    seen = {channel: Seen() for channel in CHANNELS}
    with selectors.DefaultSelector() as selector:
        consumers = [
            (Consumer(selector, node, topic, channel, seen[channel]), window)
            for channel, windows in CHANNELS.items()
            for window in windows
        ]

        def comes_true(condition: Callable[[], bool]) -> bool:
            for _ in range(20):
                for key, events in selector.select(0.01):
                    key.data.on_ready(events)
            return condition()

        def rows() -> list[dict[str, Any]]:
            return [node.channel(topic, name) for name in CHANNELS]

        until(lambda: comes_true(lambda: sum(row.get("client_count", 0) for row in rows()) == len(consumers)))
        publisher = Publisher(selector, node.tcp)
        publisher.send(mpub(topic, [b"many %d" % number for number in range(150)]))
        publisher.send(b"".join(dpub(topic, b"late %d" % number, 20 * number) for number in range(50)))
        until(lambda: comes_true(lambda: publisher.answers == 51))
        for consumer, window in consumers:
            consumer.send(b"RDY %d\n" % window)

        left = ("depth", "in_flight_count", "deferred_count")
        until(lambda: comes_true(lambda: not any(row[name] for row in rows() for name in left)), SETTLED_SECONDS)
        for socket in (publisher, *(consumer for consumer, _ in consumers)):
            socket.close()
    return seen


def test_what_comes_back_is_delivered_as_often(nodes: tuple[Node, Node]) -> None:
    """nsq.md 1.8, 1.11, 2.2: FIN, REQ with and without a delay, time-outs, DPUB, settles that come too late."""
    theirs, ours = (deliver(node, "again") for node in nodes)
    for channel in CHANNELS:
        assert ours[channel].deliveries == theirs[channel].deliveries
        assert ours[channel].errors == theirs[channel].errors
        rows = [node.channel("again", channel) for node in nodes]
        assert [rows[1][name] for name in COUNTED] == [rows[0][name] for name in COUNTED]
    assert sum(count for (_, attempts), count in ours["a"].deliveries.items() if attempts > 1) > 50
