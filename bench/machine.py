"""The machine and the revision that a run's figures belong to."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
GENERATED = (
    "bench/results",
    "docs/performance.md",
    "docs/performance-history.md",
    "docs/performance.svg",
    "docs/performance-rocketmq.svg",
)


@dataclass(frozen=True)
class Cores:
    """Which processor core runs what; with a single core both sides share it, and the figures say so."""

    server: int
    load: int

    @classmethod
    def available(cls) -> "Cores":
        """Take the first two cores this process may run on."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(server=cores[0], load=cores[min(1, len(cores) - 1)])


def describe_machine(scratch: Path) -> dict[str, object]:
    """Describe the hardware and system as far as it explains figures; never by a name that identifies it."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30),
        # The rest of the release names a distribution's build, or a host's.
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "file_system": _file_system(scratch),
        "python": platform.python_version(),
        "pinned": asdict(Cores.available()),
    }


def describe_hardware(machine: dict[str, Any]) -> str:
    """Return what :func:`describe_machine` found as a line for people."""
    pinned = machine["pinned"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"{machine['file_system']}; server on core {pinned['server']}, load on core {pinned['load']}"
    )


def current_commit() -> str:
    """Return the short hash of HEAD, with ``-dirty`` when tracked files differ from it.

    What a run writes does not count: two runs in a row belong to the same commit.
    """
    head = _git("rev-parse", "--short=10", "HEAD")
    if head is None:
        return "uncommitted"
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in GENERATED))
    return f"{head}-dirty" if changes else head


def resolve_commit(revision: str) -> str | None:
    """Return the short hash that ``current_commit`` gives for a revision, None if there is no such revision."""
    return _git("rev-parse", "--short=10", "--verify", "--quiet", f"{revision}^{{commit}}")


def _git(*arguments: str) -> str | None:
    result = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds ``directory``: the mount with the longest matching path."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, mount_type, *_ = line.split()
        if directory.is_relative_to(mount_point) and len(mount_point) > len(best):
            best, kind = mount_point, mount_type
    return kind
