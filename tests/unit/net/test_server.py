"""What all servers of connections share: one timer, which runs while they do. Ref: X-NET-08."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from headrace.clock import Clock, ManualClock
from headrace.net.connection import Connection
from headrace.net.server import StreamServer


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
        server: StreamServer[Any] = StreamServer("test", clock, 10)
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
        is_over = asyncio.Event()

        class Reader(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                if data == b"long":
                    time.sleep(0.15)  # the timer is due
                    other.send(b"long, too")
                elif data == b"long, too":
                    sent_ms.append(clock.monotonic_ms())
                    one.send(b"meanwhile")
                    time.sleep(0.15)
                elif data == b"meanwhile":
                    is_over.set()

        clock = Clock()
        server: StreamServer[Any] = StreamServer("test", clock, 10)
        looked = Looked(server, lambda now_ms: None if is_over.is_set() else looks_ms.append(now_ms))
        server.wheel.schedule(cast(Connection, looked), 0)
        host, _, port = (await server.listen("127.0.0.1:0", Reader)).rpartition(":")
        with socket.create_connection((host, int(port))) as one, socket.create_connection((host, int(port))) as other:
            await asyncio.sleep(0.05)
            one.send(b"long")
            await asyncio.wait_for(is_over.wait(), 10)
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert looks_ms
    assert max(looks_ms) <= sent_ms[0]
