"""What a server logs of what it turns away and has no answer for: little, since whoever knocks at a port needs no name.

Most whose bytes are refused speak another protocol than the port takes: somebody's settings have the wrong port.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import MEMORY_REMEDY
from headrace.log_pace import LogPace

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.errors import ProtocolError

logger = logging.getLogger(__name__)

_HTTP: Final = "HTTP, which nsq.http_address, registry.nsq_http_address, admin.address and registry.admin_address take"
# How other protocols than the port's own begin. As the length of a frame of RocketMQ's the texts are above 500 MB.
_STARTS: Final = {
    b"  V1": "nsqlookupd's protocol, which registry.nsq_tcp_address takes",
    b"  V2": "NSQ's protocol, which nsq.tcp_address takes",
    b"GET ": _HTTP,
    b"HEAD": _HTTP,
    b"POST": _HTTP,
    b"PUT ": _HTTP,
    b"PRI ": "HTTP/2, as RocketMQ 5's gRPC clients do, which no port takes",
    b"\x16\x03": "TLS, which no port takes",
    b"\x00": "RocketMQ's protocol, which remoting.address and registry.address take",
}

_AT_LIMIT: Final = "limit"
_NO_MEMORY: Final = "memory"
_UNREAD: Final = "unread"

LONGEST_LOGGED: Final = 500
"""Characters of a reason: texts of clients are in some."""


class RefusalLog:
    """What one server logs of what it turned away without an answer: each explanation at the pace of ``LogPace``."""

    def __init__(self, clock: Clock) -> None:
        self._pace = LogPace(clock)

    def note(self, client: str, error: ProtocolError) -> None:
        """Log that bytes were refused: where they are another protocol's, which, and which setting's port takes it.

        The limit that such bytes happen to break is not named: raising it would not help.
        """
        start = next((start for start in _STARTS if error.start.startswith(start)), b"")
        if self._pace.is_due(start):
            why = f"the client speaks {_STARTS[start]}" if start else str(error)
            logger.warning("bytes refused, connection closed client=%s error=%s", client, why)

    def note_full(self, client: str, setting: str, limit: int, refused: int) -> None:
        """Log that there are as many connections as may be.

        Args:
            client: One of those refused.
            setting: Bounds the connections.
            limit: Connections that may be open at once.
            refused: Connections refused since the start.
        """
        if self._pace.is_due(_AT_LIMIT):
            logger.warning(
                "connections refused at the limit client=%s limit=%d setting=%s refused=%d",
                client,
                limit,
                setting,
                refused,
            )

    def note_no_memory(self, client: str, what: str) -> None:
        """Log that there was no memory for what a client has sent."""
        if self._pace.is_due(_NO_MEMORY):
            logger.error("no memory, client refused client=%s error=%s remedy=%s", client, what, MEMORY_REMEDY)

    def note_unread(self, client: str, size: int, setting: str, limit: int) -> None:
        """Log that a client was cut that had most waiting, as all together had more than may be.

        Args:
            size: Bytes that waited for it.
            setting: Bounds what waits for all.
            limit: Its value.
        """
        if self._pace.is_due(_UNREAD):
            logger.warning(
                "clients do not read what is sent, closed the one with most client=%s bytes=%d limit=%d setting=%s",
                client,
                size,
                limit,
                setting,
            )

    def note_untold(self, client: str, request: str, code: str, why: str) -> None:
        """Log that a request, or a part of it, was refused and its answer does not say so: there is none, or it is 0.

        Args:
            request: Its name; one of few, as is ``code``: each pair of them has its line.
            code: What it would have been answered.
        """
        if self._pace.is_due(f"{request} {code}"):
            logger.warning(
                "request refused, client not told client=%s request=%s code=%s error=%s",
                client,
                request,
                code,
                why[:LONGEST_LOGGED],
            )
