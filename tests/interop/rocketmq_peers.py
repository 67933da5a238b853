"""Unmodified RocketMQ clients, servers and tools, and a Headrace to point them at.

``tests/interop/java/build.sh`` fetches and builds them; where they are missing a test says so. Every server listens on
free ports of 127.0.0.1, keeps its files in a folder of the test, and is ended by the test that started it.

``Agent`` is one client process of one version: it is asked line by line and answers with one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.interop.nsq_peers import HEADRACE, peer, running
from tests.support.ports import free_port
from tests.support.rocketmq_programs import (
    BROKER,
    JAVA_PEERS,
    NAMESRV,
    OPENED,
    broker_properties,
    java_command,
    make_home,
    server_jars,
    write_properties,
)
from tests.support.toolchain import cannot_run
from tests.support.waiting import until

CLIENTS = ("4.9.8", "5.5.0", "3.2.6")
ALL_CLIENTS = (*CLIENTS, "go")
SERVERS = ("4.9.7", "5.5.0")
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0

# Small and quick to start: many of them run beside each other on few cores.
_THRIFTY = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class AgentError(Exception):
    """The client threw; ``code`` is the broker's or client's error code, 0 if it has none."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']} code={answer.get('code', 0)}: {answer.get('text')}")
        self.kind = str(answer["error"])
        self.code = int(answer.get("code", 0))
        self.text = str(answer.get("text"))


def _java_agent(version: str, folder: Path, options: tuple[str, ...]) -> list[str]:
    root = JAVA_PEERS / f"client-{version}"
    if not (root / "classes" / "RocketAgent.class").exists():
        cannot_run(f"{root} is not built: run tests/interop/java/build.sh")
    command = ["java", *_THRIFTY, *OPENED, "-Xmx256m", f"-Duser.home={folder}"]
    command += [f"-Drocketmq.client.logRoot={folder}", "-Drocketmq.client.logLevel=WARN", *options]
    return [*command, "-cp", f"{root / 'classes'}:{root / 'lib'}/*", "RocketAgent"]


