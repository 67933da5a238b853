"""An NSQ client without a network: hands bytes to a connection as the event loop does, and collects what it writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from headrace.broker.statistics import Statistics
from headrace.clock import ManualClock
from headrace.nsq.connection import NsqConnection
from headrace.nsq.server import NsqServer
from headrace.settings import BrokerSettings, NsqSettings
from tests.support.loop import FakeLoop
from tests.unit.nsq.fake_broker import FakeBroker


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    content = struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies))
    return f"MPUB {topic}\n".encode() + sized(content)


def identify(text: str) -> bytes:
    return b"IDENTIFY\n" + sized(text.encode())


class FakeTransport(asyncio.Transport):
    """Takes everything at once, or, when ``stalled``, nothing."""

    def __init__(self, protocol: NsqConnection, peer: tuple[str, int]) -> None:
        super().__init__()
        self.protocol = protocol
        self.peer = peer
        self.sent = bytearray()
        self.stalled = False
        self.waiting = bytearray()
        self.high_water = 65536
        self.paused_protocol = False
        self.reading = True
        self.eof_sent = False
        self.closing = False
        self.closed = False
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_water = high or 65536

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def write(self, data: Any) -> None:
        assert not self.eof_sent, "written after the end of file"
        if not self.stalled:
            self.sent += data
            return
        self.waiting += data
        if len(self.waiting) > self.high_water and not self.paused_protocol:
            self.paused_protocol = True
            self.protocol.pause_writing()

    def flow(self, most: int | None = None) -> None:
        """Let the peer take what waits, at most ``most`` bytes."""
        self.sent += self.waiting[:most]
        del self.waiting[:most]
        if self.closing and not self.waiting:
            self._lose()
        if self.paused_protocol and len(self.waiting) <= self.high_water // 4:
            self.paused_protocol = False
            self.protocol.resume_writing()

    def write_eof(self) -> None:
        self.eof_sent = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        """Close when everything that waits is out, as uvloop does."""
        self.closing = True
        if not self.waiting:
            self._lose()

    def abort(self) -> None:
        self.aborted = True
        self.closing = True
        self.waiting.clear()
        self._lose()

    def _lose(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)


class Client:
    """One connection and what it was sent."""

    def __init__(self, bench: Bench, peer: tuple[str, int] = ("10.0.0.9", 40000), *, magic: bool = True) -> None:
        self.bench = bench
        self.connection = NsqConnection(bench.server)
        self.loop = FakeLoop()
        self.connection.call_soon = self.loop.call_soon  # type: ignore[assignment]
        self.transport = FakeTransport(self.connection, peer)
        self.connection.connection_made(self.transport)
        if magic:
            self.send(b"  V2")

    def send(self, data: bytes) -> list[tuple[int, bytes]]:
        """Send ``data``, let the broker work, return the frames that came."""
        self.post(data)
        self.bench.work()
        return self.frames()

    def post(self, data: bytes) -> None:
        """Send ``data``; the turn in which it is read goes on."""
        while data and not self.transport.closed:
            assert self.transport.reading, "not read from"
            buffer = self.connection.get_buffer(-1)
            taken = min(len(data), len(buffer))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self.connection.buffer_updated(taken)

    def frames(self) -> list[tuple[int, bytes]]:
        """Return the frames that came since the last call: (type, data)."""
        frames = []
        data = bytes(self.transport.sent)
        at = 0
        while len(data) - at >= 8:
            size, kind = struct.unpack_from(">II", data, at)
            if len(data) - at < 4 + size:
                break
            frames.append((kind, data[at + 8 : at + 4 + size]))
            at += 4 + size
        del self.transport.sent[:at]
        return frames

    def messages(self) -> list[bytes]:
        """Return the bodies of the message frames that came."""
        return [data[26:] for kind, data in self.frames() if kind == 2]

    def subscribe(self, topic: str, channel: str, ready: int | None = None) -> list[tuple[int, bytes]]:
        """Send SUB and perhaps RDY; return the frames behind SUB's OK."""
        frames = self.send(f"SUB {topic} {channel}\n".encode())
        assert frames == [(0, b"OK")], frames
        return self.send(f"RDY {ready}\n".encode()) if ready is not None else []


class Bench:
    """A server with a fake broker and a clock that stands still."""

    def __init__(self, *, max_channel_consumers: int = 0, **settings: Any) -> None:
        self.clock = ManualClock()
        self.broker = FakeBroker(self.clock.now_ms, max_channel_consumers=max_channel_consumers)
        settings.setdefault("delivery_coalescing_ms", 0)
        settings.setdefault("read_coalescing_ms", 0)  # there is no socket and no event loop
        statistics = Statistics(BrokerSettings(), self.clock.monotonic_ms(), "cluster")
        self.server = NsqServer(self.broker, NsqSettings(**settings), self.clock, statistics)  # type: ignore[arg-type]
        self.soon: list[Callable[[], None]] = []
        self.server.joint_publishes.call_soon = self.soon.append

    def client(self, **options: Any) -> Client:
        return Client(self, **options)

    def end_turn(self) -> None:
        """Call what was to be called at the end of the turn."""
        while self.soon:
            self.soon.pop(0)()

    def work(self) -> None:
        """End the turn, and dispatch until nothing is left to deliver."""
        self.end_turn()
        for _ in range(100_000):
            if not self.broker.dirty:
                return
            self.server.dispatch()
        raise AssertionError("dispatch never ends")

    def advance(self, milliseconds: int, step_ms: int = 100) -> None:
        """Let time pass in ticks of the server's timer."""
        for _ in range(0, milliseconds, step_ms):
            self.clock.advance_ms(step_ms)
            self.server.check_timers(self.server.clock.monotonic_ms())
        self.work()
