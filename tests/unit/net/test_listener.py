"""Addresses, limits and the registry of connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time

import pytest
import uvloop

from headrace.errors import ConfigError
from headrace.net.connections import OpenConnections
from headrace.net.listener import bind, connection_limit, listen, new_socket, raise_file_limit
from tests.support.toolchain import require_ipv6


def _limit_files(monkeypatch, soft, hard):
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))


def test_limit_follows_the_limit_of_open_files(monkeypatch):
    _limit_files(monkeypatch, 10_000, 10_000)
    assert connection_limit(10, 0) == 10
    assert connection_limit(0, 100) == 9_900
    assert connection_limit(1 << 40, 100) == 9_900


@pytest.mark.parametrize(("files", "limit"), [(1024, 512), (64, 32)])
def test_few_open_files_are_shared_and_not_all_kept_back(monkeypatch, files, limit):
    """1024 is what a login shell gets by default: sixteen connections were all that was left of it."""
    _limit_files(monkeypatch, files, files)
    assert connection_limit(0, 3072) == limit


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(monkeypatch):
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: raised.append(limits))
    _limit_files(monkeypatch, 1024, 524_288)
    raise_file_limit()
    assert raised == [(524_288, 524_288)]


def test_too_few_open_files_are_refused(monkeypatch):
    """With twenty uvloop aborts the process."""
    _limit_files(monkeypatch, 20, 20)
    with pytest.raises(ConfigError, match=r"limit of open files is 20.*ulimit -n"):
        raise_file_limit()


def test_connections_are_numbered_bounded_and_counted():
    connections: OpenConnections[str] = OpenConnections(2)
    assert [connections.add("a"), connections.add("b"), connections.add("c")] == [1, 2, None]
    connections.remove(1, "client closed")
    connections.remove(1, "client closed")
    assert connections.add("d") == 4
    assert (list(connections), connections.total, connections.refused) == (["b", "d"], 4, 1)
    assert connections.closed == {"client closed": 1}


@pytest.mark.parametrize(
    ("host", "names", "family"),
    [
        ("", ["127.0.0.1"], socket.AF_INET),
        ("10.0.0.1", ["10.0.0.1"], socket.AF_INET),
        ("::1", ["::1"], socket.AF_INET6),
        ("both", ["fd77::1", "10.0.0.1"], socket.AF_INET),
        ("six", ["fd77::1"], socket.AF_INET6),
        ("unknown", [], socket.AF_INET),
    ],
)
def test_a_name_of_ipv6_is_listened_to_there(monkeypatch, host, names, family):
    def resolve(_host, *_args, **_options):
        if not names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET6 if ":" in name else socket.AF_INET, 1, 6, "", (name, 0)) for name in names]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with new_socket(host) as sock:
        assert sock.family == family


def test_every_address_of_ipv6_is_those_of_ipv4_too():
    """Whatever the system's default is (net.ipv6.bindv6only): the settings say so."""
    require_ipv6()
    with bind("[::]:0") as listener:
        assert listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0


@pytest.mark.parametrize(
    ("address", "is_guarded", "says"),
    [
        ("127.0.0.1:0", False, ""),
        ("0.0.0.0:0", False, "without TLS and authentication: whoever reaches the port"),
        ("0.0.0.0:0", True, "without TLS: whoever is between"),
    ],
)
def test_listening_elsewhere_is_one_warning(address, is_guarded, says, caplog):

    async def run():
        server, _address = await listen(address, asyncio.Protocol, protocol="test", is_guarded=is_guarded)
        server.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert says in caplog.text
    assert len(caplog.records) == bool(says)


def test_the_kernel_finds_peers_that_vanished():
    """Accepted connections inherit it: HTTP has no heartbeats, and clients may do without."""

    async def run():
        bound = bind("127.0.0.1:0")
        server, _address = await listen(bound, asyncio.Protocol, protocol="test")
        kept = bound.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        server.close()
        return kept

    assert asyncio.run(run())


@pytest.mark.parametrize(("turn_s", "most_turns"), [(0.002, 10), (0.0, 100_000)])
def test_connections_that_wait_are_accepted_together_where_turns_are_long(turn_s, most_turns):
    """uvloop accepts one in each turn of the loop, and under load a turn takes tens of milliseconds."""
    made = []

    class Peer(asyncio.Protocol):
        def connection_made(self, transport):
            made.append(transport)

    async def run():
        bound = bind("127.0.0.1:0")
        server, _ = await listen(bound, Peer, protocol="test")
        clients = [socket.create_connection(bound.getsockname()) for _ in range(100)]
        for _ in range(most_turns):
            time.sleep(turn_s)  # noqa: ASYNC251  # what a turn takes
            await asyncio.sleep(0)  # a turn
            if len(made) == len(clients):
                break
        assert len(made) == len(clients)
        server.close()
        await asyncio.sleep(0.01)
        for peer in [*clients, *made]:
            peer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_a_socket_that_cannot_listen_is_refused():
    """It was bound while nobody listened there yet: uvloop closed it without a word, and the broker was ready."""

    async def run():
        with contextlib.closing(bind("127.0.0.1:0")) as other:
            ours = new_socket("127.0.0.1")
            ours.bind(other.getsockname())
            other.listen()
            with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; choose"):
                await listen(ours, asyncio.Protocol, protocol="test")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
