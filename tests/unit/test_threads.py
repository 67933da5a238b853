"""Threads that are all there from the start, and a system that gives no more of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.clock import Clock
from headrace.errors import NoThreadError
from headrace.remoting.services import open_parts
from headrace.settings import BrokerSettings, RemotingSettings, StoreSettings
from headrace.store.store import Store
from headrace.threads import Threads

_start = threading.Thread.start


def allow(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let ``count`` more threads start, and then as many again as end; no more, as at a limit of processes."""
    there = threading.active_count()

    def start(thread: threading.Thread, *_: Any) -> None:
        if threading.active_count() >= there + count:
            raise RuntimeError("can't start new thread")
        _start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def _settings(folder: Path) -> StoreSettings:
    return StoreSettings(data_dir=folder / "store", segment_bytes=1 << 20)


def test_work_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls at once as there are threads, before any of these has done anything."""
    threads = Threads("some", 3)
    allow(monkeypatch, 0)
    together = threading.Barrier(3, timeout=10)
    assert sorted(call.result(10) for call in [threads.submit(together.wait) for _ in range(3)]) == [0, 1, 2]
    threads.shutdown()


@pytest.mark.parametrize("given", [0, 1, 2])
def test_fewer_threads_than_asked_for(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    """The error names what helps, and the threads that were started end."""
    before = threading.active_count()
    allow(monkeypatch, given)
    with pytest.raises(NoThreadError, match=r"^cannot start the thread some: .*ulimit -u"):
        Threads("some", 3)
    assert threading.active_count() == before


@pytest.mark.parametrize("count", [1, 2])
def test_a_signal_while_they_start_keeps_nothing_from_its_end(count: int) -> None:
    """Threads that wait for those which do not come kept the process for good, behind its exit."""
    script = f"""
import os, signal, sys
from headrace.foreground import leave_at_signals
from headrace.threads import Threads
leave_at_signals()
submit = Threads.submit
def interrupted(self, *args):
    submit(self, *args)
    os.kill(os.getpid(), signal.SIGTERM)
Threads.submit = interrupted
Threads("some", {count})
sys.exit("the signal was lost")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("given", range(6))
def test_a_store_without_its_threads_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    """It was half a store: its checkpoints, or its cold reads, failed for as long as it ran. Nothing stays locked."""
    allow(monkeypatch, given)
    with pytest.raises(NoThreadError):
        Store.open(_settings(tmp_path), Clock())
    monkeypatch.undo()
    Store.open(_settings(tmp_path), Clock()).close()


def test_a_broker_that_opened_needs_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that made a topic was never answered: the thread that writes ``topics.json`` could not be started."""
    store = Store.open(_settings(tmp_path), Clock())
    opened = Broker.open(store, BrokerSettings(), Clock())
    parts = open_parts(opened, RemotingSettings())
    allow(monkeypatch, 0)
    saved = threading.Event()
    opened.ensure_topic("orders")
    parts.groups.topics_file.when_saved(lambda failure: saved.set())
    assert saved.wait(10)
    opened.close()
    store.close()
