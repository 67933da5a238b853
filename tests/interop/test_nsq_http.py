"""Headrace's HTTP API beside nsqd's: the same request, the same answer (nsq.md 3)."""

from __future__ import annotations

import json
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.interop.nsq_peers import Answer, Node, ask, running, serve_headrace
from tests.support.toolchain import cannot_run
from tests.support.waiting import until

COMPARED_HEADERS = ("allow", "content-type", "location", "x-nsq-content-type")
MAX_MESSAGE = 1 << 20
MAX_BODY = 5 << 20


def compare(nodes: tuple[Node, Node], method: str, target: str, body: bytes | None = None) -> Answer:
    """Send one request to both and compare status, headers and body; return Headrace's answer."""
    theirs, ours = (node.ask(method, target, body) for node in nodes)
    assert ours.status == theirs.status, (method, target, ours, theirs)
    for name in COMPARED_HEADERS:
        assert ours.headers.get(name) == theirs.headers.get(name), (method, target, name)
    assert ours.body == theirs.body, (method, target)
    return ours


@pytest.mark.parametrize(
    ("method", "target"),
    [
        *[("GET", "/ping"), ("HEAD", "/ping"), ("OPTIONS", "/ping"), ("DELETE", "/ping"), ("POST", "/ping/")],
        *[("GET", "/ping/"), ("GET", "/PING?x=1&y=%3C"), ("GET", "//ping"), ("GET", "/a/../ping")],
        *[("GET", "/"), ("GET", "/nope"), ("POST", "/nope/"), ("OPTIONS", "/nope"), ("OPTIONS", "/")],
        *[("GET", "/pub"), ("PUT", "/pub"), ("POST", "/pub/?topic=a"), ("POST", "/topic/CREATE")],
        *[("GET", "/topic/create"), ("OPTIONS", "/config/x"), ("DELETE", "/config/x"), ("GET", "/topic")],
        *[("GET", "/config"), ("GET", "/config/"), ("GET", "/config/a/b"), ("GET", "/config/max_rdy_count/")],
        *[("GET", "/CONFIG/max_rdy_count"), ("GET", "/config/nope"), ("GET", "/config/Max_rdy_count")],
        *[("GET", f"/config/{name}") for name in ("id", "log_level", "msg_timeout", "max_msg_timeout")],
        *[("GET", f"/config/{name}") for name in ("max_msg_size", "max_body_size", "max_req_timeout")],
        *[("GET", f"/config/{name}") for name in ("max_rdy_count", "max_heartbeat_interval", "tls_required")],
        *[("GET", f"/config/{name}") for name in ("max_output_buffer_size", "max_output_buffer_timeout")],
        *[("GET", f"/config/{name}") for name in ("min_output_buffer_timeout", "output_buffer_timeout")],
        *[("GET", f"/config/{name}") for name in ("max_channel_consumers", "max_deflate_level", "tls_cert")],
        *[("GET", f"/config/{name}") for name in ("nsqlookupd_tcp_addresses", "auth_http_addresses")],
        *[("GET", "/stats?format=json&include_mem=false&topic=a%zz"), ("GET", "/stats?a;b")],
    ],
)
def test_routing_and_options(nodes: tuple[Node, Node], method: str, target: str) -> None:
    """nsq.md 3.1, 3.2: paths, methods, redirects, options."""
    compare(nodes, method, target)


