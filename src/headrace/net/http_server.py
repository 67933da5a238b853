"""What Headrace changes in uvicorn's server: nothing global.

- It would take over SIGINT and SIGTERM, wake ten times a second and log with its own setup; ``EmbeddedServer`` does
  none of that.
- It accepts one connection in a turn of the loop, and turns are long while NSQ's clients send much; ``EmbeddedServer``
  accepts many, as every listener does.
- It takes a whole URL in a request line for a path; servers must accept it (RFC 9112, 3.2.2), so the application is
  given its path.

What is changed of its connections is in ``http_connection``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import uvicorn

from headrace.net.http_connection import connection_class
from headrace.net.listener import listen

if TYPE_CHECKING:
    from headrace.net.http import Application, HttpListener, Receive, Scope, Send

logger = logging.getLogger(__name__)

DATE_SECONDS: Final = 1.0
STOP_GRACE_SECONDS: Final = 5


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that is a guest in somebody else's loop and process."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(
            uvicorn.Config(
                _accept_absolute_targets(listener.app),
                http=connection_class(listener),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_GRACE_SECONDS + 1,  # an error in the log: see below
            )
        )
        self._name = listener.name
        self.listening = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as every listener does: uvicorn's own code accepts one connection in a turn of the loop."""
        protocol: Any = self.config.http_protocol_class
        make = partial(protocol, config=self.config, server_state=self.server_state, app_state={})
        self.servers = [(await listen(bound, make, protocol=self._name))[0] for bound in sockets or ()]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def main_loop(self) -> None:
        """Renew the Date header once a second until ``ending`` is set."""
        self.server_state.default_headers = _date_header()
        self.listening.set()
        while not self.should_exit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), DATE_SECONDS)
            self.server_state.default_headers = _date_header()

    async def _wait_tasks_to_complete(self) -> None:
        """Wait for what is in work for a while, then end it. uvicorn would call that an error, and nobody need act."""
        for connection in list(self.server_state.connections):
            connection.shutdown()  # also those that were accepted already, and taken up behind uvicorn's look at all
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(super()._wait_tasks_to_complete(), STOP_GRACE_SECONDS)
            return
        state = self.server_state
        logger.warning(
            "stop waits no longer for HTTP protocol=%s requests=%d connections=%d",
            self._name,
            len(state.tasks),
            len(state.connections),
        )
        for task in state.tasks:
            task.cancel()


def _accept_absolute_targets(app: Application) -> Application:
    """Return the application for requests whose target may be a URL (the absolute form) instead of a path."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        _, is_url, behind = scope["raw_path"].partition(b"://")
        if is_url and not scope["raw_path"].startswith(b"/"):
            scope["path"] = "/" + unquote(behind.partition(b"/")[2].decode("ascii"))
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            # By a stop that waits no longer, which says so once; uvicorn would log a traceback for each request.
            with contextlib.suppress(RuntimeError):  # its answer has begun
                headers = [(b"Connection", b"close"), (b"Content-Length", b"0")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body"})

    return call


def _date_header() -> list[tuple[bytes, bytes]]:
    return [(b"Date", formatdate(time.time(), usegmt=True).encode())]
