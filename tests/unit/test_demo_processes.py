"""The demo's processes: what ends too early is told at once, and an interrupted set-up goes with what it started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.broker import BrokerProcess, free_port
from demo.spark import SparkProcess

ROOT = Path(__file__).resolve().parents[2]


def check_for(broker: BrokerProcess, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        broker.check()
        time.sleep(0.01)


def wait_for_text(path: Path) -> None:
    while not path.exists() or not path.read_text():
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended is left to whoever waits for orphans, in its own time."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_broker_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    """Clients of it would only try again, for minutes; one that the story kills is no news."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.check()
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the broker ended while it was needed"):
        check_for(broker, seconds=10)
    assert broker.end() == -signal.SIGKILL
    broker.start()
    broker.kill()
    broker.check()


def test_a_store_is_checked_whatever_its_path_is_spelled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONIOENCODING=latin-1 and a clone below `ä` a demo that was right ended with a UnicodeDecodeError."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    folder = tmp_path / "ä"
    folder.mkdir()
    broker = BrokerProcess(folder)
    assert str(tmp_path) in broker.check_store()


def test_the_broker_is_asked_past_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the environment names for the web: `make demo` ended with "Connection refused"."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("urllib.request._opener", None)  # else it has looked at the environment before
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        broker.create_channels("flights", ["arrivals"])
        assert list(broker.channels("flights")) == ["arrivals"]
    finally:
        broker.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_set_up_ends_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal interrupts the whole group, `kill` only one process. Neither leaves a traceback."""
    make = tmp_path / "make"
    # A moment later: until then who starts it may still be about that.
    make.write_text(f"#!/bin/sh\nsleep 0.5\nsleep 60 &\necho $! > '{tmp_path}/pid'\nwait\n")
    make.chmod(0o755)
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"]
    command[-1] += "import sys; from demo import prepare; sys.exit(prepare.main())"
    process = subprocess.Popen([*command, make], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_for_text(tmp_path / "pid")
    process.send_signal(number)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_set_ups_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    """Both installed into one environment: two of pip take files away from each other."""
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\nmkdir at-work || exit 1\nsleep 0.1\nrmdir at-work\n")
    make.chmod(0o755)
    command: list[str | Path] = [sys.executable, ROOT / "demo" / "prepare.py", make]
    both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=30)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "".join(said).count("another make demo prepares this clone") == 1


@pytest.mark.parametrize("is_parent_there", [True, False])
def test_spark_is_ended_with_its_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_parent_there: bool) -> None:
    """Ctrl-C while it started left a JVM for seconds, which made its folder again behind the end of `make demo`."""
    spark = SparkProcess("127.0.0.1:1", tmp_path)
    jvm = f"trap '' INT; sleep 60 & echo $! > '{tmp_path}/pid'"
    monkeypatch.setattr(spark, "_command", ["sh", "-c", f"{jvm}; wait" if is_parent_there else jvm])

    async def start_and_kill() -> None:
        await spark.start()
        await asyncio.to_thread(wait_for_text, tmp_path / "pid")
        await spark.kill()

    asyncio.run(start_and_kill())
    assert not is_there(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can stand in for the first process")
def test_spark_is_ended_where_nobody_waits_for_orphans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a container may be a `sleep`: what is left of a JVM stayed, and cost the demo 40 s."""
    spark = SparkProcess("127.0.0.1:1", tmp_path)
    monkeypatch.setattr(spark, "_command", ["sh", "-c", f"sleep 60 & echo $! > '{tmp_path}/pid'"])

    async def start_and_kill() -> float:
        await spark.start()
        await asyncio.to_thread(wait_for_text, tmp_path / "pid")
        since = time.monotonic()
        await spark.kill()
        return time.monotonic() - since

    set_child_subreaper = 36
    libc = ctypes.CDLL(None)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        assert asyncio.run(start_and_kill()) < 10
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)
        assert os.waitstatus_to_exitcode(os.waitpid(int((tmp_path / "pid").read_text()), 0)[1]) == -signal.SIGTERM
