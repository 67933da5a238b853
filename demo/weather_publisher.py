"""The weather's publisher: feeds the client program with lines, and knows what was answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from demo.weather_client import WeatherClient

REPOSITORY: Final = Path(__file__).resolve().parents[1]
END_SECONDS: Final = 30.0


class WeatherPublisher:
    """One client program.

    Attributes:
        answered: Messages the broker has acknowledged.
        resent: Messages sent again because no answer came: the broker may have them twice.
    """

    def __init__(self, client: WeatherClient, registry: str, topic: str, log: Path) -> None:
        self.client = client
        self.answered = self.resent = 0
        self._command = [*client.command, registry, topic]
        self._log = log
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def start(self) -> None:
        """Start the program."""
        # The client writes its own files to the home folder.
        environment = {**os.environ, "HOME": str(self._log.parent)}
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=REPOSITORY,
            )
        self._reading = asyncio.create_task(self._read())

    async def publish(self, lines: Sequence[bytes]) -> None:
        """Hand lines to the program; ``answered`` says how far it is."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"".join(line + b"\n" for line in lines))
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise RuntimeError(await self._why()) from error

    async def finish(self) -> None:
        """Wait until everything was answered and the program has ended.

        Raises:
            RuntimeError: it failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._reading
        if await asyncio.wait_for(self._process.wait(), END_SECONDS):
            raise RuntimeError(await self._why())

    async def kill(self) -> None:
        """End the program, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answered, resent = line.split()
            self.answered, self.resent = int(answered), int(resent)

    async def _why(self) -> str:
        lines = (await asyncio.to_thread(self._log.read_text, errors="replace")).splitlines()[-5:]
        return "\n".join([f"the weather's publisher ({self.client.name}) ended; it said:", *lines])