@pytest.mark.parametrize(
    "start",
    [
        *[b"POST /pub?topic=m HTTP/1.1\r\nHost: x\r\nX: a\x01b", b"POST /pub?topic=m HTTP/1.1\r\nHost: x\r\nX: a\x7f"],
        *[b"POST /pub?topic=m HTTP/1.1\r\nHost: a b", b"POST /pub?topic=m HTTP/1.1\r\nHost: a/b"],
        *[b"POST /pub?topic=m HTTP/2.0\r\nHost: x", b"POST /pub?topic=m HTTP/0.9\r\nHost: x"],
        *[b"POST /pub%zz?topic=m HTTP/1.1\r\nHost: x", b"POST pub?topic=m HTTP/1.1\r\nHost: x"],
        *[
            b"POST /%70ub?topic=n HTTP/1.2\r\nHost:",
            b"POST https://h/pub?topic=n HTTP/1.1\r\nHost: [::1%25e]:8\r\nX: \xff",
        ],
    ],
)
def test_malformed_heads_publish_nothing(nodes: tuple[Node, Node], start: bytes) -> None:
    """nsq.md 3.1: what nsqd refuses before it has a request is not carried out; what is only rare is."""
    statuses = []
    for node in nodes:
        host, port = node.http.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(start + b"\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
            statuses.append(client.makefile("rb").readline().split()[1])
        topics = json.loads(node.ask("GET", "/stats?format=json&topic=m").body)["topics"]
        assert not topics
    assert statuses[0] == statuses[1]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        *[("/pub", b""), ("/pub", b"x"), ("/pub?topic=", b"x"), ("/pub?topic", b"x"), ("/pub?topic=a%", b"x")],
        *[("/pub?topic=a;b", b"x"), ("/pub?topic=a+b", b"x"), ("/pub?topic=a%2Bb", b"x"), ("/pub?topic=%C3%A4", b"x")],
        *[(f"/pub?topic={'a' * 65}", b"x"), ("/pub?topic=a%23x", b"x"), ("/pub?topic=a%0A", b"x")],
        *[(f"/pub?topic=p&defer={value}", b"x") for value in ("", "x", "1.5", "-1", "3600001", "9" * 30, "+5")],
        *[(f"/pub?topic=p&defer={value}", b"x") for value in ("0", "1", "%2B5", "3600000", "-0", "0" * 50 + "5")],
        *[("/pub?&&topic=p&topic=$", b"x"), ("/pub?topic=$&topic=p", b"x")],
        *[
            ("/pub?topic=p", b"x" * MAX_MESSAGE),
            ("/pub?topic=p", b"x" * (MAX_MESSAGE + 1)),
            ("/pub", b"x" * 2 * MAX_MESSAGE),
        ],
        *[("/mpub", b"a\nb"), ("/mpub?topic=$", b"a\nb"), ("/mpub?topic=p", b""), ("/mpub?topic=p", b"\n\n\na\r\n\nb")],
        *[
            ("/mpub?topic=p", b"x" * (MAX_MESSAGE + 1)),
        ],
        *[("/mpub?topic=p&binary=true", body) for body in (b"", b"\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff")],
        *[
            ("/mpub?topic=p&binary=1", struct.pack(">i", 1_048_576)),
            ("/mpub?topic=p&binary=1", struct.pack(">i", 1_048_575)),
        ],
        *[("/mpub?topic=p&binary=x", struct.pack(">ii", 1, size)) for size in (0, -1, 5, MAX_MESSAGE + 1)],
        *[("/mpub?topic=p&binary=true", struct.pack(">iisis", 2, 1, b"a", 1, b"b") + b"rest")],
        *[("/mpub?topic=p&binary=false", b"\0\0\0\1"), ("/mpub?topic=p&binary=0", b"a")],
    ],
)
def test_publishing(nodes: tuple[Node, Node], target: str, body: bytes) -> None:
    """nsq.md 3.2: codes of /pub and /mpub, and what they leave in the topic."""
    compare(nodes, "POST", target, body)
    for name in ("p", "a+b"):
        theirs, ours = (node.topic(name) for node in nodes)
        for field in ("depth", "message_count", "message_bytes"):
            assert ours.get(field) == theirs.get(field), (target, field)


