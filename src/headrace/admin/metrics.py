"""The core's counters as Prometheus families.

The core counts in plain integers; nothing calls prometheus-client per message. A scrape reads those integers once, and
its cost grows with topics, channels and groups only. A broker may hold 100,000 channels, so the text is made in slices
with the loop's other work in between, and one scrape at a time.

prometheus-client takes a sixth of a second to import: the first scrape imports this module, in a thread.

Ref: docs/metrics.md lists the families.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from headrace.admin.families import counter, gauge
from headrace.admin.lookup_metrics import lookup_families
from headrace.admin.nsq_metrics import nsq_families, nsq_refusals
from headrace.admin.process_metrics import ProcessMetrics
from headrace.admin.registry_metrics import lookupd_families, registration_families, registry_families
from headrace.admin.remoting_metrics import refusals_by_name, remoting_families
from headrace.admin.slices import family_slices, sample_lines
from headrace.admin.sources import MetricSources
from headrace.admin.statsd_metrics import statsd_families
from headrace.foreground import LogOutput
from headrace.histogram import Histogram

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.channels.channel import Channel
    from headrace.broker.topic import Topic
    from headrace.net.connections import OpenConnections
    from headrace.net.http import HttpListener
    from headrace.store.store import Store


Holder = tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[Any], int]]
"""Kind and name of a family with a sample for each topic or channel, its help, and what reads a sample's value."""

_COUNTER: Final = CounterMetricFamily
_GAUGE: Final = GaugeMetricFamily

TOPIC_FAMILIES: Final[tuple[Holder, ...]] = (
    (_COUNTER, "published_messages", "Messages published to the topic.", attrgetter("message_count")),
    (_COUNTER, "published_bytes", "Body bytes published to the topic.", attrgetter("message_bytes")),
    (
        _GAUGE,
        "depth_messages",
        "Messages that wait in the topic because it has no channel or is paused.",
        attrgetter("depth"),
    ),
    (
        _GAUGE,
        "waits_for_disk",
        "1 where publishers to the topic are answered when the disk has their messages (level fsync), else 0.",
        lambda topic: int(any(queue.awaits_flush for queue in topic.queues)),
    ),
)

CHANNEL_FAMILIES: Final[tuple[Holder, ...]] = (
    (
        _GAUGE,
        "depth_messages",
        "Messages that wait in the channel, without those in flight or deferred.",
        attrgetter("depth"),
    ),
    (_GAUGE, "in_flight_messages", "Messages that are delivered and not yet settled.", attrgetter("in_flight_count")),
    (_GAUGE, "deferred_messages", "Messages that are not due yet.", attrgetter("deferred_count")),
    (_GAUGE, "consumers", "Consumers subscribed to the channel.", lambda channel: len(channel.subscriptions)),
    (_COUNTER, "entered_messages", "Messages that entered the channel from its topic.", attrgetter("message_count")),
    (_COUNTER, "delivered_messages", "Deliveries, repeated ones included.", attrgetter("delivered_count")),
    (
        _COUNTER,
        "redelivered_messages",
        "Deliveries of messages that had been delivered before.",
        attrgetter("redelivered_count"),
    ),
    (_COUNTER, "finished_messages", "Messages that consumers finished (FIN).", attrgetter("finish_count")),
    (_COUNTER, "requeued_messages", "Messages that consumers handed back (REQ).", attrgetter("requeue_count")),
    (
        _COUNTER,
        "timed_out_messages",
        "Messages taken back because no answer came in time.",
        attrgetter("timeout_count"),
    ),
    (_COUNTER, "damaged_messages", "Messages skipped because their record is damaged.", attrgetter("damaged_count")),
    (
        _COUNTER,
        "evicted_messages",
        "Messages gone before the channel had finished them: with a log file, or at the bound of an in-memory topic.",
        attrgetter("evicted_count"),
    ),
)


