"""nsqlookupd as a whole: its table, its TCP server and its HTTP listener, started and stopped together."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from headrace.net.address import format_address
from headrace.net.http import HttpListener
from headrace.nsq.lookupd.http import LookupdHttp
from headrace.nsq.lookupd.server import LookupdServer

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.net.http import HttpLimits
    from headrace.settings import RegistrySettings

TCP: Final = "nsqlookupd_tcp"
HTTP: Final = "nsqlookupd_http"
LISTENERS: Final = (TCP, HTTP)


class LookupdService:
    """What a registry runs for NSQ.

    Attributes:
        table: Who has what.
        server: Where producers register; it listens only if there is a socket for it.
        http: Where consumers and tools ask; None without a socket for it.
    """

    def __init__(
        self, settings: RegistrySettings, clock: Clock, sockets: dict[str, socket.socket], *, limits: HttpLimits
    ) -> None:
        """Take the bound sockets that are its own out of ``sockets``; nothing listens before ``start``."""
        self._tcp_socket = sockets.pop(TCP, None)
        http_socket = sockets.pop(HTTP, None)
        http_address = format_address(http_socket.getsockname()) if http_socket is not None else ""
        self.server = LookupdServer(settings, clock, http_address=http_address)
        self.table = self.server.table
        self.http: HttpListener | None = None
        if http_socket is not None:
            app = LookupdHttp(table=self.table, clock=clock)
            self.http = HttpListener(HTTP, app, http_socket, limits=limits, counters=app.counters)

    async def start(self) -> None:
        """Listen."""
        if self.http is not None:
            await self.http.start()
        if self._tcp_socket is not None:
            await self.server.start(self._tcp_socket)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await asyncio.gather(self.server.stop(), *([self.http.stop()] if self.http is not None else []))
