"""How a node stops."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.node import Node
from headrace.settings import Settings, StoreSettings


class Stopped:
    """A node of parts that note when they stop.

    Attributes:
        order: Who has stopped.
    """

    def __init__(self, data_dir: Path, *failing: str) -> None:
        self.order: list[str] = []
        self._failing = failing
        self._data_dir = data_dir

    def run(self) -> None:
        """Stop the node."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        begun = asyncio.Barrier(3)

        def server(name: str, *, waits: bool = True) -> Any:
            async def stop() -> None:
                if waits:
                    await asyncio.wait_for(begun.wait(), 5)
                if name in self._failing:
                    raise RuntimeError(f"{name} does not stop")
                self.order.append(name)

            return SimpleNamespace(stop=stop)

        node: Any = Node(Settings(store=StoreSettings(data_dir=self._data_dir)), free_ports=True)
        done_read, done_write = os.pipe()
        node.nsq, node.remoting = server("nsq"), server("remoting")
        node.lookup_peers = server("lookup_peers", waits=False)
        node._http = {"admin": server("admin", waits=False), "nsq_http": server("nsq_http")}
        node._status = SimpleNamespace()
        node._lag = SimpleNamespace(stop=lambda: None)
        node._loop = asyncio.get_running_loop()
        node.broker = SimpleNamespace(
            begin_stop=lambda: self.order.append("consumers go"), close=lambda: self.order.append("broker")
        )
        node.store = SimpleNamespace(
            commits=SimpleNamespace(flusher=SimpleNamespace(done_read=done_read)),
            close=lambda: self.order.append("store"),
        )
        try:
            await node.stop()
        finally:
            os.close(done_read)
            os.close(done_write)


def test_servers_stop_beside_each_other_and_the_admin_port_last(tmp_path: Path) -> None:
    """X-NSQ-14: docker stop kills after ten seconds, and each server may wait five for its peers."""
    node = Stopped(tmp_path / "store")
    node.run()
    assert node.order[:2] == ["consumers go", "lookup_peers"]
    assert sorted(node.order[2:5]) == ["nsq", "nsq_http", "remoting"]
    assert node.order[5:] == ["admin", "broker", "store"]


@pytest.mark.parametrize("failing", ["lookup_peers", "remoting", "nsq_http", "admin"])
def test_a_server_that_does_not_stop_leaves_no_store_open(tmp_path: Path, failing: str) -> None:
    """What it raises is told, behind everything else."""
    node = Stopped(tmp_path / "store", failing)
    with pytest.raises(RuntimeError, match=f"{failing} does not stop"):
        node.run()
    servers = ["admin", "lookup_peers", "nsq", "nsq_http", "remoting"]
    assert sorted([*node.order[1:-2], failing]) == servers
    assert node.order[-2:] == ["broker", "store"]


def test_no_server_that_does_not_stop_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Stopped(tmp_path / "store", "remoting", "nsq", "admin")
    with pytest.raises(RuntimeError, match="remoting does not stop"):
        node.run()
    assert "nsq does not stop" in caplog.text
    assert "admin does not stop" in caplog.text
