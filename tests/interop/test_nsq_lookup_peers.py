"""Headrace's broker and the unmodified nsqlookupd 1.3.0: consumers find it there (nsq.md 4.4, 12.2 check 5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.nsq_peers import (
    Node,
    ask,
    logged_address,
    peer,
    running,
    serve_headrace,
    serve_nsqd,
)
from tests.support.ports import free_port
from tests.support.waiting import until

RECONNECTS_S = 16.0
"""A nsqlookupd that is back is told everything by then (nsq.md 4.4)."""


@dataclass
class Lookupd:
    """A running nsqlookupd."""

    tcp: str
    http: str
    process: subprocess.Popen[bytes]

    def get(self, target: str) -> Any:
        return ask(self.http, "GET", target).json()

    def producers(self, topic: str) -> list[dict[str, Any]]:
        return list(self.get(f"/lookup?topic={topic}").get("producers", []))

    def channels(self, topic: str) -> list[str]:
        return sorted(self.get(f"/channels?topic={topic}")["channels"])

    def topics_of(self, node: Node) -> list[str] | None:
        """Return what it has registered of a node, None where it does not know the node."""
        port = int(node.tcp.split(":")[1])
        found = [row for row in self.get("/nodes")["producers"] if row["tcp_port"] == port]
        return sorted(found[0]["topics"]) if found else None


@contextlib.contextmanager
def serve_nsqlookupd(log: Path, tcp: str = "127.0.0.1:0", http: str = "127.0.0.1:0") -> Iterator[Lookupd]:
    command = [peer("nsqlookupd"), f"-tcp-address={tcp}", f"-http-address={http}", "-broadcast-address=127.0.0.1"]
    with running(command, log) as process:
        yield Lookupd(logged_address(log, process, "TCP"), logged_address(log, process, "HTTP"), process)


def announced_to(*lookupds: Lookupd) -> tuple[str, ...]:
    addresses = ",".join(lookupd.tcp for lookupd in lookupds)
    return "--nsq.lookupd-addresses", addresses, "--nsq.broadcast-address", "127.0.0.1"


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookupd]:
    with serve_nsqlookupd(tmp_path_factory.mktemp("lookupd") / "nsqlookupd.log") as started:
        yield started


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, lookupd: Lookupd) -> Iterator[Node]:
    with serve_headrace(tmp_path_factory.mktemp("announced"), *announced_to(lookupd)) as headrace:
        yield headrace


def test_it_is_known_as_a_nsqd_is(lookupd: Lookupd, node: Node, tmp_path: Path) -> None:
    """nsq.md 4.3: every field of a producer has what nsqd's has."""
    node.post("/topic/create?topic=fields")
    with serve_nsqd(tmp_path) as nsqd:
        nsqd.ask("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([lookupd.tcp]).encode())
        nsqd.post("/topic/create?topic=fields")
        rows = until(lambda: found if len(found := lookupd.producers("fields")) == 2 else None)
    by_port = {row["tcp_port"]: row for row in rows}
    ours, theirs = (by_port[int(each.tcp.split(":")[1])] for each in (node, nsqd))
    assert ours.keys() == theirs.keys()
    assert (ours["broadcast_address"], ours["hostname"]) == (theirs["broadcast_address"], theirs["hostname"])
    assert ours["http_port"] == int(node.http.split(":")[1])
    assert ours["version"].startswith(theirs["version"] + "+headrace.")


def test_topics_and_channels_appear_and_vanish(lookupd: Lookupd, node: Node) -> None:
    """nsq.md 4.4, "changes"; ephemeral ones too."""
    node.post("/pub?topic=life", b"x")
    until(lambda: lookupd.producers("life"))
    node.post("/channel/create?topic=life&channel=c")
    until(lambda: lookupd.channels("life") == ["c"])
    node.post("/channel/delete?topic=life&channel=c")
    until(lambda: registered(lookupd, "channel:life:c") == 0)
    node.post("/topic/create?topic=gone%23ephemeral")
    until(lambda: lookupd.producers("gone%23ephemeral"))
    node.post("/topic/delete?topic=gone%23ephemeral")
    until(lambda: "gone#ephemeral" not in lookupd.get("/topics")["topics"])
    node.post("/topic/delete?topic=life")
    until(lambda: lookupd.producers("life") == [])
    assert "life" in lookupd.get("/topics")["topics"]  # it outlives its producers there


def registered(lookupd: Lookupd, key: str) -> int:
    return len(lookupd.get("/debug").get(key) or ())


def test_an_ephemeral_channel_is_gone_with_its_consumer(lookupd: Lookupd, node: Node, tmp_path: Path) -> None:
    """nsq.md 4.2: UNREGISTER of one that ends in #ephemeral drops its name."""
    node.post("/topic/create?topic=tailed")
    command = [peer("nsq_tail"), f"-nsqd-tcp-address={node.tcp}", "-topic=tailed", "-channel=t#ephemeral"]
    with running(command, tmp_path / "tail.log"):
        until(lambda: lookupd.channels("tailed") == ["t#ephemeral"])
    until(lambda: lookupd.channels("tailed") == [])


def test_a_go_nsq_consumer_that_knows_only_nsqlookupd(lookupd: Lookupd, node: Node, tmp_path: Path) -> None:
    """nsq.md 12.2 check 4: nsq_tail finds the broker and gets its messages."""
    node.post("/topic/create?topic=found_by_go")
    node.post("/channel/create?topic=found_by_go&channel=ch")
    node.post("/mpub?topic=found_by_go", b"one\ntwo\nthree")
    until(lambda: lookupd.producers("found_by_go"))
    command = [peer("nsq_tail"), f"-lookupd-http-address={lookupd.http}", "-topic=found_by_go", "-channel=ch", "-n=3"]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (done.returncode, sorted(done.stdout.split())) == (0, [b"one", b"three", b"two"]), done.stderr


# pynsq predates Python 3.12 and current tornado.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pynsq_consumer_that_knows_only_nsqlookupd(lookupd: Lookupd, node: Node) -> None:
    """nsq.md 12.2 check 4."""
    nsq = pytest.importorskip("nsq")
    node.post("/mpub?topic=found_by_python", b"one\ntwo\nthree")
    until(lambda: lookupd.producers("found_by_python"))
    got: list[bytes] = []

    def handle(message: Any) -> bool:
        got.append(message.body)
        return True

    async def consume() -> None:
        reader = nsq.Reader(
            topic="found_by_python",
            channel="ch",
            message_handler=handle,
            lookupd_http_addresses=[lookupd.http],
            lookupd_poll_interval=1,
            max_in_flight=3,
        )
        async with asyncio.timeout(20):
            while len(got) < 3:  # noqa: ASYNC110  # pynsq calls, and awaits nothing
                await asyncio.sleep(0.01)
        reader.close()
        await asyncio.sleep(0.1)

    asyncio.run(consume())
    assert sorted(got) == [b"one", b"three", b"two"]


def failures_of(node: Node) -> list[str]:
    """Return the causes for which connections to nsqlookupds have failed."""
    told = ask(node.listeners["admin"], "GET", "/metrics").body.decode()
    return re.findall(r'^headrace_nsq_lookupd_failures_total{cause="(\w+)"} [1-9]', told, re.MULTILINE)


def test_a_nsqlookupd_that_was_killed_is_told_everything_again(tmp_path: Path) -> None:
    """nsq.md 4.4, "failure": by 16 s at the latest, what changed meanwhile included."""
    tcp, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with (
        serve_nsqlookupd(tmp_path / "first.log", tcp, http) as first,
        serve_headrace(tmp_path / "headrace", *announced_to(first)) as node,
    ):
        node.post("/topic/create?topic=before")
        node.post("/channel/create?topic=before&channel=c")
        until(lambda: first.topics_of(node) == ["before"])
        first.process.kill()
        first.process.wait()
        node.post("/topic/create?topic=meanwhile")
        node.post("/topic/create?topic=short")
        node.post("/topic/delete?topic=short")
        until(lambda: "connect" in failures_of(node))  # it was tried again, and is not there
        assert set(failures_of(node)) == {"closed", "connect"}
        with serve_nsqlookupd(tmp_path / "second.log", tcp, http) as second:
            until(lambda: second.topics_of(node) == ["before", "meanwhile"], RECONNECTS_S)
            assert second.channels("before") == ["c"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_that_ends_is_forgotten(lookupd: Lookupd, tmp_path: Path, end: signal.Signals) -> None:
    """nsq.md 4.4, "stop": consumers are not sent to it."""
    topic = f"ended_by_{end.name}"
    exit_code = -end if end == signal.SIGKILL else 0
    with serve_headrace(tmp_path / "headrace", *announced_to(lookupd), exit_code=exit_code) as node:
        node.post(f"/topic/create?topic={topic}")
        until(lambda: lookupd.producers(topic))
        node.process.send_signal(end)
        node.process.wait(20)
        until(lambda: lookupd.producers(topic) == [])
        assert lookupd.topics_of(node) is None


def test_a_new_topic_gets_the_channels_of_other_nodes(lookupd: Lookupd, node: Node, tmp_path: Path) -> None:
    """nsq.md 2.1: a new node loses nothing of what known channels should get; nor does one whose consumer was first."""
    for channel in ("archive", "mail", "ghost%23ephemeral"):
        node.post("/topic/create?topic=shared")
        node.post(f"/channel/create?topic=shared&channel={channel}")
    until(lambda: {"archive", "mail"} <= {*lookupd.channels("shared")})
    with serve_headrace(tmp_path / "second", *announced_to(lookupd)) as second:
        until(lambda: second.ask("GET", "/ping").status == 200)
        second.post("/mpub?topic=shared", b"one\ntwo")
        second.post("/channel/create?topic=shared&channel=own")
        until(lambda: len(second.topic("shared")["channels"]) == 3)
        depths = {row["channel_name"]: row["depth"] for row in second.topic("shared")["channels"]}
        assert depths.keys() == {"archive", "mail", "own"}
        assert (depths["archive"], depths["mail"]) == (2, 2)
        until(lambda: len(lookupd.producers("shared")) == 2)


def test_addresses_are_set_over_http(lookupd: Lookupd, tmp_path: Path) -> None:
    """nsq.md 4.4, "reconfigure"."""
    with serve_headrace(tmp_path / "headrace", "--nsq.broadcast-address", "127.0.0.1") as node:
        node.post("/topic/create?topic=reconfigured")
        set_to = [lookupd.tcp]
        for addresses, topics in ((set_to, ["reconfigured"]), ([], None), (set_to, ["reconfigured"])):
            answer = node.ask("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps(addresses).encode())
            assert answer.json() == addresses
            until(lambda topics=topics: lookupd.topics_of(node) == topics)  # type: ignore[misc]


def test_ports_and_address_that_consumers_are_told(lookupd: Lookupd, tmp_path: Path) -> None:
    """nsq.md 12.1, trap 16: /lookup has the broadcast ports, /info the real ones."""
    flags = ("--nsq.lookupd-addresses", lookupd.tcp, "--nsq.broadcast-address", "proxy.example")
    ports = ("--nsq.broadcast-tcp-port", "14150", "--nsq.broadcast-http-port", "14151")
    with serve_headrace(tmp_path / "headrace", *flags, *ports) as node:
        node.post("/topic/create?topic=behind_a_proxy")
        (row,) = until(lambda: lookupd.producers("behind_a_proxy"))
        assert (row["broadcast_address"], row["tcp_port"], row["http_port"]) == ("proxy.example", 14150, 14151)
        assert node.ask("GET", "/info").json()["tcp_port"] == int(node.tcp.split(":")[1])
