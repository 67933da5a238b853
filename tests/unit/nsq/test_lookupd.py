"""nsqlookupd's ports of a running broker: what producers are answered, bounds, and what is logged and counted."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from headrace.net.ports import bind_listener
from headrace.nsq.lookupd import server as lookupd_server
from headrace.nsq.lookupd.codec import MAGIC, MAX_BODY_BYTES
from headrace.testing import RunningBroker, broker

TIMEOUT_S = 10
TODAY = {"Accept": "application/vnd.nsq; version=1.0"}
IDENTITY = {"broadcast_address": "producer", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}


class Peer:
    """A producer's connection, word for word."""

    def __init__(self, running: RunningBroker, *, magic: bytes = MAGIC) -> None:
        host, _, port = running.listeners["nsqlookupd_tcp"].rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.sock.sendall(magic)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def identify(self, **changed: Any) -> bytes:
        body = json.dumps({**IDENTITY, **changed}).encode()
        self.send(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        return self.reply()

    def reply(self) -> bytes:
        size = struct.unpack(">I", self._read(4))[0]
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            assert piece, f"closed behind {data!r}"
            data += piece
        return data

    def is_closed(self) -> bool:
        return self.sock.recv(1) == b""

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def peer(shared: RunningBroker) -> Iterator[Peer]:
    with contextlib.closing(Peer(shared)) as made:
        yield made


def ask(running: RunningBroker, path: str, method: str = "GET") -> tuple[int, Any]:
    request = Request(f"http://{running.nsqlookupd_http}{path}", headers=TODAY, method=method)
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body.startswith(b"{") else body
    except HTTPError as error:
        return error.code, json.loads(error.read())


def producers(running: RunningBroker, topic: str) -> list[str]:
    return [row["broadcast_address"] for row in ask(running, f"/lookup?topic={topic}")[1].get("producers", [])]


def until(running: RunningBroker, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while producers(running, topic) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_producer_is_told_where_the_http_api_is(shared: RunningBroker, peer: Peer) -> None:
    """Where the broker listens on one address, that one is told: a host's name would lead elsewhere."""
    told = json.loads(peer.identify())
    host, _, port = shared.nsqlookupd_http.rpartition(":")
    assert told["broadcast_address"] == host
    assert told["http_port"] == int(port)
    assert told["tcp_port"] == int(shared.listeners["nsqlookupd_tcp"].rpartition(":")[2])
    assert told["version"].startswith("1.3.0")


def test_topics_come_and_go_with_their_producer(shared: RunningBroker, peer: Peer) -> None:
    peer.identify(broadcast_address="comes-and-goes")
    peer.send(b"REGISTER coming c\nREGISTER coming d\nPING\n")
    assert [peer.reply() for _ in range(3)] == [b"OK"] * 3
    assert ask(shared, "/channels?topic=coming")[1] == {"channels": ["c", "d"]}
    assert producers(shared, "coming") == ["comes-and-goes"]
    peer.send(b"UNREGISTER coming d\n")
    assert peer.reply() == b"OK"
    peer.close()
    until(shared, "coming", [])
    assert ask(shared, "/lookup?topic=coming")[1]["channels"] == ["c", "d"]


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER\n", b"E_INVALID client must IDENTIFY"),
        (b"NOTHING x\n", b"E_INVALID invalid command NOTHING"),
        (b"\n", b"E_INVALID invalid command "),
        (b"N\xff\n", b"E_INVALID invalid command N\xff"),
        (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n\0\0\0\x02{}", b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n\0\0\0\x04null", b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY body of -1 bytes, at most %d" % MAX_BODY_BYTES),
        (b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body of 2147483647 bytes, at most %d" % MAX_BODY_BYTES),
        (b"IDENTIFY\n\0\0\x10\1", b"E_BAD_BODY IDENTIFY body of 4097 bytes, at most 4096"),
        (b"x" * 1025, b"E_INVALID line longer than 1024 bytes"),
    ],
)
def test_every_error_ends_the_connection(peer: Peer, sent: bytes, refusal: bytes) -> None:
    peer.send(sent + b"PING\n")
    assert peer.reply() == refusal
    assert peer.is_closed()


@pytest.mark.parametrize("port", [1 << 63, -(1 << 63) - 1, 10**30])
def test_a_port_that_no_consumer_can_read_is_refused(peer: Peer, port: int) -> None:
    """Go's JSON refuses the whole answer, with all other producers in it."""
    assert peer.identify(http_port=port) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\1", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\0\0\0\5nul", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_a_body_that_is_cut_short_is_refused(peer: Peer, sent: bytes, refusal: bytes) -> None:
    peer.send(sent)
    peer.sock.shutdown(socket.SHUT_WR)
    assert peer.reply() == refusal
    assert peer.is_closed()


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"REGISTER a$b\n", b"E_BAD_TOPIC REGISTER topic name 'a$b' is not valid"),
        (b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"UNREGISTER t \xfc\n", b"E_BAD_CHANNEL UNREGISTER channel name '\xfc' is not valid"),
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
    ],
)
def test_errors_of_a_producer(peer: Peer, sent: bytes, refusal: bytes) -> None:
    peer.identify()
    peer.send(sent)
    assert peer.reply() == refusal
    assert peer.is_closed()


