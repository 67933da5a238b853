"""How long the event loop stays awake behind a read, with a loop and a clock of our own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from headrace.net.busy_poll import MAX_LEFT_OUT, BusyPoll

LOOK_US = 100


class Loop:
    """Runs what is called soon, a turn of 10 us at a time; reads come when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, processors: int = 2, look_us: int = LOOK_US) -> None:
        self.now_ns = 0
        self.soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        monkeypatch.setattr("headrace.net.busy_poll.perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr("asyncio.get_running_loop", lambda: self)
        monkeypatch.setattr("os.cpu_count", lambda: processors)
        self.poll = BusyPoll(look_us)

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    @property
    def is_awake(self) -> bool:
        return bool(self.soon)

    def turn(self) -> None:
        """Take 10 us, and run what was due when they began."""
        self.now_ns += 10_000
        for _ in range(len(self.soon)):
            callback, arguments = self.soon.popleft()
            callback(*arguments)

    def sleep(self) -> int:
        """Turn until nothing is due; return how many us that took."""
        began = self.now_ns
        while self.soon:
            self.turn()
        return (self.now_ns - began) // 1000


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_it_stays_awake_for_the_next_read(loop: Loop) -> None:
    for _ in range(50):
        loop.poll.served()
        for _ in range(7):
            assert loop.is_awake
            loop.turn()
    assert loop.sleep() <= LOOK_US + 20
    assert loop.poll.seconds == pytest.approx(49 * 60e-6 + 100e-6, rel=0.1)


def test_what_does_not_pay_is_tried_less_and_less(loop: Loop) -> None:
    """Reads that come later than it looks: behind a thousand of them it has looked ten times."""
    looked = []
    for number in range(1100):
        loop.poll.served()
        if loop.is_awake:
            looked.append(number)
            assert loop.sleep() == LOOK_US
        loop.now_ns += 10_000_000
    assert looked == [0, 2, 5, 10, 19, 36, 69, 134, 263, 520, 1033]


def test_at_the_latest_it_is_tried_again_after_a_thousand_reads(loop: Loop) -> None:
    looked = 0
    for _ in range(10 * MAX_LEFT_OUT):
        loop.poll.served()
        looked += loop.is_awake
        loop.sleep()
    assert looked == 19  # ten as above, then one for each thousand


def test_one_success_has_it_look_again_at_once(loop: Loop) -> None:
    for _ in range(40):
        loop.poll.served()
        loop.sleep()
    while not loop.is_awake:
        loop.poll.served()
    loop.turn()
    loop.poll.served()  # in time
    loop.turn()
    assert loop.is_awake
    loop.sleep()
    loop.poll.served()
    assert not loop.is_awake
    loop.poll.served()
    assert loop.is_awake


def test_what_is_there_already_was_not_waited_for(loop: Loop) -> None:
    for _ in range(100):
        loop.poll.served()
        loop.turn()
    assert loop.poll.seconds == pytest.approx(10e-6)  # of the first turn, which was before the second read


def test_while_an_answer_waits_for_the_disk_nothing_is_looked_for(loop: Loop) -> None:
    """The flusher may need the core; what came in time was worth looking for."""
    for _ in range(50):
        loop.poll.answered()
        for _ in range(3):
            assert loop.is_awake
            loop.turn()
        loop.poll.waits()
        loop.turn()
        assert not loop.is_awake
        loop.now_ns += 10_000_000
    assert loop.poll.seconds == pytest.approx(50 * 30e-6, rel=0.1)


def test_behind_the_disk_too_it_is_tried_less_and_less(loop: Loop) -> None:
    looked: list[int] = []
    for number in range(40):
        loop.poll.waits()
        assert not loop.is_awake
        loop.poll.answered()
        if loop.is_awake:
            looked.append(number)
            loop.sleep()
    assert looked == [0, 2, 5, 10, 19, 36]


@pytest.mark.parametrize("changes", [{"look_us": 0}, {"processors": 1}])
def test_it_never_looks(monkeypatch: pytest.MonkeyPatch, changes: dict[str, int]) -> None:
    """Switched off, or on a machine whose clients need the one processor."""
    loop = Loop(monkeypatch, **changes)
    assert loop.poll.seconds == 0
    for _ in range(10):
        loop.poll.served()
        assert not loop.is_awake
