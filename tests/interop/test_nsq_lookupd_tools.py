"""Unmodified nsqd nodes, nsqadmin, tools and clients that meet at Headrace's registry (nsq.md 4.4, 5.1, 12.2)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.nsq_lookupd_peers import Lookupd, serve_registry
from tests.interop.nsq_peers import (
    Node,
    NsqAdmin,
    ask,
    peer,
    running,
    serve_headrace,
    serve_nsqadmin,
    serve_nsqd,
)
from tests.support.waiting import until

TOOL_SECONDS = 30
Nodes = tuple[Node, Node]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookupd]:
    """One registry for all tests here; each test has its own topics."""
    with serve_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(registry: Lookupd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nsqds that are registered there."""
    folder = tmp_path_factory.mktemp("nodes")
    with contextlib.ExitStack() as stack:
        yield (
            stack.enter_context(registered(registry, folder / "one")),
            stack.enter_context(registered(registry, folder / "other")),
        )


@contextlib.contextmanager
def registered(registry: Lookupd, folder: Path) -> Iterator[Node]:
    """Run nsqd; it is registered by the time it is given."""
    with serve_nsqd(folder, f"-lookupd-tcp-address={registry.tcp}") as node:
        until(lambda: node.http in [http_of(row) for row in registry.get("/nodes")["producers"]])
        yield node


def http_of(row: dict[str, Any]) -> str:
    return f"{row['broadcast_address']}:{row['http_port']}"


def who_has(registry: Lookupd, topic: str) -> list[str]:
    """Return the HTTP addresses of a topic's producers, in order."""
    return sorted(http_of(row) for row in registry.lookup(topic))


def channels_of(registry: Lookupd, topic: str) -> list[str]:
    return sorted(registry.get(f"/channels?topic={topic}")["channels"])


def publish(node: Node, topic: str, *messages: str) -> None:
    node.post(f"/mpub?topic={topic}", "\n".join(messages).encode())


# -- nsqd --


def test_topics_and_channels_of_nsqd(registry: Lookupd, nodes: Nodes) -> None:
    """nsq.md 4.4: made and deleted at nsqd, made and gone here."""
    one, other = nodes
    one.post("/topic/create?topic=seen")
    one.post("/channel/create?topic=seen&channel=c")
    until(lambda: channels_of(registry, "seen") == ["c"])
    assert who_has(registry, "seen") == [one.http]
    (row,) = registry.lookup("seen")
    assert f"{row['broadcast_address']}:{row['tcp_port']}" == one.tcp
    assert row["version"] == "1.3.0"
    other.post("/topic/create?topic=seen")
    until(lambda: who_has(registry, "seen") == sorted([one.http, other.http]))
    one.post("/channel/create?topic=seen&channel=d%23ephemeral")
    until(lambda: channels_of(registry, "seen") == ["c", "d#ephemeral"])
    one.post("/channel/delete?topic=seen&channel=d%23ephemeral")
    until(lambda: channels_of(registry, "seen") == ["c"])
    one.post("/topic/delete?topic=seen")
    until(lambda: who_has(registry, "seen") == [other.http])
    assert "seen" in registry.get("/topics")["topics"]


def test_new_topic_has_the_channels_that_are_known(registry: Lookupd, nodes: Nodes) -> None:
    """nsq.md 2.1, trap 15: nsqd asks /channels where IDENTIFY told it to, and leaves ephemeral ones out."""
    one, other = nodes
    for channel in ("c", "d", "e%23ephemeral"):
        one.post("/topic/create?topic=known")
        one.post(f"/channel/create?topic=known&channel={channel}")
    until(lambda: len(channels_of(registry, "known")) == 3)
    publish(other, "known", "first")
    assert sorted(row["channel_name"] for row in other.topic("known")["channels"]) == ["c", "d"]
    until(lambda: [other.channel("known", name)["depth"] for name in "cd"] == [1, 1])


def test_killed_nsqd_is_gone_and_comes_back(registry: Lookupd, tmp_path: Path) -> None:
    """nsq.md 4.2: registrations end with the connection; topics and channels are remembered."""
    with registered(registry, tmp_path / "nsqd") as node:
        node.post("/topic/create?topic=killed")
        node.post("/channel/create?topic=killed&channel=c")
        until(lambda: who_has(registry, "killed") == [node.http])
        until(lambda: channels_of(registry, "killed") == ["c"])  # told by a command of its own
        node.process.send_signal(signal.SIGKILL)
        until(lambda: not registry.lookup("killed"), 2)
        assert node.http not in [http_of(row) for row in registry.get("/nodes")["producers"]]
        assert channels_of(registry, "killed") == ["c"]
    with registered(registry, tmp_path / "nsqd") as node:
        until(lambda: who_has(registry, "killed") == [node.http])


