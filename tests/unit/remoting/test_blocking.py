"""The blocking client: requests, pipelining, what a bad server does to it, and the cluster behind a registry."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import testing
from headrace.errors import (
    ConnectionLostError,
    RemotingRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from headrace.remoting.blocking import BlockingClient, Cluster, QueueData, QueueStats, Request, require
from headrace.remoting.blocking.connection import FrameTooLargeError
from headrace.remoting.codec import Command, decode_command, encode_request, encode_response
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.signature import is_signed_with
from tests.support.offsets import update_offset
from tests.support.records import decode_messages
from tests.support.remoting import RemotingSocket, send_fields

Script = Callable[[socket.socket], None]


class ScriptedServer:
    """Accepts connections and has a script talk to each, in a thread."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with connection, contextlib.suppress(OSError):  # the client went away
                self._script(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing does not
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def read_request(connection: socket.socket) -> Command | None:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    rest = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
    return decode_command(head + rest)


def echo(connection: socket.socket) -> None:
    """Answer each request with its own body, code 0."""
    while (request := read_request(connection)) is not None:
        connection.sendall(encode_response(0, request.opaque, 0, None, {"code": request.code}, request.body or None))


Serve = Callable[[Script], ScriptedServer]


def test_request_gets_its_response(serve: Serve) -> None:
    with BlockingClient(serve(echo).address) as client:
        for size in (0, 1, 70_000, 3_000_000):
            response = client.call(310, {"a": "b"}, b"x" * size)
            assert (response.code, response.ext, response.body) == (0, {"code": "310"}, b"x" * size)
        assert client.call(29).is_response


def test_many_requests_are_answered_in_their_order(serve: Serve) -> None:
    """The server answers each window backwards."""

    def backwards(connection: socket.socket) -> None:
        for _ in range(3):
            window = [read_request(connection) for _ in range(4)]
            for request in reversed(window):
                assert request is not None
                connection.sendall(encode_response(0, request.opaque, 0, None, None, request.body))
        echo(connection)

    with BlockingClient(serve(backwards).address) as client:
        # The client sends one more as soon as it has the first answer of a window; that one stays the window's last.
        sent: list[Request] = [(10, {}, b"%d" % number) for number in range(12)]
        assert [answer.body for answer in client.call_many(sent, window=4)] == [body for _, _, body in sent]
        assert client.call(10, {}, b"next").body == b"next"


def test_no_more_than_the_window_is_under_way(serve: Serve) -> None:
    asked: list[int] = []

    def requests() -> Iterator[tuple[int, dict[str, str], bytes]]:
        for number in range(20):
            asked.append(number)
            yield 10, {}, b""

    with BlockingClient(serve(echo).address) as client:
        for count, _ in enumerate(client.call_many(requests(), window=3), 1):
            assert len(asked) <= count + 2
        assert len(asked) == 20
        assert list(client.call_many([])) == []


def test_who_stops_in_the_middle_loses_the_connection_only(serve: Serve) -> None:
    server = serve(echo)
    with BlockingClient(server.address) as client:
        answers = client.call_many([(10, {}, b"%d" % number) for number in range(9)])
        assert next(answers).body == b"0"
        answers.close()  # type: ignore[attr-defined]
        assert client.call(10, {}, b"mine").body == b"mine"
    assert server.accepted == 2


def test_request_between_pipelined_ones_gets_a_connection_of_its_own(serve: Serve) -> None:
    """Never an answer that is not its own; the pipelined ones are told."""
    server = serve(echo)
    with BlockingClient(server.address) as client:
        answers = client.call_many([(10, {}, b"%d" % number) for number in range(20)], window=8)
        assert next(answers).body == b"0"
        assert client.call(10, {}, b"between").body == b"between"
        with pytest.raises(ConnectionLostError, match="under way"):
            list(answers)
        assert client.call(10, {}, b"after").body == b"after"
    assert server.accepted == 2


def test_interrupted_request_loses_the_connection_only(serve: Serve) -> None:
    """A server would take the next request for the rest of one that was not sent to its end."""
    interrupted = threading.Event()
    caller = threading.get_ident()

    def slow_at_first(connection: socket.socket) -> None:
        if interrupted.is_set():
            echo(connection)
            return
        assert connection.recv(1)  # some of the request, of which the rest waits for room
        signal.pthread_kill(caller, signal.SIGALRM)
        interrupted.wait(10)
        while connection.recv(1 << 20):
            pass

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    server = serve(slow_at_first)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with BlockingClient(server.address, timeout_s=5) as client:
            with pytest.raises(KeyboardInterrupt):
                client.call(10, {}, bytes(32 << 20))
            interrupted.set()
            assert client.call(10, {}, b"next").body == b"next"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert server.accepted == 2


def test_posted_requests_are_taken_in_any_order_and_lost_together(serve: Serve) -> None:
    def one_of_two(connection: socket.socket) -> None:
        first, second = read_request(connection), read_request(connection)
        if first is not None and second is not None:
            connection.sendall(encode_response(0, second.opaque, 0))

    with BlockingClient(serve(one_of_two).address) as client:
        first = client.post(10, {}, b"1", fresh=True)
        second = client.post(10, {}, b"2", fresh=False)
        assert first != second
        assert client.take(10).opaque == second
        with pytest.raises(ConnectionLostError, match="closed by the server"):
            client.take(10)
        with pytest.raises(ConnectionLostError, match="under way"):
            client.post(10, {}, b"3", fresh=False)
        client.post(10, {}, b"4", fresh=True)


def test_silent_server_is_a_time_out_and_the_connection_is_given_up(serve: Serve) -> None:
    def late(connection: socket.socket) -> None:
        request = read_request(connection)
        assert request is not None
        time.sleep(0.3)
        connection.sendall(encode_response(0, request.opaque, 0, None, None, b"too late"))
        echo(connection)

    with BlockingClient(serve(late).address, timeout_s=0.1) as client:
        with pytest.raises(RequestTimeoutError, match=r"GET_MAX_OFFSET within 0\.1 s"):
            client.call(30)
        assert client.call(30, {}, b"", timeout_s=5.0).body in (b"", b"too late")


def test_trickling_server_does_not_stretch_the_time(serve: Serve) -> None:
    """The limit is for the whole answer, not for each piece of it."""

    def trickle(connection: socket.socket) -> None:
        request = read_request(connection)
        assert request is not None
        for byte in encode_response(0, request.opaque, 0, None, None, b"x" * 1_000):
            connection.sendall(bytes((byte,)))
            time.sleep(0.02)

    began = time.monotonic()
    with BlockingClient(serve(trickle).address, timeout_s=0.2) as client, pytest.raises(RequestTimeoutError):
        client.call(30)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed by the server"),
        (b"\x00\x00\x01", "closed by the server"),
        (struct.pack(">ii", 5_000, 3) + b"{}", "closed by the server"),
        (struct.pack(">iI", 8, 100), "bad frame"),
        (struct.pack(">iI", 8, 4) + b"[[[[", "bad frame"),
    ],
)
def test_broken_answers_are_a_lost_connection(serve: Serve, answer: bytes, reason: str) -> None:
    def broken(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)

    with BlockingClient(serve(broken).address) as client, pytest.raises(ConnectionLostError, match=reason):
        client.call(30)


