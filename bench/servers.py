"""The servers under test: each starts pinned to one core on free loopback ports and leaves nothing behind."""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.errors import BenchError
from bench.programs import LOADGEN, PEERS
from headrace.cli.local_http import open_directly

# A start may have a long log or many queues to recover.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
HTTP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
HEADRACE = Path(sys.executable).parent / "headrace"


class Server(ABC):
    """One server process with its own data directory.

    ``pid``, ``start_s`` (from launch to listening) and the addresses are set while the context is open. A server with
    endless channels makes up what it delivers: it has no HTTP address and nothing to create.
    """

    has_endless_channels = False

    def __init__(self, scratch: Path, core: int | str) -> None:
        self._scratch = scratch
        self._core = core  # or several, as taskset writes them: 0-1
        self.pid = 0
        self.start_s = 0.0
        self.tcp_address = ""
        self.http_address = ""
        self.rocketmq_address = ""

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="server-", dir=self._scratch))
        self._log = self._directory / "log"
        try:
            self._start()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        self._clear()

    def _clear(self) -> None:
        """Give back the space of the data; the files themselves are removed with the scratch folder.

        An ext4 without a journal looks at each inode that was freed in the last minutes when it makes a file: what one
        sample removes would make the files of the next cost ten times as much.
        """
        for path in self._directory.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)

    def restart(self, *, kill: bool) -> float:
        """Stop the process, or kill it, and start it again on its data; return the seconds until it listens."""
        if kill:
            self._process.kill()
            self._process.wait()
        else:
            self._stop()
        self._start()
        return self.start_s

    @abstractmethod
    def _command(self, directory: Path) -> list[str]:
        """Return the command line that serves from ``directory``."""

    @abstractmethod
    def _find_listeners(self) -> bool:
        """Set the addresses once the server accepts connections; return whether it does."""

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a topic with one channel, so that what is published goes to the channel at once."""
        self._request("POST", "/topic/create", topic=topic)
        self._request("POST", "/channel/create", topic=topic, channel=channel)

    def create_channels(self, topic: str, channels: list[str]) -> None:
        """Create a topic with many channels over one connection."""
        self._request("POST", "/topic/create", topic=topic)
        connection = http.client.HTTPConnection(self.http_address, timeout=HTTP_TIMEOUT_S)
        for channel in channels:
            connection.request(
                "POST", f"/channel/create?{urllib.parse.urlencode({'topic': topic, 'channel': channel})}"
            )
            reply = connection.getresponse()
            body = reply.read()
            if reply.status != 200:
                raise BenchError(f"POST /channel/create answered {reply.status}: {body[:200]!r}")
        connection.close()

    def wait_consumers(self, topic: str, consumers: int, timeout_s: float = 120.0) -> None:
        """Wait until the topic's one channel has so many consumers."""

        def are_there() -> bool:
            reply = self._request("GET", "/stats", format="json", topic=topic, include_clients="false")
            # null while there is no such topic
            counts = [channel["client_count"] for t in json.loads(reply)["topics"] or () for channel in t["channels"]]
            return counts == [consumers]

        self._wait_until(are_there, timeout_s, f"did not get {consumers} consumers")

    def wait_fanned_out(self, topic: str, timeout_s: float = 120.0) -> None:
        """Wait until the topic has handed everything to its channel.

        nsqd copies from topic to channel in the background; reading before it is done would measure both.
        """
        self._wait_until(lambda: self._topic_stats(topic)["depth"] == 0, timeout_s, "did not fan out")

    def channel_depth(self, topic: str) -> int:
        """Return how many messages wait in the topic's one channel."""
        (channel,) = self._topic_stats(topic)["channels"]
        return int(channel["depth"])

    def _topic_stats(self, topic: str) -> dict[str, Any]:
        stats: dict[str, Any]
        (stats,) = json.loads(self._request("GET", "/stats", format="json", topic=topic))["topics"]
        return stats

    def _request(self, method: str, path: str, **parameters: str) -> bytes:
        url = f"http://{self.http_address}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with open_directly(urllib.request.Request(url, method=method), timeout=HTTP_TIMEOUT_S) as reply:
                body: bytes = reply.read()
                return body
        except urllib.error.HTTPError as exc:
            raise BenchError(f"{method} {path} answered {exc.code}: {exc.read()[:200]!r}") from exc

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None:
                raise BenchError(f"server exited with {self._process.returncode}: {self._last_log_lines()}")
            if time.monotonic() > deadline:
                raise BenchError(f"server {failure} within {timeout_s:.0f} s: {self._last_log_lines()}")
            time.sleep(POLL_INTERVAL_S)

    def _start(self) -> None:
        command = ["taskset", "-c", str(self._core), *self._command(self._directory)]
        start = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self._process.pid
        try:
            self._wait_until(self._find_listeners, START_TIMEOUT_S, "did not start")
        except BaseException:
            self._stop()
            raise
        self.start_s = time.monotonic() - start

    def _last_log_lines(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Headrace(Server):
    """Headrace as its command line starts it, at one durability level and with ``options`` of that command line."""

    def __init__(self, scratch: Path, core: int | str, *, durability: str, options: tuple[str, ...] = ()) -> None:
        super().__init__(scratch, core)
        self._durability = durability
        self._options = options
        self.admin_address = ""
        self.registry_address = ""

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._directory / "data"

    def _command(self, directory: Path) -> list[str]:
        if not HEADRACE.exists():
            raise BenchError(
                "headrace is not installed beside this Python: run make build, or leave it out by --servers"
            )
        self._ready_file = directory / "ready.json"
        self._ready_file.unlink(missing_ok=True)
        return [
            str(HEADRACE),
            "serve",
            "--free-ports",
            f"--data-dir={self.data}",
            f"--ready-file={self._ready_file}",
            f"--store.durability={self._durability}",
            *self._options,
        ]

    def _find_listeners(self) -> bool:
        if not self._ready_file.exists():
            return False
        ready = json.loads(self._ready_file.read_text())
        self.pid = ready["pid"]
        self.tcp_address = ready["listeners"]["nsq_tcp"]
        self.http_address = ready["listeners"]["nsq_http"]
        self.rocketmq_address = ready["listeners"]["remoting"]
        self.registry_address = ready["listeners"]["registry"]
        self.admin_address = ready["listeners"]["admin"]
        return True

    def metric(self, name: str) -> float:
        """Return a metric without labels as the admin port tells it."""
        with open_directly(f"http://{self.admin_address}/metrics", timeout=HTTP_TIMEOUT_S) as reply:
            text = reply.read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise BenchError(f"/metrics has no {name}")
        return float(found[1])


class Nsqd(Server):
    """The unmodified nsqd; ``memory_queue`` is how many messages of a topic or channel it keeps off the disk."""

    def __init__(self, scratch: Path, core: int, *, memory_queue: int = 10_000) -> None:
        super().__init__(scratch, core)
        self._memory_queue = memory_queue

    def _command(self, directory: Path) -> list[str]:
        return [
            str(PEERS / "nsqd"),
            "-tcp-address=127.0.0.1:0",
            "-http-address=127.0.0.1:0",
            "-broadcast-address=127.0.0.1",
            f"-data-path={directory}",
            f"-mem-queue-size={self._memory_queue}",
        ]

    def _find_listeners(self) -> bool:
        # nsqd tells the ports it was given only in its log.
        log = self._log.read_text()
        tcp = re.search(r"TCP: listening on (\S+)", log)
        http = re.search(r"HTTP: listening on (\S+)", log)
        if tcp is None or http is None:
            return False
        self.tcp_address, self.http_address = tcp[1], http[1]
        return True


class NullServer(Server):
    """The load generator's server that stores nothing: what a load reaches against it is the load's own ceiling."""

    has_endless_channels = True

    def __init__(self, scratch: Path, core: int, *, body_bytes: int) -> None:
        super().__init__(scratch, core)
        self._body_bytes = body_bytes

    def _command(self, directory: Path) -> list[str]:
        return [str(LOADGEN), "nsq-null", "-json", "-address=127.0.0.1:0", f"-body={self._body_bytes}"]

    def _find_listeners(self) -> bool:
        log = self._log.read_text()
        if not log.endswith("\n"):
            return False
        self.tcp_address = json.loads(log.splitlines()[0])["address"]
        return True


def make_server(contestant: str, scratch: Path, core: int, body_bytes: int) -> Server:
    """Return the server of a contestant's name, not started yet."""
    match contestant:
        case "headrace":
            return Headrace(scratch, core, durability="async")
        case "headrace-fsync":
            return Headrace(scratch, core, durability="fsync")
        case "nsqd":
            return Nsqd(scratch, core)
        case "nsqd-memory":
            return Nsqd(scratch, core, memory_queue=1_000_000)
        case "null":
            return NullServer(scratch, core, body_bytes=body_bytes)
    raise ValueError(f"no server is called {contestant!r}")