def test_registry_that_was_started_again(tmp_path: Path) -> None:
    """nsq.md 4.4: the next command finds the connection closed, the one behind it makes nsqd tell everything again."""
    with serve_registry(tmp_path / "first") as first:
        stack = contextlib.ExitStack()
        node = stack.enter_context(registered(first, tmp_path / "nsqd"))
        node.post("/topic/create?topic=again")
        node.post("/channel/create?topic=again&channel=c")
        until(lambda: channels_of(first, "again") == ["c"])
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(10)
    flags = ("--registry.nsq-tcp-address", first.tcp, "--registry.nsq-http-address", first.http)
    with stack, serve_registry(tmp_path / "second", *flags, free_ports=False) as second:
        node.post("/topic/create?topic=wakes")
        node.post("/topic/create?topic=tells")
        for topic in ("again", "wakes", "tells"):
            until(lambda: who_has(second, topic) == [node.http])  # noqa: B023
        assert channels_of(second, "again") == ["c"]


def test_headrace_and_nsqd_side_by_side(tmp_path: Path) -> None:
    """nsq.md 12.2 check 4: one process is registry and broker; each kind of node has the channels of the other."""
    flags = ("--nsq.broadcast-address", "127.0.0.1", "--registry.nsq-broadcast-address", "127.0.0.1")
    with serve_headrace(tmp_path / "headrace", *flags) as ours:
        registry = Lookupd(ours.listeners["nsqlookupd_tcp"], ours.listeners["nsqlookupd_http"], ours.process, ours.log)
        source = f"-lookupd-http-address={registry.http}"
        with registered(registry, tmp_path / "nsqd") as theirs, serve_nsqadmin(tmp_path, source) as nsqadmin:
            both = [ours, theirs]
            for made, other, topic in ((ours, theirs, "out"), (theirs, ours, "back")):
                made.post(f"/topic/create?topic={topic}")
                made.post(f"/channel/create?topic={topic}&channel=c")
                until(lambda: channels_of(registry, topic) == ["c"])  # noqa: B023
                publish(other, topic, "first")
                until(lambda: other.channel(topic, "c").get("depth") == 1)  # noqa: B023
                publish(made, topic, "second")
                assert who_has(registry, topic) == sorted(node.http for node in both)
                command = [peer("nsq_tail"), f"-lookupd-http-address={registry.http}", f"-topic={topic}"]
                done = subprocess.run([*command, "-channel=c", "-n=2"], capture_output=True, timeout=TOOL_SECONDS)
                assert sorted(done.stdout.split()) == [b"first", b"second"]
            listed = {http_of(row): row for row in nsqadmin.get("/nodes")["nodes"]}
            assert set(listed) == {node.http for node in both}
            assert not any(row["out_of_date"] for row in listed.values())
            assert nsqadmin.get("/topics/out")["message_count"] == 2
            nsqadmin.send("DELETE", f"/nodes/{ours.http}", topic="out")
            assert who_has(registry, "out") == [theirs.http]
            nsqadmin.send("DELETE", "/topics/back")
            assert [node.topic("back") for node in both] == [{}, {}]
            assert registry.ask("GET", "/lookup?topic=back").status == 404


# -- nsqadmin --


@pytest.fixture
def nsqadmin(registry: Lookupd, tmp_path: Path) -> Iterator[NsqAdmin]:
    with serve_nsqadmin(tmp_path, f"-lookupd-http-address={registry.http}") as program:
        yield program


