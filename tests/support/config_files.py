"""Threads and event loop for config files in tests: jobs run at once, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.broker.config_file import ConfigFile, FileWriter

Call = Callable[[], None]


class Jobs:
    """Jobs given to the thread. With ``at_once`` they run as they come; else ``run`` does them."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.waiting: list[Call] = []
        self.count = 0

    def submit(self, job: Call) -> None:
        self.count += 1
        if self.at_once:
            job()
        else:
            self.waiting.append(job)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            job()

    def writer(self, folder: Path, name: str) -> FileWriter:
        """Return the writer of one file."""
        return FileWriter(ConfigFile(folder, name), self.submit, lambda call: call())


class BrokenConfigFile(ConfigFile):
    """A file whose disk is full while ``fails``."""

    fails = True

    def save(self, content: bytes | bytearray, number: int) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        super().save(content, number)
