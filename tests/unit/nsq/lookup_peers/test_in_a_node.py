"""A node announces itself with what its settings say, while it serves (nsq.md 4.4)."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

from headrace import testing
from headrace.net.address import own_name, parse_address
from headrace.nsq.version import server_version
from tests.unit.nsq.lookup_peers.scripted_lookupd import run, scripted, wait_until


async def post(address: str, target: str) -> None:
    request = urllib.request.Request(f"http://{address}{target}", method="POST")
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).close())


def test_a_node_is_announced_as_the_settings_say(tmp_path: Path) -> None:
    """From when it serves until it stops; a topic that was there before is told, and not asked for."""

    async def test() -> None:
        options = {"nsq__broadcast_address": "told.example", "nsq__broadcast_tcp_port": 14150}
        async with scripted() as lookupd:
            lookupd.channels = {"before": ["no"], "t": ["c"]}
            with testing.broker(store__data_dir=tmp_path) as broker:
                await post(broker.nsq_http, "/topic/create?topic=before")
            assert lookupd.connections == 0
            with testing.broker(store__data_dir=tmp_path, nsq__lookupd_addresses=lookupd.address, **options) as broker:
                await wait_until(lambda: lookupd.commands == ["REGISTER before"])
                assert lookupd.identities[-1] == {
                    "broadcast_address": "told.example",
                    "hostname": own_name(),
                    "http_port": parse_address(broker.nsq_http)[1],
                    "tcp_port": 14150,
                    "version": server_version(),
                }
                await post(broker.nsq_http, "/topic/create?topic=t")
                await wait_until(lambda: lookupd.commands[1:] == ["REGISTER t", "REGISTER t c"])
            await wait_until(lambda: not lookupd.is_connected)
            assert lookupd.questions == ["t"]
            assert len(lookupd.commands) == 3

    run(test)


def test_a_node_without_nsq_over_tcp_is_announced_to_nobody(tmp_path: Path) -> None:
    """There is nothing that consumers could connect to."""

    async def test() -> None:
        async with scripted() as lookupd:
            with testing.broker(
                store__data_dir=tmp_path, nsq__lookupd_addresses=lookupd.address, nsq__tcp_address=""
            ) as broker:
                await post(broker.nsq_http, "/topic/create?topic=t")
                await asyncio.sleep(0.1)
            assert lookupd.connections == 0

    run(test)
