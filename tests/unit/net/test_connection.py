"""What every connection has, whatever it speaks. Ref: A-NET-16, X-NET-08."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.net.connection import LINGER_MS, LONGEST_LINGER_MS, Connection, Pause
from headrace.net.deadlines import Deadlines
from headrace.net.timer_wheel import TimerWheel
from headrace.net.wire import TrafficCounters


class Transport(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self, socket: socket.socket | None = None) -> None:
        super().__init__({"peername": ("10.0.0.5", 7001), "socket": socket})
        self.written: list[bytes] = []
        self.waiting_bytes = 0
        self.is_cut = False
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_cut

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def abort(self) -> None:
        self.is_cut = True


class Told(Connection):
    """A protocol that is told when a heartbeat is due, and does not answer."""

    told = 0

    def on_heartbeat(self) -> None:
        self.told += 1


def told_of(clock: ManualClock, transport: Transport) -> tuple[Told, TimerWheel[Connection]]:
    """Return a connection that is served, and the wheel that knows when it is due."""
    wheel: TimerWheel[Connection] = TimerWheel(clock.monotonic_ms())
    deadlines = Deadlines(interval_ms=30_000, now_ms=clock.monotonic_ms(), patience_ms=60_000)
    told = Told(clock=clock, wheel=wheel, traffic=TrafficCounters(), deadlines=deadlines, high_water_bytes=1024)
    told.connection_made(transport)
    told.look_again(clock.monotonic_ms())
    return told, wheel


def pass_time(clock: ManualClock, wheel: TimerWheel[Connection], seconds: int) -> None:
    """Let time pass by a tenth of a second; whatever is due looks at its clocks."""
    for _ in range(10 * seconds):
        clock.advance_ms(100)
        for connection in wheel.take_due(clock.monotonic_ms()):
            connection.on_timer(clock.monotonic_ms())


def test_heartbeats_are_the_protocols_and_idleness_is_an_event() -> None:
    """A-NET-16: the connection sends none by itself; it has no timer but the listener's, which finds it idle."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    seen = []
    for _ in range(61):
        clock.advance_ms(1_000)
        for connection in wheel.take_due(clock.monotonic_ms()):
            connection.on_timer(clock.monotonic_ms())
        seen.append((told.told, told.cause))
    assert transport.written == []
    assert seen[28] == (0, "")
    assert seen[30] == (1, "")
    assert seen[60] == (1, "read timeout")
    assert transport.is_cut


def test_a_lost_connection_leaves_the_wheel() -> None:
    """X-NET-08: the listener's timer does not hold on to what is gone, which would come up again for ever."""
    told, wheel = told_of(ManualClock(), Transport())
    assert len(wheel) == 1
    told.connection_lost(None)
    assert len(wheel) == 0


@pytest.mark.parametrize(("waiting", "cause"), [((100, 100, 100), ""), ((100, 200, 300), "write timeout")])
def test_a_peer_that_takes_something_is_not_late(waiting: tuple[int, ...], cause: str) -> None:
    """What counts is what it took of all that was written, not whether more or less waits for it."""
    clock, transport = ManualClock(), Transport()
    told, _wheel = told_of(clock, transport)
    for waiting_bytes in waiting:
        told.write(b"x" * 100)
        transport.waiting_bytes = waiting_bytes
        told._deadlines.last_command_ms = clock.monotonic_ms()
        told.on_timer(clock.monotonic_ms())
        clock.advance_ms(15_000)
    assert told.cause == cause


@pytest.mark.parametrize(("reads", "cause"), [(True, ""), (False, "write timeout")])
def test_a_peer_that_takes_what_the_system_holds_for_it_is_not_late(reads: bool, cause: str) -> None:
    """Over a link that has become slow this takes minutes, in which the system takes nothing more from us."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sender = stack.enter_context(socket.create_connection(listener.getsockname()))
        peer = stack.enter_context(listener.accept()[0])
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        clock, transport = ManualClock(), Transport(sender)
        told, _wheel = told_of(clock, transport)
        transport.waiting_bytes = 100
        told.pause_writing()
        for _ in range(4):
            if reads:
                peer.recv(1 << 18, socket.MSG_WAITALL)
            clock.advance_ms(15_000)
            told._deadlines.last_command_ms = clock.monotonic_ms()
            told.on_timer(clock.monotonic_ms())
    assert told.cause == cause


def test_a_peer_that_was_not_read_from_has_its_time_anew() -> None:
    """It could not answer meanwhile: its answers may lie unread in the kernel when the pause ends."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    told.pause(Pause.STORE)
    pass_time(clock, wheel, 300)
    told.resume(Pause.STORE)
    pass_time(clock, wheel, 59)
    assert (told.cause, transport.is_read) == ("", True)
    pass_time(clock, wheel, 2)
    assert told.cause == "read timeout"


