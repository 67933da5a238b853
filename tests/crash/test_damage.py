"""Folders in memory: what the tests leave there stays until the machine is started anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.lock_file import lock_folder
from tests.crash.damage import _own_folder


def test_what_a_killed_run_left_in_memory_is_removed(tmp_path: Path) -> None:
    """A kill in the middle of the tests left up to 100 MiB for each worker."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"{ended.pid}", f"{ended.pid}-of_a_test", f"{ended.pid}-held", f"{os.getppid()}-lives", "notes"):
        (tmp_path / f"headrace-test-{name}" / "store").mkdir(parents=True)
    held = lock_folder(tmp_path / f"headrace-test-{ended.pid}-held")
    own = _own_folder(tmp_path, os.getpid())
    os.close(held)
    names = {f"headrace-test-{ended.pid}-held", f"headrace-test-{os.getppid()}-lives", "headrace-test-notes"}
    assert {path.name for path in tmp_path.iterdir()} == {*names, own.name}