def test_another_protocol_is_refused_and_named_in_the_log(
    shared: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(Peer(shared, magic=b"  V2")) as lost:
        assert lost.reply() == b"E_BAD_PROTOCOL"
        assert lost.is_closed()
    assert "the client speaks NSQ's protocol, which nsq.tcp_address takes" in caplog.text


def test_a_consumer_at_the_producers_port_is_named_in_the_log(
    shared: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """lookupd_http_addresses with 4160 for 4161."""
    with contextlib.closing(Peer(shared, magic=b"GET /lookup?topic=t HTTP/1.1\r\n\r\n")) as lost:
        assert lost.reply() == b"E_BAD_PROTOCOL"
    assert "the client speaks HTTP, which nsq.http_address, registry.nsq_http_address," in caplog.text


def test_a_producer_of_nsqlookupd_at_nsqd_s_port_is_named_in_the_log(
    shared: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = shared.nsq_tcp.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as lost:
        lost.sendall(MAGIC)
        assert b"E_BAD_PROTOCOL" in lost.recv(100)
    assert "the client speaks nsqlookupd's protocol, which registry.nsq_tcp_address takes" in caplog.text


def test_many_commands_of_one_producer_are_answered_in_order(shared: RunningBroker, peer: Peer) -> None:
    peer.identify()
    peer.send(b"".join(b"REGISTER many c%d\n" % number for number in range(20_000)))
    assert ask(shared, "/ping")[0] == 200
    assert all(peer.reply() == b"OK" for _ in range(20_000))
    assert len(ask(shared, "/channels?topic=many")[1]["channels"]) == 20_000


def test_a_peer_that_reads_no_replies_is_cut() -> None:
    """What waits for it is bounded: its commands are read no more."""
    with broker(remoting__address="", registry__idle_timeout_ms="1s", registry__nsq_silent_ms="100ms") as running:
        deaf = Peer(running)
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ConnectionError):
            deaf.send(b"PING\n" * (16 << 20))
        deaf.close()
        assert ask(running, "/ping") == (200, b"OK")


def test_a_silent_producer_is_hidden_heard_again_and_in_the_end_cut() -> None:
    """nsqlookupd would keep a dead connection for ever."""
    with broker(remoting__address="", registry__idle_timeout_ms="1s", registry__nsq_silent_ms="700ms") as running:
        quiet = Peer(running)
        quiet.identify()
        quiet.send(b"REGISTER quiet\n")
        quiet.reply()
        until(running, "quiet", [])
        quiet.send(b"PING\n")
        assert quiet.reply() == b"OK"
        until(running, "quiet", ["producer"])
        assert quiet.is_closed()
        quiet.close()


def test_more_connections_than_may_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookupd_server, "MAX_CONNECTIONS", 1)
    with broker(nsq__tcp_address="", nsq__http_address="") as running:
        one = Peer(running)
        assert one.identify()
        more = Peer(running)
        assert more.reply() == b"E_TOO_MANY_CONNECTIONS"
        assert more.is_closed()
        more.close()
        one.send(b"PING\n")
        assert one.reply() == b"OK"
        one.close()
    assert "connections refused at the limit" in caplog.text


def test_one_that_was_refused_has_its_place_until_it_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else peers that are refused and stay for their last words were as many as they like."""
    monkeypatch.setattr(lookupd_server, "MAX_CONNECTIONS", 1)
    with broker(nsq__tcp_address="", nsq__http_address="") as running:
        refused = Peer(running, magic=b"  V2")
        assert refused.reply() == b"E_BAD_PROTOCOL"
        more = Peer(running)
        assert more.reply() == b"E_TOO_MANY_CONNECTIONS"
        more.close()
        refused.close()


def test_a_stop_beside_one_that_was_refused_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """It stays for its last words, and is cut."""
    with broker(remoting__address="", nsq__tcp_address="", nsq__http_address="") as running:
        refused = Peer(running, magic=b"  V2")
        assert refused.reply() == b"E_BAD_PROTOCOL"
        running.stop()
        assert refused.is_closed()
        refused.close()
    assert [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"] == []


def test_too_many_topics_are_refused_with_the_setting_s_name() -> None:
    with broker(registry__max_topics=1, nsq__tcp_address="", nsq__http_address="") as running:
        greedy = Peer(running)
        greedy.identify()
        greedy.send(b"REGISTER one\nREGISTER two\n")
        assert greedy.reply() == b"OK"
        assert b"limit of 1 topics (registry.max_topics)" in greedy.reply()
        assert greedy.is_closed()
        greedy.close()
        assert ask(running, "/topic/create?topic=three", "POST") == (503, {"message": "EXITING"})


def test_what_is_registered_and_refused_is_counted(shared: RunningBroker, peer: Peer) -> None:
    peer.identify()
    peer.send(b"REGISTER counted c\nNOTHING\n")
    assert peer.reply() == b"OK"
    peer.reply()
    with urlopen(f"http://{shared.admin}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(samples['headrace_registry_nsq_requests_total{command="REGISTER"}']) >= 1
    assert float(samples["headrace_registry_nsq_topics"]) >= 1
    assert float(samples["headrace_registry_nsq_channels"]) >= 1
    assert float(samples['headrace_net_refusals_total{cause="E_INVALID",listener="nsqlookupd_tcp"}']) >= 1
    assert 'headrace_net_open_connections{listener="nsqlookupd_tcp"}' in samples
    assert float(samples['headrace_net_http_requests_total{listener="nsqlookupd_http"}']) >= 0


def test_a_default_port_that_is_taken_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that has worked before there was this listener must go on working; an address that was set is refused."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_tcp_address": address})
        assert bind_listener("nsqlookupd_tcp", address, free_port=False) is None
        assert f"its default address is taken name=nsqlookupd_tcp address={address}" in caplog.text
        with pytest.raises(Exception, match=r"is taken .*--registry.nsq-http-address"):
            bind_listener("nsqlookupd_http", address, free_port=False)


def test_nothing_of_it_is_there_where_it_is_switched_off() -> None:
    with broker(registry__nsq_tcp_address="", registry__nsq_http_address="") as running:
        assert not running.nsqlookupd_http
        assert not any(name.startswith("nsqlookupd") for name in running.listeners)
    with broker(registry__enabled=False) as running:
        assert not any(name.startswith("nsqlookupd") for name in running.listeners)
    with broker(registry__nsq_http_address="") as running, contextlib.closing(Peer(running)) as alone:
        assert json.loads(alone.identify())["http_port"] == 0