class MetricsReport:
    """Renders all families as Prometheus text."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._one_at_a_time = asyncio.Lock()
        self._process = ProcessMetrics()

    async def render(self) -> bytes:
        """Return the text of one scrape; gives the loop back between slices."""
        async with self._one_at_a_time:
            parts: list[bytes] = []
            previous = ""
            for family in self._slices():
                # A family that comes in several slices has its HELP and TYPE lines once.
                is_more = family.name == previous
                parts.append(sample_lines(family) if is_more else generate_latest(_OneFamily(family)))
                previous = family.name
                await asyncio.sleep(0)
            return b"".join(parts)

    def _slices(self) -> Iterator[Metric]:
        sources, broker = self._sources, self._sources.broker
        topics = list(broker.topics.values()) if broker is not None else []
        channels = [(topic.name, channel) for topic in topics for channel in topic.channels.values()]
        yield from self._process.families()
        yield from self._node_families()
        if broker is not None:
            yield from self._broker_families(broker, len(topics), len(channels))
            yield from _store_families(broker.store)
        yield from self._listener_families()
        if sources.nsq is not None:
            yield from nsq_families(sources.nsq)
        if sources.lookupd is not None:
            yield from lookupd_families(sources.lookupd)
        if sources.lookup_peers is not None:
            yield from lookup_families(sources.lookup_peers)
        if sources.statsd is not None:
            yield from statsd_families(sources.statsd.counters)
        if sources.remoting is not None:
            yield from remoting_families(sources.remoting)
            if sources.remoting.registrar is not None:
                yield from registration_families(sources.remoting.registrar)
        if sources.registry is not None:
            yield from registry_families(sources.registry)
        if broker is not None:
            yield from self._topic_families(topics, channels)

    def _topic_families(self, topics: list[Topic], channels: list[tuple[str, Channel]]) -> Iterator[Metric]:
        topic_rows = [((topic.name,), topic) for topic in topics]
        for family in TOPIC_FAMILIES:
            yield from _holder_slices("topic", family, ("topic",), topic_rows)
        channel_rows = [((topic, channel.name), channel) for topic, channel in channels]
        for family in CHANNEL_FAMILIES:
            yield from _holder_slices("channel", family, ("topic", "channel"), channel_rows)

    def _node_families(self) -> Iterator[Metric]:
        sources = self._sources
        info = GaugeMetricFamily("headrace_node_info", "Always 1; the version is a label.", labels=("version",))
        info.add_metric((sources.version,), 1)
        yield info
        yield gauge(
            "headrace_node_start_time_seconds",
            "When it began to listen, a broker after its store was opened, in seconds since 1970.",
            sources.started_at_ms / 1000,
        )
        yield _histogram(
            "headrace_node_loop_lag_seconds", "How late the event loop ran a 100 ms timer.", sources.loop_lag
        )
        yield counter(
            "headrace_node_standstill_seconds",
            "Time that no deadline saw, because the event loop stood still.",
            sources.clock.left_out_seconds,
        )
        yield counter(
            "headrace_node_without_files_seconds",
            "Seconds in which no file descriptor was left; new connections are closed unanswered then.",
            sources.files.seconds_without,
        )
        yield counter(
            "headrace_node_log_lines_left_out",
            "Lines of the log that standard error did not take: a full disk, or a reader that takes nothing.",
            LogOutput.left_out_total,
        )

    def _broker_families(self, broker: Broker, topics: int, channels: int) -> Iterator[Metric]:
        yield gauge("headrace_broker_topics", "Topics of this broker.", topics)
        yield gauge("headrace_broker_channels", "Channels of all topics.", channels)
        counters = broker.counters
        bugs = counters.listener_errors + counters.service_errors
        clamped = counters.clamped_positions
        if self._sources.remoting is not None:
            services = self._sources.remoting.services
            bugs += services.group_services.errors + services.holds.counters.errors
            bugs += services.group_services.cold_pulls.counters.errors
            clamped += services.offsets.counters.clamped
        for name, text, count in (
            ("deleted_topics", "Topics deleted.", counters.topics_deleted),
            ("deleted_channels", "Channels deleted.", counters.channels_deleted),
            (
                "evicted_ephemeral_messages",
                "Messages that #ephemeral topics dropped at their bound.",
                counters.evicted_ephemeral,
            ),
            ("clamped_positions", "Positions beyond the end of the log, put back.", clamped),
            (
                "lost_queue_offsets",
                "Queue offsets below a change of a topic or channel whose messages the log lost.",
                counters.lost_offsets,
            ),
            ("journal_errors", "Failed writes of the journal of channels.", broker.journal_errors),
            ("catalog_errors", "Failed writes of the catalog.", broker.catalog_errors),
            ("internal_errors", "Times that a part of the broker failed by a bug.", bugs),
        ):
            yield counter(f"headrace_broker_{name}", text, count)

    def _http_listeners(self) -> Iterator[tuple[str, HttpListener]]:
        yield from self._sources.http.items()
        lookupd = self._sources.lookupd
        if lookupd is not None and lookupd.http is not None:
            yield lookupd.http.name, lookupd.http

    def _tcp_listeners(self) -> Iterator[tuple[str, OpenConnections[Any], Mapping[str, int]]]:
        """Yield name and connections of each listener that does not speak HTTP, and what it refused by cause."""
        sources = self._sources
        if sources.nsq is not None:
            yield "nsq_tcp", sources.nsq.connections, nsq_refusals(sources.nsq)
        if sources.lookupd is not None:
            server = sources.lookupd.server
            yield "nsqlookupd_tcp", server.connections, server.counters.refusals
        if sources.remoting is not None and sources.remoting.server is not None:
            yield "remoting", sources.remoting.server.connections, refusals_by_name(sources.remoting.server)
        if sources.registry is not None:
            always = ("REQUEST_CODE_NOT_SUPPORTED",)
            yield "registry", sources.registry.connections, refusals_by_name(sources.registry, always)

    def _listener_families(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("headrace_net_open_connections", "Connections open now.", labels=("listener",))
        refusals = CounterMetricFamily(
            "headrace_net_refusals", "Connections, commands and requests refused.", labels=("listener", "cause")
        )
        requests = CounterMetricFamily("headrace_net_http_requests", "HTTP requests taken.", labels=("listener",))
        plain_requests = CounterMetricFamily(
            "headrace_net_http_plain_requests", "Of them, those done without the general code.", labels=("listener",)
        )
        for name, listener in self._http_listeners():
            connections.add_metric((name,), listener.open_connections)
            requests.add_metric((name,), listener.counters.requests)
            plain_requests.add_metric((name,), listener.counters.plain_requests)
            for cause, count in sorted(listener.counters.refusals.items()):
                refusals.add_metric((name, cause), count)
        for name, clients, refused in self._tcp_listeners():
            connections.add_metric((name,), len(clients))
            refusals.add_metric((name, "too_many_connections"), clients.refused)
            for cause, count in sorted(refused.items()):
                refusals.add_metric((name, cause), count)
        yield connections
        yield refusals
        yield requests
        if self._sources.broker is not None:
            yield plain_requests


class _OneFamily:
    """A registry of one family, which is what the library's formatter wants."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _store_families(store: Store) -> Iterator[Metric]:
    log, counters = store.log, store.counters
    yield gauge(
        "headrace_store_log_bytes",
        "Size of the commit log's files, preallocated room included.",
        len(log.segments) * log.segment_bytes,
    )
    yield gauge("headrace_store_first_offset_bytes", "Physical offset of the oldest record.", log.first_offset)
    yield gauge("headrace_store_end_offset_bytes", "Physical offset of the next record.", log.end_offset)
    yield gauge(
        "headrace_store_durable_offset_bytes",
        "Physical offset below which everything is on the disk.",
        log.durable_offset,
    )
    yield gauge("headrace_store_unflushed_bytes", "Bytes of the log that wait for a flush.", store.unflushed_bytes)
    yield _histogram(
        "headrace_store_fdatasync_seconds", "Time of one fdatasync of the commit log.", store.flush_seconds
    )
    yield gauge("headrace_store_writable", "1, or 0 when the last write failed.", not store.last_write_error)
    index = store.index
    yield gauge("headrace_store_index_behind_bytes", "Bytes of the log that the key index lacks.", index.behind_bytes)
    yield gauge("headrace_store_holes", "Damaged ranges of the log that are quarantined.", len(store.holes))
    for name, text, count in (
        ("appended_records", "Records appended.", log.appended_records),
        ("appended_bytes", "Bytes appended.", log.appended_bytes),
        ("damaged_records", "Records found damaged.", counters.damaged_records),
        (
            "truncated_bytes",
            "Bytes that recovery cut off and that were known before: durable, or issued.",
            counters.truncated_bytes,
        ),
        ("refused_full", "Batches refused for lack of room.", counters.refused_full),
        ("segment_waits", "Times an append waited for its next segment.", counters.segment_waits),
        ("view_write_errors", "Failed writes of consume queues and checkpoints.", counters.view_write_errors),
        ("mark_write_errors", "Failed writes and syncs of the durable mark.", counters.mark_write_errors),
        ("cold_reads", "Reads ahead of records that were not in memory.", counters.cold_reads),
        ("read_errors", "Reads of messages that the system refused, tried again.", counters.read_errors),
        ("checkpoints", "Checkpoints written.", counters.checkpoints),
        (
            "zeroed_bytes",
            "Zeros that a thread wrote ahead of the log, without those that appends add.",
            counters.zeroed_bytes,
        ),
        ("index_keys", "Keys added to the key index.", index.keys.added_keys),
        ("index_queries", "Queries of the key index.", index.counters.queries),
        ("index_write_errors", "Failed writes of the key index.", index.counters.write_errors),
        ("index_damaged_files", "Index files found damaged, and made anew.", index.counters.damaged_files),
        ("zero_waits", "Times an append waited for zeros being written.", counters.zero_waits),
        (
            "zero_errors",
            "Failed writes of zeros, after which none are written, unless only a file descriptor was missing.",
            counters.zero_errors,
        ),
    ):
        yield counter(f"headrace_store_{name}", text, count)


def _holder_slices(
    what: str, family: Holder, labels: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Any]]
) -> Iterator[Metric]:
    kind, name, text, read = family
    samples = ((names, read(holder)) for names, holder in rows)
    return family_slices(kind, f"headrace_broker_{what}_{name}", text, labels, samples)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    metric = HistogramMetricFamily(name, text)
    buckets = [("+Inf" if bound == math.inf else str(bound), count) for bound, count in histogram.cumulative()]
    metric.add_metric((), buckets, histogram.total)
    return metric
