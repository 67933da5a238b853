"""One ``headrace serve`` after the other on the same store: start, kill -9, read what it logged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START_TIMEOUT_S = 30.0

# Lines that no kill -9 may cause: the page cache survives it.
_COMPLAINTS = (
    "Traceback", " ERROR ", " CRITICAL ", "brought back", "made for its messages", "clamped", "damaged",
    "rebuilt from the whole log",
)  # fmt: skip


class StartError(Exception):
    """The broker ended, or did not get ready, when it should have started."""


class BrokerProcess:
    """A store and the process that serves it.

    Args:
        folder: Holds the store (``store``), the ready file and the logs of all runs (``broker.log``).
        arguments: Settings, such as ``--store.durability async``.
        prefix: A program that runs the broker, such as strace with its options.
        expected: Parts of lines of its log that are no complaints.
        free_ports: Whether every start takes ports that are free; else ``arguments`` name them.
    """

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        expected: tuple[str, ...] = (),
        free_ports: bool = True,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "store"
        self.log_path = folder / "broker.log"
        self.build: Path | None = None
        """``src`` of the build that the next start runs; None: the one that is installed."""
        self.listeners: dict[str, str] = {}
        self.pid = -1
        self._arguments = arguments
        self._prefix = prefix
        self._expected = expected
        self._free_ports = ("--free-ports",) if free_ports else ()
        self._ready_file = folder / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_read = 0

    def spawn(self) -> None:
        """Start the process; ``wait_ready`` waits for it."""
        self._ready_file.unlink(missing_ok=True)
        command = [
            *self._prefix, str(Path(sys.executable).with_name("headrace")), "serve", "--data-dir", str(self.data_dir),
            *self._free_ports, "--ready-file", str(self._ready_file), "--store.segment-bytes", "1MiB", *self._arguments,
        ]  # fmt: skip
        variables = os.environ | ({} if self.build is None else {"PYTHONPATH": str(self.build)})
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=variables
            )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> bool:
        """Return True once it serves, False when ``timeout_s`` passed.

        Raises:
            StartError: it has ended.
        """
        assert self._process is not None
        until = time.monotonic() + timeout_s
        while not self._ready_file.exists():
            code = self._process.poll()
            if code is not None:
                raise StartError(f"ended with code {code}: {self.log_tail()}")
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        content = json.loads(self._ready_file.read_text())
        self.listeners, self.pid = content["listeners"], content["pid"]
        return True

    def start(self) -> None:
        """Start and wait until it serves.

        Raises:
            StartError: it ended or took too long.
        """
        self.spawn()
        if not self.wait_ready():
            self.kill()
            raise StartError(f"not ready after {START_TIMEOUT_S:.0f} s: {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is None:
            return
        if self._prefix and self.pid > 0:
            os.kill(self.pid, signal.SIGKILL)  # the tracer ends with it
        else:
            self._process.kill()
        self._process.wait()
        self._process, self.pid = None, -1

    def hold(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT when the time has passed."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM; return the exit code."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        code = self._process.wait(timeout_s)
        self._process, self.pid = None, -1
        return code

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, most: int = 1500) -> str:
        """Return the end of the log."""
        return self.log_path.read_text(errors="replace")[-most:] if self.log_path.exists() else ""

    def new_complaints(self) -> list[str]:
        """Return the lines logged since the last call that a kill -9 must not cause."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_read)
            raw = file.read()
        whole = raw.rfind(b"\n") + 1
        self._log_read += whole
        lines = raw[:whole].decode(errors="replace").splitlines()
        return [
            line
            for line in lines
            if any(text in line for text in _COMPLAINTS) and not any(text in line for text in self._expected)
        ]
