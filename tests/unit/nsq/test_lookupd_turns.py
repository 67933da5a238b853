"""Producers of nsqlookupd that send without end share the event loop with everybody else."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter

import pytest

from headrace.clock import ManualClock
from headrace.nsq.lookupd.codec import MAGIC
from headrace.nsq.lookupd.connection import SHORT_READ_BYTES, ProducerConnection
from headrace.nsq.lookupd.server import LookupdServer
from headrace.nsq.lookupd.short_reads import TURN_BYTES
from headrace.settings import Settings

PEERS = 20
PINGS = 5_000
IDENTITY = b'{"broadcast_address":"b","tcp_port":1,"http_port":2,"version":"1.3.0"}'
IDENTIFY = MAGIC + b"IDENTIFY\n" + struct.pack(">I", len(IDENTITY)) + IDENTITY


def test_short_reads_of_many_share_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand connections with fifty PINGs each at a time held up everybody for 0.1 s."""
    turn = 0
    taken: Counter[int] = Counter()
    take = ProducerConnection._take

    def note(connection: ProducerConnection, data: bytes) -> None:
        taken[turn] += len(data)
        take(connection, data)

    monkeypatch.setattr(ProducerConnection, "_take", note)
    some = b"PING\n" * (SHORT_READ_BYTES // 5)

    async def run() -> None:
        nonlocal turn
        server = LookupdServer(Settings().registry, ManualClock(), http_address="")
        await server.start("127.0.0.1:0")
        port = int(server.address.rpartition(":")[2])
        peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for reader, writer in peers:
            writer.write(MAGIC + b"PING\n")
            assert await reader.readexactly(6) == b"\0\0\0\2OK"
        for _ in range(3):
            for _, writer in peers:
                writer.write(some)
            answers = asyncio.gather(*(reader.readexactly(6 * len(some) // 5) for reader, _ in peers))
            while not answers.done():
                turn += 1
                await asyncio.sleep(0)
            assert set(answers.result()) == {b"\0\0\0\2OK" * (len(some) // 5)}
        for _, writer in peers:
            writer.close()
            await writer.wait_closed()
        await server.stop()

    asyncio.run(run())
    assert sum(taken.values()) > 3 * 300 * len(some)
    assert max(taken.values()) <= 2 * (TURN_BYTES + SHORT_READ_BYTES), "the counter's own turn may be before or behind"


def test_one_long_read_is_taken_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred that sent PINGs without end made a consumer wait for 1.1 s."""
    turn = 0
    long_reads: Counter[int] = Counter()
    take = ProducerConnection._take

    def note(connection: ProducerConnection, data: bytes) -> None:
        if len(data) > SHORT_READ_BYTES:
            long_reads[turn] += 1
        take(connection, data)

    monkeypatch.setattr(ProducerConnection, "_take", note)

    async def flood(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(IDENTIFY + b"PING\n" * PINGS)
        await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0])
        assert await reader.readexactly(6 * PINGS) == b"\0\0\0\2OK" * PINGS
        writer.close()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def run() -> None:
        server = LookupdServer(Settings().registry, ManualClock(), http_address="")
        await server.start("127.0.0.1:0")
        port = int(server.address.rpartition(":")[2])
        counting = asyncio.ensure_future(count_turns())
        await asyncio.gather(*(flood(port) for _ in range(PEERS)))
        counting.cancel()
        await server.stop()

    asyncio.run(run())
    assert len(long_reads) >= PEERS
    assert max(long_reads.values()) <= 2, "the counter's own turn may be before or behind the read"
