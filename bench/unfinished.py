"""Consumers that take messages and finish none: what is in flight costs memory, and work when its time is over."""

import json
import selectors
import socket
import struct
import time
from types import TracebackType
from typing import Self

from bench.errors import BenchError
from bench.loads import Target

FRAME_BYTES = 4 + 4 + 8 + 2 + 16
"""Size, kind, time, attempts and id in front of a body."""
READ_BYTES = 1 << 20
HEARTBEAT_MS = 60_000
"""The longest there is, as heartbeats are not answered; who wants none cannot subscribe."""
SUBSCRIBED = 2 * b"\0\0\0\6\0\0\0\0OK"
"""The answers to IDENTIFY and SUB."""


class UnfinishedConsumers:
    """One consumer on each of many channels of a topic, named after the target's; for less than a minute."""

    def __init__(self, target: Target, *, channels: int, window: int, msg_timeout_s: float, body_bytes: int) -> None:
        """Subscribe to each channel with ``window`` messages in flight, which time out behind ``msg_timeout_s``."""
        self._target = target
        self._channels = channels
        self._window = window
        self._message_bytes = FRAME_BYTES + body_bytes
        timeout_ms = round(msg_timeout_s * 1000)
        self._identity = json.dumps({"heartbeat_interval": HEARTBEAT_MS, "msg_timeout": timeout_ms}).encode()
        self._received_bytes = 0
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        host, _, port = self._target.address.rpartition(":")
        for number in range(self._channels):
            connection = socket.create_connection((host, int(port)))
            self._sockets.append(connection)
            connection.sendall(
                b"  V2IDENTIFY\n%b%b" % (struct.pack(">I", len(self._identity)), self._identity)
                + f"SUB {self._target.topic} {self._target.channel}-{number}\nRDY {self._window}\n".encode()
            )
            if (answer := connection.recv(len(SUBSCRIBED), socket.MSG_WAITALL)) != SUBSCRIBED:
                raise BenchError(f"consumer {number} was refused: {answer!r}")
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._selector.close()
        for connection in self._sockets:
            connection.close()

    def take(self, messages: int, seconds: float) -> float:
        """Read until so many more messages have come; return after how many seconds that was.

        Raises:
            BenchError: they did not come in ``seconds``, or a connection was closed.
        """
        began = time.monotonic()
        wanted = self._received_bytes + messages * self._message_bytes
        while self._received_bytes < wanted:
            if time.monotonic() > began + seconds:
                missing = (wanted - self._received_bytes) / self._message_bytes
                raise BenchError(f"{missing:,.0f} of {messages:,} messages did not come in {seconds:.0f} s")
            for key, _ in self._selector.select(0.1):
                data = self._sockets[key.data].recv(READ_BYTES)
                if not data:
                    raise BenchError("the broker closed a consumer's connection")
                self._received_bytes += len(data)
        return time.monotonic() - began
