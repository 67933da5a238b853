"""h11's parser of requests, made to treat their heads as Go's server does.

- h11 bounds only what is incomplete: a large head would pass in one piece and fail in two. Here one limit holds.
- h11 wants a target in ASCII; clients that take no care send others raw, and Go's server takes them.
- h11 lets an expectation pass that it does not know.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes

import h11

MAX_HEAD_BYTES: Final = 64 << 10
"""Most bytes of a request before its body; h11 needs 40 ms for so many in the shortest header lines."""
_HEAD_END: Final = re.compile(rb"\n\r?\n")  # as h11 finds it
_ASCII: Final = bytes(range(128))


class RequestParser(h11.Connection):
    """The server's side of one connection.

    ``refusal_status`` is the status to answer when ``next_event`` has raised.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.refusal_status = 400

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what comes next.

        Raises:
            h11.RemoteProtocolError: the peer's input is refused.
        """
        try:
            if self.their_state is h11.IDLE:
                self._prepare_head()
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_expectation(event)
        except h11.RemoteProtocolError as error:
            self.refusal_status = error.error_status_hint
            raise
        return event

    def _prepare_head(self) -> None:
        """Percent-encode a raw target, then bound the head: in this order, whatever the pieces it comes in."""
        buffer = self._receive_buffer
        data = buffer._data  # its bytes themselves: many requests may be in it, each copy would be of all of them
        line_end = data.find(b"\n")
        if line_end >= 0 and not data[:line_end].isascii():
            method, space, target = data[:line_end].partition(b" ")
            data[:line_end] = method + space + quote_from_bytes(target, _ASCII).encode()
        if len(buffer) > MAX_HEAD_BYTES and not _HEAD_END.search(data, 0, MAX_HEAD_BYTES):
            raise h11.RemoteProtocolError("head too large", error_status_hint=431)


def _check_expectation(request: h11.Request) -> None:
    if any(name == b"expect" and value.lower() != b"100-continue" for name, value in request.headers):
        raise h11.RemoteProtocolError("unknown expectation", error_status_hint=417)
