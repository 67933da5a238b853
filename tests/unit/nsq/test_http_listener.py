"""The HTTP listener inside a loop: framing, bounds and stopping (nsq.md 3.1)."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest
import uvloop

from headrace.errors import MessageTooLargeError, ProtocolError
from headrace.net.http import (
    INCOMPLETE,
    LEFT,
    MAX_HEAD_BYTES,
    TAKEN,
    BodyReader,
    HttpCounters,
    HttpLimits,
    HttpListener,
)
from headrace.net.http_connection import BoundedConnection
from headrace.net.http_server import STOP_GRACE_SECONDS
from headrace.net.request_parser import RequestParser

MAX_BODY = 100_000


class Echo:
    """Answers with the body, or 413; keeps what it saw."""

    def __init__(self, limits: HttpLimits) -> None:
        self.bodies = BodyReader(limits)
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, content = 200, b""
        try:
            async with self.bodies.read(receive, MAX_BODY) as body:
                content = body
        except MessageTooLargeError:
            status = 413
        except ProtocolError:
            return
        await self.release.wait()
        content = b"%d %s" % (len(content), scope["path"].encode()) + b"x" * int(scope["query_string"] or b"0")
        headers = [(b"Content-Length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


Scenario = Callable[[HttpListener, Echo], Awaitable[None]]


class FakeShortcut:
    """Takes over what begins with ``S``: whole when it ends in ``!``. The test answers."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, bytes]] = []
        self.ended = 0
        self.at_once = False

    def take(self, connection: Any, data: bytes) -> int:
        if not data.startswith(b"S"):
            return LEFT
        if not data.endswith(b"!"):
            return INCOMPLETE
        connection.attached = self
        self.taken.append((connection, data))
        if self.at_once:
            self.answer()
        return TAKEN

    def answer(self, *, is_last: bool = False) -> None:
        connection, data = self.taken.pop(0)
        connection.answer(b"<%s>" % data, is_last=is_last)

    def end(self) -> None:
        self.ended += 1


def serve(
    scenario: Scenario, shortcut: FakeShortcut | None = None, *, loop_factory: Any = None, **limits: Any
) -> HttpListener:
    """Run ``scenario`` against a listener on a free port, then stop the listener."""

    async def run() -> HttpListener:
        bounds = HttpLimits(**limits)
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        app = Echo(bounds)
        listener = HttpListener("test", app, sock, limits=bounds, counters=HttpCounters(), shortcut=shortcut)
        await listener.start()
        try:
            await asyncio.wait_for(scenario(listener, app), 10)
        finally:
            app.release.set()
            await asyncio.wait_for(listener.stop(), 10)
        return listener

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event; the caller's time limit ends it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def talk(listener: HttpListener, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send ``pieces`` on a new connection and return everything until the peer closes."""
    reader, writer = await asyncio.open_connection(*listener.address)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    if half_close:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def test_connections_that_wait_are_accepted_together() -> None:
    """Not one in a turn of the loop: while NSQ's clients send much 200 that came at once waited half a minute."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        clients = [socket.create_connection(listener.address) for _ in range(100)]
        for _ in range(10):
            await asyncio.sleep(0)  # a turn
        accepted = listener.open_connections
        for client in clients:
            client.close()
        await until(lambda: not listener.open_connections)
        assert accepted == len(clients)

    serve(scenario, loop_factory=uvloop.new_event_loop)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://host:1/a%20b?3", "/a b"),
        ("HTTP://host?3", "/"),
        ("https://host/a?3", "/a"),
        ("/http://x/y?3", "/http://x/y"),
    ],
)
def test_a_request_may_name_a_url(target: str, path: str) -> None:
    """RFC 9112, 3.2.2: servers must accept the absolute form; nsqd does."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        answer = await talk(listener, f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        assert answer.endswith(f"0 {path}xxx".encode())

    serve(scenario)


def test_chunked_bodies() -> None:
    """nsq.md 3.1: chunked encoding, cut anywhere."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        request = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        request += b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        assert (await talk(listener, *[request[i : i + 1] for i in range(len(request))])).endswith(b"5 /a")

    assert serve(scenario).counters.requests == 1


def test_expect_100_continue() -> None:
    """nsq.md 3.1: curl waits for 100 Continue before it sends a larger body."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert b" 200 OK" in await reader.readuntil(b"3 /a")
        writer.close()

    serve(scenario)


