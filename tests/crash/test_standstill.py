"""A broker that stood still, stopped by a signal as by a blocked disk, holds that against nobody."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess

HEAD = 8  # bytes of a frame before its data: size and kind
MESSAGE_KIND = 2
SUBSCRIBE = b"SUB t c\nRDY 1\n"
PUBLISH = b"PUB t\n\0\0\0\4body"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    process.spawn()
    process.wait_ready()
    yield process
    process.kill()


def _connect(broker: BrokerProcess, commands: bytes) -> socket.socket:
    host, _, port = broker.listeners["nsq_tcp"].rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(b"  V2" + commands)
    return client


def _identify(options: bytes) -> bytes:
    return b"IDENTIFY\n" + len(options).to_bytes(4, "big") + options


def _frames(client: socket.socket, seconds: float) -> list[tuple[int, bytes]]:
    """Return what comes within a time."""
    data, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        client.settimeout(left)
        try:
            data += client.recv(1 << 16)
        except TimeoutError:
            break
    found = []
    while data:
        size, kind = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:HEAD], "big")
        found.append((kind, data[HEAD : 4 + size]))
        data = data[4 + size :]
    return found


def _first_message(consumer: socket.socket) -> bytes:
    """Return the first message, however long a busy machine takes for it."""
    for _ in range(100):
        messages = [data for kind, data in _frames(consumer, 0.1) if kind == MESSAGE_KIND]
        if messages:
            (message,) = messages
            return message
    raise AssertionError("no message came")


def _stop_for(broker: BrokerProcess, seconds: float) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_fin_that_came_in_time_counts_after_a_standstill(broker: BrokerProcess) -> None:
    """The FIN lay unread while the time-out passed: the message is finished and does not come again."""
    options = _identify(b'{"msg_timeout": 1000, "heartbeat_interval": 10000}')
    with _connect(broker, options + SUBSCRIBE) as consumer, _connect(broker, PUBLISH) as producer:
        message = _first_message(consumer)
        assert (0, b"OK") in _frames(producer, 0.1)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            consumer.sendall(b"FIN " + message[10:26] + b"\n")
            time.sleep(2)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert _frames(consumer, 2) == []
    assert "event loop stood still" in broker.log_path.read_text()


def test_a_message_in_flight_times_out_behind_a_standstill(broker: BrokerProcess) -> None:
    """Time that the loop stood still is left out, no more: what nobody finishes comes again."""
    options = _identify(b'{"msg_timeout": 1000, "heartbeat_interval": 10000}')
    with _connect(broker, options + SUBSCRIBE) as consumer, _connect(broker, PUBLISH):
        first = _first_message(consumer)
        _stop_for(broker, 2)
        again, *_ = [data for kind, data in _frames(consumer, 1.5) if kind == MESSAGE_KIND]
        assert again[10:26] == first[10:26]
        assert again[8:10] == b"\0\2"  # attempts


def test_a_client_that_sent_its_heartbeats_stays_after_a_standstill(broker: BrokerProcess) -> None:
    """What it sent meanwhile lies unread; its deadline passed only for a broker that did not look."""
    with _connect(broker, _identify(b'{"heartbeat_interval": 1000}')) as client:
        assert _frames(client, 0.2) == [(0, b"OK")]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                time.sleep(1)
                client.sendall(b"NOP\n")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        client.sendall(PUBLISH)
        assert (0, b"OK") in _frames(client, 0.5)
