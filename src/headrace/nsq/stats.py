"""What nsqd's ``/stats`` says, as JSON rows and as text.

nsqadmin, nsq_stat and many scripts read these rows with strict types: every count is an integer, and
``e2e_processing_latency`` exists on each topic and channel (a missing one on a channel ends the nsqadmin process).

Rows are plain dictionaries made on request; nothing here is on a hot path, but a broker may hold 100,000 channels, so
reading and writing give the loop back every few hundred rows.

Ref: nsq.md 3.4, 3.5, 5.3.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.broker.statistics import CHANNELS_SOURCE
from headrace.format.names import INTERNAL_TOPICS
from headrace.nsq.names import is_spelled

if TYPE_CHECKING:
    from headrace.nsq.connection import NsqConnection

Row = dict[str, Any]

# What nsqd shows while end-to-end latency is not measured: never null, never left out.
NO_LATENCY: Final[Mapping[str, Any]] = {"count": 0, "percentiles": None}
# Of a client's connection. Nor is there compression, or AUTH, of which nsqd says nothing then.
NO_TLS: Final[Mapping[str, Any]] = {
    "tls": False,
    "tls_cipher_suite": "",
    "tls_version": "",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
}
ROWS_PER_TURN: Final = 200
SOURCE: Final = CHANNELS_SOURCE
"""What the broker's statistics call this protocol."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsFilter:
    """Which part of the report is wanted; empty names mean all."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsReport:
    """One answer of ``/stats``: its head, and the topics as they are read."""

    version: str
    health: str
    started_at_ms: int
    topics: AsyncIterator[Row] | None
    """None when the topic that was asked for does not exist."""
    producers: list[Row] | None
    memory: Row | None

    async def as_json(self) -> bytes:
        """Return the object that ``format=json`` answers with."""
        row: Row = {
            "version": self.version,
            "health": self.health,
            "start_time": self.started_at_ms // 1000,
            "topics": None,
        }
        if self.topics is not None:
            # Encoded one by one, so that neither the rows nor the garbage collector's work pile up.
            row["topics"] = [msgspec.Raw(msgspec.json.encode(topic)) async for topic in self.topics]
        if self.memory is not None:
            row["memory"] = self.memory
        row["producers"] = self.producers
        return msgspec.json.encode(row)

    async def as_text(self, now_ms: int) -> bytes:
        """Return the report in nsqd's text layout."""
        started = datetime.fromtimestamp(self.started_at_ms // 1000, UTC)
        lines = [
            f"nsqd v{self.version} (headrace, python {sys.version.split()[0]})",
            f"start_time {started:%Y-%m-%dT%H:%M:%SZ}",
            f"uptime {format_duration((now_ms - self.started_at_ms) / 1000)}",
            "",
            f"Health: {self.health}",
        ]
        if self.memory is not None:
            lines += ["", "Memory:", *(f"   {name:<25}\t{value}" for name, value in self.memory.items())]
        topic_lines: list[str] = []
        if self.topics is not None:
            turn = _Turn()
            async for topic in self.topics:
                topic_lines += [""] if topic_lines else []
                topic_lines += _topic_lines(topic, now_ms)
                await turn.took(1 + len(topic["channels"]))
        lines += ["", "Topics:" if topic_lines else "Topics: None", *topic_lines]
        lines += ["", "Producers:" if self.producers else "Producers: None"]
        lines += [f"   {_client_line(producer, now_ms)}" for producer in self.producers or ()]
        return ("\n".join(lines) + "\n").encode()


def is_listed(topic: Any) -> bool:
    """Return whether NSQ's listings show a topic: none whose name NSQ cannot spell, nor the broker's own.

    A system topic that clients may use is shown while it has channels: somebody consumes it.
    """
    if topic.is_system and (topic.name in INTERNAL_TOPICS or not topic.channels):
        return False
    return is_spelled(topic.name)


async def read_topics(topics: Iterable[Any], wanted: StatsFilter) -> AsyncIterator[Row]:
    """Yield one row for each topic, sorted by name, without those that lack the wanted channel."""
    turn = _Turn()
    for topic in sorted(topics, key=_by_name):
        if wanted.channel and wanted.channel not in topic.channels:
            continue
        channels = sorted(topic.channels.values(), key=_by_name)
        if wanted.channel:
            channels = [channel for channel in channels if channel.name == wanted.channel]
        rows = []
        for channel in channels:
            row = channel_row(channel, wanted)
            rows.append(row)
            await turn.took(1 + len(row["clients"] or ()))
        yield topic_row(topic, rows)
        await turn.took(1)


async def read_producers(connections: Iterable[NsqConnection], wanted: StatsFilter) -> list[Row] | None:
    """Return one row for each connection that has published; None when there is none, as nsqd does.

    Without those that were left, and only wait for their client to read the last words and to close.
    """
    rows: list[Row] = []
    turn = _Turn()
    for connection in list(connections):
        if connection.pub_counts and not connection.cause:
            rows.append(client_row(connection, wanted.topic))
        await turn.took(1)
    return rows or None


def topic_row(topic: Any, channels: list[Row]) -> Row:
    """Return one topic as JSON."""
    return {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": _stored_depth(topic),
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": NO_LATENCY,
    }


def channel_row(channel: Any, wanted: StatsFilter) -> Row:
    """Return one channel as JSON."""
    subscriptions = channel.subscriptions
    clients = None
    if wanted.include_clients:
        clients = [client_row(subscription.owner, wanted.topic) for subscription in subscriptions]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": _stored_depth(channel),
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(subscriptions),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": NO_LATENCY,
    }


