"""Where clients come from, as listings and records have it."""

from __future__ import annotations

import json
import socket
import urllib.request
from contextlib import closing
from pathlib import Path

from headrace import testing
from headrace.clock import ManualClock
from headrace.format import record
from headrace.settings import StoreSettings
from headrace.store.store import Store
from tests.support.toolchain import require_ipv6

EVERYWHERE = "[::]:0"


def born_hosts(folder: Path, topic: str) -> list[str]:
    """Return the born host of each message of a closed store."""
    settings = StoreSettings(data_dir=folder, segment_bytes=testing.SEGMENT_BYTES)
    with closing(Store.open(settings, ManualClock())) as store:
        raws = [store.log.read(physical_offset) for physical_offset, _, _ in store.queue(topic, 0).entries(0, 100)]
    return [record.decode(raw)["born_host"] for raw in raws if raw is not None]


def test_clients_of_a_listener_for_ipv4_and_ipv6(tmp_path: Path) -> None:
    """A-STORE-18; nsq.md 3.4, remote_address: those over IPv4 have their IPv4 address, as at nsqd."""
    require_ipv6()
    folder = tmp_path / "store"
    with testing.broker(store__data_dir=folder, nsq__tcp_address=EVERYWHERE, nsq__http_address=EVERYWHERE) as broker:
        ports = [int(address.rpartition(":")[2]) for address in (broker.nsq_tcp, broker.nsq_http)]
        names = []
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, ports[0]), timeout=10) as client:
                client.sendall(b"  V2SUB t c\nPUB t\n" + (1).to_bytes(4, "big") + b"x")
                received = b""
                while received.count(b"OK") < 2:
                    received += client.recv(100)
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/stats?format=json&topic=t") as answer:
                    (row,) = json.load(answer)["topics"][0]["channels"][0]["clients"]
                assert row["client_id"] == row["hostname"] == host
                name = f"{host if host == '127.0.0.1' else '[::1]'}:{client.getsockname()[1]}"
                assert row["remote_address"] == name
                names.append(name)
        for host in ("127.0.0.1", "[::1]"):
            for path in ("pub", "mpub"):
                request = urllib.request.Request(f"http://{host}:{ports[1]}/{path}?topic=h", data=b"x", method="POST")
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert answer.status == 200
    assert born_hosts(folder, "t") == names
    assert [host.rpartition(":")[0] for host in born_hosts(folder, "h")] == ["127.0.0.1"] * 2 + ["[::1]"] * 2
