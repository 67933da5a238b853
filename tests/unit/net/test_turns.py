"""What one client asks for does not hold up the others. Ref: A-NET-06."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.net.connection import Connection, Pause
from headrace.net.deadlines import Deadlines
from headrace.net.receive import READ_BYTES, SHORT_READ_BYTES, ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.net.timer_wheel import TimerWheel
from headrace.net.turns import (
    LARGE_READ_BYTES,
    MAX_KEPT_BYTES,
    ROUND_MS,
    TURN_MS,
    TurnConnection,
    Turns,
)
from headrace.net.wire import TrafficCounters
from headrace.nsq.codec import Limits, Reader
from headrace.nsq.intake import Intake
from tests.support.loop import FakeLoop

LIMITS = Limits(max_message_bytes=1 << 20, max_body_bytes=5 << 20, max_rdy_count=2_500, max_req_timeout_ms=1_000)
ALL = 0xFFF


class Transport(asyncio.Transport):
    """Notes whether it is read from."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.5", 7001)})
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True


class Counting(TurnConnection):
    """Takes RDYs, each of which costs ``cost_ms``."""

    def __init__(self, turns: Turns | None = None, receive: ReceiveBuffer | None = None) -> None:
        self.clock = ManualClock()
        self.traffic = TrafficCounters()
        self.loop = FakeLoop()
        self.receive = receive or ReceiveBuffer(HEADROOM_BYTES)
        self.reader = Reader(LIMITS, ALL)
        self.intake = Intake()
        self.turns = turns or Turns(self.receive)
        self.cost_ms = 0
        self.taken: list[int] = []
        now_ms = self.clock.monotonic_ms()
        wheel: TimerWheel[Connection] = TimerWheel(now_ms)
        super().__init__(
            self.reader,
            self.receive,
            self.turns,
            clock=self.clock,
            wheel=wheel,
            traffic=self.traffic,
            deadlines=Deadlines(interval_ms=30_000, now_ms=now_ms, patience_ms=60_000),
            high_water_bytes=1024,
        )
        self.call_soon = self.loop.call_soon  # type: ignore[assignment]
        self.socket = Transport()
        self.connection_made(self.socket)
        self.put(b"  V2")

    def take_read(self, nbytes: int) -> None:
        """Take as many as the turn allows."""
        self.reader.received(self.receive.memory, nbytes)
        self.begin_turn(self.clock.monotonic_ms())
        while True:
            command: Any = self.reader.next_command(self.intake, 0)
            if command is None:
                return
            self.taken.append(command.count)
            self.clock.advance_ms(self.cost_ms)
            if self.reader.has_more and self.is_turn_over():
                self.put_off()
                return

    def put(self, data: bytes) -> None:
        """Hand over one read."""
        self.get_buffer(-1)[: len(data)] = data
        self.buffer_updated(len(data))

    def fail(self, error: Exception) -> None:
        """A bug is the test's."""
        raise error


def rdys(numbers: range) -> bytes:
    return b"".join(b"RDY %d\n" % number for number in numbers)


def test_what_does_not_fit_into_a_turn_waits_and_keeps_its_order() -> None:
    """A-NET-06: one costly command a turn; a cut one at the end, and what comes behind it, join up."""
    client = Counting()
    client.cost_ms = TURN_MS
    client.put(rdys(range(4)) + b"RD")
    assert (client.taken, client.socket.is_read) == ([0], False)
    kept_bytes = client.turns.kept_bytes
    client.put(b"Y 4\nRDY 5\n")  # came although nothing was to be read
    assert client.turns.kept_bytes == kept_bytes + 10
    for taken in range(2, 7):
        client.loop.come_round()
        assert client.taken == list(range(taken))
    client.loop.come_round()
    assert client.socket.is_read
    assert (client.held_bytes(), client.turns.kept_bytes) == (0, 0)


def test_cheap_commands_are_one_turn() -> None:
    client = Counting()
    client.put(rdys(range(1_000)))
    assert client.taken == list(range(1_000))
    assert client.loop.come_round() == 0


