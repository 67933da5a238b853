"""The first screen of README.md: its commands and programs, as they stand there, on free ports.

``headrace`` and ``gnsq`` come from the environment of the tests; that ``pip install .`` works in an empty one is what
``.ci/check-wheel`` shows. The rest is what a reader of the README does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.nsq_peers import HEADRACE, running
from tests.support.toolchain import cannot_run
from tests.support.waiting import until

README = (Path(__file__).parents[2] / "README.md").read_text()
SCREEN = README[: README.index("## Commands")]
BUILD_SECONDS = 300.0


def program(language: str, ports: dict[str, str]) -> str:
    """Return the README's program in a language, with other ports."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", SCREEN, re.DOTALL | re.MULTILINE)
    return with_ports(text, ports)


def with_ports(text: str, ports: dict[str, str]) -> str:
    for usual, address in ports.items():
        text = text.replace(f"127.0.0.1:{usual}", address)
    return text


def commands() -> list[str]:
    """Return the README's shell commands, in order."""
    return [line.strip().partition("  #")[0].strip() for line in re.findall(r"^    (\w.*)$", SCREEN, re.MULTILINE)]


@pytest.mark.timeout(2 * BUILD_SECONDS)
def test_first_screen_publishes_with_nsq_and_consumes_with_rocketmq(tmp_path: Path) -> None:
    """The README's demo is true."""
    install, serve, get, run = commands()
    assert install == "pip install . gnsq"
    if shutil.which("go") is None:
        cannot_run("the README's consumer is in Go")
    if importlib.util.find_spec("gnsq") is None:
        cannot_run("the README's publisher uses gnsq: pip install -e '.[interop]'")
    ready, consumer = tmp_path / "ready.json", tmp_path / "billing"
    consumer.mkdir()
    words = shlex.split(serve)
    assert words[0] == "headrace"
    broker = [str(HEADRACE), *words[1:], "--free-ports", "--ready-file", str(ready)]
    small = {**os.environ, "HEADRACE_STORE__SEGMENT_BYTES": "16MiB"}
    with running(broker, tmp_path / "broker.log", cwd=tmp_path, env=small):
        until(ready.exists, 20)
        listeners = json.loads(ready.read_text())["listeners"]
        ports = {"4150": listeners["nsq_tcp"], "9876": listeners["registry"]}
        subprocess.run([sys.executable, "-c", program("python", ports)], check=True, timeout=60)

        (consumer / "billing.go").write_text(program("go", ports))
        subprocess.run(["bash", "-c", get], cwd=consumer, check=True, timeout=BUILD_SECONDS, capture_output=True)
        log = tmp_path / "consumer.log"
        # "go run" without its parent process, so that ending it ends the program.
        assert run == "go run ."
        subprocess.run(["go", "build", "-o", "billing", "."], cwd=consumer, check=True, timeout=BUILD_SECONDS)
        environment = {**os.environ, "HOME": str(tmp_path)}  # the client writes its log and offsets there
        with running([str(consumer / "billing")], log, cwd=consumer, env=environment):
            until(lambda: "order 1" in log.read_text().splitlines(), 40)
