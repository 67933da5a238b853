"""The timer of microseconds, on both event loops."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from headrace.net.fine_timer import FineTimer

SHORT_NS = 200_000
LONGEST_S = 10
QUIET_S = 0.02

Run = Callable[[Coroutine[object, object, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """What runs a coroutine in a new event loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


class Calls:
    """A timer, and when it called."""

    def __init__(self) -> None:
        self._times: asyncio.Queue[float] = asyncio.Queue()
        self.timer = FineTimer(lambda: self._times.put_nowait(time.monotonic()))

    async def next_time(self) -> float:
        return await asyncio.wait_for(self._times.get(), LONGEST_S)

    async def are_over(self) -> bool:
        await asyncio.sleep(QUIET_S)
        return self._times.empty()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_each_start_leads_to_one_call_not_too_early(run: Run) -> None:
    async def main() -> None:
        calls = Calls()
        for _ in range(3):
            began = time.monotonic()
            calls.timer.start(SHORT_NS)
            assert await calls.next_time() - began >= SHORT_NS / 1e9
        assert await calls.are_over()
        calls.timer.close()

    run(main())


def test_it_may_be_started_anew_from_its_call(run: Run) -> None:
    async def main() -> None:
        left = 5
        done = asyncio.Event()

        def again() -> None:
            nonlocal left
            left -= 1
            if left:
                timer.start(SHORT_NS)
            else:
                done.set()

        timer = FineTimer(again)
        timer.start(0)
        await asyncio.wait_for(done.wait(), LONGEST_S)
        timer.close()

    run(main())


def test_closed_it_calls_nothing_and_has_no_descriptor(run: Run) -> None:
    async def main() -> None:
        before = count_descriptors()
        calls = Calls()
        calls.timer.start(SHORT_NS)
        assert count_descriptors() == before + 1
        calls.timer.close()
        calls.timer.close()
        assert count_descriptors() == before
        assert await calls.are_over()

    run(main())


def test_without_a_descriptor_it_is_the_loops_timer(run: Run) -> None:
    async def main() -> None:
        calls = Calls()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            calls.timer.start(SHORT_NS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await calls.next_time()
        calls.timer.start(SHORT_NS)
        calls.timer.close()
        assert await calls.are_over()

    run(main())