def client_row(client: NsqConnection, topic: str) -> Row:
    """Return one connection as JSON; ``topic`` narrows ``pub_counts``, empty = all topics."""
    profile, subscription = client.profile, client.subscription
    row: Row = {
        "client_id": profile.client_id,
        "hostname": profile.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": int(client.state),
        "ready_count": subscription.ready_count if subscription else 0,
        "in_flight_count": subscription.in_flight_count if subscription else 0,
        "message_count": subscription.message_count if subscription else 0,
        "finish_count": subscription.finish_count if subscription else 0,
        "requeue_count": subscription.requeue_count if subscription else 0,
        "connect_ts": client.connected_at_ms // 1000,
        "sample_rate": profile.sample_rate,
        "deflate": False,
        "snappy": False,
        "user_agent": profile.user_agent,
    }
    pub_counts = [
        {"topic": name, "count": count} for name, count in client.pub_counts.items() if not topic or name == topic
    ]
    if pub_counts:
        row["pub_counts"] = pub_counts
    return {**row, **NO_TLS}


def memory_row() -> Row:
    """Return nsqd's memory block: what CPython knows under Go's names, 0 where it has no such figure."""
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": _anonymous_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def format_duration(seconds: float) -> str:
    """Return a time span as Go prints it, to the millisecond: ``1h2m3s``, ``1m10.5s``, ``141ms``, ``0s``."""
    milliseconds = max(round(seconds * 1000), 0)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    whole_minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(whole_minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


class _Turn:
    """Gives the loop back after every ``ROWS_PER_TURN`` rows."""

    def __init__(self) -> None:
        self._rows = 0

    async def took(self, rows: int) -> None:
        self._rows += rows
        if self._rows >= ROWS_PER_TURN:
            self._rows = 0
            await asyncio.sleep(0)


def _by_name(named: Any) -> str:
    return str(named.name)


def _stored_depth(holder: Any) -> int:
    """Everything that waits is in the log; what is ephemeral never is."""
    return 0 if holder.ephemeral else int(holder.depth)


def _anonymous_bytes() -> int:
    """Resident memory that is the process's own; mapped log pages are the kernel's cache."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _topic_lines(topic: Row, now_ms: int) -> list[str]:
    prefix = "*P " if topic["paused"] else "   "
    head = (
        f"{prefix}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: "
    )
    lines = [head]
    for channel in topic["channels"]:
        prefix = "   *P " if channel["paused"] else "      "
        lines.append(
            f"{prefix}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
        )
        lines += [f"        {_client_line(client, now_ms)}" for client in channel["clients"] or ()]
    return lines


def _client_line(client: Row, now_ms: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    who = f"{client['hostname']}:{port} {client['user_agent']}"
    connected = format_duration(max(now_ms // 1000 - client["connect_ts"], 0))
    counts = client.get("pub_counts")
    if counts:
        topics = ",".join(f"{count['topic']}={count['count']}" for count in counts)
        total = sum(count["count"] for count in counts)
        return f"[{client['version']} {who:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client['version']} {who:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} "
        f"msgs: {client['message_count']:<8} connected: {connected}"
    )
