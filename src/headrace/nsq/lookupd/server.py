"""nsqlookupd's TCP server: where NSQ producers register.

Ref: nsq.md 4.1; requirements X-REG-05, X-REG-06; docs/protocols/nsqlookupd.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.net.address import own_name, parse_address, told_host
from headrace.net.connections import OpenConnections
from headrace.net.listener import connection_limit, listen
from headrace.net.refusal_log import RefusalLog
from headrace.nsq.lookupd.codec import encode_reply
from headrace.nsq.lookupd.connection import READ_BYTES, ProducerConnection
from headrace.nsq.lookupd.producer_log import ProducerLog
from headrace.nsq.lookupd.short_reads import ShortReads
from headrace.nsq.version import server_version
from headrace.registry.producers import ProducerTable

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.settings import RegistrySettings

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 10_000
"""Accepted by default; where open files are few, an eighth of them."""


@dataclass
class LookupdCounters:
    """What is counted since the start.

    Attributes:
        requests: Commands taken, by name.
        refusals: Connections ended with an error, by its code.
    """

    requests: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0


class LookupdServer:
    """Serves producers on one address.

    Attributes:
        table: Who has what.
        address: Where it listens, as bound; empty before ``start``.
        identity: What producers are told of this registry.
        long_read: Held by the connection whose long read is taken in this turn of the event loop.
        short_reads: Says when a short one may be taken.
    """

    def __init__(self, settings: RegistrySettings, clock: Clock, *, http_address: str) -> None:
        """Prepare to serve.

        Args:
            http_address: Where the HTTP API listens, as bound: producers are told of it. Empty when it does not.
        """
        self.settings = settings
        self.clock = clock
        self.table = ProducerTable(
            silent_ms=settings.nsq_silent_ms,
            tombstone_ms=settings.nsq_tombstone_ms,
            max_producers=settings.max_brokers,
            max_topics=settings.max_topics,
            max_channels=settings.max_nsq_channels,
            max_registrations=settings.max_nsq_registrations,
        )
        self.table.on_leftover = self._tidy_soon
        self._tidying: asyncio.Task[None] | None = None
        self.counters = LookupdCounters()
        self.refusal_log = RefusalLog(clock)
        self.producer_log = ProducerLog(clock)
        self.connections: OpenConnections[ProducerConnection] = OpenConnections(
            settings.max_connections or min(MAX_CONNECTIONS, connection_limit(0, 0) // 8)
        )
        self.address = ""
        self.identity = {
            "broadcast_address": told_host(settings.nsq_broadcast_address, http_address),
            "hostname": own_name(),
            "http_port": parse_address(http_address)[1] if http_address else 0,
            "tcp_port": 0,
            "version": server_version(),
        }
        self.long_read = asyncio.Lock()
        self.short_reads = ShortReads()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def patience_s(self, *, is_identified: bool) -> float:
        """Return how long a peer may be silent before it is cut; nsqlookupd would wait for ever.

        A producer is hidden long before, and seen again with its next PING.
        """
        idle_ms = self.settings.idle_timeout_ms
        return max(idle_ms, 2 * self.settings.nsq_silent_ms if is_identified else 0) / 1000

    async def start(self, where: str | socket.socket) -> None:
        """Listen on a bound socket or an address."""
        self._listener, self.address = await listen(where, self._accept, protocol="nsqlookupd_tcp")
        self.identity["tcp_port"] = parse_address(self.address)[1]

    def _accept(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=READ_BYTES), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProducerConnection(self, reader, writer)
        number = self.connections.add(connection)
        if number is None:
            limits = self.connections
            self.refusal_log.note_full(
                connection.remote_address, "registry.max_connections", limits.limit, limits.refused
            )
            writer.write(encode_reply(b"E_TOO_MANY_CONNECTIONS"))
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await connection.serve()
        finally:
            self._tasks.discard(task)
            self.connections.remove(number, connection.cause)

    def _tidy_soon(self) -> None:
        """Take what is gone out of the table's lists, a slice in a turn of the event loop."""
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        has_more = True
        while has_more:
            await asyncio.sleep(0)
            has_more = self.table.tidy()

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._tasks, *([self._tidying] if self._tidying is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