@pytest.mark.parametrize("size", [(65 << 20) + 1, 1 << 30])
def test_answer_that_is_too_large_is_an_error_of_its_own(serve: Serve, size: int) -> None:
    """It is no lost connection, which a reader asks again after: the answer would be the same."""

    def boast(connection: socket.socket) -> None:
        while read_request(connection) is not None:
            connection.sendall(struct.pack(">iI", size, 4))

    server = serve(boast)
    with BlockingClient(server.address) as client:
        for ask in (lambda: client.call(30), lambda: list(client.call_many([(30, {}, b"")] * 3))):
            with pytest.raises(
                FrameTooLargeError, match=f"{server.address} answers with a frame of {size} bytes"
            ) as hit:
                ask()
            assert hit.value.frame_bytes == size
            assert not isinstance(hit.value, ConnectionLostError)


def test_the_largest_message_fits_an_answer(serve: Serve) -> None:
    """64 MiB is the most that remoting.max_message_bytes and nsq.max_body_bytes can be."""
    record = b"9" * ((64 << 20) + (40 << 10))

    def answer(connection: socket.socket) -> None:
        request = read_request(connection)
        assert request is not None
        connection.sendall(encode_response(0, request.opaque, 0, None, {"nextOffset": "5"}, record))

    with BlockingClient(serve(answer).address, timeout_s=30) as client:
        assert len(client.call(30).body) == len(record)


