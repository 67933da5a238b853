"""The Spark process as its parent sees it: starts ``demo.query``, keeps what it tells, says when to finish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from headrace.spark.java import NO_TRACE

REPOSITORY: Final = Path(__file__).resolve().parents[1]
STOP_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.05


class SparkProcess:
    """One process.

    Attributes:
        with_weather: Flights written that have weather.
        without: Flights written without.
        batches: Micro-batches that wrote something.
        restarts: Why the query was started again, for each time.
        stage: What it does now, in a word; empty while the query stands.
        outcome: What the last event told; empty until then.
    """

    def __init__(self, registry: str, folder: Path) -> None:
        self.with_weather = self.without = self.batches = 0
        self.restarts: list[str] = []
        self.stage = "starting"
        self.outcome: dict[str, Any] = {}
        self.log = folder / "spark.log"
        self._scratch = folder / "scratch"
        self._command = [sys.executable, "-m", "demo.query", registry, str(folder)]
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    @property
    def written(self) -> int:
        """Flights written."""
        return self.with_weather + self.without

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be told."""
        return self._reading.done()

    async def start(self) -> None:
        """Start it, with a place of its own for what Spark, Java and libraries keep elsewhere."""
        self._scratch.mkdir()
        scratch = str(self._scratch)
        places = {"TMPDIR": scratch, "MPLCONFIGDIR": scratch, "XDG_CACHE_HOME": str(REPOSITORY / ".cache")}
        # In quotes: Java cuts this variable at spaces.
        java = f'"-Djava.io.tmpdir={scratch}" {NO_TRACE}'
        # The Spark that was installed for the demo, whatever other one this machine has.
        others = ("SPARK_", "PYSPARK_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env={**environment, **places, "JDK_JAVA_OPTIONS": java},
                limit=1 << 20,
                process_group=0,  # its JVM is in it, too
            )
        self._reading = asyncio.create_task(self._read())

    def finish(self) -> None:
        """Say that everything is published: the query writes what is left, then comes the rest."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")

    async def check(self) -> None:
        """Raise when the process has ended before it was done.

        Raises:
            RuntimeError: so it is; the text has the end of its log.
        """
        if self.has_ended and not self.outcome:
            code = await self._process.wait()
            lines = (await asyncio.to_thread(self.log.read_text, errors="replace")).splitlines()[-12:]
            raise RuntimeError("\n".join([f"the Spark process ended with exit code {code}; it said:", *lines]))

    async def kill(self) -> None:
        """End it and its JVM, at first kindly; then nothing writes to their folders any more.

        Of its parent's death a JVM that is about to start learns seconds later.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if await self._is_gone():
                break
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _is_gone(self) -> bool:
        """Wait until nobody runs in its group; return False when that takes too long."""
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if self._process.returncode is not None and not _is_running(self._process.pid):
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            facts = json.loads(line)
            match facts.pop("event"):
                case "stage":
                    self.stage = facts["name"]
                case "standing":
                    self.stage = ""
                case "wrote":
                    self.with_weather, self.without = facts["with_weather"], facts["without"]
                    self.batches = facts["batches"]
                case "restarted":
                    self.restarts.append(facts["reason"])
                case "done":
                    self.outcome = facts


def _is_running(group: int) -> bool:
    """Whether somebody in a process group runs.

    Where the first process of a container waits for nobody (`sleep`), what is left of an orphan stays in it for ever.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self/stat").exists():  # as on macOS
        return True
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            state, _, found = path.read_text(errors="replace").rpartition(") ")[2].split()[:3]
            if int(found) == group and state not in "ZX":
                return True
    return False
