"""Calls to other servers: one connection per address, numbers, time-outs, losses, requests of the server.

Ref: A-NET-03.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError
from headrace.remoting.client import RemotingClient
from headrace.remoting.codec import Command, decode_command, encode_request, encode_response

Answer = Callable[[Command, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server on a port of its own that does with each request what ``answer`` says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[Command] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ""
        self._server: asyncio.Server | None = None
        self._came = asyncio.Condition()

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()
        await self._server.wait_closed()

    async def wait_requests(self, count: int) -> None:
        """Return when ``count`` frames have come."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.requests) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readexactly(4)
                command = decode_command(head + await reader.readexactly(struct.unpack(">i", head)[0]))
                self.requests.append(command)
                await self.answer(command, writer)
                async with self._came:
                    self._came.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def echo(command: Command, writer: asyncio.StreamWriter) -> None:
    writer.write(encode_response(command.serialize, command.opaque, 0, None, command.ext, command.body))


async def silence(command: Command, writer: asyncio.StreamWriter) -> None:
    pass


async def hang_up(command: Command, writer: asyncio.StreamWriter) -> None:
    writer.close()


def run(answer: Answer, test: Callable[[Server, RemotingClient], Coroutine[Any, Any, None]], **options: Any) -> Server:
    server = Server(answer)

    async def play() -> None:
        async with server:
            client = RemotingClient(**options)
            try:
                await test(server, client)
            finally:
                await client.close()

    asyncio.run(play())
    return server


def test_calls_share_one_connection():
    """Many at once, each gets the response with its number; a large one too. A-BROKER-05, A-NET-04."""

    async def test(server: Server, client: RemotingClient) -> None:
        commands = [Command(30, {"n": str(number)}, b"%d" % number * (1 + 1000 * number)) for number in range(100)]
        answers = await asyncio.gather(*[client.call(server.address, command) for command in commands])
        assert [answer.body for answer in answers] == [command.body for command in commands]
        assert [answer.ext["n"] for answer in answers] == [str(number) for number in range(100)]
        assert {answer.is_response for answer in answers} == {True}

    server = run(echo, test)
    assert server.connections == 1
    assert len({command.opaque for command in server.requests}) == 100


def test_responses_may_come_in_any_order():
    """A-NET-04; remoting.md 1.1: matched by number only."""
    waiting: list[Command] = []

    async def backwards(command: Command, writer: asyncio.StreamWriter) -> None:
        waiting.append(command)
        if len(waiting) == 3:
            for request in reversed(waiting):
                writer.write(encode_response(0, request.opaque, 0, None, {"for": str(request.code)}))

    async def test(server: Server, client: RemotingClient) -> None:
        answers = await asyncio.gather(*[client.call(server.address, Command(code)) for code in (1, 2, 3)])
        assert [answer.ext["for"] for answer in answers] == ["1", "2", "3"]

    run(backwards, test)


def test_failures_are_responses_too():
    async def refuse(command: Command, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_response(0, command.opaque, 17, "No topic route info"))

    async def test(server: Server, client: RemotingClient) -> None:
        answer = await client.call(server.address, Command(105, {"topic": "x"}))
        assert (answer.code, answer.remark) == (17, "No topic route info")

    run(refuse, test)


def test_silence_is_a_timeout_that_says_what_was_asked():
    """The connection stays: what comes late is dropped. A-NET-04."""
    late: list[tuple[int, asyncio.StreamWriter]] = []

    async def answer(command: Command, writer: asyncio.StreamWriter) -> None:
        if not late:
            late.append((command.opaque, writer))
        else:
            writer.write(encode_response(0, late[0][0], 1))
            await echo(command, writer)

    async def test(server: Server, client: RemotingClient) -> None:
        with pytest.raises(RequestTimeoutError, match=r"GET_MAX_OFFSET within 0.5 s") as caught:
            await client.call(server.address, Command(30), timeout_s=0.5)
        assert caught.value.address == server.address
        assert (await client.call(server.address, Command(30))).code == 0

    assert run(answer, test).connections == 1


def test_a_lost_connection_fails_what_is_under_way_and_is_made_anew():
    async def test(server: Server, client: RemotingClient) -> None:
        calls = [client.call(server.address, Command(30)) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLostError] * 3
        server.answer = echo
        assert (await client.call(server.address, Command(30))).code == 0

    assert run(hang_up, test).connections == 2


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":9876"])
def test_an_address_that_is_none_is_no_connection(address):
    async def test(server: Server, client: RemotingClient) -> None:
        with pytest.raises(ConnectionLostError, match="host:port"):
            await client.call(address, Command(30))

    run(echo, test)


def test_a_refused_connection_says_so():
    async def test(server: Server, client: RemotingClient) -> None:
        address = server.address
        await server.__aexit__()
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match=r"refused|Connect call failed") as caught:
                await client.call(address, Command(30))
            assert caught.value.address == address

    run(echo, test)


