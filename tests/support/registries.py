"""One ``headrace registry`` after the other in the same folder: start, ask, kill, start again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self
from urllib.error import HTTPError
from urllib.request import urlopen

TIMEOUT_S: Final = 20.0
PROGRAM: Final = "import sys; from headrace.cli import main; main(sys.argv[1:])"


class RegistryProcess:
    """A registry by itself, as a process.

    Args:
        folder: Holds its data directory, its ready file and the log of all runs.
        arguments: More of the command line, such as addresses; without them it takes free ports.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.data_dir = folder / "data"
        self.listeners: dict[str, str] = {}
        self._ready = folder / "ready.json"
        self._log = folder / "registry.log"
        self._arguments = arguments or ("--free-ports",)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-c", PROGRAM, "registry", "--data-dir", str(self.data_dir)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready), *self._arguments], stdout=log, stderr=log
            )
        until = time.monotonic() + TIMEOUT_S
        while not self._ready.exists():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)
        self.listeners = json.loads(self._ready.read_text())["listeners"]

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Its number while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What all runs have written."""
        return self._log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        """Return status and text of a GET at the admin port."""
        return ask(self.listeners["admin"], path)


def ask(address: str, path: str) -> tuple[int, str]:
    """Return status and text of a GET."""
    try:
        with urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