def test_requests_of_the_server_are_passed_over(serve: Serve) -> None:
    """remoting.md 1.4: their numbers are a space of their own."""
    refused: list[Command | None] = []

    def asks(connection: socket.socket) -> None:
        request = read_request(connection)
        assert request is not None
        connection.sendall(encode_request(0, 40, request.opaque, True, {"consumerGroup": "G"}))
        connection.sendall(encode_request(0, 39, request.opaque, False))
        refused.append(read_request(connection))
        connection.sendall(encode_response(0, request.opaque + 1_000, 0))
        connection.sendall(encode_response(0, request.opaque, 0, None, None, b"answer"))
        echo(connection)

    with BlockingClient(serve(asks).address) as client:
        assert client.call(30).body == b"answer"
    assert refused[0] is not None
    assert refused[0].code == 3


def test_connection_that_was_closed_while_idle_is_made_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.remoting.blocking.connection._IDLE_CHECK_S", 0.0)

    def once(connection: socket.socket) -> None:
        request = read_request(connection)
        assert request is not None
        connection.sendall(encode_response(0, request.opaque, 0))

    server = serve(once)
    with BlockingClient(server.address) as client:
        client.call(30)
        time.sleep(0.05)
        client.call(30)
    assert server.accepted == 2


def test_requests_are_signed(serve: Serve) -> None:
    seen: list[Command] = []

    def look(connection: socket.socket) -> None:
        while (request := read_request(connection)) is not None:
            seen.append(request)
            connection.sendall(encode_response(0, request.opaque, 0))

    with BlockingClient(serve(look).address, access_key="AK", secret_key="secret") as client:
        client.call(30, {"topic": "T"}, b"body")
    assert seen[0].ext["AccessKey"] == "AK"
    assert is_signed_with("secret", seen[0].ext, b"body")
    with pytest.raises(ValueError, match="belong together"):
        BlockingClient("h:1", access_key="AK")


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with BlockingClient(f"127.0.0.1:{port}") as client, pytest.raises(ConnectionLostError, match="refused"):
        client.call(30)


