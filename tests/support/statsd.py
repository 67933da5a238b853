"""A statsd that only notes what comes."""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass, field

RECEIVE_BYTES = 8 << 20


@dataclass
class Figures:
    """What lines say together: the sum of each counter, the last value of each gauge."""

    counters: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, int] = field(default_factory=dict)

    def take(self, packet: bytes) -> None:
        """Add the lines of a packet, each of which must be one."""
        assert packet.endswith(b"\n"), packet
        for line in packet.decode().removesuffix("\n").split("\n"):
            key, _, rest = line.rpartition(":")
            value, _, kind = rest.partition("|")
            if kind == "c":
                self.counters[key] += int(value)
            else:
                assert kind == "g", line
                self.gauges[key] = int(value)


class FakeStatsd:
    """Listens for datagrams on a port of the loopback.

    Attributes:
        address: Where it listens.
        packets: What came so far, as of the last ``receive``.
        figures: What that says.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.packets: list[bytes] = []
        self.figures = Figures()

    def __enter__(self) -> FakeStatsd:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self) -> list[bytes]:
        """Return the packets that have come since the last call; does not wait."""
        came = []
        while True:
            try:
                came.append(self._socket.recv(65_536))
            except BlockingIOError:
                break
        for packet in came:
            self.figures.take(packet)
        self.packets += came
        return came
