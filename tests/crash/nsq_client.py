"""A compact NSQ client: raw sockets that one selector drives, thousands of messages per second, and no more.

It is made for kill -9: what the broker sent before it died is still read, and whoever asked for something learns that
the answer will not come.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

RESPONSE, ERROR, MESSAGE = 0, 1, 2
_HEARTBEAT = b"_heartbeat_"
_READ_BYTES = 1 << 18


def sized(data: bytes) -> bytes:
    """Return ``data`` behind its length."""
    return struct.pack(">I", len(data)) + data


def pub(topic: str, body: bytes) -> bytes:
    """Return a PUB command."""
    return b"PUB %s\n" % topic.encode() + sized(body)


def dpub(topic: str, body: bytes, delay_ms: int) -> bytes:
    """Return a DPUB command."""
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    """Return an MPUB command."""
    return b"MPUB %s\n" % topic.encode() + sized(struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies)))


class Socket:
    """A non-blocking connection: writes are buffered, reads go to ``received``, its end to ``lost``."""

    def __init__(self, selector: selectors.BaseSelector, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._selector = selector
        self._out = bytearray()
        self.is_open = True
        self.on_cut_off: Callable[[], None] = lambda: None  # the peer closes, before ``lost``
        self._socket = socket.create_connection((host, int(port)), timeout=5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._wants = selectors.EVENT_READ
        self.clear_at = time.monotonic()  # what is read from here on had not arrived then
        selector.register(self._socket, self._wants, self)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return len(self._out)

    def send(self, data: bytes) -> None:
        """Send, or keep what does not fit."""
        if not self.is_open:
            return
        self._out += data
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # what came before is still read
        wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if wants != self._wants and self.is_open:
            self._wants = wants
            self._selector.modify(self._socket, wants, self)

    def on_ready(self, events: int) -> None:
        """Do what the selector found possible."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and self.is_open:
            began_at = time.monotonic()
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self.received(data)
                if len(data) < _READ_BYTES:
                    self.clear_at = began_at
            else:
                self.on_cut_off()
                self.close()

    def close(self) -> None:
        """Close; ``lost`` is called once."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()
            self.lost()

    def received(self, data: bytes) -> None:
        """Take what was read."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is gone."""


class NsqSocket(Socket):
    """Splits the stream into frames, answers heartbeats."""

    def __init__(self, selector: selectors.BaseSelector, address: str, options: dict[str, Any] | None = None) -> None:
        self._in = bytearray()
        super().__init__(selector, address)
        self.send(b"  V2")
        if options is not None:
            self.send(b"IDENTIFY\n" + sized(json.dumps(options).encode()))

    def received(self, data: bytes) -> None:
        self._in += data
        buffer, at, end = self._in, 0, len(self._in)
        while end - at >= 8:
            size, kind = struct.unpack_from(">II", buffer, at)
            if end - at < 4 + size:
                break
            frame = bytes(buffer[at + 8 : at + 4 + size])
            at += 4 + size
            if kind == RESPONSE and frame == _HEARTBEAT:
                self.send(b"NOP\n")
            else:
                self.frame(kind, frame)
        del self._in[:at]

    def frame(self, kind: int, data: bytes) -> None:
        """Take one frame."""
        raise NotImplementedError


class HttpSocket(Socket):
    """One request at a time; ``answered(status, body)``, status 0 when the connection died."""

    def __init__(self, selector: selectors.BaseSelector, address: str) -> None:
        self._in = b""
        self._answered: Callable[[int, bytes], None] | None = None
        self._host = address
        super().__init__(selector, address)

    @property
    def is_busy(self) -> bool:
        """Whether a request awaits its answer."""
        return self._answered is not None

    def request(self, method: str, path: str, answered: Callable[[int, bytes], None], body: bytes = b"") -> None:
        """Send a request."""
        assert self._answered is None
        self._answered = answered
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)
        if not self.is_open:
            self.lost()

    def received(self, data: bytes) -> None:
        self._in += data
        head, separator, body = self._in.partition(b"\r\n\r\n")
        if not separator:
            return
        size = 0
        for line in head.lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                size = int(value)
        if len(body) < size:
            return
        self._in = body[size:]
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(int(head.split(b" ", 2)[1]), body[:size])

    def lost(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(0, b"")
