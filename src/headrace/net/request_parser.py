"""h11's parser of requests, made to treat their heads as Go's server does.

- h11 bounds only what is incomplete: a large head would pass in one piece and fail in two. Here one limit holds.
- h11 wants a target in ASCII; clients that take no care send others raw, and Go's server takes them.
- h11 lets pass what another server on the way may read otherwise, or what nothing here can serve: expectations that it
  does not know, other major versions of HTTP, control bytes in header values, any text as a host or a target, lengths
  that no integer of 64 bits holds, and chunked bodies of clients that speak a version without them.
- h11 has an event for each chunk of a body: a read full of the shortest would hold the loop for 0.2 s.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer

from headrace.net.http import MAX_HEAD_BYTES

_MAX_LENGTH: Final = (1 << 63) - 1
_HEAD_END: Final = re.compile(rb"\n\r?\n")  # as h11 finds it
_ASCII: Final = bytes(range(128))
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST: Final = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
# A path, a URL or the server itself, percent-encoded as it should be. What a query means is the application's business.
# What was matched is not given back: a long target that is refused costs no more than one that is not.
_TARGET: Final = re.compile(rb"\*|(?:[A-Za-z][A-Za-z0-9+.\-]*:/)?/(?:[^%?]++|%[0-9A-Fa-f]{2})*+(?:\?.*)?")

_CHUNK_HEAD: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class _ChunkReader(ChunkedReader):
    """h11's reader of a body, but that all plain chunks which are there whole come as one."""

    def __call__(self, buffer: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        body = bytearray()
        data, end = buffer._data, len(self._bytes_to_discard)  # what is left of the chunk before
        if not self._bytes_in_chunk and not self._reading_trailer and data.startswith(self._bytes_to_discard):
            while head := _CHUNK_HEAD.match(data, end):
                begin = head.end()
                behind = begin + int(head[1], 16)
                if behind == begin or data[behind : behind + 2] != b"\r\n":
                    break  # the last chunk, one that is cut off, or malformed
                body += data[begin:behind]
                end = behind + 2
        if not body:
            return super().__call__(buffer)
        buffer._extract(end)
        self._bytes_to_discard = b""
        return h11.Data(data=bytes(body))


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
                _check_head(event)
                if isinstance(self._reader, ChunkedReader):
                    self._reader = _ChunkReader()
        except h11.RemoteProtocolError as error:
            self.refusal_status = error.error_status_hint
            raise
        return event

    def _prepare_head(self) -> None:
        """Pass over empty lines, percent-encode a raw target, then bound the head: in this order, in any pieces."""
        buffer = self._receive_buffer
        data = buffer._data  # its bytes themselves: many requests may be in it, each copy would be of all of them
        if data.startswith((b"\r", b"\n")):  # RFC 9112 2.2
            del data[: len(data) - len(data.lstrip(b"\r\n"))]
        line_end = data.find(b"\n")
        if line_end >= 0 and not data[:line_end].isascii():
            method, space, target = data[:line_end].partition(b" ")
            data[:line_end] = method + space + quote_from_bytes(target, _ASCII).encode()
        if len(buffer) > MAX_HEAD_BYTES and not _HEAD_END.search(data, 0, MAX_HEAD_BYTES):
            raise h11.RemoteProtocolError("head too large", error_status_hint=431)


def _check_head(request: h11.Request) -> None:
    """Refuse what h11 lets pass.

    Raises:
        h11.RemoteProtocolError: with the status to answer.
    """
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("unsupported version", error_status_hint=505)
    if request.method != b"CONNECT" and not _TARGET.fullmatch(request.target):
        raise h11.RemoteProtocolError("malformed target")
    for name, value in request.headers:
        if _CONTROL.search(value):
            raise h11.RemoteProtocolError("control byte in a header")
        if name == b"host" and not _HOST.fullmatch(value):
            raise h11.RemoteProtocolError("malformed host")
        if name == b"content-length" and int(value) > _MAX_LENGTH:
            raise h11.RemoteProtocolError("length beyond 64 bits")
        if name == b"transfer-encoding" and request.http_version < b"1.1":
            raise h11.RemoteProtocolError("transfer encoding in a version without them")
        if name == b"expect" and value.lower() != b"100-continue":
            raise h11.RemoteProtocolError("unknown expectation", error_status_hint=417)