@pytest.mark.parametrize("address", ["", "host", "host:", ":9876", "host:0", "host:70000", "host:x"])
def test_addresses(address: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|servers is empty"):
        BlockingClient(address)
    with pytest.raises(ValueError, match=r"host:port|servers is empty"):
        Cluster(address)


# -- the cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__durability="async", broker__name="broker-a") as running:
        with RemotingSocket(running.remoting) as producer:
            for number in range(10):
                tag = {"TAGS": "odd" if number % 2 else "even"}
                header, _ = producer.call(310, send_fields("Trips", properties=tag), b"%d" % number)
                assert header["code"] == 0
        yield running


@pytest.fixture
def cluster(broker: testing.RunningBroker) -> Iterator[Cluster]:
    with Cluster(broker.registry) as found:
        yield found


def test_topics_routes_and_brokers(broker: testing.RunningBroker, cluster: Cluster) -> None:
    """A-BROKER-05: a client has the brokers' addresses from the registry."""
    assert "Trips" in cluster.topics()
    assert cluster.brokers() == {"broker-a": broker.remoting}
    route = cluster.route("Trips")
    assert route.brokers == {"broker-a": {0: broker.remoting}}
    assert route.queues == (QueueData("broker-a", 4, 4, 6),)
    with pytest.raises(RouteNotFoundError, match="'NoSuch'"):
        cluster.route("NoSuch")
    with pytest.raises(RouteNotFoundError, match="'broker-z'"):
        cluster.max_offset("broker-z", "Trips", 0)


def test_pull(cluster: Cluster) -> None:
    found = cluster.pull("broker-a", "G", "Trips", 0, 0, 4)
    assert [message["body"] for message in decode_messages(found.records)] == [b"0", b"1", b"2", b"3"]
    assert (found.code, found.next_offset, found.min_offset, found.max_offset) == (0, 4, 0, 10)
    odd = cluster.pull("broker-a", "G", "Trips", 0, 0, 32, tags="odd || none")
    assert [message["body"] for message in decode_messages(odd.records)] == [b"1", b"3", b"5", b"7", b"9"]
    assert cluster.pull("broker-a", "G", "Trips", 0, 10).code == 19
    moved = cluster.pull("broker-a", "G", "Trips", 0, 99)
    assert (moved.code, moved.next_offset, moved.records) == (21, 10, b"")
    with pytest.raises(RemotingRefusedError, match="code 17") as refused:
        cluster.pull("broker-a", "G", "NoSuch", 0, 0)
    assert refused.value.code == 17


def test_offsets(broker: testing.RunningBroker, cluster: Cluster) -> None:
    assert (cluster.min_offset("broker-a", "Trips", 0), cluster.max_offset("broker-a", "Trips", 0)) == (0, 10)
    assert cluster.search_offset("broker-a", "Trips", 0, 0) == 0
    assert cluster.search_offset("broker-a", "Trips", 0, 1 << 42) == 10
    assert cluster.query_offset("broker-a", "Fresh", "Trips", 0) is None
    update_offset(cluster, "broker-a", "Fresh", "Trips", 0, 7)
    assert cluster.query_offset("broker-a", "Fresh", "Trips", 0) == 7
    stats = cluster.topic_stats(broker.remoting, "Trips")
    assert list(stats) == [0, 1, 2, 3]
    assert stats[1] == QueueStats(0, 0, 0)
    assert stats[0].max_offset == 10
    assert stats[0].last_update_ms > 1_700_000_000_000


def test_group_is_announced(broker: testing.RunningBroker, cluster: Cluster) -> None:
    """Its retry topic is there, for mqadmin; nobody is left in the group."""
    cluster.announce_group("broker-a", "Announced", ["Trips"])
    client = cluster.client(broker.remoting)
    assert client.call(351, {"topic": "%RETRY%Announced"}).code == 0
    assert client.call(203, {"consumerGroup": "Announced"}).code == 206


def test_durable_commit_is_on_disk_when_it_is_answered(broker: testing.RunningBroker, cluster: Cluster) -> None:
    """extensions.md, UPDATE_CONSUMER_OFFSET."""
    path = Path(broker.data_dir, "config", "consumerOffset.json")
    for offset in range(3, 7):
        update_offset(cluster, "broker-a", "Kept", "Trips", 0, offset, durable=True)
        assert json.loads(path.read_text())["offsetTable"]["Trips@Kept"] == {"0": offset}


def test_what_a_queue_that_is_gone_had_is_forgotten(cluster: Cluster) -> None:
    """extensions.md, UPDATE_CONSUMER_OFFSET: the last of several may be of a topic that was deleted meanwhile."""
    ext = {"consumerGroup": "Trips", "topic": "Nowhere", "queueId": "7", "commitOffset": "0", "forget": "true"}
    cluster.ask("broker-a", RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "durable": "true"})
    with pytest.raises(RemotingRefusedError, match=r"topic\[Nowhere\] has no queue 7"):
        cluster.ask("broker-a", RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "forget": "false"})


def test_reader_state_of_a_broker_without_it_is_none(serve: Serve) -> None:
    def refuse_all(connection: socket.socket) -> None:
        while (request := read_request(connection)) is not None:
            connection.sendall(encode_response(0, request.opaque, 3, "request type not supported"))

    server = serve(refuse_all)
    with Cluster(server.address) as cluster:
        assert cluster.reader_state(server.address, b"{}") is None
        with pytest.raises(RemotingRefusedError):
            cluster.topics()


