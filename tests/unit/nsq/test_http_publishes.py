"""Requests to publish that are done without the general code (ADR 0017): answered as the general code does it."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace import testing
from headrace.net.http_connection import BoundedConnection
from headrace.nsq.http_publishes import MAX_HELD_BYTES, MAX_TAKEN_BYTES
from tests.unit.nsq.test_peers import born_hosts

MAX_MESSAGE = 1000
MAX_BODY = 3000
DATE = re.compile(rb"(?im)^date: [^\r]*\r\n")
PLAIN = re.compile(r'^headrace_net_http_plain_requests_total\{listener="nsq_http"\} (\S+)$', re.MULTILINE)
DEFAULT_HEADERS = b"Host: h:4151\r\nUser-Agent: x/1.0\r\nContent-Type: application/octet-stream\r\n"


def request(
    body: bytes = b"hello",
    *,
    target: bytes = b"/pub?topic=orders",
    headers: bytes = DEFAULT_HEADERS,
    line_end: bytes = b" HTTP/1.1\r\n",
    method: bytes = b"POST ",
) -> bytes:
    return method + target + line_end + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Server:
    """A broker's HTTP port, and what it says of itself."""

    def __init__(self, broker: testing.RunningBroker) -> None:
        self._broker = broker
        host, _, port = broker.nsq_http.rpartition(":")
        self.address = (host, int(port))

    def talk(self, *pieces: bytes) -> bytes:
        """Send pieces, each in a packet of its own, and return what is answered until the end, without dates."""
        with socket.create_connection(self.address, timeout=10) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while received := client.recv(65536):
                answer += received
        return DATE.sub(b"", answer)

    def plain_requests(self) -> float:
        with urllib.request.urlopen(f"http://{self._broker.admin}/metrics", timeout=10) as answer:
            found = PLAIN.search(answer.read().decode())
        assert found is not None
        return float(found[1])

    def topics(self) -> dict[str, tuple[int, int]]:
        """Return messages and bytes of each topic."""
        with urllib.request.urlopen(f"http://{self._broker.nsq_http}/stats?format=json", timeout=10) as answer:
            rows = json.load(answer)["topics"]
        return {row["topic_name"]: (row["message_count"], row["message_bytes"]) for row in rows}


