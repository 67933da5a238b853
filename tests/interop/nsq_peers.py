"""The unmodified NSQ programs, and a Headrace to point them at.

``tests/interop/go/build.sh`` builds the programs; a test that finds none is skipped. Every process listens on a free
port of 127.0.0.1, keeps its files in a folder of the test, and is ended by the test that started it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.toolchain import cannot_run
from tests.support.waiting import until

PEERS = Path(__file__).resolve().parents[2] / ".cache" / "peers"
HEADRACE = Path(sys.executable).with_name("headrace")
START_SECONDS = 20.0
STOP_SECONDS = 15.0


def peer(name: str) -> str:
    """Return the path of an NSQ program, or skip the test."""
    program = PEERS / name
    if not program.exists():
        cannot_run(f"{program} is not built: run tests/interop/go/build.sh")
    return str(program)


@contextlib.contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in ``log``; end it with SIGTERM, and with SIGKILL if that does not help."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@dataclass
class Answer:
    """An HTTP answer with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Node:
    """A running nsqd, or a Headrace that stands in for one."""

    tcp: str
    http: str
    process: subprocess.Popen[bytes]
    log: Path
    listeners: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Send one request to the HTTP port."""
        return ask(self.http, method, target, body, headers)

    def post(self, target: str, body: bytes = b"") -> None:
        """Send a POST that must succeed."""
        answer = self.ask("POST", target, body)
        assert answer.status == 200, (target, answer)

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """Return the channel's row of /stats; empty when there is none."""
        topics = self.ask("GET", f"/stats?format=json&topic={topic}&channel={channel}").json()["topics"] or []
        return dict(topics[0]["channels"][0]) if topics else {}

    def topic(self, topic: str) -> dict[str, Any]:
        """Return the topic's row of /stats; empty when there is none."""
        topics = self.ask("GET", f"/stats?format=json&topic={topic}").json()["topics"] or []
        return dict(topics[0]) if topics else {}


def ask(
    address: str, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send one HTTP request."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


@contextlib.contextmanager
def serve_headrace(directory: Path, *flags: str, exit_code: int = 0) -> Iterator[Node]:
    """Run ``headrace serve`` on free ports with its store in ``directory``; the code says how it is to end."""
    directory.mkdir(parents=True, exist_ok=True)
    ready, log = directory / "ready.json", directory / "headrace.log"
    command = [str(HEADRACE), "serve", "--data-dir", str(directory / "store"), "--free-ports"]
    command += ["--ready-file", str(ready), "--store.segment-bytes", str(16 << 20), *flags]
    with running(command, log) as process:
        until(lambda: ready.exists() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        listeners = json.loads(ready.read_text())["listeners"]
        yield Node(listeners["nsq_tcp"], listeners["nsq_http"], process, log, listeners)
    assert process.returncode == exit_code, log.read_text()


@contextlib.contextmanager
def serve_nsqd(directory: Path, *flags: str) -> Iterator[Node]:
    """Run nsqd on free ports."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "nsqd.log"
    command = [peer("nsqd"), "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-data-path={directory}"]
    with running([*command, "-broadcast-address=127.0.0.1", *flags], log) as process:
        tcp, listening = (logged_address(log, process, protocol) for protocol in ("TCP", "HTTP"))
        yield Node(tcp, listening, process, log)


class NsqAdmin:
    """A running nsqadmin and its API."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        answer = ask(self.address, "GET", f"/api{path}")
        assert answer.status == 200, (path, answer)
        row = answer.json()
        assert row.get("message", "") == "", "nsqadmin warns when a part of an answer is missing"
        return row

    def send(self, method: str, path: str, **body: str) -> None:
        answer = ask(self.address, method, f"/api{path}", json.dumps(body).encode())
        assert (answer.status, answer.json()["message"]) == (200, ""), (method, path, body, answer)


@contextlib.contextmanager
def serve_nsqadmin(folder: Path, source: str) -> Iterator[NsqAdmin]:
    """Run nsqadmin; ``source`` is the flag that says whom it asks."""
    log = folder / "nsqadmin.log"
    with running([peer("nsqadmin"), source, "-http-address=127.0.0.1:0"], log) as process:
        yield NsqAdmin(logged_address(log, process, "HTTP"))
        assert process.poll() is None, "nsqadmin has died: " + log.read_text()


def logged_address(log: Path, process: subprocess.Popen[bytes], protocol: str) -> str:
    """Return the address a program of NSQ says it listens on."""
    pattern = re.compile(rf"{protocol}: listening on (\S+)")

    def find() -> str:
        assert process.poll() is None, log.read_text()
        found = pattern.search(log.read_text())
        return found[1] if found else ""

    return until(find, START_SECONDS)