def test_refused_body_leaves_the_connection_in_step() -> None:
    """A body above the limit is read and thrown away; the next request on the connection works."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        large = b"x" * (MAX_BODY * 3)
        first = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(large)
        second = b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await talk(listener, first, large, second)
        assert b" 413 " in answer
        assert answer.endswith(b"0 /b")
        assert app.bodies.bytes_in_memory == 0

    serve(scenario)


def test_pipelined_requests_are_answered_in_order_after_half_close() -> None:
    """A peer that shuts its sending side down still gets its answers, as from Go's server."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        answer = await talk(
            listener, b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True
        )
        assert answer.count(b" 200 OK") == 2
        assert answer.index(b"0 /1") < answer.index(b"0 /2")

    serve(scenario)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /a HTTP/1.0\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
    ],
)
@pytest.mark.parametrize("behind", [b"\r\n", b"x", b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_what_comes_behind_a_request_that_is_the_last_is_passed_over(head: bytes, behind: bytes) -> None:
    """It was answered 400 where these bytes came before its answer was made, though it was carried out."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        app.release.clear()
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(head + b"Content-Length: 3\r\n\r\nabc")
        await until(lambda: app.bodies.bytes_in_memory == 0 and listener.counters.requests == 1)
        writer.write(behind)
        await asyncio.sleep(0.05)
        app.release.set()
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"3 /a")

    assert not serve(scenario).counters.refusals


@pytest.mark.parametrize("pieces", ["one", "each", "apart", "bytes"])
@pytest.mark.parametrize("chunked", [False, True])
def test_empty_lines_behind_a_body_are_passed_over(pieces: str, *, chunked: bool) -> None:
    """RFC 9112 2.2, and Go's server: some clients send one, and their connection goes on."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        framing = (
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" if chunked else b"Content-Length: 3\r\n\r\nabc"
        )
        first = b"POST /a HTTP/1.1\r\nHost: x\r\n" + framing
        last = b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        whole = [first, b"\r\n", first, b"\n", b"\r\n\r\n", last]
        sent = {
            "one": [b"".join(whole)],
            "each": [first + b"\r\n", first + b"\n", b"\r\n\r\n" + last],
            "apart": whole,
            "bytes": [bytes([byte]) for byte in b"".join(whole)],
        }
        answer = await talk(listener, *sent[pieces])
        assert answer.count(b" 200 OK") == 3
        assert answer.endswith(b"0 /b")

    assert not serve(scenario).counters.refusals


def test_half_close_within_a_body_ends_the_connection() -> None:
    """An incomplete request is not answered and keeps nothing."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        assert (
            await talk(listener, b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", half_close=True) == b""
        )
        await until(lambda: not app.bodies.bytes_in_memory)

    serve(scenario)


@pytest.mark.parametrize(
    ("rest", "answers"),
    [
        (b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", 1),
        (b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", 1),
        (b"POST /b HTT", 1),
        (b"GET /b HTTP/1.1\r\nHost : x\r\n\r\n", 2),
    ],
)
def test_half_close_behind_a_request_with_one_that_will_not_be_whole(rest: bytes, answers: int) -> None:
    """The end of file comes while the first is answered: the connection stayed for another 30 s, or a second."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        app.release.clear()
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" + rest)
        writer.write_eof()
        await until(lambda: any(each._peer_done for each in listener._server.server_state.connections))
        app.release.set()
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 ") == answers
        assert answer.startswith(b"HTTP/1.1 200 OK")
        async with asyncio.timeout(0.5):
            await until(lambda: not listener.open_connections)
        writer.close()
        await until(lambda: not app.bodies.bytes_in_memory)

    serve(scenario)


@pytest.mark.parametrize(
    ("status", "garbage"),
    [
        (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        (400, "GÉT / HTTP/1.1\r\nHost: x\r\n\r\n".encode()),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (431, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * MAX_HEAD_BYTES),
        (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775808\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        (501, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"),
        (417, b"POST / HTTP/1.1\r\nHost: x\r\nExpect: banana\r\nContent-Length: 1\r\n\r\nx"),
        (400, b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x01b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x7f\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (505, b"GET / HTTP/0.9\r\nHost: x\r\n\r\n"),
        (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        (400, b"GET /a%zz HTTP/1.1\r\nHost: x\r\n\r\n"),
        (400, b"GET /a%2 HTTP/1.1\r\nHost: x\r\n\r\n"),
        (400, b"GET a HTTP/1.1\r\nHost: x\r\n\r\n"),
        (400, b"GET ?a HTTP/1.1\r\nHost: x\r\n\r\n"),
    ],
)
def test_malformed_requests(status: int, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Hostile input gets an error and a closed connection, is counted, and fills no log."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert (await talk(listener, garbage)).startswith(b"HTTP/1.1 %d " % status)

    assert serve(scenario).counters.refusals == {"malformed_request": 1}
    assert caplog.records == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.2\r\nHost: x\r\n",
        b"GET / HTTP/1.0\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n",
        b"GET /%41?0 HTTP/1.1\r\nHost:\r\n",
        b"GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]:80\r\nX: a\tb\xff\r\n",
        b"GET https://h/?0 HTTP/1.1\r\nHost: h\r\n",
    ],
)
def test_unusual_heads_are_taken(head: bytes) -> None:
    """What is refused is what the rules of HTTP forbid, not what is rare."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert (await talk(listener, head + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")

    serve(scenario)


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize(("letter", "counted"), [(b"a", 1), (b"\xfc", 3)])
def test_a_head_may_have_64_kib_and_no_more(letter: bytes, counted: int, pieces: int) -> None:
    """One limit, however the head is cut; what is percent-encoded counts as such."""
    around = b"GET /", b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    async def ask(listener: HttpListener, size: int) -> bytes:
        letters, rest = divmod(size - sum(map(len, around)), counted)
        head = around[0] + b"a" * rest + letter * letters + around[1]
        step = -(-len(head) // pieces)
        return await talk(listener, *(head[at : at + step] for at in range(0, len(head), step)))

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert (await ask(listener, MAX_HEAD_BYTES)).startswith(b"HTTP/1.1 200 OK\r\n")
        refused = await ask(listener, MAX_HEAD_BYTES + 1)
        assert refused.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert refused.endswith(b"at most 65536 bytes before the body")

    serve(scenario)


def test_targets_may_be_raw() -> None:
    """Some clients send a target as it is; Go's server, and so nsqd, reads it."""
    request = "POST /grüß?3 HTTP/1.1\r\nHost: x\r\nX: ü\r\nContent-Length: 2\r\n\r\nü".encode()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        answer = await talk(listener, request * 2, *(request[i : i + 1] for i in range(len(request))), half_close=True)
        assert answer.count("2 /grüßxxx".encode()) == 3

    serve(scenario)


def test_a_refused_request_behind_another_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its moment to read why is no longer than that of the first request."""
    monkeypatch.setattr("headrace.net.http_connection.LINGER_SECONDS", 0.05)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1") == 2
        await until(lambda: not listener.open_connections)
        writer.close()

    serve(scenario)


def test_slow_heads_are_cut() -> None:
    """Slow loris."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET / HT")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        assert await talk(listener) == b""

    assert serve(scenario, request_seconds=0.05).counters.refusals == {"slow_request": 1}


def test_slow_heads_of_later_requests_are_cut() -> None:
    """A kept-alive connection may idle, but a request that has begun must come."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert b" 408 " in await talk(listener, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET")

    serve(scenario, request_seconds=0.05)


def test_a_request_that_came_in_time_is_not_late() -> None:
    """A loop that is long at its reads comes to its timers before it reads what came meanwhile."""

    class Slow(FakeShortcut):
        def take(self, connection: Any, data: bytes) -> int:
            if data == b"S!":
                time.sleep(0.4)
                other.send(GET)
            return super().take(connection, data)

    shortcut = Slow()
    shortcut.at_once = True
    other = socket.socket()
    other.setblocking(False)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(other, listener.address)
        _, writer = await asyncio.open_connection(*listener.address)
        await until(lambda: listener.open_connections == 2)
        writer.write(b"S!")
        answer = await loop.sock_recv(other, 1000)
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200 ")

    with other:
        serve(scenario, shortcut, loop_factory=uvloop.new_event_loop, request_seconds=0.3)


def test_idle_connections_are_closed() -> None:
    """A kept-alive connection does not stay for ever."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert (await talk(listener, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"0 /")

    assert serve(scenario, idle_seconds=0.05).counters.refusals == {}


def test_idle_connections_stay_for_as_long_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn's own limit, five seconds, does not end them sooner."""
    monkeypatch.setattr(
        BoundedConnection, "timeout_keep_alive", property(lambda _: 0.001, lambda _, _seconds: None), raising=False
    )

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"0 /")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.05)
        writer.close()

    serve(scenario)


def test_endless_rest_of_a_refused_body_is_cut() -> None:
    """What is thrown away has a deadline too."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n"
        assert b" 413 " in await talk(listener, head, b"x" * (MAX_BODY + 1))

    serve(scenario, body_seconds=0.1)


def test_answers_that_nobody_reads_are_cut() -> None:
    """A slow consumer never grows memory, nor keeps its place for ever."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _reader, writer = await asyncio.open_connection(*listener.address, limit=1)
        writer.write(b"GET /a?30000000 HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        await until(lambda: listener.counters.requests > 0)
        await until(lambda: not listener.open_connections)
        writer.close()

    assert serve(scenario, body_seconds=0.05).counters.refusals == {"slow_reader": 1}


@pytest.mark.parametrize("sizes", [(30, 15, 25), (15, 20, 60)], ids=["first", "last"])
def test_unread_answers_of_all_are_bounded(sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    """A thousand that ask for a long report and read nothing held a thousand of them; the one with most is cut."""
    peers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(listener: HttpListener, megabytes: int) -> None:
        reader, writer = await asyncio.open_connection(*listener.address, limit=1024)
        peers.append((reader, writer))
        writer.write(b"GET /?%d000000 HTTP/1.1\r\nHost: x\r\n\r\n" % megabytes)
        await until(lambda: listener.counters.requests == len(peers))

    async def read(number: int) -> bool:
        """Return whether all of an answer comes."""
        try:
            await peers[number][0].readuntil(b"\r\n\r\n")
            await peers[number][0].readexactly(sizes[number] * 1_000_000)
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        return True

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        for size in sizes:
            assert listener.counters.refusals == {}
            await ask(listener, size)
        await until(lambda: listener.counters.refusals == {"unread": 1} and listener.open_connections == 2)
        assert [await read(number) for number in range(3)] == [size != max(sizes) for size in sizes]

    async def closing(listener: HttpListener, app: Echo) -> None:
        try:
            await scenario(listener, app)
        finally:
            for _, writer in peers:
                writer.close()

    serve(closing, loop_factory=uvloop.new_event_loop, unread_bytes=51_000_000)
    assert "clients do not read what is sent" in caplog.text


def test_one_that_reads_slowly_alone_may_have_more() -> None:
    """It asked for it."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address, limit=1024)
        writer.write(b"GET /?30000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(30_000_000)) == 30_000_000
        writer.close()

    assert serve(scenario, unread_bytes=1_000_000).counters.refusals == {}


def test_slow_readers_that_do_read_are_served() -> None:
    """A large answer over a slow line takes longer than the limit, but never pauses for that long."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET /a?30000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        size = 0
        while chunk := await reader.read(1 << 20):
            size += len(chunk)
            await asyncio.sleep(0.005)
        assert size > 30_000_000
        writer.close()

    assert serve(scenario, body_seconds=0.5).counters.refusals == {}


def test_connections_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Above the bound 503, a counter, and one line of the log a minute."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET")
        await asyncio.sleep(0.01)
        assert (await talk(listener)).startswith(b"HTTP/1.1 503 ")
        await until(lambda: listener.open_connections == 1)
        writer.close()

    assert serve(scenario, connections=1).counters.refusals == {"too_many_connections": 1}
    assert caplog.text.count("connections refused at the limit client=127.0.0.1:") == 1


def test_refused_clients_can_read_why() -> None:
    """What a client sends after it was refused is thrown away: a reset would overtake the answer."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"GET")
        await asyncio.sleep(0.01)
        post = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
        assert (await talk(listener, post, *[bytes(100_000)] * 90)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        await until(lambda: not listener.open_connections)
        answer = await talk(listener, b"G\0T / HTTP/1.1\r\n\r\n", *[bytes(100_000)] * 90)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"Invalid HTTP request received.")

    refusals = serve(scenario, connections=1).counters.refusals
    assert refusals == {"too_many_connections": 1, "malformed_request": 1}


def test_refused_clients_that_stay_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused client has a moment to read why, however much it sends."""
    monkeypatch.setattr("headrace.net.http_connection.LINGER_SECONDS", 0.05)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        writers = [(await asyncio.open_connection(*listener.address))[1] for _ in range(5)]
        await until(lambda: sum(listener.counters.refusals.values()) == 4)
        await until(lambda: listener.open_connections == 1)
        for writer in writers:
            writer.close()

    serve(scenario, connections=1)


def test_refused_clients_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was refused and stays does not count, and few may: the next one is served as soon as there is room."""
    monkeypatch.setattr("headrace.net.http_connection.LINGER_SECONDS", 60.0)
    monkeypatch.setattr("headrace.net.http_connection.MAX_REFUSED", 2)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _reader, served = await asyncio.open_connection(*listener.address)
        served.write(b"GET")
        await asyncio.sleep(0.01)
        refused = [(await asyncio.open_connection(*listener.address))[1] for _ in range(3)]
        await until(lambda: sum(listener.counters.refusals.values()) == 3)
        served.close()
        await until(lambda: listener.open_connections == 2)  # of those refused no more may stay
        assert (await talk(listener, b"GET /a HTTP/1.0\r\n\r\n")).endswith(b"0 /a")
        for writer in refused:
            writer.close()

    serve(scenario, connections=1)


def test_refused_clients_that_are_gone_make_no_room() -> None:
    """However many were refused, no more than the limit are served at once."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _reader, served = await asyncio.open_connection(*listener.address)
        await until(lambda: listener.open_connections == 1)
        for _ in range(3):
            assert (await talk(listener)).startswith(b"HTTP/1.1 503 ")
            await until(lambda: listener.open_connections == 1)
        served.close()

    assert serve(scenario, connections=1, request_seconds=60.0).counters.refusals == {"too_many_connections": 3}


def test_a_body_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The connection was reset, and the log had a traceback."""
    parse = RequestParser.next_event

    def next_event(parser: RequestParser) -> Any:
        if parser.their_state is h11.SEND_BODY:
            raise MemoryError
        return parse(parser)

    monkeypatch.setattr(RequestParser, "next_event", next_event)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        answer = await talk(listener, b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"body")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.count(b"HTTP/1.1") == 1

    assert serve(scenario).counters.refusals == {"no_memory": 1}
    assert [record.getMessage().partition(" client=")[0] for record in caplog.records] == ["no memory, client refused"]


def test_a_read_without_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The loop had no memory for the read: it closes, and the log had a traceback for each."""

    class Socket(socket.socket):
        def recv(self, *arguments: Any) -> bytes:
            raise MemoryError

    monkeypatch.setattr(socket, "socket", Socket)  # of those that are accepted

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _, writer = await asyncio.open_connection(*listener.address)
        writer.close()
        await until(lambda: listener.counters.refusals["no_memory"] == 1)
        await until(lambda: listener.open_connections == 0)

    serve(scenario)
    assert [record.getMessage().partition(" client=")[0] for record in caplog.records] == ["no memory, client refused"]


def test_a_malformed_body_is_refused_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The request behind it is given up: no second answer, no traceback, and the client is cut after its moment."""
    monkeypatch.setattr("headrace.net.http_connection.LINGER_SECONDS", 0.05)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        await until(lambda: not listener.open_connections)
        writer.close()

    with caplog.at_level(logging.ERROR):
        assert serve(scenario).counters.refusals == {"malformed_request": 1}
    assert not caplog.records


def test_stop_lets_the_request_in_work_finish() -> None:
    """X-NSQ-14: the request in work is answered, idle connections are closed, nothing is accepted any more."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        app.release.clear()
        asking = asyncio.ensure_future(talk(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"))
        idle = asyncio.ensure_future(talk(listener))
        address = listener.address
        await until(lambda: listener.open_connections == 2 and listener.counters.requests == 1)
        stopping = asyncio.ensure_future(listener.stop())
        assert await idle == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        app.release.set()
        assert (await asking).endswith(b"0 /a")
        await stopping

    serve(scenario)


def test_a_connection_that_is_taken_up_behind_the_look_at_all_is_stopped_too() -> None:
    """It was accepted in the turn of the loop in which the stop began, and kept that for STOP_GRACE_SECONDS."""

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        loop = asyncio.get_running_loop()
        server = listener._server
        assert server is not None
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        protocol: Any = server.config.http_protocol_class
        stopping = asyncio.ensure_future(listener.stop())
        await until(lambda: not any(each.is_serving() for each in server.servers))
        with ours:
            await loop.connect_accepted_socket(
                lambda: protocol(config=server.config, server_state=server.server_state, app_state={}), theirs
            )
            assert listener.open_connections == 1
            await asyncio.wait_for(stopping, STOP_GRACE_SECONDS - 1)
            assert listener.open_connections == 0

    serve(scenario)


def test_it_is_a_guest() -> None:
    """No signal handler, no log configuration, no log lines."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], list(logging.root.handlers)

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        answer = await talk(listener, b"GET /a HTTP/1.0\r\n\r\n")
        assert b"server:" not in answer.lower()
        assert b"\r\nDate: " in answer
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], list(logging.root.handlers)
        assert during[1] == before[1]
        assert during[0][1] == before[0][1]

    serve(scenario)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before[0]


# -- a shortcut ------------------------------------------------------------------------------------------------------

GET: bytes = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


def test_what_comes_behind_a_request_that_is_taken_over_waits() -> None:
    """Answers leave in the order of their requests; what waits is not read further."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        await until(lambda: len(shortcut.taken) == 1)
        connection = shortcut.taken[0][0]
        writer.write(GET)
        await until(lambda: not connection.transport.is_reading())
        shortcut.answer()
        assert (await reader.readuntil(b"0 /x")).startswith(b"<S1!>HTTP/1.1 200 ")
        writer.write(b"S2!")
        await until(lambda: len(shortcut.taken) == 1)
        shortcut.answer()
        assert await reader.readexactly(5) == b"<S2!>"
        writer.close()

    counters = serve(scenario, shortcut).counters
    assert (counters.requests, counters.plain_requests) == (3, 2)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_taken_request_may_be_the_last(at_once: bool) -> None:
    """Connection: close; answered within the read or later."""
    shortcut = FakeShortcut()
    shortcut.at_once = at_once

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        if not at_once:
            await until(lambda: bool(shortcut.taken))
            shortcut.answer(is_last=True)
            assert await reader.read() == b"<S1!>"
        else:
            assert await reader.readexactly(5) == b"<S1!>"
        writer.close()
        await until(lambda: shortcut.ended == 1)

    serve(scenario, shortcut)


def test_a_peer_that_is_done_gets_the_answer_it_is_owed() -> None:
    """It has shut its sending side down: answered, then closed."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        writer.write_eof()
        await until(lambda: bool(shortcut.taken) and shortcut.taken[0][0]._peer_done)
        shortcut.answer()
        assert await reader.read() == b"<S1!>"
        writer.close()

    serve(scenario, shortcut)


def test_a_peer_that_is_gone_is_answered_nothing() -> None:
    """Its shortcut lets go of it, and an answer that comes later harms nobody."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        _, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        await until(lambda: bool(shortcut.taken))
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await until(lambda: shortcut.ended == 1)
        shortcut.answer()
        assert not listener.open_connections

    serve(scenario, shortcut)


def test_a_stop_waits_for_the_answer_that_is_owed() -> None:
    """What was published is answered before its connection ends."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        await until(lambda: bool(shortcut.taken))
        stopping = asyncio.create_task(listener.stop())
        await until(lambda: shortcut.taken[0][0]._is_leaving)
        assert not stopping.done()
        shortcut.answer()
        assert await reader.read() == b"<S1!>"
        writer.close()
        await stopping

    serve(scenario, shortcut)


def test_the_beginning_of_a_request_is_held_for_one_read() -> None:
    """Head and body apart are taken over; what comes in more pieces is the general code's."""
    shortcut = FakeShortcut()
    shortcut.at_once = True

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S")
        await until(lambda: listener._server is not None and bool(held(listener)))
        writer.write(b"2!")
        assert await reader.readexactly(5) == b"<S2!>"
        answer = await talk(listener, b"SET /x HTTP/1.1\r\n", b"Host: x\r\n", b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()

    serve(scenario, shortcut)


def held(listener: HttpListener) -> list[bytes]:
    assert listener._server is not None
    return [connection._held for connection in listener._server.server_state.connections if connection._held]


def test_what_is_held_too_long_is_the_general_codes() -> None:
    """Slow loris: its deadline is that of any head, and whoever bounds the rest is the application."""

    async def scenario(listener: HttpListener, app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"SET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        await until(lambda: bool(held(listener)))
        await until(lambda: listener.counters.requests == 1)
        assert not held(listener)
        writer.write(b"abc")
        assert (await reader.readuntil(b"3 /x")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    assert serve(scenario, FakeShortcut(), request_seconds=0.05).counters.plain_requests == 0


def test_an_end_behind_what_is_held() -> None:
    """An incomplete request is not answered; a whole one would be."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        assert await talk(listener, b"SET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n", half_close=True) == b""
        answer = await talk(listener, b"SET /x HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True)
        assert answer.startswith(b"HTTP/1.1 200 ")

    serve(scenario, shortcut)


def test_connections_idle_after_what_was_taken_over_are_closed() -> None:
    """A timer that was set for a shorter time looks again, one that comes too late is set anew."""
    shortcut = FakeShortcut()
    shortcut.at_once = True

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        begun = asyncio.get_running_loop().time()
        assert await talk(listener, b"S1!") == b"<S1!>"
        assert asyncio.get_running_loop().time() - begun >= 0.2

    assert serve(scenario, shortcut, request_seconds=0.05, idle_seconds=0.2).counters.refusals == {}


def test_who_is_owed_an_answer_is_not_idle() -> None:
    """The disk may take longer than a client may be idle."""
    shortcut = FakeShortcut()

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        for request in (b"S1!", b"S2!"):
            writer.write(request)
            await until(lambda: bool(shortcut.taken))
            await asyncio.sleep(0.5)
            shortcut.answer()
            assert await reader.readexactly(5) == b"<%s>" % request
        writer.close()

    assert serve(scenario, shortcut, request_seconds=0.3, idle_seconds=0.3).counters.refusals == {}


def test_a_slow_head_behind_what_was_taken_over_is_cut() -> None:
    """The time it has is that of a request, not what is left of the time to be idle."""
    shortcut = FakeShortcut()
    shortcut.at_once = True

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        begun = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"S1!")
        assert await reader.readexactly(5) == b"<S1!>"
        writer.write(b"GET")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert asyncio.get_running_loop().time() - begun < 5
        writer.close()

    assert serve(scenario, shortcut, request_seconds=0.05).counters.refusals == {"slow_request": 1}


def test_a_stop_tells_of_requests_that_do_not_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that owes the rest of a body is no bug, and gets no traceback."""
    monkeypatch.setattr("headrace.net.http_server.STOP_GRACE_SECONDS", 1)
    clients = [socket.socket(), socket.socket()]

    async def scenario(listener: HttpListener, _app: Echo) -> None:
        loop = asyncio.get_running_loop()
        for client in clients:
            client.setblocking(False)
            await loop.sock_connect(client, listener.address)
            await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        await until(lambda: listener.counters.requests == 2)

    with caplog.at_level(logging.WARNING):
        serve(scenario)
    for client in clients:
        with client:
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
    (line,) = caplog.records
    assert (line.levelname, line.exc_info) == ("WARNING", None)
    assert line.getMessage() == "stop waits no longer for HTTP protocol=test requests=2 connections=2"