def test_a_broker_in_the_place_of_a_registry_is_named_as_one(broker: testing.RunningBroker) -> None:
    with Cluster(broker.remoting) as mistaken:
        for ask in (mistaken.brokers, mistaken.topics, lambda: mistaken.route("orders")):
            with pytest.raises(RemotingRefusedError, match=rf"^{broker.remoting} .*: name a registry, host:9876$"):
                ask()


def test_registry_that_does_not_answer_is_passed_over(broker: testing.RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    with Cluster(f"{dead}; {broker.registry}") as cluster:
        assert "Trips" in cluster.topics()
        assert "Trips" in cluster.topics()
    with Cluster(f"{dead};{dead}") as nobody, pytest.raises(ConnectionLostError, match=dead):
        nobody.topics()


@pytest.mark.parametrize("answers", ["nobody", "an empty one"])
def test_a_broker_is_asked_where_it_was_while_the_registry_does_not_know(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answers: str
) -> None:
    """A registry that is down says nothing of brokers, nor does one that was just started: they register in time.

    That registries are away is said once, until they answer again.
    """
    tables: list[dict[str, str] | None] = [{"a": "h:1", "b": "h:2"}]

    def registry(connection: socket.socket) -> None:
        while (request := read_request(connection)) is not None:
            table = tables[0]
            if table is None:
                return
            rows = {name: {"brokerName": name, "brokerAddrs": {"0": address}} for name, address in table.items()}
            body = json.dumps({"brokerAddrTable": rows}).encode()
            connection.sendall(encode_response(0, request.opaque, 0, None, None, body))

    monkeypatch.setattr("headrace.remoting.blocking.cluster._ROUTES_AGE_S", 0.0)
    with Cluster(serve(registry).address, timeout_s=1) as cluster:
        assert cluster.broker_address("b") == "h:2"
        tables[0] = None if answers == "nobody" else {}
        assert cluster.broker_address("b") == "h:2"
        assert cluster.broker_address("a") == "h:1"
        assert caplog.text.count("registries do not answer") == (answers == "nobody")
        if answers != "nobody":
            assert cluster.brokers() == {}  # what the registry says is what it says
        with pytest.raises(ConnectionLostError if answers == "nobody" else RouteNotFoundError):
            cluster.broker_address("c")
        tables[0] = {"a": "h:2"}  # another one is there now
        with pytest.raises(RouteNotFoundError, match="'b'"):
            cluster.broker_address("b")
        tables[0] = {"a": "h:2", "b": "h:3"}
        assert cluster.broker_address("b") == "h:3"


def test_a_registry_that_was_just_started_does_not_hide_what_the_others_know(
    serve: Serve, broker: testing.RunningBroker
) -> None:
    """Brokers register within half a minute, and with all of their topics at once."""
    asked = []

    def ignorant(connection: socket.socket) -> None:
        while (request := read_request(connection)) is not None:
            asked.append(request.code)
            if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                connection.sendall(encode_response(0, request.opaque, 0, None, None, b'{"brokerAddrTable":{}}'))
            else:
                code = int(ResponseCode.TOPIC_NOT_EXIST)
                connection.sendall(encode_response(0, request.opaque, code, "No topic route info"))

    started = serve(ignorant).address
    with Cluster(f"{started};{broker.registry}") as cluster:
        assert cluster.brokers()
        assert len(cluster.route("Trips").queues) == 1
        assert asked == [RequestCode.GET_BROKER_CLUSTER_INFO]  # the one that knew is asked first from then on
        with pytest.raises(RouteNotFoundError):
            cluster.route("NoSuchTopic")
    with Cluster(f"{started};{started}") as nobody:
        assert nobody.brokers() == {}
        with pytest.raises(RouteNotFoundError):
            nobody.route("Trips")


def test_forked_process_makes_its_own_connections(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.topics()
    before = dict(cluster._clients)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    assert "Trips" in cluster.topics()
    assert all(cluster._clients.get(address) is not client for address, client in before.items())


def test_require() -> None:
    good, bad = Command(0), Command(1, remark="no")
    assert require(good, "a:1") is good
    with pytest.raises(RemotingRefusedError, match="a:1 refused with code 1: no"):
        require(bad, "a:1")