def test_each_address_of_a_name_is_tried(monkeypatch):
    """Nothing comes back from the first, as behind a firewall: it has a part of the time, not all of it."""

    async def test(server: Server, client: RemotingClient) -> None:
        port = server.address.rpartition(":")[2]
        with socket.socket() as full:  # its queue has room for one, and nobody accepts
            full.bind(("127.0.0.2", int(port)))
            full.listen(0)
            with socket.create_connection(("127.0.0.2", int(port))):
                found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.2", "127.0.0.1")]
                monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
                assert (await client.call(f"registry:{port}", Command(30))).code == 0
                await server.__aexit__()
                client.hang_up(f"registry:{port}", "closed")
                with pytest.raises(NotConnectedError, match=r"127.0.0.2: not accepted within 0.2 s; 127.0.0.1: "):
                    await client.call(f"registry:{port}", Command(30))

    run(echo, test, connect_timeout_s=0.4)


@pytest.mark.parametrize("reads", [True, False])
def test_time_begins_anew_while_a_slow_link_takes_a_request(reads):
    """A table of many topics over a slow link: no longer than that it gets from who takes nothing."""

    def serve(listener: socket.socket, given_up: threading.Event) -> None:
        with listener.accept()[0] as connection:
            size = 4 + struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            left = size - 4
            while left and reads:
                time.sleep(0.05)
                left -= len(connection.recv(min(left, 128 << 10), socket.MSG_WAITALL))
            if not left:
                connection.sendall(encode_response(0, 1, 0))
            given_up.wait(10)

    async def test(_server: Server, client: RemotingClient) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            given_up = threading.Event()
            server = threading.Thread(target=serve, args=(listener, given_up))
            server.start()
            call = client.call(
                f"127.0.0.1:{listener.getsockname()[1]}", Command(103, body=bytes(6 << 20)), 0.6, is_patient=True
            )
            try:
                if reads:
                    assert (await call).code == 0
                else:
                    with pytest.raises(RequestTimeoutError):
                        await call
            finally:
                given_up.set()
                server.join()

    run(echo, test)


def test_a_connection_that_is_given_up_brings_nothing_later():
    """Its system would deliver what was sent when the network is back, behind what came over the next connection."""

    async def test(_server: Server, client: RemotingClient) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(RequestTimeoutError):
                await client.call(address, Command(103, body=bytes(8 << 20)), 0.2)
            with listener.accept()[0] as stalled:
                stalled.settimeout(10)
                client.hang_up(address, "nothing is answered")
                await asyncio.sleep(0.01)
                with pytest.raises(ConnectionResetError):
                    stalled.makefile("rb").read()

    run(echo, test)


def test_a_name_that_nobody_resolves_is_said_so(monkeypatch):
    async def test(_server: Server, client: RemotingClient) -> None:
        with pytest.raises(NotConnectedError, match=r"registry:9876: its name was not resolved within 0\.05 s"):
            await client.call("registry:9876", Command(30))

    may_answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: may_answer.wait(10) and [])
    run(echo, test, connect_timeout_s=0.05)
    may_answer.set()


def test_requests_of_the_server_are_not_supported():
    """remoting.md 1.4, 1.7: and the numbers of the two directions are independent."""

    async def ask(command: Command, writer: asyncio.StreamWriter) -> None:
        if not command.is_response:
            writer.write(encode_request(1, 307, 5))
            writer.write(encode_request(0, 40, 6, oneway=True))
            await echo(command, writer)

    async def test(server: Server, client: RemotingClient) -> None:
        await client.call(server.address, Command(34))
        await server.wait_requests(2)

    answer = run(ask, test).requests[1]
    assert (answer.code, answer.remark, answer.opaque, answer.serialize) == (3, " request type 307 not supported", 5, 1)


def test_rubbish_closes_the_connection():
    async def rubbish(command: Command, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">i", -1) + b"x" * 100)

    async def test(server: Server, client: RemotingClient) -> None:
        with pytest.raises(ConnectionLostError, match="frame length -1"):
            await client.call(server.address, Command(30))

    run(rubbish, test)


def test_closing_fails_what_is_under_way_and_what_comes_later():
    async def test(server: Server, client: RemotingClient) -> None:
        call = asyncio.create_task(client.call(server.address, Command(30)))
        await server.wait_requests(1)
        await client.close()
        with pytest.raises(ConnectionLostError, match="client closed"):
            await call
        with pytest.raises(ConnectionLostError, match="client closed"):
            await client.call(server.address, Command(30))

    run(silence, test)


def test_a_caller_who_gives_up_leaves_the_connection_to_others():
    async def test(server: Server, client: RemotingClient) -> None:
        first = asyncio.create_task(client.call(server.address, Command(30)))
        second = asyncio.create_task(client.call(server.address, Command(31)))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).code == 0

    assert run(echo, test).connections == 1
