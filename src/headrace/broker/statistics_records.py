"""What the broker counted, written into its own log minute by minute: messages in the topic ``HR_STATS``.

The log itself says what was put. What was got, sent back and left to do is known to the running broker alone, so once a
minute it appends what it counted in all dimensions, and ``headrace job stats`` joins both. Nothing is written when
nothing was counted. Tens of thousands of rows, and as many channels and groups to look through, take longer than the
loop may be held, so a minute is gathered and encoded a few steps a tick, and written when it is whole.

A record that the store refuses waits for another tick. What was counted in the minute in which the process is killed is
lost: counters are of the process.

Layout: docs/formats/statistics-records.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.broker import statistics
from headrace.broker.message import Message, put
from headrace.broker.pull import store_time
from headrace.broker.statistics import CHANNELS_SOURCE, GROUPS_SOURCE
from headrace.broker.topic import PERM_READ, TopicConfig
from headrace.errors import RequestError, StoreError, UnreadableError
from headrace.format import record
from headrace.format.names import STATISTICS_TOPIC
from headrace.format.queue_entry import FILLER_BYTES

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.channels.channel import Channel
    from headrace.broker.consumers.group_services import GroupServices
    from headrace.broker.statistics import Counted
    from headrace.broker.topic import Topic
    from headrace.broker.withheld.retry import DeadLetters
    from headrace.histogram import Histogram
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

VERSION: Final = 1
MINUTE_MS: Final = 60_000
MAX_BYTES: Final = 256 * 1024
"""Of the rows of one message; a minute with more has several. As much is written in one tick: some 3 ms."""
MAX_WAITING: Final = 64
"""Messages that wait for a store that takes none; beyond it the oldest are dropped and counted."""
MAX_LAGS: Final = 20_000
"""Rows of what is left to do; beyond it the rest is left out and counted."""
QUANTILES: Final = (0.5, 0.9, 0.99)

_ROWS: Final = 1_000
"""Rows made or encoded in one tick: about a millisecond."""
_STEP: Final = 400
"""Groups' queues or channels looked at in one tick: about a millisecond."""
_READS: Final = 10
"""Store times read in one tick: some 100 us each when they come from the disk."""


@dataclass
class RecordCounters:
    """Events since the start."""

    written: int = 0
    refused: int = 0
    """Times the store took none; they are tried again."""
    dropped: int = 0
    """Messages dropped at ``MAX_WAITING``."""
    left_out: int = 0
    """Rows of what is left to do, left out at ``MAX_LAGS``."""


