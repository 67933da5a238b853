"""What all connections of a server hold for peers that do not read is bounded. Ref: A-NET-16, X-NET-08."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace.clock import ManualClock
from headrace.net.connections import OpenConnections
from headrace.net.server import StreamServer
from headrace.net.unread_bound import STEPS, UnreadBound
from headrace.net.wire import TrafficCounters
from tests.unit.nsq.fake_client import Bench


class Holder:
    """A connection with so much for its peer."""

    remote_address = "10.0.0.5:7001"

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.cause = ""
        self.looks = 0
        self.is_cut = asyncio.Event()

    def waiting_bytes(self) -> int:
        self.looks += 1
        return self.waiting

    def abort(self, cause: str) -> None:
        self.cause = cause
        self.is_cut.set()


def excess(bound: UnreadBound, written: int, holders: list[Holder]) -> list[int]:
    return [size for _, size in bound.excess(written, cast(Any, holders))]


@pytest.mark.parametrize(("most", "cut"), [(1000, [700, 600]), (700, [700, 600]), (699, [700, 600, 400])])
def test_those_with_most_are_named_until_the_rest_keeps_the_bound(most: int, cut: list[int]) -> None:
    holders = [Holder(size) for size in (300, 0, 700, 600, 400)]
    assert excess(UnreadBound(most), 2000, holders) == cut


def test_nobody_is_looked_at_before_the_bound_can_be_reached() -> None:
    """What waits grows by what is written, at most."""
    bound, holder, other = UnreadBound(1000), Holder(399), Holder(1)
    looks = []
    for written in (999, 1000, 1599):
        assert excess(bound, written, [holder, other]) == []
        looks.append(holder.looks)
    assert looks == [0, 1, 1]
    holder.waiting = 1000
    assert excess(bound, 1600, [holder, other]) == [1000]


@pytest.mark.parametrize(("sizes", "cut"), [([5000], []), ([0, 5000], []), ([5000, 0, 6000, 7000], [7000, 6000])])
def test_who_holds_all_of_it_alone_has_a_bound_of_its_own(sizes: list[int], cut: list[int]) -> None:
    """What it asked for may be larger than all that may wait: it could never be told."""
    assert excess(UnreadBound(1000), 2000, [Holder(size) for size in sizes]) == cut


def test_at_the_bound_not_every_question_is_a_look() -> None:
    bound, holder = UnreadBound(1600), Holder(1600)
    for written in range(1600, 3200):
        excess(bound, written, [holder])
    assert holder.looks == STEPS


def server_of(most: int) -> StreamServer[Any]:
    return StreamServer("test", ManualClock(), 10, TrafficCounters(), max_unread_bytes=most)


def test_a_server_cuts_them_and_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    server = server_of(1000)
    holders = [Holder(size) for size in (900, 800, 700)]
    for holder in holders:
        server.connections.add(holder)
    server.counters.bytes_out = 2400
    server.cut_unread()
    assert [holder.cause for holder in holders] == ["unread", "unread", ""]
    said = "clients do not read what is sent, closed the one with most"
    assert [record.getMessage() for record in caplog.records] == [
        f"{said} client=10.0.0.5:7001 bytes=900 limit=1000 setting=test.max_unread_bytes"
    ]


def test_one_that_was_cut_and_is_not_gone_yet_counts_no_more() -> None:
    server = server_of(1600)
    holders = [Holder(size) for size in (900, 800)]
    holders[0].cause = "unread"
    for holder in holders:
        server.connections.add(holder)
    for server.counters.bytes_out in (1700, 5000):
        server.cut_unread()
    assert holders[1].cause == ""


def test_connections_are_not_even_listed_before_the_bound_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked with each tick, and whenever a peer falls behind."""
    server = server_of(1000)
    listed: list[int] = []

    def walk(connections: OpenConnections[Any]) -> Iterator[Any]:
        listed.append(len(connections))
        return iter([])

    monkeypatch.setattr(OpenConnections, "__iter__", walk)
    for server.counters.bytes_out in (999, 1000):
        server.cut_unread()
        assert len(listed) == server.counters.bytes_out - 999


def test_a_peer_that_falls_behind_has_it_looked_at() -> None:
    """The tick may be far away: the connection itself has most here."""
    bench = Bench(max_unread_bytes=1 << 20, write_high_water_bytes=300_000)
    client, other = bench.client(), bench.client()
    client.transport.waiting += bytes(2 << 20)
    other.transport.waiting += b"x"
    bench.server.counters.bytes_out = 2 << 20
    client.connection.pause_writing()
    assert (client.connection.cause, client.transport.aborted) == ("unread", True)


def test_the_timer_has_it_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.net.server.TICK_MS", 1)

    async def run() -> None:
        server, holder = server_of(1000), Holder(1001)
        for each in (holder, Holder(1)):
            server.connections.add(each)
        server.counters.bytes_out = 1001
        await server.listen("127.0.0.1:0", asyncio.Protocol)
        async with asyncio.timeout(10):
            await holder.is_cut.wait()
        for number in (1, 2):
            server.connections.remove(number, holder.cause)
        await server.stop()

    asyncio.run(run())