def test_nsqadmin_pages(registry: Lookupd, nodes: Nodes, nsqadmin: NsqAdmin) -> None:
    """nsq.md 5.1 in registry mode: streams, topic, channel, nodes, node, counter and lookup."""
    one, other = nodes
    publish(one, "pages", "a", "b")
    one.post("/channel/create?topic=pages&channel=c")
    until(lambda: channels_of(registry, "pages") == ["c"])
    publish(other, "pages", "d")
    until(lambda: len(who_has(registry, "pages")) == 2)
    registry.post("/channel/create?topic=nobodys&channel=lonely")
    for page in ("/", "/topics/pages", "/topics/pages/c", "/nodes", f"/nodes/{one.http}", "/counter", "/lookup"):
        assert ask(nsqadmin.address, "GET", page).status == 200
    assert {"pages", "nobodys"} <= set(nsqadmin.get("/topics")["topics"])
    assert nsqadmin.get("/topics?inactive=true")["topics"]["nobodys"] == ["lonely"]
    topic = nsqadmin.get("/topics/pages")
    assert (topic["message_count"], [row["channel_name"] for row in topic["channels"]]) == (3, ["c"])
    assert sorted(row["node"] for row in topic["nodes"]) == sorted([one.http, other.http])
    assert nsqadmin.get("/topics/pages/c")["message_count"] == 3
    listed = {http_of(row): row for row in nsqadmin.get("/nodes")["nodes"]}
    for node in nodes:
        assert len(listed[node.http]["remote_addresses"]) == 1
        assert not listed[node.http]["out_of_date"]
        assert {"topic": "pages", "tombstoned": False} in listed[node.http]["topics"]
        assert "pages" in [row["topic_name"] for row in nsqadmin.get(f"/nodes/{node.http}")["topics"]]
    stats = nsqadmin.get("/counter")["stats"]
    assert sum(row["message_count"] for key, row in stats.items() if key.startswith("pages:c:")) == 3


def test_nsqadmin_actions(registry: Lookupd, nodes: Nodes, nsqadmin: NsqAdmin) -> None:
    """nsq.md 5.1: topic and channel are made at registry and nodes, and deleted there; a node is tombstoned."""
    one, other = nodes
    nsqadmin.send("POST", "/topics", topic="acts", channel="c")
    assert channels_of(registry, "acts") == ["c"]
    publish(one, "acts", "x")
    publish(other, "acts", "y")
    until(lambda: len(who_has(registry, "acts")) == 2)
    until(lambda: one.channel("acts", "c")["depth"] == other.channel("acts", "c")["depth"] == 1)
    nsqadmin.send("POST", "/topics", topic="acts", channel="d")
    until(lambda: [bool(node.channel("acts", "d")) for node in nodes] == [True, True])
    nsqadmin.send("POST", "/topics/acts/d", action="pause")
    assert [node.channel("acts", "d")["paused"] for node in nodes] == [True, True]
    nsqadmin.send("DELETE", "/topics/acts/d")
    assert channels_of(registry, "acts") == ["c"]
    assert [node.channel("acts", "d") for node in nodes] == [{}, {}]
    nsqadmin.send("DELETE", f"/nodes/{one.http}", topic="acts")
    assert who_has(registry, "acts") == [other.http], "a tombstone, and nsqd has deleted its topic"
    assert one.topic("acts") == {}
    nsqadmin.send("DELETE", "/topics/acts")
    assert ask(registry.http, "GET", "/lookup?topic=acts").status == 404
    assert other.topic("acts") == {}


# -- tools that find nsqd at the registry --


