"""nsqlookupd beside Headrace's registry, and connections that register at either as nsqd does."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.interop.nsq_peers import HEADRACE, START_SECONDS, Answer, ask, logged_address, peer, running
from tests.support.waiting import until

MAGIC = b"  V1"
TODAY = {"Accept": "application/vnd.nsq; version=1.0"}
"""Asks Headrace for answers without the form that they had before 1.0; nsqlookupd 1.3.0 does not look at it."""
NEVER_NS = -6795364578871345152
"""What nsqlookupd's /debug says of the time of a tombstone that is none: Go's zero time."""


@dataclass
class Lookupd:
    """A running nsqlookupd, or a Headrace that stands in for one."""

    tcp: str
    http: str
    process: subprocess.Popen[bytes]
    log: Path
    producers: dict[str, Producer] = field(default_factory=dict)
    """Connections that registered in a test, by a name that both servers' have."""

    def ask(self, method: str, target: str, body: bytes | None = None) -> Answer:
        """Send one request to the HTTP port, as NSQ's tools do."""
        return ask(self.http, method, target, body, TODAY)

    def get(self, target: str) -> Any:
        """Return the JSON of a GET that must succeed."""
        answer = self.ask("GET", target)
        assert answer.status == 200, (target, answer)
        return answer.json()

    def post(self, target: str) -> None:
        """Send a POST that must succeed."""
        answer = self.ask("POST", target)
        assert answer.status == 200, (target, answer)

    def lookup(self, topic: str) -> list[dict[str, Any]]:
        """Return the producers of a topic; none where nobody knows the topic."""
        answer = self.ask("GET", f"/lookup?topic={topic}")
        return list(answer.json()["producers"]) if answer.status == 200 else []

    def open(self, name: str, **profile: Any) -> bytes:
        """Connect, identify as ``name``; return the reply."""
        self.producers[name] = Producer(self.tcp)
        return self.producers[name].identify(**({"broadcast_address": name, "hostname": f"{name}.example"} | profile))

    def say(self, name: str, line: str) -> bytes:
        """Send a line on the connection ``name``; return the reply."""
        return self.producers[name].say(line)

    def close(self, name: str) -> None:
        """Close the connection ``name`` and return once the server has noticed it."""
        producer = self.producers.pop(name)
        producer.close()
        until(lambda: producer.address not in self.ask("GET", "/debug").body.decode())

    def clear(self) -> None:
        """Close every connection and delete every topic."""
        for name in list(self.producers):
            self.close(name)
        for topic in self.get("/topics")["topics"]:
            self.post(f"/topic/delete?topic={quote(topic)}")


class Producer:
    """A connection to the TCP port of a nsqlookupd."""

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._stream = self._socket.makefile("rb")
        self._socket.sendall(MAGIC)
        self.address = ":".join(map(str, self._socket.getsockname()))

    def identify(self, **profile: Any) -> bytes:
        self._socket.sendall(identify(json.dumps(profile_of(**profile)).encode()))
        return self.reply()

    def say(self, line: str) -> bytes:
        self._socket.sendall(line.encode() + b"\n")
        return self.reply()

    def reply(self) -> bytes:
        """Return the next reply; empty once the connection is closed."""
        size = self._stream.read(4)
        return self._stream.read(struct.unpack(">I", size)[0]) if size else b""

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def profile_of(**changes: Any) -> dict[str, Any]:
    """Return what nsqd says of itself, with changes."""
    profile = {"broadcast_address": "b1", "hostname": "h1", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}
    return profile | changes


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">I", len(body)) + body


@contextlib.contextmanager
def serve_nsqlookupd(folder: Path, *flags: str) -> Iterator[Lookupd]:
    """Run nsqlookupd on free ports."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "nsqlookupd.log"
    command = [peer("nsqlookupd"), "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    with running([*command, "-broadcast-address=127.0.0.1", *flags], log) as process:
        tcp, listening = (logged_address(log, process, protocol) for protocol in ("TCP", "HTTP"))
        yield Lookupd(tcp, listening, process, log)


@contextlib.contextmanager
def serve_registry(folder: Path, *flags: str, free_ports: bool = True) -> Iterator[Lookupd]:
    """Run ``headrace registry``, on free ports unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    ready, log = folder / "ready.json", folder / "registry.log"
    command = [str(HEADRACE), "registry", "--data-dir", str(folder), "--ready-file", str(ready)]
    command += ["--free-ports"] if free_ports else []
    with running([*command, "--registry.nsq-broadcast-address", "127.0.0.1", *flags], log) as process:
        until(lambda: ready.exists() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        listeners = json.loads(ready.read_text())["listeners"]
        yield Lookupd(listeners["nsqlookupd_tcp"], listeners["nsqlookupd_http"], process, log)
    assert process.returncode == 0, log.read_text()


def read_state(server: Lookupd, *topics: str) -> dict[str, Any]:
    """Return all that a server tells of its registrations, in an order of its own and without what must differ."""
    state: dict[str, Any] = {"topics": sorted(server.get("/topics")["topics"])}
    state["nodes"] = in_order(server, server.get("/nodes")["producers"])
    for topic in topics:
        state[f"channels {topic}"] = sorted(server.get(f"/channels?topic={quote(topic)}")["channels"])
        lookup = server.ask("GET", f"/lookup?topic={quote(topic)}")
        state[f"lookup {topic}"] = lookup.status, lookup.body
        if lookup.status == 200:
            found = lookup.json()
            assert list(found) == ["channels", "producers"]
            state[f"lookup {topic}"] = sorted(found["channels"]), in_order(server, found["producers"])
    state["debug"] = {key: in_order(server, rows) for key, rows in server.get("/debug").items()}
    return state


def read_names(server: Lookupd) -> dict[str, list[str]]:
    """Return the channels of every topic."""
    topics = sorted(server.get("/topics")["topics"])
    return {topic: sorted(server.get(f"/channels?topic={quote(topic)}")["channels"]) for topic in topics}


def in_order(server: Lookupd, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name connections instead of their addresses, check and drop times, and sort."""
    names = {producer.address: name for name, producer in server.producers.items()}
    for row in rows:
        for key in ("remote_address", "id"):
            if key in row:
                row[key] = names.get(row[key], row[key])
        if "topics" in row:
            assert len(row["topics"]) == len(row["tombstones"]), "nsqadmin would end"
            paired = sorted(zip(row["topics"], row["tombstones"], strict=True))
            row["topics"], row["tombstones"] = [topic for topic, _ in paired], [buried for _, buried in paired]
        for key in ("topology_zone", "topology_region"):  # came after 1.3.0
            assert row.pop(key, "") == ""
        if "last_update" in row:
            assert abs(row.pop("last_update") / 1e9 - time.time()) < 120
        if "tombstoned_at" in row and row["tombstoned_at"] != NEVER_NS:
            assert abs(row.pop("tombstoned_at") / 1e9 - time.time()) < 120
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def plain_version(body: bytes) -> bytes:
    """Leave out which Headrace it is: 1.3.0+headrace.X reads 1.3.0."""
    return re.sub(rb'("version":"1\.3\.0)\+headrace\.[^"]*"', rb'\1"', body)