def test_chunked_bodies_with_form_type(nodes: tuple[Node, Node]) -> None:
    """nsq.md 12.1, trap 17: the body is raw, chunked or not, whatever its type says."""
    for node in nodes:
        answer = node.ask(
            "POST",
            "/pub?topic=chunked",
            iter([b"a=1", b"&topic=other"]),  # type: ignore[arg-type]  # http.client sends an iterator in chunks
            {"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert (answer.status, answer.body) == (200, b"OK")
        assert node.topic("chunked")["message_bytes"] == 15


@pytest.mark.parametrize(
    ("path", "size"), [("pub", 10), ("pub", MAX_MESSAGE + 1), ("mpub", MAX_BODY), ("mpub", MAX_BODY + 1)]
)
def test_expect_100_continue(nodes: tuple[Node, Node], path: str, size: int) -> None:
    """nsq.md 12.1, trap 17: asked for the body where it is wanted, refused without it where it is too large."""
    firsts = []
    for node in nodes:
        host, port = node.http.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as sock, sock.makefile("rb") as lines:
            head = f"POST /{path}?topic=e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n"
            sock.sendall(head.encode())
            first = lines.readline()
            firsts.append(first)
            if b" 413 " in first:
                assert b"_TOO_BIG" in lines.read()  # and the connection is closed
            else:
                assert lines.readline() == b"\r\n"
                sock.sendall(b"x" * (size - 1) + b"\n" if path == "pub" else b"abcdefghi\n" * (size // 10))
                assert b" 200 " in lines.readline()
    assert firsts[0] == firsts[1]


ADMINISTRATION = [
    *[
        "topic/create",
        "topic/create?topic=$",
        "topic/create?topic=t1",
        "topic/create?topic=t1",
        "topic/create?topic=t%23ephemeral",
    ],
    *["topic/delete", "topic/delete?topic=$", "topic/delete?topic=none", "topic/delete?topic=a%"],
    *["topic/empty", "topic/empty?topic=$", "topic/empty?topic=none", "topic/empty?topic=t1"],
    *["topic/pause", "topic/pause?topic=$", "topic/pause?topic=t1", "topic/pause?topic=t1", "topic/unpause?topic=t1"],
    *["channel/create", "channel/create?topic=$", "channel/create?topic=t1", "channel/create?topic=none&channel=$"],
    *["channel/create?topic=none&channel=c", "channel/create?topic=t1&channel=c", "channel/create?topic=t1&channel=c"],
    *["channel/create?topic=t1&channel=d%23ephemeral", "channel/create?channel=c"],
    *["channel/pause?topic=t1&channel=none", "channel/pause?topic=t1&channel=c", "channel/unpause?topic=t1&channel=c"],
    *["channel/empty?topic=t1&channel=none", "channel/empty?topic=t1&channel=c", "channel/empty?topic=none&channel=c"],
    *[
        "channel/delete?topic=t1&channel=none",
        "channel/delete?topic=t1&channel=d%23ephemeral",
        "channel/delete?topic=t1",
    ],
    *["topic/pause?topic=t1", "channel/pause?topic=t1&channel=c", "topic/delete?topic=t%23ephemeral"],
]


def test_administration_and_stats(nodes: tuple[Node, Node]) -> None:
    """nsq.md 3.2, 3.4: the same calls leave the same topics and channels; /stats has the same fields and types."""
    for call in ADMINISTRATION:
        compare(nodes, "POST", "/" + call)
        for query in ("topic=t1", "topic=t1&channel=c", "topic=t1&channel=zz", "topic=zz"):
            for clients in ("true", "false", "0", "x"):
                target = f"/stats?format=json&include_mem=false&include_clients={clients}&{query}"
                theirs, ours = (stats_of(node, target) for node in nodes)
                assert ours == theirs, (call, target)
    theirs, ours = (node.ask("GET", "/stats?topic=t1&include_mem=0").body.decode().splitlines() for node in nodes)
    assert ours[3:] == theirs[3:]
    theirs, ours = (node.ask("GET", "/stats?topic=t1").body.decode().splitlines() for node in nodes)
    assert [line.split("\t")[0] for line in ours[3:]] == [line.split("\t")[0] for line in theirs[3:]]


def stats_of(node: Node, target: str) -> Any:
    report = node.ask("GET", target).json()
    assert isinstance(report.pop("start_time"), int)
    assert report.pop("version").startswith("1.3.0")
    return report


def test_stats_has_every_field_of_nsqd(nodes: tuple[Node, Node]) -> None:
    """nsq.md 3.4: names and JSON types of every level, with a consumer and a producer connected."""
    shapes = []
    for node in nodes:
        host, port = node.tcp.split(":")
        node.post("/topic/create?topic=shape")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"  V2IDENTIFY\n" + framed(b'{"client_id":"c","hostname":"h","user_agent":"u"}'))
            sock.sendall(b"SUB shape c\nRDY 1\nPUB shape\n" + framed(b"x"))
            while b"x" not in sock.recv(4096):
                pass
            report = node.ask("GET", "/stats?format=json&topic=shape").json()
            text = node.ask("GET", "/stats?topic=shape&include_mem=0").body.decode()
        client = report["topics"][0]["channels"][0]["clients"][0]
        assert client["remote_address"].startswith("127.0.0.1:")
        assert "[V2 h:" in text
        shapes.append(shape_of(report))
    assert shapes[1] == shapes[0]


def shape_of(value: Any) -> Any:
    """Replace every value by its type: an integer that became a float makes nsqadmin fail."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    return type(value).__name__


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_info(nodes: tuple[Node, Node]) -> None:
    """nsq.md 3.3: the fields of nsqd and its limits; topology fields came after 1.3.0."""
    theirs, ours = (node.ask("GET", "/info").json() for node in nodes)
    assert theirs.keys() <= ours.keys()
    for node, info in zip(nodes, (theirs, ours), strict=True):
        ports = int(node.tcp.split(":")[1]), int(node.http.split(":")[1])
        assert (info["tcp_port"], info["http_port"]) == ports
        names = ("broadcast_tcp_port", "broadcast_http_port")
        assert tuple(node.ask("GET", f"/config/{name}").json() for name in names) == ports
    for name in ("max_heartbeat_interval", "max_output_buffer_size", "max_output_buffer_timeout", "max_deflate_level"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_level", b""),
        ("log_level", b"loud"),
        ("nope", b"1"),
        ("msg_timeout", b"1"),
        ("log_level", b"warn"),
        ("log_level", b"info"),
        *[
            ("nsqlookupd_tcp_addresses", value)
            for value in (
                *(b"", b"x", b'"127.0.0.1:1"', b"{}", b"[1]", b"true", b"0", b'[["a"]]', b'["127.0.0.1:1",]'),
                *(b'["127.0.0.1:1"]', b'["127.0.0.1:1", "127.0.0.1:2"]', b'["127.0.0.1:1"] x', b' ["127.0.0.1:1"]\n'),
                *(b'["127.0.0.1:1","127.0.0.1:1"]', b'["nothing"]', b'[""]', b"[]"),
            )
        ],
    ],
)
def test_setting_options(nodes: tuple[Node, Node], name: str, value: bytes) -> None:
    """nsq.md 3.2: PUT /config/:opt."""
    compare(nodes, "PUT", f"/config/{name}", value)
    compare(nodes, "GET", f"/config/{name}")


def test_aliases_of_headrace(nodes: tuple[Node, Node]) -> None:
    """X-NSQ-01, X-NSQ-17: #tmp, /put and /mput, and defer on /mpub."""
    _, headrace = nodes
    headrace.post("/put?topic=alias%23tmp", b"x")
    headrace.post("/mput?topic=alias%23tmp", b"x\ny")
    assert headrace.topic("alias%23ephemeral")["depth"] == 3
    headrace.post("/topic/create?topic=later")
    headrace.post("/channel/create?topic=later&channel=c")
    headrace.post("/mpub?topic=later&defer=600000", b"x\ny")
    assert headrace.channel("later", "c")["deferred_count"] == 2


def test_admin_interface(nodes: tuple[Node, Node]) -> None:
    """Index, health, readiness and metrics of a real broker; ready is over once it stops."""
    _, headrace = nodes
    admin = headrace.listeners["admin"]
    headrace.post("/pub?topic=measured", b"12345")
    assert ask(admin, "GET", "/healthz").body == b"ok\n"
    assert ask(admin, "GET", "/readyz").body == b"ready\n"
    index = json.loads(ask(admin, "GET", "/").body)
    assert index["listeners"] == headrace.listeners
    assert index["pid"] == headrace.process.pid
    text = ask(admin, "GET", "/metrics").body.decode()
    assert 'headrace_broker_topic_published_bytes_total{topic="measured"} 5.0\n' in text
    assert "headrace_store_fdatasync_seconds_count 0.0" not in text
    assert "process_open_fds" in text


def test_full_store(tmp_path: Path) -> None:
    """nsq.md 3.2, C-PROTO-18: a refused write is 503 EXITING and shown in /ping, /stats and /metrics; reads go on."""
    flags = ("--store.segment-bytes", str(1 << 20), "--store.budget-bytes", str(4 << 20))
    with serve_headrace(tmp_path, *flags) as node:
        node.post("/topic/create?topic=full")
        refused = until(lambda: refusal(node.ask("POST", "/pub?topic=full", b"x" * 100_000)))
        assert (refused.status, refused.json()) == (503, {"message": "EXITING"})
        before = node.topic("full")["depth"]
        assert 10 < before < 45
        ping = node.ask("GET", "/ping")
        assert (ping.status, ping.body[:6]) == (500, b"NOK - ")
        assert node.ask("GET", "/stats?format=json").json()["health"] == ping.body.decode()
        assert "headrace_store_writable 0.0" in ask(node.listeners["admin"], "GET", "/metrics").body.decode()
        assert node.topic("full")["depth"] == before


def refusal(answer: Answer) -> Answer | None:
    return answer if answer.status != 200 else None


def test_failed_flush(tmp_path: Path) -> None:
    """A failed fsync stops writes for good, and every port that tells health says so."""
    if shutil.which("strace") is None:
        cannot_run("strace makes fdatasync fail and is not installed")
    with serve_headrace(tmp_path) as node:
        node.post("/pub?topic=safe", b"x")
        command = ["strace", "-f", "-p", str(node.process.pid), "-e", "trace=fdatasync"]
        with running([*command, "-e", "inject=fdatasync:error=EIO"], tmp_path / "strace.log"):
            until(lambda: "attached" in (tmp_path / "strace.log").read_text())
            refused = until(lambda: refusal(node.ask("POST", "/pub?topic=safe", b"y")))
        assert (refused.status, refused.json()) == (503, {"message": "EXITING"})
        assert node.ask("POST", "/topic/create?topic=other").status == 503
        assert node.ask("POST", "/pub?topic=safe", b"z").status == 503
        assert b"fdatasync" in node.ask("GET", "/ping").body
        health = ask(node.listeners["admin"], "GET", "/healthz")
        assert (health.status, b"fdatasync" in health.body) == (500, True)
        assert node.ask("GET", "/stats?format=json").status == 200
