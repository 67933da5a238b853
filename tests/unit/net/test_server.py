"""What all servers of connections share: one timer, which runs while they do. Ref: X-NET-08."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace.clock import ManualClock
from headrace.net.connection import Connection
from headrace.net.server import StreamServer


class Looked:
    """Counts how often the timer brings it up, and is due again at once."""

    remote_address = "10.0.0.5:7001"

    def __init__(self, server: StreamServer[Any]) -> None:
        self.looks = 0
        self._server = server

    def on_timer(self, now_ms: int) -> None:
        self.looks += 1
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