def test_a_peer_that_does_not_read_gets_no_heartbeats() -> None:
    """They would only wait behind what it does not take."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    told.pause_writing()
    pass_time(clock, wheel, 31)
    assert told.told == 0
    told._deadlines.last_command_ms = clock.monotonic_ms()
    told.resume_writing()
    pass_time(clock, wheel, 28)
    assert told.told == 0
    pass_time(clock, wheel, 2)
    assert told.told == 1


def test_a_peer_that_takes_nothing_is_cut_after_one_interval_from_then_on() -> None:
    """The timer comes up for it, and not only with the next heartbeat."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    pass_time(clock, wheel, 10)
    told.write(b"x" * 2000)
    transport.waiting_bytes = 2000
    told.pause_writing()
    pass_time(clock, wheel, 29)
    assert not transport.is_cut
    pass_time(clock, wheel, 2)
    assert (told.cause, transport.is_cut) == ("write timeout", True)


def test_a_peer_that_stops_taking_is_cut_soon_after_one_interval() -> None:
    """The kernel takes some more just after writing has stopped: progress, noticed when it is looked at next."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    told.write(b"x" * 2000)
    transport.waiting_bytes = 2000
    told.pause_writing()
    pass_time(clock, wheel, 1)
    transport.waiting_bytes = 1900
    pass_time(clock, wheel, 29)
    assert not transport.is_cut
    pass_time(clock, wheel, 8)
    assert (told.cause, transport.is_cut) == ("write timeout", True)


def test_a_connection_that_is_left_is_read_from() -> None:
    """What still comes in is thrown away: unread it would reset the connection, and the end of file stay unseen."""
    told, _wheel = told_of(ManualClock(), transport := Transport())
    told.pause(Pause.STORE)
    assert not transport.is_read
    told.leave("refused")
    assert transport.is_read


def test_whoever_reads_the_last_words_byte_by_byte_is_cut() -> None:
    """A peer that goes on reading has a minute, and one that has read everything its second."""
    clock, transport = ManualClock(), Transport()
    told, wheel = told_of(clock, transport)
    told.write(b"x" * 10_000)
    transport.waiting_bytes = 10_000
    told.leave("refused")
    seconds = 0
    while not transport.is_cut and seconds < 200:
        transport.waiting_bytes -= 1
        pass_time(clock, wheel, 1)
        seconds += 1
    assert LONGEST_LINGER_MS <= 1000 * seconds <= LONGEST_LINGER_MS + 3 * LINGER_MS


def test_what_was_written_at_once_waits_until_all_of_it_is_taken() -> None:
    transport = Transport()
    told, _ = told_of(ManualClock(), transport)
    assert told.waiting_bytes() == 0
    told.write(b"x" * 500)
    assert told.waiting_bytes() == 0
    for left, waiting in ((20, 500), (500, 500), (900, 900), (0, 0)):
        transport.waiting_bytes = left
        assert told.waiting_bytes() == waiting
    transport.waiting_bytes = 400
    told.pause_writing()
    told.write(b"x")
    assert told.waiting_bytes() == 500, "what came behind it is small"
    transport.waiting_bytes = 20
    told.resume_writing()
    assert told.waiting_bytes() == 20


def test_what_is_borrowed_waits_elsewhere() -> None:
    """It is told from what stands before, between and behind it, also when the peer has taken a part."""
    transport = Transport()
    told, _ = told_of(ManualClock(), transport)
    told.write(b"x" * 10)
    transport.waiting_bytes = 10
    told.write_view(memoryview(b"v" * 1000))
    told.write(b"x" * 20)
    transport.waiting_bytes = 1030
    told.write_view(memoryview(b"v" * 2000))
    told.write(b"x" * 30)
    for left, waiting in ((3060, 60), (3050, 50), (2100, 50), (2050, 50), (2040, 40), (1030, 30), (30, 30), (10, 30)):
        transport.waiting_bytes = left
        assert told.waiting_bytes() == waiting
    transport.waiting_bytes = 0
    told.write_view(memoryview(b"v" * 4000))
    transport.waiting_bytes = 4000
    told.pause_writing()
    assert told.waiting_bytes() == 0
    assert len(told._borrowed or ()) == 1
    told.write(b"x" * 100)
    transport.waiting_bytes = 3000
    assert told.waiting_bytes() == 100
