"""Run the Python blocks of a page in their order, as a reader of the page would in a notebook.

``python -m tests.support.notebook PAGE [FROM=TO ...]`` replaces each FROM by its TO, executes every ```python block in
one namespace, and prints a list of ``{"code", "printed", "shown", "seconds"}`` as JSON: what a block printed, and what
the page shows for it (the ```text block that follows it, None without one).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block, executed."""

    code: str
    printed: str
    shown: str | None
    seconds: float


def run_page(page: Path, replaced: Mapping[str, str], *, cwd: Path, seconds: float) -> list[Block]:
    """Run a page in a process of its own; raise AssertionError with the traceback when a block fails."""
    command = [sys.executable, "-m", "tests.support.notebook", str(page.resolve())]
    command += [f"{old}={new}" for old, new in replaced.items()]
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ran.returncode == 0, f"{page.name} failed:\n{ran.stderr[-6000:]}"
    return [Block(**block) for block in json.loads(ran.stdout)]


def read_page(page: Path, replaced: Mapping[str, str]) -> str:
    """Return a page's text, each key of ``replaced`` replaced by its value."""
    text = page.read_text()
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def run_blocks(name: str, text: str, namespace: dict[str, Any]) -> Iterator[Block]:
    """Execute the blocks of a page one by one in ``namespace``; the next one runs when it is asked for."""
    for number, (code, shown) in enumerate(BLOCK.findall(text), 1):
        printed, began = io.StringIO(), time.monotonic()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{name}, block {number}", "exec"), namespace)
        yield Block(code, printed.getvalue(), shown or None, time.monotonic() - began)


def main() -> None:
    page, *pairs = sys.argv[1:]
    text = read_page(Path(page), dict(pair.split("=", 1) for pair in pairs))
    done, namespace = [], {"__name__": "__main__"}
    # The JVM has standard output too: what it prints is not for whoever reads the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for number, block in enumerate(run_blocks(Path(page).name, text, namespace), 1):
        done.append(asdict(block))
        sys.stderr.write(f"block {number} took {block.seconds:.1f} s\n")
    answer.write(json.dumps(done))
    answer.close()


if __name__ == "__main__":
    main()