class Agent:
    """One process with the unmodified Java client of ``version``, or with the Go client for ``"go"``.

    Attributes:
        lock_seconds: How long the broker may keep a queue locked for a member that has left.
    """

    lock_seconds = 0

    def __init__(self, version: str, namesrv: str, folder: Path, *java_options: str) -> None:
        command = [peer("rocketgo")] if version == "go" else _java_agent(version, folder, java_options)
        self.version = version
        self.namesrv = namesrv
        self.log = folder / f"agent-{version}-{time.monotonic_ns()}.log"
        self._output = self.log.open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._output, text=True, cwd=folder
        )
        self._answers: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)

    def ask(self, command: str, **options: Any) -> Any:
        """Do one thing with the client and return what came of it.

        Raises:
            AgentError: the client threw.
        """
        named = {name.replace("__", "."): value for name, value in options.items() if value is not None}
        if command in {"producer", "consumer", "pull-consumer", "tx-producer", "responder", "lite"}:
            named.setdefault("namesrv", self.namesrv)
        line = "\t".join([command, *(f"{name}={value}" for name, value in named.items())])
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        try:
            answer = json.loads(self._answers.get(timeout=ANSWER_SECONDS))
        except Empty:
            raise AssertionError(f"no answer to {line!r}; see {self.log}") from None
        if "error" in answer:
            raise AgentError(answer)
        return answer["ok"]

    def received(self, name: str, count: int, seconds: float = 40.0) -> list[dict[str, Any]]:
        """Return the messages a push consumer got, as soon as there are ``count``."""
        got: list[dict[str, Any]] = []

        def enough() -> bool:
            got.extend(self.ask("received", id=name))
            return len(got) >= count

        try:
            until(enough, seconds)
        except AssertionError:
            raise AssertionError(f"{len(got)} of {count} messages: {[m['body'] for m in got]}") from None
        return got

    def stays_at(self, name: str, seconds: float = 1.5) -> list[dict[str, Any]]:
        """Return what else a push consumer gets within some time: usually nothing."""
        time.sleep(seconds)
        more: list[dict[str, Any]] = self.ask("received", id=name)
        return more

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.process.kill()
        self.process.wait(10)
        self._release()

    def _release(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self._output):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    def close(self) -> None:
        """End the process; its clients do not say good-bye."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._release()


@dataclass
class Cluster:
    """A name server and one broker, real or ours."""

    kind: str
    namesrv: str
    broker: str
    process: subprocess.Popen[bytes]
    data_dir: Path
    listeners: dict[str, str]


@contextlib.contextmanager
def headrace(folder: Path, *flags: str, free_ports: bool = True) -> Iterator[Cluster]:
    """Run ``headrace serve`` with everything on free ports."""
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    data_dir = folder / "store"
    command = [str(HEADRACE), "serve", "--data-dir", str(data_dir), "--ready-file", str(ready), *flags]
    if free_ports:
        command.append("--free-ports")
    if not any(flag.startswith("--store.segment-bytes") for flag in flags):
        command += ["--store.segment-bytes", str(64 << 20)]
    with running(command, folder / "broker.log") as process:
        until(lambda: ready.exists() or process.poll() is not None, START_SECONDS)
        if process.poll() is not None:
            raise AssertionError((folder / "broker.log").read_text())
        listeners = json.loads(ready.read_text())["listeners"]
        yield Cluster("headrace", listeners.get("registry", ""), listeners["remoting"], process, data_dir, listeners)


def _java(version: str, home: Path, main: str, *arguments: str, heap: str = "512m") -> list[str]:
    if not server_jars(version).exists():
        cannot_run(f"{server_jars(version)} is missing: run tests/interop/java/build.sh")
    return java_command(version, home, main, *arguments, options=(*_THRIFTY, f"-Xms{heap}", f"-Xmx{heap}"))


def _make_home(home: Path) -> dict[str, str]:
    return {**os.environ, **make_home(home)}


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 0.5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def rocketmq(
    version: str, folder: Path, *, store: Path | None = None, options: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Run a real name server and broker of ``version``; ``store`` is a store it opens, ``options`` its broker.conf."""
    home = folder / f"rocketmq-{version}"
    environment = _make_home(home)
    namesrv = f"127.0.0.1:{free_port()}"
    port = free_port(below=2)
    store = store or home / "store"
    names_conf = write_properties(home / "namesrv.conf", {"listenPort": namesrv.rpartition(":")[2]})
    conf = {
        **broker_properties(port, free_port(), store),
        "namesrvAddr": namesrv,
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": str(64 << 20),
        **(options or {}),
    }
    broker_conf = write_properties(home / "broker.conf", conf)
    names = _java(version, home, NAMESRV, "-c", str(names_conf))
    broker = _java(version, home, BROKER, "-c", str(broker_conf), heap="1g")
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(names, home / "namesrv.log", env=environment))
        until(lambda: _answers(namesrv), START_SECONDS)
        process = stack.enter_context(running(broker, home / "broker.log", env=environment))
        until(lambda: _answers(f"127.0.0.1:{port}"), START_SECONDS)
        until(lambda: "DefaultCluster" in mqadmin(version, folder, "clusterList", "-n", namesrv), START_SECONDS)
        yield Cluster(f"rocketmq-{version}", namesrv, f"127.0.0.1:{port}", process, store, {})


class Admin:
    """The real ``mqadmin`` of ``version``, kept running: one command after the other."""

    def __init__(self, version: str, folder: Path) -> None:
        home = folder / f"admin-{version}"
        environment = _make_home(home)
        root = JAVA_PEERS / f"server-{version}"
        command = _java(version, home, "AdminAgent", heap="192m")
        command[command.index("-cp") + 1] = f"{root / 'classes'}:{root / 'lib'}/*"
        self.version = version
        self._errors = (home / "stderr.log").open("wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=home,
        )
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def run(self, *arguments: str, seconds: float = 60.0) -> str:
        """Run one command and return what it printed."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(arguments) + "\n")
        self.process.stdin.flush()
        printed = []
        while (line := self._lines.get(timeout=seconds)) != "\x04\n":
            if not line.startswith(("WARNING", "OpenJDK", "RocketMQLog")):
                printed.append(line)
        return "".join(printed)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()


@dataclass(frozen=True)
class AdminCommand:
    """One mqadmin command as a process."""

    words: list[str]
    environment: dict[str, str]
    home: Path


def mqadmin_command(version: str, folder: Path, *arguments: str) -> AdminCommand:
    """Return how the real ``mqadmin`` of ``version`` is run once."""
    home = folder / f"mqadmin-{version}"
    environment = _make_home(home)
    words = _java(version, home, "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, heap="128m")
    return AdminCommand(words, environment, home)


def mqadmin(version: str, folder: Path, *arguments: str, seconds: float = 60.0) -> str:
    """Run the real ``mqadmin`` of ``version`` and return what it printed."""
    command = mqadmin_command(version, folder, *arguments)
    done = subprocess.run(
        command.words,
        env=command.environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=command.home,
    )
    return re.sub(r"^(OpenJDK|WARNING|RocketMQLog).*\n", "", done.stdout + done.stderr, flags=re.MULTILINE)


def stop(process: subprocess.Popen[bytes], seconds: float = 20.0) -> int:
    """End a process with SIGTERM and return its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(seconds)
