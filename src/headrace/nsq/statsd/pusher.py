"""The task that pushes NSQ's statistics to a statsd, in every interval, as nsqd does.

    wait for the interval's end -> look the name up, connect -> (rows -> lines -> packets -> send, wait)* -> and again

nsqd reads all figures at once and spreads their packets over the interval, but for its last second. Here a row is read
when it is the next to leave, so that 20,000 channels are neither 15 MB that wait for a minute nor a pause of the loop.

The socket is connected, for UDP says only then that nobody listens: with the next packet, which did not go itself and
is sent once more. A full buffer is waited for, for a tenth of a second. Whatever else the system says of a packet is
counted and the packet lost, as it may be anywhere behind it.

Ref: nsq.md 6.1; docs/protocols/nsq.md, "statsd"; nsqd 1.3.0, nsqd/statsd.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.format.names import EPHEMERAL_SUFFIX
from headrace.net.names import Names
from headrace.nsq.stats import StatsFilter, channel_row, is_listed, memory_row, topic_row
from headrace.nsq.statsd.counters import FULL, INTERNAL, NAME, REFUSED, StatsdCounters, cause_of
from headrace.nsq.statsd.destination import MakeSocket, find_hosts, open_socket, reason_of
from headrace.nsq.statsd.lines import Lines
from headrace.nsq.statsd.packets import Packer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.settings import NsqSettings

logger = logging.getLogger(__name__)

RESERVE_S: Final = 1.0
"""Of an interval in which no packet is sent; of a short one half."""
SHORTEST_PAUSE_S: Final = 0.05
"""Less is not waited for: what is due in it goes together."""
ROWS_PER_TURN: Final = 100
"""Some two milliseconds of the loop, packets included."""
FULL_S: Final = 0.1
"""For which a packet waits where the system has no room for it; none does behind the end of the interval."""
FULL_PAUSE_S: Final = 0.01
STOP_S: Final = 1.0
"""For what is left of a push to leave at a stop; for 20,000 channels it takes half of that."""

WITHOUT_CLIENTS: Final = StatsFilter(include_clients=False)


class StatsdPusher:
    """Pushes the figures of all topics and channels that NSQ's listings show.

    Attributes:
        prefix: What every key begins with.
        counters: What became of it so far.
    """

    def __init__(
        self,
        broker: Broker,
        settings: NsqSettings,
        prefix: str,
        *,
        make_socket: MakeSocket = socket.socket,
    ) -> None:
        self.prefix = prefix
        self.counters = StatsdCounters()
        self._broker = broker
        self._settings = settings
        self._interval_s = settings.statsd_interval_ms / 1000
        self._spread_s = max(self._interval_s - RESERVE_S, self._interval_s / 2)
        self._make_socket = make_socket
        self._lines = Lines(prefix)
        self._names = Names()
        self._told: set[str] = set()  # causes that the log has, until a push meets none
        self._is_troubled = False
        self._ends_at = 0.0  # the interval of the push that is under way
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None]

    def start(self) -> None:
        """Push in each interval from now on, for the first time at the end of this one."""
        self._broker.presence_listeners.append(self._presence_changed)
        self._task = asyncio.create_task(self._serve())
        logger.info(
            "pushing statistics to statsd address=%s prefix=%s interval_ms=%d",
            self._settings.statsd_address,
            self.prefix,
            self._settings.statsd_interval_ms,
        )

    async def stop(self) -> None:
        """Send what is left of a push that is under way, and no other."""
        self._broker.presence_listeners.remove(self._presence_changed)
        self._stopping.set()
        await asyncio.wait((self._task,), timeout=STOP_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _presence_changed(self, topic: Topic, channel: str) -> None:
        """Note that a topic, or a channel of it, was made or deleted."""
        if channel:
            if channel not in topic.channels:
                self._lines.forget(topic.name, channel)
        elif self._broker.topics.get(topic.name) is not topic:
            self._lines.forget(topic.name)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self._interval_s
        while True:
            await self._pause(next_at - loop.time())
            if self._stopping.is_set():
                return
            try:
                await self._push()
            except Exception:
                logger.exception("pushing to statsd failed by a bug")
                self.counters.failed_pushes[INTERNAL] += 1
            passed = int((loop.time() - next_at) // self._interval_s)
            self.counters.skipped_pushes += passed
            next_at += (1 + passed) * self._interval_s

    async def _push(self) -> None:
        self._is_troubled = False
        sock = await self._connect()
        if sock is None:
            return
        with sock:
            await self._send_rows(sock)
        self.counters.pushes += 1
        if not self._is_troubled and self._told:
            self._told.clear()
            logger.info("statistics leave for statsd again address=%s", self._settings.statsd_address)

    async def _connect(self) -> socket.socket | None:
        """Return a socket for the packets of one push: the name may lead elsewhere by the next."""
        address = self._settings.statsd_address
        try:
            hosts = await find_hosts(address, self._names)
        except OSError as error:
            self._failed(NAME, error)
            return None
        try:
            return open_socket(address, hosts, self._make_socket)
        except OSError as error:
            self._failed(cause_of(error), error)
            return None

    async def _send_rows(self, sock: socket.socket) -> None:
        """Send the lines of all rows, spread over the interval."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._ends_at = began + self._interval_s
        topics = list(self._broker.topics.values())
        total = sum(1 + len(topic.channels) for topic in topics) + 1
        packer = Packer(self._settings.statsd_udp_packet_bytes)
        in_turn = 0
        for done, lines in enumerate(self._rows(topics)):  # rows that have left whole: of this one the end may wait
            ahead_s = 0.0
            for line in lines:
                packet = packer.add(line)
                if packet is not None:
                    await self._send(sock, packet)
                    ahead_s = began + self._spread_s * min(done / total, 1) - loop.time()
            in_turn += 1
            if ahead_s >= SHORTEST_PAUSE_S and not self._stopping.is_set():
                await self._pause(ahead_s)
                in_turn = 0
            elif in_turn >= ROWS_PER_TURN:
                await asyncio.sleep(0)
                in_turn = 0
        last = packer.take()
        if last:
            await self._send(sock, last)
        await self._pause(began + self._spread_s - loop.time())
        late = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if late:  # nobody listened to the last packet
            self._lost(OSError(late, os.strerror(late)))

    def _rows(self, topics: Iterable[Topic]) -> Iterator[list[bytes]]:
        """Yield the lines of one row after the other, none for what is not pushed: to look at it is work as well."""
        left_out = (EPHEMERAL_SUFFIX,) if self._settings.statsd_exclude_ephemeral else ()
        for topic in topics:
            is_there = self._broker.topics.get(topic.name) is topic
            if not is_there or topic.name.endswith(left_out) or not is_listed(topic):
                yield []
                continue
            yield self._lines.of_topic(topic_row(topic, []))
            for channel in list(topic.channels.values()):
                if channel.name.endswith(left_out) or topic.channels.get(channel.name) is not channel:
                    yield []
                else:
                    yield self._lines.of_channel(topic.name, channel_row(channel, WITHOUT_CLIENTS))
        if self._settings.statsd_mem_stats:
            yield self._lines.of_memory(memory_row())

    async def _send(self, sock: socket.socket, packet: bytes) -> None:
        error = _try_send(sock, packet)
        if error is not None and cause_of(error) == REFUSED:
            self._lost(error)  # the packet before
            error = _try_send(sock, packet)
        loop = asyncio.get_running_loop()
        until = min(loop.time() + FULL_S, self._ends_at)
        while error is not None and cause_of(error) == FULL and loop.time() < until and not self._stopping.is_set():
            await asyncio.sleep(FULL_PAUSE_S)
            error = _try_send(sock, packet)
        if error is None:
            self.counters.packets += 1
        else:
            self._lost(error)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when this is to end."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()

    def _lost(self, error: OSError) -> None:
        cause = cause_of(error)
        self.counters.lost_packets[cause] += 1
        self._tell(cause, error)

    def _failed(self, cause: str, error: OSError) -> None:
        self.counters.failed_pushes[cause] += 1
        self._tell(cause, error)

    def _tell(self, cause: str, error: OSError) -> None:
        """Log each cause once, until a push has met none."""
        self._is_troubled = True
        if cause not in self._told:
            self._told.add(cause)
            logger.warning(
                "statistics do not reach statsd address=%s cause=%s error=%s",
                self._settings.statsd_address,
                cause,
                reason_of(error),
            )


def _try_send(sock: socket.socket, packet: bytes) -> OSError | None:
    """Give a packet to the system; return what it said where it does not take it."""
    try:
        sock.send(packet)
    except OSError as error:
        return error
    return None
