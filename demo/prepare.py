"""What ``make demo`` does first: make the environment, compile, install; with a bar, for it takes a minute or more.

``python3 demo/prepare.py MAKE`` runs before anything is installed, so it has nothing but Python's own library. Each
step is a target of the Makefile, which does nothing when it is done already.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

# Targets with the share of the time each takes, measured on two cores with a warm package cache.
STEPS: Final = (
    (".venv/.made", "making .venv", 6),
    (".venv/.installed", "installing headrace", 12),
    ("build/.compiled", "compiling", 60),
    (".venv/.extra-demo", "installing Spark and the clients", 40),
    (".venv/.demo-data", "installing the data", 3),
    ("demo-java", "looking for Java", 2),
)
WIDTH: Final = 30
LOOK_SECONDS: Final = 0.2
LOCK: Final = Path(".cache", "prepare.lock")


def draw(out: TextIO, share: float, text: str, seconds: float) -> None:
    """Draw the bar over the one before it; without a terminal only what begins is told."""
    if out.isatty():
        filled = round(WIDTH * share)
        bar = "━" * filled + " " * (WIDTH - filled)
        out.write(f"\r\x1b[K{text:<34} {bar} {seconds // 60:.0f}:{seconds % 60:02.0f}")
        out.flush()


def run(make: str) -> int:
    """Do all steps; return 0, or the exit code of the one that failed after showing what it said."""
    began, done, total = time.monotonic(), 0, sum(weight for _, _, weight in STEPS)
    for target, text, weight in STEPS:
        since = time.monotonic()
        if not sys.stderr.isatty():
            sys.stderr.write(f"{text}\n")
        with tempfile.TemporaryFile("w+") as output:
            command = [make, "--no-print-directory", target]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0)
            try:
                while process.poll() is None:
                    # Nobody knows how far a compiler is: a step nears its share as its time passes.
                    spent = time.monotonic() - since
                    draw(sys.stderr, (done + weight * spent / (spent + weight)) / total, text, time.monotonic() - began)
                    time.sleep(LOOK_SECONDS)
            finally:
                if process.poll() is None:  # interrupted: also pip and compilers, which make's shells tell nothing
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
            if process.returncode:
                output.seek(0)
                sys.stderr.write(f"\n{output.read()}")
                return process.returncode
        done += weight
    draw(sys.stderr, 1.0, "ready", time.monotonic() - began)
    sys.stderr.write("\n")
    return 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until nobody else prepares this clone: two of pip, or of a compiler, write the same files."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("another make demo prepares this clone, waiting for its end\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Run as the command says; end as the shell expects when a signal comes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        with alone():
            return run(sys.argv[1])
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
