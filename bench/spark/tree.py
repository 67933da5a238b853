"""What a Spark process takes with all it started: processor time, and memory by role."""

import os
from collections.abc import Iterator
from pathlib import Path

from bench.process import TICKS_PER_S, Sampler, memory_mib

SAMPLE_INTERVAL_S = 0.1
# Where processes are by role: the Python program, the JVM it starts, and the Python processes that the JVM starts.
ROLES = ("driver", "jvm", "workers")


def processes(root: int) -> Iterator[tuple[int, str, float]]:
    """Yield (pid, role, processor seconds) of a process and all below it that live.

    The seconds count what ended children had, so that those of a tree grow only.
    """
    children: dict[int, list[tuple[int, str, float]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        found = _read_stat(entry / "stat")
        if found is not None:
            name, parent, seconds = found
            if int(entry.name) == root:
                yield root, "driver", seconds
            children.setdefault(parent, []).append((int(entry.name), name, seconds))
    waiting = [(root, "driver")]
    while waiting:
        parent, parent_role = waiting.pop()
        for pid, name, seconds in children.get(parent, ()):
            role = "jvm" if name == "java" else "workers" if parent_role != "driver" else "driver"
            yield pid, role, seconds
            waiting.append((pid, role))


def _read_stat(path: Path) -> tuple[str, int, float] | None:
    """Return (name, parent, processor seconds), None where the process is gone."""
    try:
        text = path.read_text()
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text.rpartition(")")[2].split()
    return name, int(fields[1]), sum(int(field) for field in fields[11:15]) / TICKS_PER_S


def tree_cpu_seconds(root: int) -> float:
    """Return the processor time of a process and all it started."""
    return sum(seconds for _, _, seconds in processes(root))


class TreeMemory(Sampler):
    """Follows the resident memory of a process and all below it.

    Attributes:
        peaks: MiB by role: of the driver's and the JVM's process, and of all workers together.
        largest_worker: MiB of the largest single worker.
    """

    def __init__(self, root: int) -> None:
        super().__init__(SAMPLE_INTERVAL_S)
        self._root = root
        self.peaks = dict.fromkeys(ROLES, 0.0)
        self.largest_worker = 0.0

    def _sample(self) -> bool:
        now = dict.fromkeys(ROLES, 0.0)
        for pid, role, _ in processes(self._root):
            resident = _private_mib(pid)
            now[role] += resident
            if role == "workers":
                self.largest_worker = max(self.largest_worker, resident)
        for role, value in now.items():
            self.peaks[role] = max(self.peaks[role], value)
        return True


def _private_mib(pid: int) -> float:
    """Return resident memory without mapped files, which are the page cache's: 0 where the process is gone."""
    try:
        return memory_mib(pid, "RssAnon")
    except (OSError, ValueError):
        return 0.0


def disk_bytes(folder: Path) -> int:
    """Return what the files below a folder take on the disk: preallocated room that has no blocks does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += (Path(parent) / name).lstat().st_blocks * 512
    return total