Pair = tuple[Server, Server]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two brokers; the second has the general code alone."""
    bounds = {"nsq__max_message_bytes": MAX_MESSAGE, "nsq__max_body_bytes": MAX_BODY, "store__durability": "async"}
    with ExitStack() as brokers:
        first = brokers.enter_context(testing.broker(**bounds))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.node.HttpPublishes", lambda *_: None)
            second = brokers.enter_context(testing.broker(**bounds))
        yield Server(first), Server(second)


def same(pair: Pair, *pieces: bytes) -> bytes:
    """Return what both answer, and see that both have stored the same."""
    first, second = (server.talk(*pieces) for server in pair)
    assert first == second
    assert pair[0].topics() == pair[1].topics()
    return first


@pytest.mark.parametrize(
    "plain",
    [
        request(),
        request(target=b"/pub?topic=" + b"t" * 64),
        request(headers=b"hOST:h\r\nACCEPT-encoding:\t gzip \t\r\nConnection: Keep-Alive\r\nX: \xfc\r\n"),
        request(headers=b"Host: [::1]:4151\r\nconnection:   CLOSE  \r\n"),
        request(headers=b"Host:\r\n"),
        request(b"\x00\r\n\r\n\xff", target=b"/pub?topic=a.b-c_D9"),
        request(target=b"/pub?topic=orders&defer=0"),
        request(target=b"/pub?topic=orders&defer=3000"),
        request(b"x" * MAX_MESSAGE),
        request(b"a\nb\n\nc", target=b"/mpub?topic=orders"),
        request(b"\n\nlast", target=b"/mpub?topic=made.by.mpub"),
        request(b"x\n" * (MAX_BODY // 2), target=b"/mpub?topic=orders&defer=7"),
    ],
)
def test_plain_requests_are_taken_over(pair: Pair, plain: bytes) -> None:
    """nsq.md 3.2: every spelling that is taken over is answered and stored as by the general code."""
    before = pair[0].plain_requests()
    answer = same(pair, plain)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nOK")
    assert pair[0].plain_requests() == before + 1


@pytest.mark.parametrize(
    "other",
    [
        request(b""),
        request(b"\n\n", target=b"/mpub?topic=orders"),
        request(b"x" * (MAX_MESSAGE + 1)),
        request(b"x" * (MAX_MESSAGE + 1), target=b"/mpub?topic=orders"),
        request(b"x\n" * MAX_BODY, target=b"/mpub?topic=orders"),
        request(target=b"/pub?topic=" + b"t" * 65),
        request(target=b"/pub?topic="),
        request(target=b"/pub?topic=a/b"),
        request(target=b"/pub?topic=a%2eb"),
        request(target=b"/pub?topic=a%23ephemeral"),
        request(target=b"/pub?topic=RMQ_SYS_TRANS_HALF_TOPIC"),
        request(target=b"/pub?topic=orders&topic=other"),
        request(target=b"/pub?topic=orders&defer=-1"),
        request(target=b"/pub?topic=orders&defer="),
        request(target=b"/pub?topic=orders&defer=99999999999"),
        request(target=b"/pub?topic=orders&defer=999999999"),
        request(target=b"/pub?topic=orders&defer=1&defer=2"),
        request(target=b"/put?topic=orders"),
        request(target=b"/pub/?topic=orders"),
        request(target=b"/PUB?topic=orders"),
        request(target=b"/pub"),
        request(target=b"/pub?topic=orders#fragment"),
        request(target=b"http://h/pub?topic=orders"),
        request(method=b"PUT "),
        request(method=b"post "),
        request(method=b"POST  "),
        request(line_end=b" HTTP/1.0\r\n"),
        request(line_end=b" HTTP/2.0\r\n"),
        request(line_end=b" HTTP/1.1\n"),
        request(line_end=b"  HTTP/1.1\r\n"),
        request(headers=b""),
        request(headers=b"Host: a\r\nHost: a\r\n"),
        request(headers=b"Host: a b\r\n"),
        request(headers=b"Host : a\r\n"),
        request(headers=b"Host: a\r\n folded\r\n"),
        request(headers=b"Host: a\r\n: x\r\n"),
        request(headers=b"Host: a\r\nno colon\r\n"),
        request(headers=b"Host: a\r\nX: a\x00b\r\n"),
        request(headers=b"Host: a\r\nX: a\x7fb\r\n"),
        request(headers=b"Host: a\r\nX: a\rb\r\n"),
        request(headers=b"Host: a\r\nX: a\nb\r\n"),
        request(headers=b"Host: a\r\nX\xe4: b\r\n"),
        request(headers=b"Host: a\r\nContent-Length: 5\r\n"),
        request(headers=b"Host: a\r\nContent-Length: 6\r\n"),
        request(headers=b"Host: a\r\nTransfer-Encoding: chunked\r\n"),
        request(headers=b"Host: a\r\nExpect: 100-continue\r\n"),
        request(headers=b"Host: a\r\nExpect: banana\r\n"),
        request(headers=b"Host: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n"),
        request(headers=b"Host: a\r\nUpgrade: h2c\r\n"),
        request(headers=b"Host: a\r\nConnection: close, x\r\n"),
        request(headers=b"Host: a\r\nConnection: close\r\nConnection: keep-alive\r\n"),
        request(headers=b"Host: a\r\nContent-Length: +5\r\n"),
        request()[:-1],
        request() + request(b"second"),
        request() + b"\r\n",
        request().replace(b"Content-Length: 5", b"Content-Length: 0000000005"),
        request().replace(b"Content-Length: 5", b"Content-Length: 5, 5"),
        request().replace(b"Content-Length: 5", b"Content-Length: 99999999999999999999"),
        request().replace(b"Content-Length: 5", b"Content-Length: "),
        request(headers=b"Host: a\r\nX: " + b"x" * (64 << 10) + b"\r\n"),
    ],
)
def test_what_is_not_beyond_doubt_is_left_to_the_general_code(pair: Pair, other: bytes) -> None:
    """nsq.md 3.1, 3.2: refusals, and what HTTP allows beside the usual."""
    before = pair[0].plain_requests()
    same(pair, other)
    assert pair[0].plain_requests() == before


@pytest.mark.parametrize("cut", [1, 20, 60, 100, 140, len(request()) - 5, len(request()) - 1])
def test_a_request_in_two_reads(pair: Pair, cut: int) -> None:
    """Many clients write head and body apart."""
    assert same(pair, request()[:cut], request()[cut:]).count(b"200 OK") == 1


@pytest.mark.parametrize(("beyond", "taken"), [(0, 1), (1, 0)])
def test_only_short_beginnings_are_held(beyond: int, taken: int) -> None:
    """What is held by a thousand connections is not in the bound for bodies, so it is small."""
    with testing.broker(store__durability="async") as broker:
        server = Server(broker)
        whole = request(b"x" * 50_000)
        with socket.create_connection(server.address, timeout=10) as client:
            client.sendall(whole[: MAX_HELD_BYTES + beyond])
            time.sleep(0.1)  # they must be read by themselves
            client.sendall(whole[MAX_HELD_BYTES + beyond :])
            received = b""
            while not received.endswith(b"\r\n\r\nOK"):
                received += client.recv(65536)
        # The rest may come in several reads, which is the general code's again.
        assert server.plain_requests() in (0, taken)
        assert server.topics() == {"orders": (1, 50_000)}


def test_a_request_byte_by_byte(pair: Pair) -> None:
    """The second piece of a body gives up the short way for this request, and for this one alone."""
    whole = request(b"hello " * 10)
    pieces = [whole[at : at + 1] for at in range(len(whole))]
    assert same(pair, *pieces, whole).count(b"200 OK") == 2


def test_heads_and_bodies_apart_are_taken_over(pair: Pair) -> None:
    """As Python's http.client has it."""
    before = pair[0].plain_requests()
    connection = http.client.HTTPConnection(*pair[0].address, timeout=10)
    for number in range(20):
        connection.request("POST", "/pub?topic=apart", b"%d" % number)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"OK")
    connection.close()
    assert pair[0].plain_requests() > before
    assert pair[0].topics()["apart"][0] == 20
    for number in range(20):
        pair[1].talk(request(b"%d" % number, target=b"/pub?topic=apart"))


