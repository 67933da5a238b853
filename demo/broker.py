"""The broker of the demo: ``headrace serve`` as a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from headrace.cli.local_http import open_directly

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0

_LOOK_BYTES: Final = 1 << 20

# Below the ports that Linux gives to outgoing connections: a client that tries to reconnect to a port of that range
# while nobody listens can end up connected to itself, and then the broker cannot have its port back.
_PORTS: Final = range(20_000, 32_000)
_given: Final[set[int]] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, another one each time."""
    while True:
        port = random.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port


class BrokerProcess:
    """A broker with default settings but for its ports, which stay the same when it is started again.

    Attributes:
        nsq_tcp: Where NSQ clients connect.
        nsq_http: Where its HTTP interface answers.
        remoting: Where RocketMQ clients reach it.
        registry: What RocketMQ clients and Spark are given.
        data_dir: The folder of its store.
        log: What it wrote to standard error, of every start.
    """

    def __init__(self, folder: Path) -> None:
        self.nsq_tcp = f"127.0.0.1:{free_port()}"
        self.nsq_http = f"127.0.0.1:{free_port()}"
        self.remoting = f"127.0.0.1:{free_port()}"
        self.registry = f"127.0.0.1:{free_port()}"
        self._admin = f"127.0.0.1:{free_port()}"
        self.data_dir = folder / "store"
        self.log = folder / "broker.log"
        self._ready_file = folder / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until every listener accepts; return the seconds that took.

        Raises:
            RuntimeError: it did not start.
        """
        began = time.monotonic()
        self._ready_file.unlink(missing_ok=True)
        command: list[str | Path] = [Path(sys.executable).with_name("headrace"), "serve"]
        command += ["--data-dir", self.data_dir, "--ready-file", self._ready_file]
        command += ["--nsq.tcp-address", self.nsq_tcp, "--nsq.http-address", self.nsq_http]
        command += ["--remoting.address", self.remoting, "--remoting.vip-listener", "false"]
        command += ["--registry.address", self.registry, "--admin.address", self._admin]
        # Only what this command says: whoever runs the demo may have settings for a broker of his own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while not self._ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > began + START_SECONDS:
                self.end()
                raise RuntimeError(f"the broker did not start; {self.log} ends with:\n{self.last_lines()}")
            time.sleep(0.01)
        return time.monotonic() - began

    @property
    def pid(self) -> int:
        """Its process id: what the ready file says, which is the process that owns the store."""
        return int(json.loads(self._ready_file.read_text())["pid"])

    def kill(self) -> None:
        """Kill it without warning (SIGKILL)."""
        assert self._process is not None
        process, self._process = self._process, None
        os.kill(self.pid, signal.SIGKILL)
        process.wait()

    def check(self) -> None:
        """Raise when it has ended by itself.

        Raises:
            RuntimeError: so it is.
        """
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError("the broker ended while it was needed")

    def end(self) -> int:
        """End it with SIGTERM; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def check_store(self) -> str:
        """Verify the store with ``headrace store check``; return what it says when something is wrong, else nothing."""
        command: list[str | Path] = [Path(sys.executable).with_name("headrace"), "store", "check", self.data_dir]
        checked = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        return "" if checked.returncode == 0 else checked.stdout + checked.stderr

    def create_channels(self, topic: str, channels: Sequence[str]) -> None:
        """Create a topic and its channels: a channel gets what is published after it was made."""
        self.create_topic(topic)
        for channel in channels:
            self._ask("POST", f"/channel/create?topic={topic}&channel={channel}")

    def create_topic(self, topic: str) -> None:
        """Create a topic of one queue."""
        self._ask("POST", f"/topic/create?topic={topic}")

    def channels(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return what ``/stats`` says of a topic's channels, by name."""
        stats = json.loads(self._ask("GET", f"/stats?format=json&topic={topic}"))
        return {channel["channel_name"]: channel for found in stats["topics"] for channel in found["channels"]}

    def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"http://{self.nsq_http}{path}", method=method)
        with open_directly(request, timeout=10) as answer:
            content: bytes = answer.read()
        return content

    def last_lines(self, count: int = 10) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def store_bytes(data_dir: Path) -> tuple[int, int]:
    """Return (bytes used, bytes allocated) of a store: the commit log is allocated ahead of its use."""
    used = allocated = 0
    for path in data_dir.rglob("*"):
        if path.is_file():
            used += _used_bytes(path)
            allocated += path.stat().st_blocks * 512
    return used, allocated


def _used_bytes(path: Path) -> int:
    """Return the position behind the last byte of a file that is not zero."""
    with path.open("rb") as file:
        for start, end in reversed(_written_ranges(file)):
            for at in range((end - 1) // _LOOK_BYTES * _LOOK_BYTES, start - _LOOK_BYTES, -_LOOK_BYTES):
                file.seek(max(at, start))
                content = file.read(min(end, at + _LOOK_BYTES) - max(at, start)).rstrip(b"\0")
                if content:
                    return max(at, start) + len(content)
    return 0


def _written_ranges(file: BinaryIO) -> list[tuple[int, int]]:
    """Return the ranges of a file that are no holes, all of them before any is read: what was read counts as data."""
    ranges = []
    position, size = 0, os.fstat(file.fileno()).st_size
    while position < size:
        try:
            start = os.lseek(file.fileno(), position, os.SEEK_DATA)
        except OSError:  # nothing but a hole follows
            break
        position = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        ranges.append((start, position))
    return ranges
