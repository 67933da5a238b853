"""Reads and writes of a connection in compiled code. Ref: ADR 0016."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.net.receive import SHORT_READ_BYTES
from headrace.net.turns import TURN_MS, TurnConnection
from headrace.net.wire import ReadTaker, Wire
from tests.unit.net.test_turns import Counting

RDY = b"RDY 1\n"


class Taker(ReadTaker):
    """Takes reads of up to ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[int] = []

    def take_read(self, nbytes: int) -> bool:
        if nbytes > self.most:
            return False
        self.taken.append(nbytes)
        return True


class Broken(ReadTaker):
    """Has a bug."""

    def take_read(self, nbytes: int) -> bool:
        raise LookupError(nbytes)


class Client(Counting):
    """Notes what it failed by."""

    def __init__(self) -> None:
        super().__init__()
        self.failed_by: list[Exception] = []
        self.traffic.bytes_in = 0  # of the greeting

    def fail(self, error: Exception) -> None:
        self.failed_by.append(error)


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_read_is_the_first_takers_that_wants_it(client: Client) -> None:
    small, large = Taker(len(RDY)), Taker(2 * len(RDY))
    client.takers = (small, large)
    for count in (1, 2, 3):
        client.put(RDY * count)
    assert (small.taken, large.taken, client.taken) == ([6], [12], [1, 1, 1])
    assert client.traffic.bytes_in == 6 * len(RDY)


def test_what_waits_for_its_turn_comes_before_any_taker(client: Client) -> None:
    """Else it would be overtaken."""
    client.cost_ms = TURN_MS
    client.put(RDY * 40)
    taken = len(client.taken)
    assert client._rest
    taker = Taker(1_000)
    client.takers = (taker,)
    client.put(RDY)
    assert (taker.taken, len(client.taken)) == ([], taken)


def test_a_connection_that_ends_asks_nobody(client: Client) -> None:
    taker = Taker(1_000)
    client.takers = (taker,)
    client.cause = "left"
    client.put(RDY)
    assert (taker.taken, client.taken, client.traffic.bytes_in) == ([], [], len(RDY))


def test_a_large_read_is_part_of_a_turn_whoever_takes_it(client: Client) -> None:
    client.turns.large_read_bytes = SHORT_READ_BYTES
    client.takers = (Taker(1 << 20),)
    client.put(bytes(SHORT_READ_BYTES - 1))
    assert client.turns.waiting == 0
    client.put(bytes(SHORT_READ_BYTES))
    assert client.turns.waiting == 1


def test_a_bug_of_a_taker_is_the_connections(client: Client) -> None:
    client.takers = (Broken(),)
    client.put(RDY)
    assert [repr(error) for error in client.failed_by] == [repr(LookupError(len(RDY)))]


def test_what_is_written_is_counted_for_one_and_for_all(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(client.socket, "write", written.append)
    client.write(b"abc")
    client.write(memoryview(b"de"))
    assert (written, client._written_bytes, client.traffic.bytes_out) == ([b"abc", b"de"], 5, 5)


def test_the_loop_finds_a_buffered_protocol() -> None:
    """uvloop and asyncio read into ``get_buffer`` of these only."""
    assert issubclass(TurnConnection, asyncio.BufferedProtocol)
    assert TurnConnection.buffer_updated is Wire.buffer_updated


def test_it_takes_clocks_only() -> None:
    with pytest.raises(TypeError):
        Wire(object(), Counting().traffic)  # type: ignore[arg-type]
    assert Wire(ManualClock(), Counting().traffic).cause == ""
