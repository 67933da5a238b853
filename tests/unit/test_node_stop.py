"""How a node stops."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.node import Node
from headrace.settings import Settings, StoreSettings


def test_servers_stop_beside_each_other_and_the_admin_port_last(tmp_path: Path) -> None:
    """X-NSQ-14: docker stop kills after ten seconds, and each server may wait five for its peers."""
    stopped: list[str] = []

    async def run() -> None:
        begun = asyncio.Barrier(3)

        def server(name: str, *, waits: bool = True) -> Any:
            async def stop() -> None:
                if waits:
                    await asyncio.wait_for(begun.wait(), 5)
                stopped.append(name)

            return SimpleNamespace(stop=stop)

        node: Any = Node(Settings(store=StoreSettings(data_dir=tmp_path / "store")), free_ports=True)
        done_read, done_write = os.pipe()
        node.nsq, node.remoting = server("nsq"), server("remoting")
        node._http = {"admin": server("admin", waits=False), "nsq_http": server("nsq_http")}
        node._status = SimpleNamespace()
        node._lag = SimpleNamespace(stop=lambda: None)
        node._loop = asyncio.get_running_loop()
        node.broker = SimpleNamespace(
            begin_stop=lambda: stopped.append("consumers go"), close=lambda: stopped.append("broker")
        )
        node.store = SimpleNamespace(
            flusher=SimpleNamespace(done_read=done_read), close=lambda: stopped.append("store")
        )
        await node.stop()
        os.close(done_read)
        os.close(done_write)

    asyncio.run(run())
    assert stopped[0] == "consumers go"
    assert sorted(stopped[1:4]) == ["nsq", "nsq_http", "remoting"]
    assert stopped[4:] == ["admin", "broker", "store"]
