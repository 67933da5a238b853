"""What a process has used so far, read from /proc."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MEMORY_SAMPLE_INTERVAL_S = 0.05


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, user and kernel, in steps of one clock tick."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The command name may contain spaces and parentheses: fields are counted from its last ")".
    fields = stat.rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / TICKS_PER_S


def memory_mib(pid: int, field: str) -> float:
    """Return one memory field of /proc/PID/status (such as ``RssAnon``) in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return int(value.split()[0]) / 1024
    raise ValueError(f"/proc/{pid}/status has no field {field}")


class Sampler:
    """Looks at something again and again, in a thread, while the context is open."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while self._sample() and not self._stopped.wait(self._interval_s):
            pass

    def _sample(self) -> bool:
        """Look once; return False where there is nothing more to see."""
        raise NotImplementedError


class MemoryWatch(Sampler):
    """Follows a process's anonymous memory.

    The kernel keeps a high-water mark only of all resident memory, which counts mapped files, so a store that maps its
    log looks big in it. The peak of what the process itself allocated must be sampled.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(MEMORY_SAMPLE_INTERVAL_S)
        self._pid = pid
        self.anonymous_peak_mib = 0.0

    def _sample(self) -> bool:
        try:
            anonymous = memory_mib(self._pid, "RssAnon")
        except (OSError, ValueError):
            return False  # the process is gone; whoever talks to it reports that
        self.anonymous_peak_mib = max(self.anonymous_peak_mib, anonymous)
        return True
