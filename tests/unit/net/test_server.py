"""What all servers of connections share: one timer, which runs while they do. Ref: X-NET-08."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from headrace.clock import Clock, ManualClock
from headrace.net.connection import Connection
from headrace.net.server import StreamServer
from headrace.net.wire import TrafficCounters
from tests.support.long_reads import LongReads


class Looked:
    """Counts how often the timer brings it up, and is due again at once."""

    remote_address = "10.0.0.5:7001"

    def __init__(self, server: StreamServer[Any], looked: Callable[[int], None] = lambda _: None) -> None:
        self.looks = 0
        self._server = server
        self._looked = looked

    def on_timer(self, now_ms: int) -> None:
        self.looks += 1
        self._looked(now_ms)
        self._server.wheel.schedule(cast(Connection, self), now_ms)


def test_the_timer_runs_from_the_first_listener_until_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no deadline of a connection would ever be due; and nothing of a stopped server goes on."""
    monkeypatch.setattr("headrace.net.server.TICK_MS", 1)

    async def run() -> None:
        clock = ManualClock()
        server: StreamServer[Any] = StreamServer("test", clock, 10, TrafficCounters(), max_unread_bytes=1 << 20)
        looked = Looked(server)
        server.wheel.schedule(cast(Connection, looked), 0)
        await server.listen("127.0.0.1:0", asyncio.Protocol)
        async with asyncio.timeout(10):
            while looked.looks < 2:
                clock.advance_ms(100)
                await asyncio.sleep(0.001)
        await server.stop()
        looks = looked.looks
        for _ in range(5):
            clock.advance_ms(100)
            await asyncio.sleep(0.005)
        assert looked.looks == looks

    asyncio.run(run())


def test_what_came_before_the_time_of_a_look_has_been_read() -> None:
    """A loop that is long at its reads has not read what came meanwhile: who sent it is not late."""
    looks_ms: list[int] = []
    sent_ms: list[int] = []

    async def run() -> None:
        clock = Clock()
        reads = LongReads(clock.monotonic_ms, 0.15)
        server: StreamServer[Any] = StreamServer("test", clock, 10, TrafficCounters(), max_unread_bytes=1 << 20)
        looked = Looked(server, lambda now_ms: None if reads.is_over.is_set() else looks_ms.append(now_ms))
        server.wheel.schedule(cast(Connection, looked), 0)
        host, _, port = (await server.listen("127.0.0.1:0", reads)).rpartition(":")
        await reads.run((host, int(port)))
        await server.stop()
        sent_ms.append(reads.sent_ms)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert looks_ms
    assert max(looks_ms) <= sent_ms[0]
