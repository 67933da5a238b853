"""What the node calls every few milliseconds: a bug in one part must not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from headrace.net.loop_load import Load
from headrace.node import TICK_SECONDS, Node
from headrace.settings import Settings, StoreSettings
from tests.support.long_reads import LongReads


class StepLoop:
    """An event loop whose timers a test fires."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((seconds, call))
        return call

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def fire(self) -> None:
        _, call = self.timers.pop()
        call()


def _node(tmp_path: Path, failing: str, made: list[str]) -> tuple[Node, StepLoop]:
    def part(name: str) -> Any:
        def tick(*_: int) -> None:
            made.append(name)
            if name == failing:
                raise ZeroDivisionError(name)

        return SimpleNamespace(tick=tick)

    node: Any = Node(Settings(store=StoreSettings(data_dir=tmp_path / "store")), free_ports=True)
    node.broker, node.store, node._loop = part("broker"), part("store"), StepLoop()
    node.remoting = SimpleNamespace(server=None)
    return node, node._loop


@pytest.mark.provokes_bugs
@pytest.mark.parametrize("failing", ["broker", "store"])
def test_a_tick_that_raises_stops_neither_the_other_nor_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    """Without time-outs or without flushes the process would look alive and do nothing."""
    made: list[str] = []
    node, loop = _node(tmp_path, failing, made)
    with caplog.at_level(logging.ERROR):
        node._tick()
        for _ in range(3):
            assert [seconds for seconds, _ in loop.timers] == [TICK_SECONDS]
            loop.fire()
    assert made == ["broker", "broker", "store", "broker", "broker", "store"]
    named = [line for line in caplog.records if line.getMessage() == "tick failed by a bug"]
    assert len(named) == made.count(failing)
    assert all(line.exc_info and line.exc_info[0] is ZeroDivisionError for line in named)


def test_a_signal_in_a_tick_is_not_swallowed(tmp_path: Path) -> None:
    """Only bugs are kept from the loop: what ends the process has to."""
    node, _ = _node(tmp_path, "", [])

    def stop(read_ms: int | None = None) -> None:
        raise SystemExit(0)

    node.broker.tick = stop  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        node._tick()


def test_level_async_is_flushed_every_flush_interval(tmp_path: Path) -> None:
    """A-STORE-44: not with the store's ticks, 100 ms apart, which a shorter interval would wait for."""
    node, loop = _node(tmp_path, "", [])
    node.settings = Settings(store=StoreSettings(data_dir=tmp_path / "store", flush_interval_ms=10))
    requests: list[int] = []
    store: Any = node.store
    store.request_flush = lambda: requests.append(1)
    node._flush_in_time()
    for _ in range(2):
        assert [seconds for seconds, _ in loop.timers] == [0.01]
        loop.fire()
    assert len(requests) == 3


def test_the_nsq_server_is_told_of_the_load(tmp_path: Path) -> None:
    """Each tick, of the time since the last one, without what the servers polled."""
    node, loop = _node(tmp_path, "", [])
    loads: list[Load] = []
    bare: Any = node
    bare.nsq = SimpleNamespace(note_load=loads.append, busy_poll=SimpleNamespace(seconds=0.0))
    bare.remoting = SimpleNamespace(server=SimpleNamespace(busy_poll=SimpleNamespace(seconds=0.0)))
    node._tick()
    bare.remoting.server.busy_poll.seconds = 1000.0
    loop.fire()
    assert [load.seconds > 0 for load in loads] == [True, True]
    assert loads[1].busy == 0.0


def test_what_came_before_the_time_of_a_tick_has_been_read(tmp_path: Path) -> None:
    """A loop that is long at its reads has not read the FINs that came meanwhile: they are in time."""
    read_ms: list[int] = []
    sent_ms: list[int] = []

    async def run() -> None:
        node: Any
        node, _ = _node(tmp_path, "", [])
        reads = LongReads(node.clock.monotonic_ms, 2 * TICK_SECONDS)
        node._loop = asyncio.get_running_loop()
        node.broker.tick = lambda now_ms: None if reads.is_over.is_set() else read_ms.append(now_ms)
        server = await node._loop.create_server(reads, "127.0.0.1", 0)
        node._tick()
        await reads.run(server.sockets[0].getsockname())
        server.close()
        sent_ms.append(reads.sent_ms)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert read_ms
    assert max(read_ms) <= sent_ms[0]


def test_no_tick_comes_behind_the_end(tmp_path: Path) -> None:
    """One that was on its way finds everything closed."""
    made: list[str] = []
    node, _ = _node(tmp_path, "", made)
    node._tick_parts(0)
    assert made == []
