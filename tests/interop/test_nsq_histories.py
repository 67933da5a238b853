"""Headrace beside nsqd in the same history: random steps, and after each the same answers and the same ``/stats``.

Times are left out: delays end long after the test, and nothing times out.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.crash.nsq_client import ERROR, MESSAGE, dpub, mpub, pub, sized
from tests.interop.nsq_peers import Node
from tests.support.waiting import until

CHANNELS = ("a", "b")
ADMINISTRATION = ("create", "pause", "unpause", "unpause", "empty", "delete")
WINDOW = 2000
NEVER_MS = 3_000_000
COUNTED = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count", "paused")
COUNTED_OF_CLIENTS = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
FOREIGN_ID = b"0123456789abcdef"


class Client:
    """A connection to one server."""

    def __init__(self, node: Node) -> None:
        host, _, port = node.tcp.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._stream = self._socket.makefile("rb")
        self.send(b"  V2IDENTIFY\n" + sized(b'{"heartbeat_interval": 60000, "output_buffer_timeout": 25}'))
        assert self.frame()[1] == b"OK"

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """Return kind and data of the next frame."""
        size, kind = struct.unpack(">II", self._stream.read(8))
        return kind, self._stream.read(size - 4)

    def wait_for_close(self) -> None:
        """Read on until the server has closed; a server that does not in time fails the test (TimeoutError)."""
        with contextlib.suppress(ConnectionResetError):
            self._stream.read()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Consumer:
    """One on each server, of the same channel.

    Attributes:
        held: For each server the ids of what it has in flight, by body.
    """

    def __init__(self, nodes: tuple[Node, Node], topic: str, channel: str) -> None:
        self.clients = [Client(node) for node in nodes]
        self.held: list[dict[bytes, bytes]] = [{}, {}]
        self.received = 0
        for client in self.clients:
            client.send(f"SUB {topic} {channel}\n".encode())
            assert client.frame() == (0, b"OK")

    def close(self) -> None:
        for client in self.clients:
            client.close()


class Histories(RuleBasedStateMachine):
    """One topic with two channels."""

    nodes: tuple[Node, Node]
    numbers: Iterator[int] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.topic = f"history{next(self.numbers)}"
        self.consumers: dict[str, Consumer] = {}
        self.publishers = [Client(node) for node in self.nodes]

    def teardown(self) -> None:
        for consumer in self.consumers.values():
            consumer.close()
        for publisher in self.publishers:
            publisher.close()
        for node in self.nodes:
            node.ask("POST", f"/topic/delete?topic={self.topic}", b"")

    # -- looking -------------------------------------------------------------------------------------------------

    def stats(self, node: Node) -> dict[str, Any]:
        """Return what must be the same, by topic and channel."""
        row = node.topic(self.topic)
        found = {key: row.get(key) for key in ("depth", "message_count", "message_bytes", "paused")}
        for channel in row.get("channels", ()):
            clients = [{key: client[key] for key in COUNTED_OF_CLIENTS} for client in channel["clients"]]
            found[channel["channel_name"]] = {key: channel[key] for key in COUNTED} | {"clients": clients}
        return found

    @invariant()
    def both_count_the_same(self) -> None:
        """Both are at the same point as soon as they have done what they were sent."""
        seen: list[dict[str, Any]] = []

        def agree() -> bool:
            seen[:] = map(self.stats, self.nodes)
            return seen[0] == seen[1]

        with contextlib.suppress(AssertionError):
            until(agree, 3)
        assert seen[1] == seen[0], seen  # the two rows whole: pytest shortens what differs

    def flows(self) -> bool:
        """Return whether a message goes to a channel at once: in a topic, Headrace's delays run and nsqd's do not."""
        found = self.stats(self.nodes[0])
        return not found["paused"] and any(channel in found for channel in CHANNELS)

    def ask(self, target: str, body: bytes = b"") -> None:
        """Send both the same request."""
        theirs, ours = (node.ask("POST", target, body) for node in self.nodes)
        assert (ours.status, ours.body) == (theirs.status, theirs.body)

    # -- publishing ----------------------------------------------------------------------------------------------

    @rule(how=st.sampled_from(("PUB", "MPUB", "DPUB", "/pub", "/mpub")), count=st.integers(1, 5))
    def publish(self, how: str, count: int) -> None:
        """One message, or ``count`` where the command takes several."""
        bodies = [b"%d" % next(self.numbers) for _ in range(count)]
        if how.startswith("/"):
            self.ask(f"{how}?topic={self.topic}", b"\n".join(bodies))
            return
        delay_ms = NEVER_MS if count > 1 and self.flows() else 0
        commands = {
            "PUB": pub(self.topic, bodies[0]),
            "MPUB": mpub(self.topic, bodies),
            "DPUB": dpub(self.topic, bodies[0], delay_ms),
        }
        for publisher in self.publishers:
            publisher.send(commands[how])
        assert [publisher.frame() for publisher in self.publishers] == [(0, b"OK")] * 2

    # -- consuming -----------------------------------------------------------------------------------------------

    @rule(channel=st.sampled_from(CHANNELS))
    def receive(self, channel: str) -> None:
        """SUB, RDY, and read what comes: the same messages with the same attempts, in any order.

        One consumer a channel: which of several gets a message is chance.
        """
        if channel not in self.consumers:
            self.consumers[channel] = Consumer(self.nodes, self.topic, channel)
        consumer = self.consumers[channel]
        self.open_window(channel, WINDOW)
        self.both_count_the_same()
        if not self.stats(self.nodes[0])[channel]["paused"]:
            until(lambda: not any(self.stats(node)[channel]["depth"] for node in self.nodes))
        count = self.stats(self.nodes[0])[channel]["clients"][0]["message_count"] - consumer.received
        consumer.received += count
        came: list[list[tuple[bytes, int]]] = [[], []]
        for client, held, messages in zip(consumer.clients, consumer.held, came, strict=True):
            for _ in range(count):
                kind, frame = client.frame()
                assert kind == MESSAGE, frame
                held[frame[26:]] = frame[10:26]
                messages.append((frame[26:], int.from_bytes(frame[8:10])))
        assert sorted(came[1]) == sorted(came[0])
        self.open_window(channel, 0)

    def open_window(self, channel: str, size: int) -> None:
        """Have RDY done by both."""
        for client in self.consumers[channel].clients:
            client.send(b"RDY %d\n" % size)
        until(lambda: [self.stats(node)[channel]["clients"][0]["ready_count"] for node in self.nodes] == [size] * 2)

    @rule(
        channel=st.sampled_from(CHANNELS),
        actions=st.lists(st.sampled_from(("FIN", "REQ 0", f"REQ {NEVER_MS}", "TOUCH", "")), min_size=1, max_size=6),
    )
    def settle(self, channel: str, actions: list[str]) -> None:
        """Publish, receive, and FIN, REQ and TOUCH some of what is in flight."""
        self.publish("MPUB", 3)
        self.receive(channel)
        consumer = self.consumers[channel]
        chosen = list(zip(sorted(consumer.held[0]), itertools.cycle(actions)))
        for client, held in zip(consumer.clients, consumer.held, strict=True):
            stream = b""
            for body, action in chosen:
                command, *delay = action.encode().split()[:2] or [b""]
                if command:
                    message_id = held[body] if command == b"TOUCH" else held.pop(body)
                    stream += b" ".join([command, message_id, *delay]) + b"\n"
            client.send(stream)
        # Its answer says that what stands before it was done: counters that agree may be those of before.
        self.settle_what_is_not_there(channel, b"FIN %b\n")

    @rule(channel=st.sampled_from(CHANNELS), command=st.sampled_from((b"FIN %b\n", b"REQ %b 0\n", b"TOUCH %b\n")))
    def settle_what_is_not_there(self, channel: str, command: bytes) -> None:
        """An error, and nothing else."""
        if channel in self.consumers:
            clients = self.consumers[channel].clients
            for client in clients:
                client.send(command % FOREIGN_ID)
            theirs, ours = (client.frame() for client in clients)
            assert ours == theirs
            assert theirs[0] == ERROR
            assert FOREIGN_ID in theirs[1]

    @rule(channel=st.sampled_from(CHANNELS), says_so=st.booleans())
    def leave(self, channel: str, says_so: bool) -> None:
        """Close, after CLS or without: what is in flight waits for its time-out."""
        if channel in self.consumers:
            consumer = self.consumers.pop(channel)
            for client in consumer.clients if says_so else ():
                client.send(b"CLS\n")
                assert client.frame() == (0, b"CLOSE_WAIT")
            consumer.close()

    # -- administration ------------------------------------------------------------------------------------------

    @rule(channel=st.sampled_from(CHANNELS), action=st.sampled_from(ADMINISTRATION))
    def change_channel(self, channel: str, action: str) -> None:
        """Be it there or not. What is emptied is no more in flight; a consumer of what is deleted is closed."""
        self.ask(f"/channel/{action}?topic={self.topic}&channel={channel}")
        if action == "empty" and channel in self.consumers:
            self.consumers[channel].held = [{}, {}]
        if action == "delete":
            self.expect_close(channel)

    @rule(action=st.sampled_from(ADMINISTRATION))
    def change_topic(self, action: str) -> None:
        """Be it there or not; consumers of what is deleted are closed."""
        self.ask(f"/topic/{action}?topic={self.topic}")
        if action == "delete":
            for channel in CHANNELS:
                self.expect_close(channel)

    def expect_close(self, channel: str) -> None:
        """Wait until both have closed the channel's consumer, if it has one."""
        consumer = self.consumers.pop(channel, None)
        if consumer is not None:
            for client in consumer.clients:
                client.wait_for_close()
            consumer.close()


def test_both_servers_have_the_same_history(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """nsq.md 1 and 3: channels, counters, attempts and errors of any sequence of steps."""
    monkeypatch.setattr(Histories, "nodes", nodes, raising=False)
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
