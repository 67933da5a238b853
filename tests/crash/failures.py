"""Full disks and failed fsyncs, with a real broker process. ``make crash`` runs them behind its kills.

At 90 % of the budget writes are refused. A failed fsync stops writes for good; it is never retried.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess, StartError
from tests.crash.checker import Checker
from tests.crash.history import Answered, Crashed, Drained, Event, History, Outcome
from tests.crash.load import Load
from tests.support.toolchain import cannot_run


class Rig:
    """A broker process, the load on it, and the checker of everything clients see."""

    def __init__(
        self, folder: Path, *arguments: str, prefix: tuple[str, ...] = (), data_dir: Path | None = None
    ) -> None:
        self.broker = BrokerProcess(folder, arguments, prefix)
        if data_dir is not None:
            self.broker.data_dir = data_dir
        self.checker = Checker()
        self.history = History()
        self.history.observers.append(self.checker.observe)
        self.counters: dict[str, int] = {}
        self.load: Load

    def start(self, rate: float = 4000) -> None:
        self.broker.start()
        self.load = Load(self.history, self.checker, random.Random(1), self.counters)
        self.load.rates.changes_per_s = 0.001
        self.load.rates.messages_per_s = rate
        self.load.rates.longest_delay_ms = 300
        self.load.rates.backlog = 6000
        self.load.connect(self.broker.listeners)

    def publish(self, *, seconds: float, until_refused: bool = False) -> list[bytes]:
        """Publish for a time or until refused; return the refusals since the last call."""
        self.load.refusals.clear()
        before = self.load.acknowledged
        self.load.begin_publishing()
        until = (lambda: len(self.load.refusals) > 0) if until_refused else None
        self.load.run(time.monotonic() + seconds, until=until)
        # The rest of the publishers learns of it too.
        if until_refused:
            self.load.run(time.monotonic() + 0.5)
        self.load.drain(0.0)
        assert until_refused or self.load.acknowledged > before + 10
        return list(self.load.refusals)

    def drain(self) -> None:
        self.load.drain(20)
        self.history.record(Drained(time.monotonic()))

    def finish(self) -> None:
        """Take what is left, stop the broker in order and check what clients saw."""
        self.drain()
        self.load.close()
        assert self.broker.stop() == 0
        self.check()

    def kill(self) -> None:
        at = time.monotonic()
        self.broker.kill()
        dead_at = time.monotonic()
        self.load.read_rest(at)
        self.history.record(Crashed(at, dead_at - at))

    def try_start(self) -> None:
        """Start it where it may be refused, in one sentence, and kill it again; it may have delivered meanwhile."""
        self.broker.spawn()
        try:
            assert self.broker.wait_ready()
        except StartError:
            log = self.broker.log_tail()
            assert "Traceback" not in log, log
            assert "headrace: " in log.splitlines()[-1]
        self.broker.kill()
        self.history.record(Crashed(time.monotonic()))

    def check(self) -> None:
        found = [str(violation) for violation in self.checker.violations[:10]]
        assert not found, "\n".join(found)

    def get(self, listener: str, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{self.broker.listeners[listener]}{path}", timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def assert_refusals(refusals: list[bytes], *words: bytes) -> None:
    """Every publisher was told why, with the error of its command."""
    assert refusals
    for refusal in refusals:
        assert refusal.split()[0] in (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED"), refusal
        assert any(word in refusal for word in words), refusal


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.broker.kill()
        if hasattr(rig, "load"):
            rig.load.close()


def test_full_budget(tmp_path: Path, rigs: list[Rig]) -> None:
    """At the refuse mark publishers get an error, consumers go on; nothing acknowledged is lost by a kill then."""
    rig = Rig(tmp_path, "--store.budget-bytes", "5MiB")
    rigs.append(rig)
    rig.start(rate=1e6)
    assert_refusals(rig.publish(seconds=20, until_refused=True), b"no room", b"budget")
    assert rig.get("nsq_http", "/ping")[0] == 500
    assert rig.get("admin", "/healthz") == (200, b"ok\n"), "a restart would not help"
    assert_refusals(rig.publish(seconds=5, until_refused=True), b"no room")
    rig.drain()
    rig.check()
    rig.kill()
    rig.start()
    assert_refusals(rig.publish(seconds=10, until_refused=True), b"no room")
    rig.kill()
    rig.broker._arguments = ("--store.budget-bytes", "100MiB")
    rig.start()
    assert rig.publish(seconds=0.5) == []
    rig.finish()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    if shutil.which("mount") is None:
        cannot_run("cannot mount a small disk here: there is no mount")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode != 0:
        cannot_run(f"cannot mount a small disk here: {made.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=False)


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    path = disk / "of-others"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\1" * size)
                    if size == 1:
                        break
            except OSError:
                continue
    return path


def test_disk_full_by_others_and_room_made(small_disk: Path, tmp_path: Path, rigs: list[Rig]) -> None:
    """Not one free byte: refused, kept, and when room is made the service goes on without a restart."""
    rig = Rig(tmp_path, data_dir=small_disk / "store")
    rigs.append(rig)
    rig.start()
    rig.publish(seconds=0.3)
    others = fill(small_disk)
    outcomes: list[Outcome] = []

    def note(event: Event) -> None:
        if isinstance(event, Answered) and event.outcome is not Outcome.UNKNOWN:  # that is a client that was cut off
            outcomes.append(event.outcome)

    rig.history.observers.append(note)
    for _ in range(5):
        assert_refusals(rig.publish(seconds=20, until_refused=True), b"no room", b"No space")
        if rig.get("nsq_http", "/ping")[0] == 500:
            break
        assert outcomes[-1] is Outcome.OK  # health is what the last write was: a smaller batch had found room
    assert rig.get("nsq_http", "/ping")[0] == 500
    rig.load.run(time.monotonic() + 1.5)  # journal, queues and checkpoint find no room either
    rig.drain()
    rig.check()
    others.unlink()
    assert rig.publish(seconds=0.3) == []
    assert rig.get("nsq_http", "/ping") == (200, b"OK")
    rig.drain()
    rig.check()
    rig.load.run(time.monotonic() + 1.5)
    rig.kill()
    rig.start()
    rig.finish()


def test_killed_on_a_full_disk(small_disk: Path, tmp_path: Path, rigs: list[Rig]) -> None:
    """A start without room either serves or is refused in one sentence; with room again nothing is lost."""
    rig = Rig(tmp_path, data_dir=small_disk / "store")
    rigs.append(rig)
    rig.start()
    rig.publish(seconds=0.3)
    others = fill(small_disk)
    rig.publish(seconds=20, until_refused=True)
    rig.load.run(time.monotonic() + 1.5)
    rig.kill()
    rig.try_start()
    others.unlink()
    rig.start()
    assert rig.publish(seconds=0.3) == []
    rig.finish()


def strace(when: int, error: str = "EIO") -> tuple[str, ...]:
    """Return a prefix that makes the Nth fdatasync of each thread fail, and all after it succeed."""
    program = shutil.which("strace")
    if program is None:
        cannot_run("strace is not installed: apt-get install strace")
    tried = subprocess.run([program, "-f", "-e", "trace=none", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        cannot_run(f"strace cannot attach here: {tried.stderr.decode().strip()[-200:]}")
    return (
        program, "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync", "-e", "signal=none",
        "-e", f"inject=fdatasync:error={error}:when={when}",
    )  # fmt: skip


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_failed_fsync_stops_writes_for_good(tmp_path: Path, rigs: list[Rig], error: str) -> None:
    """Never retried as if the data were safe: every publisher gets the error, health says so, readers go on."""
    rig = Rig(tmp_path, prefix=strace(40, error))
    rigs.append(rig)
    rig.start()
    assert_refusals(rig.publish(seconds=30, until_refused=True), b"fdatasync")
    acknowledged = rig.load.acknowledged
    assert acknowledged > 0
    status, body = rig.get("admin", "/healthz")
    assert status == 500
    assert b"fdatasync" in body
    status, body = rig.get("nsq_http", "/ping")
    assert status == 500
    assert body.startswith(b"NOK")
    for _ in range(2):  # strace lets every later fdatasync succeed
        assert_refusals(rig.publish(seconds=10, until_refused=True), b"fdatasync")
    assert rig.load.acknowledged == acknowledged
    rig.load.drain(5)
    assert "CRITICAL" in rig.broker.log_tail(100_000)
    rig.check()
    rig.kill()
    rig.broker._prefix = ()
    rig.start()
    assert rig.get("admin", "/healthz")[0] == 200
    assert rig.publish(seconds=0.3) == []
    rig.finish()
