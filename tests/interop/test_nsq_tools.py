"""The unmodified tools of NSQ 1.3.0 against Headrace (nsq.md 5, 6.2; 12.2 rows 6 and 7)."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.nsq_peers import Node, NsqAdmin, peer, running, serve_headrace, serve_nsqadmin, serve_nsqd
from tests.support.waiting import until

TOOL_SECONDS = 30


@pytest.fixture(scope="module")
def headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One broker for all tests here; each test has its own topics."""
    flags = ("--nsq.broadcast-address", "127.0.0.1")
    with serve_headrace(tmp_path_factory.mktemp("tools") / "headrace", *flags) as node:
        yield node


def run_tool(name: str, *arguments: str, **options: Any) -> str:
    """Run a tool that ends by itself and return what it printed."""
    done = subprocess.run([peer(name), *arguments], capture_output=True, timeout=TOOL_SECONDS, check=False, **options)
    assert done.returncode == 0, done.stderr.decode()
    return bytes(done.stdout).decode()


def publish(node: Node, topic: str, *messages: str) -> None:
    node.post(f"/mpub?topic={topic}", "\n".join(messages).encode())


# -- tools on the TCP port --


def test_to_nsq(headrace: Node) -> None:
    """nsq.md 6.2: one message for each line of standard input."""
    messages = b"".join(b"line %d\n" % number for number in range(1000))
    run_tool("to_nsq", f"-nsqd-tcp-address={headrace.tcp}", "-topic=to_nsq", input=messages)
    row = headrace.topic("to_nsq")
    assert (row["message_count"], row["message_bytes"]) == (1000, len(messages) - 1000)


def test_nsq_tail(headrace: Node, tmp_path: Path) -> None:
    """nsq.md 6.2: prints what is published after it has subscribed; its ephemeral channel goes with it."""
    command = [peer("nsq_tail"), f"-nsqd-tcp-address={headrace.tcp}", "-topic=tail", "-n=3", "-print-topic"]
    headrace.post("/topic/create?topic=tail")
    headrace.post("/channel/create?topic=tail&channel=keeps")
    with (tmp_path / "out").open("wb") as output:
        tail = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            until(lambda: len(headrace.topic("tail")["channels"]) == 2)
            publish(headrace, "tail", "one", "two", "three")
            assert tail.wait(TOOL_SECONDS) == 0
        finally:
            tail.kill()
            tail.wait()
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(lines) == ["tail | one", "tail | three", "tail | two"]
    until(lambda: [row["channel_name"] for row in headrace.topic("tail")["channels"]] == ["keeps"])


def test_nsq_to_file(headrace: Node, tmp_path: Path) -> None:
    """nsq.md 6.2: every message in the file, finished once the file is synced."""
    messages = [f"message {number}" for number in range(500)]
    publish(headrace, "to_file", *messages)
    command = [peer("nsq_to_file"), f"-nsqd-tcp-address={headrace.tcp}", "-topic=to_file", "-channel=archive"]
    command += [f"-output-dir={tmp_path / 'files'}", "-sync-interval=100ms"]
    (tmp_path / "files").mkdir()
    with running(command, tmp_path / "log"):
        until(lambda: headrace.channel("to_file", "archive").get("message_count") == 500)
        until(lambda: settled(headrace.channel("to_file", "archive")))
    written = "".join(path.read_text() for path in (tmp_path / "files").iterdir())
    assert sorted(written.splitlines()) == sorted(messages)


def test_nsq_to_nsq(headrace: Node, tmp_path: Path) -> None:
    """nsq.md 6.2: from Headrace to nsqd and from nsqd to Headrace."""
    with serve_nsqd(tmp_path / "nsqd") as nsqd:
        for source, destination, topic in ((headrace, nsqd, "there"), (nsqd, headrace, "back")):
            publish(source, topic, *(f"message {number}" for number in range(300)))
            command = [peer("nsq_to_nsq"), f"-nsqd-tcp-address={source.tcp}", f"-topic={topic}", "-channel=copy"]
            command += [f"-destination-nsqd-tcp-address={destination.tcp}", f"-destination-topic=copy_of_{topic}"]
            with running(command, tmp_path / f"{topic}.log"):
                until(lambda: destination.topic(f"copy_of_{topic}").get("message_count") == 300)  # noqa: B023
                until(lambda: settled(source.channel(topic, "copy")))  # noqa: B023


def settled(channel: dict[str, Any]) -> bool:
    return (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)


# -- tools on the HTTP port --


def test_nsq_stat(headrace: Node) -> None:
    """nsq.md 6.2: its columns from our /stats."""
    headrace.post("/topic/create?topic=stat")
    headrace.post("/channel/create?topic=stat&channel=c")
    publish(headrace, "stat", *"abcdefg")
    headrace.post("/pub?topic=stat&defer=600000", b"later")
    until(lambda: headrace.channel("stat", "c")["deferred_count"] == 1)
    arguments = ("-topic=stat", "-channel=c", "-interval=100ms", "-count=1")
    lines = run_tool("nsq_stat", f"-nsqd-http-address={headrace.http}", *arguments).splitlines()
    columns = [int(word) for word in lines[-1].replace("|", " ").split()]
    ingress, egress, total, memory, disk, in_flight, deferred, requeued, timed_out, messages, clients = columns
    assert (ingress, egress, total, memory, disk) == (0, 0, 7, 0, 7)
    assert (in_flight, deferred, requeued, timed_out, messages, clients) == (0, 1, 0, 0, 8, 0)


