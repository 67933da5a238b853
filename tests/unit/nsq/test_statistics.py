"""What NSQ clients put and get is counted by topic, channel and host, and written into HR_STATS."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

from headrace import testing
from headrace.clock import ManualClock
from headrace.format import record
from headrace.format.names import STATISTICS_TOPIC
from headrace.settings import StoreSettings
from headrace.store.store import Store


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the bodies of the statistics records of a closed store."""
    store = Store.open(StoreSettings(data_dir=folder, segment_bytes=testing.SEGMENT_BYTES), ManualClock())
    found = []
    for physical_offset, _, _ in store.queue(STATISTICS_TOPIC, 0).entries(0, 100):
        raw = store.log.read(physical_offset)
        assert raw is not None
        found.append(json.loads(record.decode(raw)["body"]))
    store.close()
    return found


def total(records: list[dict[str, Any]], section: str, *names: str) -> tuple[int, int]:
    """Return messages and bytes of the rows that begin with these names, the queue left out."""
    rows = [[row[0], *row[2:]] for found in records for row in found.get(section, [])]
    chosen = [row for row in rows if tuple(row[: len(names)]) == names]
    return sum(row[-2] for row in chosen), sum(row[-1] for row in chosen)


def test_puts_and_gets_of_nsq_clients_are_counted(tmp_path: Path) -> None:
    """A-BROKER-50, X-BROKER-17: successful ones, by protocol and host."""
    folder = tmp_path / "store"
    with testing.broker(store__data_dir=folder) as broker:
        host, _, port = broker.nsq_tcp.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"  V2")
            for body in (b"12345", b"1"):
                client.sendall(b"PUB orders\n" + len(body).to_bytes(4, "big") + body)
                assert client.recv(100).endswith(b"OK")
            client.sendall(b"PUB bad/name\n" + (1).to_bytes(4, "big") + b"x")
            assert b"E_BAD_TOPIC" in client.recv(100)
        request = urllib.request.Request(f"http://{broker.nsq_http}/pub?topic=orders", data=b"123", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        with socket.create_connection((host, int(port)), timeout=10) as consumer:
            consumer.sendall(b"  V2SUB orders billing\nRDY 10\n")
            received, deadline = b"", time.monotonic() + 10
            while received.count(b"123") < 2 and time.monotonic() < deadline:
                received += consumer.recv(4096)
    found = records_of(folder)
    assert total(found, "put", "orders", "nsq", "127.0.0.1") == (3, 9)
    messages, size = total(found, "get", "orders", "billing", "nsq", "127.0.0.1")
    assert messages == 3
    assert size > 3 * 91


def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with testing.broker(store__data_dir=folder, broker__statistics_records=False) as broker:
        host, _, port = broker.nsq_tcp.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"  V2PUB orders\n" + (1).to_bytes(4, "big") + b"x")
            assert client.recv(100).endswith(b"OK")
    assert records_of(folder) == []
