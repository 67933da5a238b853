"""What every connection has, whatever it speaks. Ref: A-NET-16, X-NET-08."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.net.connection import Connection, TrafficCounters
from headrace.net.deadlines import Deadlines
from headrace.net.timer_wheel import TimerWheel


class Transport(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.5", 7001)})
        self.written: list[bytes] = []
        self.waiting_bytes = 0
        self.is_cut = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_cut

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