def test_a_connection_goes_back_and_forth(pair: Pair) -> None:
    """What the general code has answered does not keep the next request from being taken over."""
    with socket.create_connection(pair[0].address, timeout=10) as client:
        for number in range(5):
            before = pair[0].plain_requests()
            for sent in (request(target=b"/pub?topic=back"), b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"):
                client.sendall(sent)
                received = b""
                while not received.endswith(b"\r\n\r\nOK"):
                    received += client.recv(65536)
            assert pair[0].plain_requests() == before + 1, number
    for _ in range(5):
        pair[1].talk(request(target=b"/pub?topic=back"))


def test_each_request_is_a_line_of_the_log(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """C-PROTO-08: at level ``debug``, whichever code does it: who asked, and for which topic."""
    targets = ("/pub?topic=orders", "/mpub?topic=events", "/pub?topic=orders&defer=1000", "/mpub?topic=events&defer=0")
    before = pair[0].plain_requests()
    with caplog.at_level(logging.DEBUG, "headrace"):
        for target in targets:  # alone: what comes before an answer is left to the general code
            same(pair, request(target=target.encode()))
    assert pair[0].plain_requests() == before + len(targets)
    lines = [re.sub(r"client=127\.0\.0\.1:\d+ ", "", line) for line in caplog.messages if " method=POST " in line]
    said = (f"HTTP request method=POST path={target.replace('?', ' query=')} status=200" for target in targets)
    assert lines == [line for line in said for _ in pair]


def test_what_comes_before_the_answer_waits_for_it(pair: Pair) -> None:
    """Pipelined requests in packets of their own are answered in order, also where the disk is waited for."""
    answer = same(pair, request(), request(b"2"), b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n", request(b"3"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404", b"200"]


@pytest.mark.parametrize("path", [b"/pub", b"/mpub"])
@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_reads_of_one_turn_are_all_stored(
    durability: Literal["async", "fsync"], path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libuv polls again before a turn ends where it found 1,024 events: a client may have several reads in it then.

    What came behind the first must not join the batch that the first is answered out of.
    """
    received = BoundedConnection.data_received

    def receive_apart(connection: BoundedConnection, data: bytes) -> None:
        for part in re.split(rb"(?=POST )", data):
            if part:
                received(connection, part)

    monkeypatch.setattr(BoundedConnection, "data_received", receive_apart)
    with testing.broker(store__durability=durability) as broker:
        server = Server(broker)
        answer = server.talk(b"".join(request(b"%d" % number, target=path + b"?topic=t") for number in range(5)))
        assert answer.count(b"HTTP/1.1 200 OK") == 5
        assert server.topics() == {"t": (5, 5)}


PARTS = st.sampled_from(
    [
        b"POST /pub?topic=orders HTTP/1.1\r\n",
        b"POST /mpub?topic=orders HTTP/1.1\r\n",
        b"POST /pub?topic=orders&defer=10 HTTP/1.1\r\n",
        b"Host: h\r\n",
        b"Content-Length: 3\r\n",
        b"content-length:7\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Accept: */*\r\n",
        b"\r\n",
        b"abc",
        b"a\nb\nc\nd",
        b" ",
        b"\x00",
        b":",
        b"\n",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=8), st.integers(0, 200))
@example([b"POST /pub?topic=orders HTTP/1.1\r\n", b"Host: h\r\n", b"Content-Length: 3\r\n", b"\r\n", b"abc"], 0)
def test_any_order_of_parts_is_the_same_to_both(pair: Pair, parts: list[bytes], cut: int) -> None:
    whole = b"".join(parts)
    # What comes behind the last request of a connection meets its end, or does not: that is a matter of moments.
    same(pair, *([whole] if b"close" in whole else [whole[:cut], whole[cut:]]))


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_mutated_requests_are_the_same_to_both(pair: Pair, data: st.DataObject) -> None:
    """One byte changed, left out or put in, anywhere in a request that is plain otherwise."""
    whole = data.draw(st.sampled_from([request(), request(b"a\nb", target=b"/mpub?topic=orders&defer=1")]))
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = data.draw(st.sampled_from([byte, b"", whole[at : at + 1] + byte]))
    same(pair, whole[:at] + changed + whole[at + 1 :])


@pytest.mark.parametrize("durability", ["async", "fsync"])
@pytest.mark.parametrize("path", ["pub", "mpub"])
def test_many_clients_at_once(durability: Literal["async", "fsync"], path: str, tmp_path: Path) -> None:
    """Each is answered when its message is as durable as the level says; all messages are there, with their hosts."""
    with testing.broker(store__durability=durability, store__data_dir=tmp_path / "store") as broker:
        server = Server(broker)
        with ExitStack() as sockets:
            clients = [sockets.enter_context(socket.create_connection(server.address, 10)) for _ in range(12)]
            for number in range(10):
                for who, client in enumerate(clients):
                    client.sendall(request(b"%02d %d" % (who, number), target=b"/%s?topic=t" % path.encode()))
                for client in clients:
                    assert client.recv(1000).endswith(b"\r\n\r\nOK")
        assert server.topics() == {"t": (120, 480)}
        assert server.plain_requests() == 120
    assert {host.rpartition(":")[0] for host in born_hosts(tmp_path / "store", "t")} == {"127.0.0.1"}


@pytest.mark.parametrize("path", [b"/pub", b"/mpub"])
def test_refusals_of_the_core(path: bytes) -> None:
    """A full store and a topic too many: the code that nsqd's clients know, counted."""
    bounds: dict[str, Any] = {"broker__max_topics": 3, "store__durability": "async"}
    with testing.broker(**bounds) as broker:
        server = Server(broker)
        answers = [server.talk(request(target=path + b"?topic=t%d" % number)) for number in range(6)]
        assert [answer.split()[1] for answer in answers] == [b"200"] * 3 + [b"503"] * 3
        assert answers[-1].endswith(b'{"message":"EXITING"}')
        assert b"content-type: application/json; charset=utf-8" in answers[-1].lower()
        with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
            assert 'headrace_net_refusals_total{cause="EXITING",listener="nsq_http"} 3.0' in answer.read().decode()


def test_bodies_that_are_longer_than_their_heads_cost() -> None:
    """A long body is left to the general code, which bounds what all of them take together."""
    with testing.broker(store__durability="async") as broker:
        server = Server(broker)
        for size, taken in ((MAX_TAKEN_BYTES, 1), (MAX_TAKEN_BYTES + 1, 0)):
            before = server.plain_requests()
            assert b"200 OK" in server.talk(request(b"x" * size))
            assert server.plain_requests() in ((before, before + 1) if taken else (before,))
        assert server.topics() == {"orders": (2, 2 * MAX_TAKEN_BYTES + 1)}
