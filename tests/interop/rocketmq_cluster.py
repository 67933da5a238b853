"""Brokers and registries that are killed and started again at the same addresses, and clients that go on meanwhile."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from tests.interop.nsq_peers import HEADRACE
from tests.interop.rocketmq_peers import START_SECONDS, Agent, AgentError
from tests.support.ports import free_port
from tests.support.remoting import RemotingSocket
from tests.support.waiting import until


class Server:
    """One ``headrace`` process that keeps its address through its lives."""

    def __init__(self, folder: Path, listener: str, *command: str) -> None:
        folder.mkdir(parents=True)
        self.address = f"127.0.0.1:{free_port()}"
        self._listener = listener
        self._ready = folder / "ready.json"
        self._log = folder / "server.log"
        self._command = [str(HEADRACE), *command, "--data-dir", str(folder / "store")]
        self._command += ["--ready-file", str(self._ready), f"--{listener}.address={self.address}"]
        self.process: subprocess.Popen[bytes]
        self.started_at = 0.0
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        self.started_at = time.monotonic()
        until(lambda: self._is_ready() or self.process.poll() is not None, START_SECONDS)
        assert self.process.poll() is None, self._log.read_text()

    def _is_ready(self) -> bool:
        """Whether the file is of this process: it may still be an earlier one's."""
        with contextlib.suppress(FileNotFoundError):
            return bool(json.loads(self._ready.read_text())["pid"] == self.process.pid)
        return False

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """End it with SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def registry(folder: Path) -> Server:
    """Run ``headrace registry``."""
    return Server(folder, "registry", "registry")


def broker(folder: Path, name: str, registries: str, *flags: str) -> Server:
    """Run ``headrace serve`` with RocketMQ's protocol only; ``registries`` as ``broker.registries``."""
    return Server(
        folder, "remoting", "serve", f"--broker.name={name}", f"--broker.registries={registries}",
        "--registry.enabled=false", "--nsq.enabled=false", "--admin.enabled=false", "--remoting.vip-listener=false",
        f"--store.segment-bytes={16 << 20}", "--store.durability=async", *flags,
    )  # fmt: skip


def make_topic(agent: Agent, topic: str, brokers: int) -> None:
    """Make a topic of two queues on every broker, and wait until clients are told of all of them."""
    agent.ask("producer", id="maker", group="Maker")
    agent.ask("create-topic", id="maker", topic=topic, queues=2)
    until(lambda: len(agent.ask("queues", id="maker", topic=topic)) == 2 * brokers, 10)
    agent.ask("shutdown", id="maker")


class RouteWatch:
    """A client that asks one registry for the route of a topic all the time.

    Attributes:
        answers: Time and brokers of each route that was told, where they changed.
    """

    def __init__(self, address: str, topic: str) -> None:
        self.answers: list[tuple[float, frozenset[str]]] = []
        self._address = address
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with RemotingSocket(self._address) as client:
            while not self._stop.wait(0.05):
                header, body = client.call(105, {"topic": self._topic})
                if header["code"]:
                    continue  # clients keep the route they have
                told = frozenset(queue["brokerName"] for queue in json.loads(body)["queueDatas"])
                if not self.answers or self.answers[-1][1] != told:
                    self.answers.append((time.monotonic(), told))

    def summary(self, since: float) -> str:
        """Return which routes were told when."""
        return ", ".join(f"{sorted(told)} after {at - since:.1f} s" for at, told in self.answers) or "nothing"

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(10)


@dataclass
class Traffic:
    """One client process that sends a message after the other and consumes all of them.

    Attributes:
        acknowledged: Body and time of each message that a broker confirmed.
        failures: Time and text of each send that the client gave up.
        received: Time at which each body came first.
    """

    agent: Agent
    topic: str
    acknowledged: dict[str, float] = field(default_factory=dict)
    brokers: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[float, str]] = field(default_factory=list)
    received: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.agent.version.replace(".", "")
        self._name = name
        self._stop_sending = threading.Event()
        self._stop = threading.Event()
        self.agent.ask("producer", id="p", group=f"P{name}")
        self.agent.ask("consumer", id="c", group=f"G{name}", topic=self.topic)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if not self._stop_sending.is_set():
                body = f"{self._name}-{number}"
                number += 1
                try:
                    (sent,) = self.agent.ask("send", id="p", topic=self.topic, body=body, single=1)
                    self.acknowledged[body if self.agent.version != "go" else f"{body}0"] = time.monotonic()
                    self.brokers[sent["broker"]] = body
                except AgentError as error:
                    self.failures.append((time.monotonic(), str(error)))
            now = time.monotonic()
            for message in self.agent.ask("received", id="c"):
                self.received.setdefault(message["body"], now)
            time.sleep(0.02)

    def stop_sending(self) -> None:
        """Send no more; go on consuming."""
        self._stop_sending.set()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(30)
        self.agent.close()

    @property
    def missing(self) -> set[str]:
        """What was acknowledged and has not come."""
        return set(self.acknowledged) - set(self.received)

    def sending_gap(self, since: float, until_: float) -> float:
        """Return the longest time without a confirmed send between two moments."""
        return _longest_gap([*self.acknowledged.values()], since, until_)

    def receiving_gap(self, since: float, until_: float) -> float:
        """Return the longest time without a message between two moments."""
        return _longest_gap([*self.received.values()], since, until_)


def _longest_gap(times: list[float], since: float, until_: float) -> float:
    moments = [since, *sorted(moment for moment in times if since < moment < until_), until_]
    return max(later - earlier for earlier, later in pairwise(moments))