def test_large_reads_in_a_row_are_one_turn() -> None:
    """What is read before the loop comes round counts together, and the loop is left alone until the turn is over."""
    client = Counting()
    ends = []
    for _ in range(3):
        client.put(b"NOP\n" * (LARGE_READ_BYTES // 4))
        ends.append(client.socket.is_read)
        client.clock.advance_ms(TURN_MS // 2)
    assert ends == [True, True, False]
    assert client.pauses == Pause.TURN
    assert client.loop.come_round() == 1
    assert client.socket.is_read
    client.put(b"NOP\n" * (LARGE_READ_BYTES // 4))
    assert client.socket.is_read  # another turn


def test_the_end_of_a_turn_is_no_pause_that_is_counted() -> None:
    """``read_pauses`` tells of a store or a peer that is behind."""
    client = Counting()
    client.cost_ms = TURN_MS
    client.put(rdys(range(3)))
    assert client.traffic.read_pauses == 0
    client.pause(Pause.STORE)
    assert client.traffic.read_pauses == 1  # although it was not read from already
    client.pause(Pause.REPLIES)
    assert client.traffic.read_pauses == 1
    for _ in range(3):
        client.loop.come_round()
    assert client.taken == [0]  # it waits for all of them
    client.resume(Pause.STORE)
    client.loop.come_round()
    assert client.taken == [0]
    client.resume(Pause.REPLIES)
    for _ in range(3):
        client.loop.come_round()
    assert client.taken == [0, 1, 2]
    client.pause(Pause.STORE)
    assert client.traffic.read_pauses == 2


def test_what_waited_and_the_next_read_are_one_turn() -> None:
    """The loop reads before it comes round: the client has had its time then."""
    client = Counting()
    client.cost_ms = TURN_MS // 2
    client.put(rdys(range(3)))
    client.loop.come_round()
    assert (client.taken, client.socket.is_read) == ([0, 1, 2], True)
    client.put(rdys(range(3, 6)))
    assert (client.taken, client.socket.is_read) == ([0, 1, 2, 3], False)
    client.loop.come_round()
    assert client.taken == list(range(6))


def test_a_connection_that_ends_forgets_what_waits() -> None:
    client = Counting()
    client.cost_ms = TURN_MS
    client.put(rdys(range(3)))
    client.connection_lost(None)
    assert client.loop.come_round() == 0
    assert client.taken == [0]


def test_many_clients_share_a_round() -> None:
    """Another one, and a stop, wait for the round, not for as many turns as there are clients."""
    turns = Turns(ReceiveBuffer(HEADROOM_BYTES))
    clients = [Counting(turns) for _ in range(25)]
    for client in clients:
        client.cost_ms = 1
        client.put(rdys(range(100)))
    assert turns.waiting == 25
    before = [len(client.taken) for client in clients]
    assert before[0] == TURN_MS  # nobody else was there yet
    for client in clients:
        client.loop.come_round()
    assert sum(len(client.taken) for client in clients) - sum(before) == ROUND_MS
    clients[0].connection_lost(None)
    assert turns.waiting == 24
    while any(client.loop.come_round() for client in clients):
        pass
    assert all(client.taken == list(range(100)) for client in clients[1:])
    assert turns.waiting == 0


@pytest.mark.parametrize("end", [False, True])
def test_what_many_clients_keep_is_bounded(end: bool) -> None:
    """A thousand that waited for the disk kept 256 KiB each: reads are short while there is much of that."""
    receive = ReceiveBuffer(HEADROOM_BYTES)
    turns = Turns(receive)
    clients = [Counting(turns, receive) for _ in range(200)]
    many = rdys(range(2_000)) * 20
    for client in clients:
        client.cost_ms = TURN_MS
        client.put(many[: len(client.get_buffer(-1))])
        assert client.taken == [0]
    assert MAX_KEPT_BYTES < turns.kept_bytes < MAX_KEPT_BYTES + READ_BYTES + 200 * SHORT_READ_BYTES
    late = Counting(turns, receive)
    late.put(b"NOP\n" * (SHORT_READ_BYTES // 4))
    assert (turns.waiting, len(late.get_buffer(-1))) == (201, SHORT_READ_BYTES)  # there is probably more
    for client in clients:
        client.cost_ms = 0
        if end:
            client.connection_lost(None)
        while client.loop.come_round():
            pass
        assert end or client.taken == [number % 2_000 for number in range(len(client.taken))]
    assert (turns.kept_bytes, len(receive.view), turns.large_read_bytes) == (0, READ_BYTES, LARGE_READ_BYTES)