def test_nsq_stat_names_a_missing_channel(headrace: Node) -> None:
    """nsq.md 3.4: a topic without the channel is left out of an answer with status 200; the tool says the rest."""
    headrace.post("/topic/create?topic=bare")
    arguments = [f"-nsqd-http-address={headrace.http}", "-topic=bare", "-channel=c", "-count=1"]
    done = subprocess.run([peer("nsq_stat"), *arguments], capture_output=True, timeout=TOOL_SECONDS, check=False)
    assert b"failed to find channel(c)" in done.stderr


@pytest.fixture
def nsqadmin(headrace: Node, tmp_path: Path) -> Iterator[NsqAdmin]:
    """nsqadmin in direct mode: no registry, one fixed node."""
    with serve_nsqadmin(tmp_path, f"-nsqd-http-address={headrace.http}") as program:
        yield program


def test_nsqadmin_pages(headrace: Node, nsqadmin: NsqAdmin) -> None:
    """nsq.md 5.1: streams, topic, channel, nodes, node and counter, with a consumer and messages in every state."""
    headrace.post("/topic/create?topic=pages")
    headrace.post("/channel/create?topic=pages&channel=c")
    headrace.post("/channel/create?topic=pages&channel=d%23ephemeral")
    publish(headrace, "pages", *"abcdef")
    headrace.post("/pub?topic=pages&defer=600000", b"later")
    with consumer(headrace, "pages", "c", ready=2):
        until(lambda: headrace.channel("pages", "c")["in_flight_count"] == 2)
        assert "pages" in nsqadmin.get("/topics")["topics"]
        topic = nsqadmin.get("/topics/pages")
        assert [row["channel_name"] for row in topic["channels"]] == ["c", "d#ephemeral"]
        assert (topic["message_count"], topic["nodes"][0]["node"]) == (7, headrace.http)
        channel = nsqadmin.get("/topics/pages/c")
        assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (4, 2, 1)
        assert channel["client_count"] == 1
        (client,) = channel["clients"]
        assert (client["hostname"], client["user_agent"], client["in_flight_count"]) == (
            "consumer.example",
            "test/1",
            2,
        )
        (node,) = nsqadmin.get("/nodes")["nodes"]
        assert f"{node['broadcast_address']}:{node['http_port']}" == headrace.http
        assert node["version"].startswith("1.3.0")
        assert not node["out_of_date"]
        assert "pages" in [row["topic"] for row in node["topics"]]
        page = nsqadmin.get(f"/nodes/{headrace.http}")
        assert page["total_clients"] == 1
        assert page["total_messages"] >= 7
        assert "pages" in [row["topic_name"] for row in page["topics"]]
        stats = nsqadmin.get("/counter")["stats"]
        assert stats[f"pages:c:{headrace.http}"]["message_count"] == 7


def test_nsqadmin_actions(headrace: Node, nsqadmin: NsqAdmin) -> None:
    """nsq.md 5.1: pause, unpause, empty and delete of channel and topic."""
    headrace.post("/topic/create?topic=acts")
    headrace.post("/channel/create?topic=acts&channel=c")
    nsqadmin.send("POST", "/topics/acts/c", action="pause")
    assert headrace.channel("acts", "c")["paused"]
    assert nsqadmin.get("/topics/acts/c")["paused"]
    nsqadmin.send("POST", "/topics/acts/c", action="unpause")
    assert not headrace.channel("acts", "c")["paused"]
    publish(headrace, "acts", *"abc")
    until(lambda: headrace.channel("acts", "c")["depth"] == 3)
    nsqadmin.send("POST", "/topics/acts/c", action="empty")
    assert headrace.channel("acts", "c")["depth"] == 0
    nsqadmin.send("POST", "/topics/acts", action="pause")
    publish(headrace, "acts", *"de")
    until(lambda: headrace.topic("acts")["depth"] == 2)
    assert headrace.topic("acts")["paused"]
    nsqadmin.send("POST", "/topics/acts", action="empty")
    assert headrace.topic("acts")["depth"] == 0
    nsqadmin.send("POST", "/topics/acts", action="unpause")
    assert not headrace.topic("acts")["paused"]
    assert headrace.channel("acts", "c")["depth"] == 0
    nsqadmin.send("DELETE", "/topics/acts/c")
    assert headrace.topic("acts")["channels"] == []
    nsqadmin.send("DELETE", "/topics/acts")
    assert headrace.topic("acts") == {}
    assert "acts" not in nsqadmin.get("/topics")["topics"]


class consumer:  # noqa: N801  # reads as a with statement
    """A subscribed connection that settles nothing."""

    def __init__(self, node: Node, topic: str, channel: str, *, ready: int) -> None:
        host, port = node.tcp.split(":")
        self._address = (host, int(port))
        profile = b'{"client_id":"c1","hostname":"consumer.example","user_agent":"test/1"}'
        self._commands = b"  V2IDENTIFY\n" + struct.pack(">i", len(profile)) + profile
        self._commands += f"SUB {topic} {channel}\nRDY {ready}\n".encode()

    def __enter__(self) -> None:
        self._socket = socket.create_connection(self._address, timeout=10)
        self._socket.sendall(self._commands)

    def __exit__(self, *_error: object) -> None:
        self._socket.close()
