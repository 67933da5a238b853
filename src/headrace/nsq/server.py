"""The NSQ TCP server: listener, connections, dispatch of deliveries, and the one timer they share.

Dispatch. The broker says through ``on_work`` that channels may have something to deliver; the node has ``dispatch``
run once per turn of the event loop. ``delivery`` sends what each channel has, up to a byte budget; a dispatch stops at
another, and what is left comes in the next turn, so channels and sockets share the loop.

Ref: nsq.md 1.8, 1.9.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from headrace.net.listener import connection_limit
from headrace.net.server import StreamServer
from headrace.net.turns import TURN_MS
from headrace.nsq.coalescing import ReadCoalescing
from headrace.nsq.codec import Limits
from headrace.nsq.connection import NsqConnection
from headrace.nsq.delivery import Delivery
from headrace.nsq.delivery_coalescing import DeliveryCoalescing
from headrace.nsq.finishes import Finishes
from headrace.nsq.intake import Intake
from headrace.nsq.joint_publishes import JointPublishes
from headrace.nsq.metrics import NsqCounters

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.channels.channel import Channel
    from headrace.broker.statistics import Statistics
    from headrace.clock import Clock
    from headrace.net.loop_load import Load
    from headrace.settings import NsqSettings

logger = logging.getLogger(__name__)

DISPATCH_BYTES: Final = 1024 * 1024  # of one dispatch: about a millisecond
_LAST_READ_S: Final = 0.002  # at a stop: time for what a read sets free to come
_MAX_LAST_READS: Final = 16
# What a 0 in nsq.max_connections leaves to the store and the two HTTP listeners (1,024 connections each).
_RESERVED_FILES: Final = 3 * 1024


class NsqServer(StreamServer[NsqConnection]):
    """Serves NSQ clients on one address.

    Attributes:
        address: Where it listens, as bound; empty before ``start``.
        gate: The broker's, where answers wait for the disk.
        coalescing: Has FINs of a consumer with plenty in flight read many at once.
        counters: What the server counts.
        delivery_coalescing: Has messages of a busy channel sent some at a time.
        finishes: Takes over reads that are nothing but FINs.
        joint_publishes: Appends small publishes of many clients together.
        statistics: Where messages are counted by topic, channel and host.
    """

    settings: NsqSettings
    counters: NsqCounters

    def __init__(self, broker: Broker, settings: NsqSettings, clock: Clock, statistics: Statistics) -> None:
        super().__init__(
            "nsq",
            clock,
            connection_limit(settings.max_connections, _RESERVED_FILES),
            NsqCounters(),
            max_unread_bytes=settings.max_unread_bytes,
            busy_poll_us=broker.settings.busy_poll_us,
        )
        self.broker = broker
        self.gate = broker.gate
        self.settings = settings
        self.address = ""
        self.coalescing = ReadCoalescing(settings.read_coalescing_ms)
        self.delivery_coalescing = DeliveryCoalescing(
            broker, settings.delivery_coalescing_ms, settings.min_output_buffer_timeout_ms
        )
        self.statistics = statistics
        self.limits = Limits(
            max_message_bytes=settings.max_message_bytes,
            max_body_bytes=settings.max_body_bytes,
            max_rdy_count=settings.max_rdy_count,
            max_req_timeout_ms=settings.max_req_timeout_ms,
        )
        self.intake = Intake()  # one for all connections: a read is over before the next begins
        self.joint_publishes = JointPublishes(self)
        self.finishes = Finishes(self)
        self._delivery = Delivery(self)
        self._messages_then = 0  # delivered at the last look at the load

    async def start(self, where: str | socket.socket) -> None:
        """Listen on a bound socket or an address."""
        self.address = await self.listen(where, lambda: NsqConnection(self))

    async def stop(self) -> None:
        """Read what has come, as FINs that are not read come again; then as any server.

        A client's kernel may hold back what it sent last until this side has read what came before (Nagle's algorithm),
        so it is looked again until nothing comes, or for long enough where clients go on. Who only publishes is read
        from once more at most: hundreds that go on would make each look a second long.
        """
        self.coalescing.end_all()
        for _ in range(_MAX_LAST_READS):
            before = self.counters.bytes_in
            await asyncio.sleep(_LAST_READ_S)
            if self.counters.bytes_in == before:
                break
            for connection in self.connections:
                if connection.subscription is None:
                    connection.stop("server stopped")
        await super().stop()
        self.coalescing.close()

    def note_load(self, load: Load) -> None:
        """Have more messages leave together while the loop has no time to spare; the node calls this now and then."""
        messages, self._messages_then = self.counters.messages_out - self._messages_then, self.counters.messages_out
        self.delivery_coalescing.interval.adapt(load, self.delivery_coalescing.take_deliveries(), messages)

    def dispatch(self) -> None:
        """Send what the channels have for their ready consumers, up to a bound; the rest comes with the next call."""
        self.finishes.end_turn()
        channels = self.broker.take_dirty()
        full = self.counters.bytes_out + DISPATCH_BYTES
        until_ms = self.clock.monotonic_ms() + TURN_MS
        again: list[Channel] = []
        for position, channel in enumerate(channels):
            if self.counters.bytes_out >= full or self.clock.monotonic_ms() >= until_ms:
                # Those that got nothing come first next time.
                again = channels[position:] + again
                break
            try:
                if self._delivery.deliver(channel):
                    again.append(channel)
            except Exception:
                logger.exception("delivery failed by a bug topic=%s channel=%s", channel.topic_name, channel.name)
        for channel in again:
            self.broker.touch_channel(channel)