@dataclass
class Minute:
    """What is written down of one span of time: rows as the layout has them."""

    from_ms: int
    to_ms: int
    put: list[list[Any]] = field(default_factory=list)
    get: list[list[Any]] = field(default_factory=list)
    back: list[list[Any]] = field(default_factory=list)
    dead: list[list[Any]] = field(default_factory=list)
    lag: list[list[Any]] = field(default_factory=list)
    latency: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted; what is left to do is not looked at."""
        return not (self.put or self.get or self.back or self.dead or self.left_out)

    def encode(self, broker: str, most_bytes: int = MAX_BYTES) -> Generator[None, None, list[bytes]]:
        """Return the bodies of the messages that say this; each step yields once."""
        filled = _Parts(most_bytes)
        encoded = 0
        for name in ("put", "get", "back", "dead", "lag"):
            group: list[Any] = []
            raws: list[bytes] = []
            for row in getattr(self, name):
                if encoded >= _ROWS:
                    encoded = 0
                    yield
                encoded += 1
                # Readers add up a group's lag message by message.
                if name != "lag" or row[:3] != group:
                    filled.add(name, raws)
                    group, raws = row[:3], []
                raws.append(msgspec.json.encode(row))
            filled.add(name, raws)
        parts = filled.parts
        head = {"v": VERSION, "broker": broker, "from_ms": self.from_ms, "to_ms": self.to_ms, "parts": len(parts)}
        first: dict[str, Any] = {}
        if self.latency:
            first["latency"] = self.latency
        if self.left_out:
            first["left_out"] = self.left_out
        bodies: list[bytes] = []
        for number, sections in enumerate(parts, 1):
            if bodies:
                yield
            bodies.append(msgspec.json.encode(head | {"part": number} | (first if number == 1 else {}) | sections))
        return bodies


class _Parts:
    """Rows by the message that has them, and by section."""

    def __init__(self, most_bytes: int) -> None:
        self.parts: list[dict[str, list[msgspec.Raw]]] = [{}]
        self._most_bytes = most_bytes
        self._bytes = 0  # of the last one

    def add(self, name: str, rows: Sequence[bytes]) -> None:
        """Add encoded rows to one message, or to several where one has not the room."""
        if len(rows) > 1 and self._bytes + sum(map(len, rows)) + len(rows) > self._most_bytes:
            self._begin()
        for row in rows:
            if self._bytes + len(row) > self._most_bytes:
                self._begin()
            self._bytes += len(row) + 1
            self.parts[-1].setdefault(name, []).append(msgspec.Raw(row))

    def _begin(self) -> None:
        if self._bytes:
            self.parts.append({})
            self._bytes = 0


class _SaidLag(msgspec.Struct):
    """What of a message says what was left to do."""

    part: int
    parts: int
    lag: list[list[Any]] = []


class StatisticsRecords:
    """A ``Ticker`` of the broker that writes a record a minute."""

    def __init__(self, broker: Broker, core: GroupServices, letters: DeadLetters) -> None:
        """Begin at the current minute.

        Args:
            letters: Counts the dead letters.
        """
        self.counters = RecordCounters()
        self._broker = broker
        self._core = core
        self._letters = letters
        self._queue = broker.add_system_topic(STATISTICS_TOPIC, TopicConfig(1, 1, PERM_READ)).queues[0]
        self._from_ms = broker.clock.now_ms()
        self._work: Iterator[None] = iter(())
        self._waiting: deque[tuple[int, bytes]] = deque()  # (from_ms, body)
        self._flushes = FlushTimes(broker.store.flush_seconds)
        self._settled: dict[tuple[str, str], tuple[int, int]] = {}
        """Of each channel: what consumers handed back, and what timed out, up to the last record."""
        self._last_lags = self._said_lags()

    def tick(self, now_ms: int) -> None:
        """Go on gathering a minute, or begin with one that is over."""
        if next(self._work, self) is None:
            return
        # The clock may have been set back: then the minute that began later is over.
        if now_ms // MINUTE_MS != self._from_ms // MINUTE_MS:
            self._work = self._gather(self._take_minute(now_ms), self._core.statistics.take_counted())
        elif self._waiting:
            self._write()

    def close(self) -> None:
        """Write what was counted up to now. Blocks."""
        for _ in self._work:
            pass
        minute = self._take_minute(self._broker.clock.now_ms())
        for _ in self._gather(minute, self._core.statistics.take_counted()):
            pass
        while self._waiting and self._write():
            pass
        if self._waiting:
            logger.warning("statistics not written, the store takes none messages=%d", len(self._waiting))

    # -- gathering --------------------------------------------------------------------------------------------------

    def _gather(self, minute: Minute, counted: list[Counted]) -> Iterator[None]:
        """Add what was counted and what is left to do at its end, and have it written; each step yields once."""
        yield from self._add_counted(minute, counted)
        yield from self._look_at_groups(minute, minute.to_ms)
        yield from self._look_at_channels(minute, minute.to_ms)
        # A group that stands still says nothing new: its lag was written when it came to stand.
        lags = frozenset(tuple(row[:-1]) for row in minute.lag)
        if minute.is_empty and lags == self._last_lags:
            return
        # What has none left says so once: readers take a lag to last until they are told another.
        there = {row[:-1] for row in lags}
        for queue in sorted({row[:-1] for row in self._last_lags} - there):
            self._add_lag(minute, [*queue, 0, 0.0])
        self._last_lags = lags
        bodies = yield from minute.encode(self._broker.name)
        self._waiting.extend((minute.from_ms, body) for body in bodies)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            if not self.counters.dropped:
                logger.warning("statistics dropped, the store takes none; more are only counted")
            self.counters.dropped += 1

    def _said_lags(self) -> frozenset[tuple[Any, ...]]:
        """Return what the record before this start has of lag: what came to nothing meanwhile has to be said.

        A kill may have cost the last record some of its messages: then what the one before it has is true as well.
        """
        end, said, is_whole = self._queue.visible_offset, set(), False
        for offset in range(end - 1, max(self._queue.min_offset, end - MAX_WAITING) - 1, -1):
            try:
                ((physical_offset, record_bytes, _),) = self._queue.entries(offset, 1)
                if record_bytes == FILLER_BYTES:
                    continue  # a power cut took it
                raw = self._broker.store.log.read(physical_offset)
                found = msgspec.json.decode(record.decode(raw or b"")["body"], type=_SaidLag)
            except (StoreError, ValueError, msgspec.DecodeError) as error:
                logger.warning(
                    "statistics unreadable, ends of lag may not be said queue_offset=%d error=%s", offset, error
                )
                break
            said |= {tuple(row[:-1]) for row in found.lag if row[-2]}
            is_whole = is_whole or found.part == found.parts
            if is_whole and found.part == 1:
                break
        return frozenset(said)

    def _take_minute(self, now_ms: int) -> Minute:
        """Return a minute that ends now, without the rows of calls and of what is left to do; the next one begins."""
        minute = Minute(min(self._from_ms, now_ms), now_ms)
        self._from_ms = now_ms
        minute.left_out, self._core.statistics.left_out = self._core.statistics.left_out, 0
        for (group, topic), letters in self._letters.take_counts().items():
            minute.dead.append([topic, group, letters])
        minute.latency = self._flushes.take()
        return minute

    def _add_counted(self, minute: Minute, counted: list[Counted]) -> Iterator[None]:
        for number, one in enumerate(counted, 1):
            call = one.call
            if call.topic == STATISTICS_TOPIC:
                continue  # reading it must not cause the next one
            if call.name == statistics.TOPIC_PUT_NUMS:
                minute.put.append([call.topic, call.queue_id, call.source, call.host, one.messages, one.bytes])
            elif call.name == statistics.SNDBCK_PUT_NUMS:
                minute.back.append([call.topic, call.group, call.source, one.messages])
            else:
                row = [call.topic, call.queue_id, call.group, call.source, call.host, one.messages, one.bytes]
                minute.get.append(row)
            if number % _ROWS == 0:
                yield

    def _look_at_groups(self, minute: Minute, now_ms: int) -> Iterator[None]:
        looked = reads = 0
        for group, name in self._core.offsets.keys():  # noqa: SIM118  # no dictionary: the keys as they are now
            topic = self._broker.topics.get(name)
            if topic is None or topic.ephemeral or name == STATISTICS_TOPIC:
                continue
            for queue_id, offset in self._core.offsets.queues(group, name).items():
                looked += 1
                queue = topic.queue(queue_id)
                if queue is not None and queue.visible_offset > max(offset, queue.min_offset):
                    at = max(offset, queue.min_offset)
                    seconds = _age(queue, at, now_ms)
                    reads += 1
                    self._add_lag(minute, [name, group, GROUPS_SOURCE, queue_id, queue.visible_offset - at, seconds])
                if looked >= _STEP or reads >= _READS:
                    looked = reads = 0
                    yield

    def _look_at_channels(self, minute: Minute, now_ms: int) -> Iterator[None]:
        looked = reads = 0
        settled: dict[tuple[str, str], tuple[int, int]] = {}
        for topic in list(self._broker.topics.values()):
            if topic.is_system:
                continue
            for channel in list(topic.channels.values()):
                looked += 1
                key = (topic.name, channel.name)
                now = settled[key] = (channel.requeue_count, channel.timeout_count)
                before = self._settled.get(key, (0, 0))
                back = sum(now) - sum(before) if now >= before else sum(now)  # made again, it counts from 0
                if back > 0:
                    minute.back.append([topic.name, channel.name, CHANNELS_SOURCE, back])
                waiting = channel.depth + channel.in_flight_count
                if waiting > 0:
                    reads += len(topic.queues)
                    seconds = -1.0 if topic.ephemeral else _channel_age(topic, channel, now_ms)
                    self._add_lag(minute, [topic.name, channel.name, CHANNELS_SOURCE, -1, waiting, seconds])
                if looked >= _STEP or reads >= _READS:
                    looked = reads = 0
                    yield
        self._settled = settled

    def _add_lag(self, minute: Minute, row: list[Any]) -> None:
        if len(minute.lag) < MAX_LAGS:
            minute.lag.append(row)
            return
        if not self.counters.left_out:
            logger.warning("statistics leave out what is left to do beyond their limit limit=%d", MAX_LAGS)
        self.counters.left_out += 1

    # -- writing ----------------------------------------------------------------------------------------------------

    def _write(self) -> bool:
        """Write some of what waits; return whether the store took it."""
        written = 0
        while self._waiting:
            from_ms, body = self._waiting[0]
            if written and written + len(body) > MAX_BYTES:
                break
            key = f"{self._broker.name}@{from_ms}"
            message = Message(STATISTICS_TOPIC, self._queue.queue_id, body, {"KEYS": key})
            try:
                put(self._broker, message)
            except (RequestError, StoreError) as error:
                if not self.counters.refused:
                    logger.warning("statistics not written, tried again error=%s", error)
                self.counters.refused += 1
                return False
            self._waiting.popleft()
            self.counters.written += 1
            written += len(body)
        return True


class FlushTimes:
    """Percentiles of what a histogram observed since they were last taken."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last = list(histogram.counts)

    def take(self) -> dict[str, dict[str, float]]:
        """Return ``{"flush_ms": {"count", "p50", "p90", "p99"}}`` in ms; nothing when nothing was observed."""
        now = list(self._histogram.counts)
        counts = [new - old for new, old in zip(now, self._last, strict=True)]
        self._last = now
        total = sum(counts)
        if not total:
            return {}
        found: dict[str, float] = {"count": total}
        for share in QUANTILES:
            found[f"p{share * 100:.0f}"] = round(quantile(self._histogram.bounds, counts, share) * 1000, 3)
        return {"flush_ms": found}


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the value below which ``share`` of the counted values lie, linear within a bucket.

    Values above the last bound count as that bound: nothing says how large they are.

    Args:
        counts: One item more than ``bounds``.
    """
    wanted = share * sum(counts)
    below = 0.0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and below + count >= wanted:
            return low + (high - low) * max(0.0, wanted - below) / count
        below += count
    return bounds[-1]


def _age(queue: QueueBase, queue_offset: int, now_ms: int) -> float:
    """Return how many seconds ago a message was stored, -1 when that is not known."""
    try:
        stored_ms = store_time(queue, queue_offset)
    except UnreadableError:  # who wants the message itself is held up by it, and says so
        return -1.0
    return -1.0 if stored_ms < 0 else max(0, now_ms - stored_ms) / 1000


def _channel_age(topic: Topic, channel: Channel, now_ms: int) -> float:
    """Return how long ago the oldest message was stored that a channel has not finished; -1 when it is not known."""
    ages = [-1.0]
    for queue in topic.queues:
        floor, _ = channel.position(queue.queue_id)
        if floor < queue.visible_offset:
            ages.append(_age(queue, max(floor, queue.min_offset), now_ms))
    return max(ages)