def run_tool(name: str, *arguments: str) -> str:
    """Run a tool that ends by itself and return what it printed."""
    done = subprocess.run([peer(name), *arguments], capture_output=True, timeout=TOOL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return bytes(done.stdout).decode()


def test_nsq_tail(registry: Lookupd, nodes: Nodes, tmp_path: Path) -> None:
    """nsq.md 6.2: go-nsq finds both nodes; its ephemeral channel is unregistered when it ends."""
    for node in nodes:
        node.post("/topic/create?topic=tail")
    until(lambda: len(who_has(registry, "tail")) == 2)
    command = [
        peer("nsq_tail"),
        f"-lookupd-http-address={registry.http}",
        "-topic=tail",
        "-channel=t#ephemeral",
        "-n=4",
    ]
    with (tmp_path / "out").open("wb") as output:
        tail = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            until(lambda: all(node.channel("tail", "t%23ephemeral").get("clients") for node in nodes))
            assert channels_of(registry, "tail") == ["t#ephemeral"]
            publish(nodes[0], "tail", "one", "two")
            publish(nodes[1], "tail", "three", "four")
            assert tail.wait(TOOL_SECONDS) == 0
        finally:
            tail.kill()
            tail.wait()
    assert sorted((tmp_path / "out").read_text().split()) == ["four", "one", "three", "two"]
    until(lambda: channels_of(registry, "tail") == [])


def test_nsq_to_file_by_pattern(registry: Lookupd, nodes: Nodes, tmp_path: Path) -> None:
    """nsq.md 6.2: topics by pattern are those of /topics, also one that comes later."""
    (tmp_path / "files").mkdir()
    publish(nodes[0], "file_a", "a0")
    publish(nodes[1], "file_a", "a1")
    until(lambda: len(who_has(registry, "file_a")) == 2)
    command = [peer("nsq_to_file"), f"-lookupd-http-address={registry.http}", "-topic-pattern=^file_", "-channel=f"]
    command += [f"-output-dir={tmp_path / 'files'}", "-sync-interval=100ms", "-topic-refresh=200ms"]
    with running(command, tmp_path / "log"):
        until(lambda: all(is_written(node, "file_a", 1) for node in nodes))
        publish(nodes[1], "file_b", "b1")
        until(lambda: is_written(nodes[1], "file_b", 1))
    written = "".join(path.read_text() for path in (tmp_path / "files").iterdir())
    assert sorted(written.split()) == ["a0", "a1", "b1"]


def is_written(node: Node, topic: str, count: int) -> bool:
    """Whether nsq_to_file has finished so many messages, which it does once they are on the disk."""
    channel = node.channel(topic, "f")
    return (channel.get("message_count"), channel.get("in_flight_count"), channel.get("depth")) == (count, 0, 0)


def test_nsq_to_nsq(registry: Lookupd, nodes: Nodes, tmp_path: Path) -> None:
    """nsq.md 6.2: from where the registry says."""
    for node in nodes:
        publish(node, "source", *(f"message {number}" for number in range(100)))
    until(lambda: len(who_has(registry, "source")) == 2)
    command = [peer("nsq_to_nsq"), f"-lookupd-http-address={registry.http}", "-topic=source", "-channel=copy"]
    command += [f"-destination-nsqd-tcp-address={nodes[0].tcp}", "-destination-topic=target"]
    with running(command, tmp_path / "log"):
        until(lambda: nodes[0].topic("target").get("message_count") == 200)
    until(lambda: who_has(registry, "target") == [nodes[0].http])


def test_nsq_stat(registry: Lookupd, nodes: Nodes) -> None:
    """nsq.md 6.2: the sum over all nodes."""
    for node in nodes:
        publish(node, "stat", "a", "b", "c")
        node.post("/channel/create?topic=stat&channel=c")
    until(lambda: len(who_has(registry, "stat")) == 2)
    arguments = ("-topic=stat", "-channel=c", "-interval=100ms", "-count=1")
    lines = run_tool("nsq_stat", f"-lookupd-http-address={registry.http}", *arguments).splitlines()
    columns = [int(word) for word in lines[-1].replace("|", " ").split()]
    assert columns[2:] == [6, 6, 0, 0, 0, 0, 0, 6, 0]


# -- clients in Python that find nsqd at the registry --


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pynsq(registry: Lookupd, nodes: Nodes) -> None:
    """nsq.md 12.2 check 4: a reader that starts before the topic is anywhere, and gets what both nodes have."""
    nsq = pytest.importorskip("nsq")
    seen: list[str] = []

    def handle(message: Any) -> bool:
        seen.append(message.body.decode())
        return True

    async def session() -> None:
        reader = nsq.Reader(
            topic="py-find",
            channel="c",
            message_handler=handle,
            lookupd_http_addresses=[registry.http],
            lookupd_poll_interval=1,
            lookupd_poll_jitter=0.0,
            max_in_flight=10,
        )
        await asyncio.sleep(0.3)
        for number, node in enumerate(nodes):
            await asyncio.to_thread(publish, node, "py-find", f"{number}-a", f"{number}-b")
        deadline = time.monotonic() + 15
        while len(seen) < 4:
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.02)
        reader.close()
        await asyncio.sleep(0.05)

    asyncio.run(session())
    assert sorted(seen) == ["0-a", "0-b", "1-a", "1-b"]
    assert channels_of(registry, "py-find") == ["c"]


def test_gnsq(registry: Lookupd, nodes: Nodes) -> None:
    """nsq.md 4.3: gnsq reads JSON only where the type of the content says so."""
    pytest.importorskip("gnsq")
    for number, node in enumerate(nodes):
        publish(node, "g-find", f"{number}-a", f"{number}-b")
    until(lambda: len(who_has(registry, "g-find")) == 2)
    command = [sys.executable, str(Path(__file__).with_name("gnsq_consumer.py")), registry.http, "g-find", "c", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    assert sorted(done.stdout.split()) == ["0-a", "0-b", "1-a", "1-b"], done.stderr
