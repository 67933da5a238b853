"""The flush thread: order, group commit within the line of requests, errors."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.store.flusher import Flusher


@pytest.fixture
def flusher() -> Iterator[Flusher]:
    flusher = Flusher()
    yield flusher
    flusher.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """Two open files."""
    opened = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for name in ("a", "b")]
    yield opened
    for fd in opened:
        os.close(fd)


def test_results_come_in_the_order_of_the_requests(flusher: Flusher, files: list[int]) -> None:
    """Two files in turn, and more requests than the line holds: each has its own result."""
    for target in range(200):
        assert flusher.request(target, files[target % 2])
    assert [flusher.take_result()[:2] for _ in range(200)] == [(target, 0) for target in range(200)]


def test_a_signal_does_not_end_the_wait_for_a_result(flusher: Flusher, files: list[int]) -> None:
    """Found by the fuzzer, which has an alarm every second: a flush that was waited for failed."""
    waiting, signalled = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: signalled.set())

    def interrupt() -> None:
        while not signalled.wait(0.05):
            signal.pthread_kill(waiting, signal.SIGUSR1)
        flusher.request(7, files[0])

    interrupting = threading.Thread(target=interrupt)
    try:
        interrupting.start()
        assert flusher.take_result()[:2] == (7, 0)
    finally:
        signalled.set()
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_request_that_was_not_begun_takes_up_the_next(flusher: Flusher, files: list[int]) -> None:
    """architecture.md, "Flush": what is appended while a flush runs goes with the next one."""
    results = sum(flusher.request(target, files[0]) for target in range(1, 501))
    targets = [flusher.take_result()[0] for _ in range(results)]
    assert targets == sorted(set(targets))
    assert targets[-1] == 500


def test_a_lower_target_does_not_replace_a_higher_one(flusher: Flusher, files: list[int]) -> None:
    """A roll asks for the older segment with -1: what was asked for in it before keeps its target."""
    results = sum(flusher.request(target, files[0]) for target in (7, 8, -1))
    assert max(flusher.take_result()[0] for _ in range(results)) == 8


def test_an_error_comes_back_with_its_request(flusher: Flusher, files: list[int]) -> None:
    """A failed fdatasync is reported; the requests behind it are still answered."""
    closed = os.open(os.devnull, os.O_RDWR)
    os.close(closed)
    flusher.request(1, closed)
    flusher.request(2, files[0])
    assert [flusher.take_result()[:2] for _ in range(2)] == [(1, errno.EBADF), (2, 0)]


def test_closing_carries_out_what_was_asked_for(files: list[int]) -> None:
    """A close ends the thread behind the last request, and a second one does nothing."""
    flusher = Flusher()
    results = sum(flusher.request(target, files[target % 2]) for target in range(20))
    assert results == 20
    flusher.close()
    flusher.close()
