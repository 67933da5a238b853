"""The admin interface against counters that are set by hand."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.admin.http import AdminHttp, NodeStatus, Phase
from headrace.admin.loop_lag import LoopLagSampler
from headrace.admin.open_files import OpenFilesWatch
from headrace.admin.sources import MetricSources
from headrace.broker.core import BrokerCounters
from headrace.clock import ManualClock
from headrace.histogram import FLUSH_BOUNDS_SECONDS, LOOP_LAG_BOUNDS_SECONDS, Histogram
from headrace.net.connections import OpenConnections
from headrace.net.http import HttpCounters
from headrace.nsq.metrics import NsqCounters
from headrace.store.index_folder import IndexCounters
from headrace.store.store import StoreCounters


def make_channel(name: str, number: int) -> Any:
    names = (
        "depth",
        "in_flight_count",
        "deferred_count",
        "message_count",
        "requeue_count",
        "timeout_count",
        "delivered_count",
        "redelivered_count",
        "finish_count",
    )
    counts = {key: number * 100 + index for index, key in enumerate(names)}
    return SimpleNamespace(name=name, subscriptions=[None] * number, damaged_count=3, evicted_count=4, **counts)


def make_sources(topics: int = 1, channels: int = 1) -> MetricSources:
    holders = {}
    for topic in range(topics):
        members = {f"c{index}": make_channel(f"c{index}", index) for index in range(channels)}
        holders[f"t{topic}"] = SimpleNamespace(
            name=f"t{topic}",
            message_count=7,
            message_bytes=70,
            depth=2,
            channels=members,
            queues=[SimpleNamespace(awaits_flush=not topic)],
        )
    broker_counters = BrokerCounters(
        topics_deleted=1, channels_deleted=2, evicted_ephemeral=12, listener_errors=2, service_errors=3
    )
    flush_seconds = Histogram(FLUSH_BOUNDS_SECONDS)
    flush_seconds.observe(0.002)
    log = SimpleNamespace(
        segments=dict.fromkeys(range(3)),
        segment_bytes=1024,
        first_offset=0,
        end_offset=3000,
        durable_offset=2000,
        appended_records=5,
        appended_bytes=500,
    )
    store = SimpleNamespace(
        log=log,
        counters=StoreCounters(**{counter.name: 1 for counter in fields(StoreCounters)}),
        unflushed_bytes=1000,
        flush_seconds=flush_seconds,
        last_write_error="",
        holes=[1, 2],
        index=SimpleNamespace(
            behind_bytes=7,
            keys=SimpleNamespace(added_keys=4),
            counters=IndexCounters(queries=1, write_errors=2, damaged_files=3),
        ),
    )
    nsq = SimpleNamespace(
        connections=OpenConnections(2),
        counters=NsqCounters(),
        coalescing=SimpleNamespace(reads=0, misses=0),
        delivery_coalescing=SimpleNamespace(holds=0, interval=SimpleNamespace(ms=1)),
        joint_publishes=SimpleNamespace(joined=0),
        intake=SimpleNamespace(command_counts=lambda: {"FIN": 6}, requeues_clamped=0),
        busy_poll=SimpleNamespace(seconds=1.5),
    )
    for number in range(3):  # the third is refused
        nsq.connections.add(number)
    nsq.connections.closed["eof"] = 4
    nsq.counters.refusals.update({"E_FIN_FAILED": 2, "E_TOO_MANY_CONNECTIONS": 1})
    nsq.counters.bytes_in, nsq.counters.bytes_out, nsq.counters.messages_out = 1, 2, 8
    refusals = Counter({"TOPIC_NOT_FOUND": 5})
    listener = SimpleNamespace(
        open_connections=1, counters=HttpCounters(requests=11, plain_requests=7, refusals=refusals)
    )
    broker = SimpleNamespace(topics=holders, counters=broker_counters, journal_errors=0, catalog_errors=0, store=store)
    return MetricSources(
        broker=broker,  # type: ignore[arg-type]
        files=OpenFilesWatch(ManualClock()),
        loop_lag=Histogram(LOOP_LAG_BOUNDS_SECONDS),
        clock=SimpleNamespace(left_out_seconds=2.5),  # type: ignore[arg-type]
        version="0.1",
        started_at_ms=1_500,
        nsq=nsq,  # type: ignore[arg-type]
        http={"nsq_http": listener},  # type: ignore[dict-item]
    )


class Harness:
    """An application and a way to ask it without a socket."""

    def __init__(self, sources: MetricSources | None = None) -> None:
        self.health = ""
        self.status = NodeStatus(version="0.1", data_dir="/data", health=lambda: self.health)
        self.app = AdminHttp(self.status, sources or make_sources())

    async def ask_async(self, path: str) -> tuple[int, str]:
        status, content = 0, b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, content
            status = message.get("status", status)
            content += message.get("body", b"")

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await self.app(scope, receive, send)
        return status, content.decode()

    def ask(self, path: str) -> tuple[int, str]:
        return asyncio.run(self.ask_async(path))

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        status, text = self.ask("/metrics")
        assert status == 200
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families), "a family comes in one piece"
        assert all(family.documentation for family in families)
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def admin() -> Harness:
    return Harness()


def value(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return metrics[name, frozenset(labels.items())]


@pytest.mark.parametrize(("phase", "status"), [(Phase.STARTING, 503), (Phase.READY, 200), (Phase.STOPPING, 503)])
def test_readyz(admin: Harness, phase: Phase, status: int) -> None:
    """Ready is when every listener accepts, and no longer once the broker stops."""
    admin.status.phase = phase
    assert admin.ask("/readyz") == (status, f"{phase.value}\n")


def test_healthz_gives_the_reason(admin: Harness) -> None:
    """A failed fsync stops writes for good, and a supervisor must see it."""
    assert admin.ask("/healthz") == (200, "ok\n")
    admin.health = "fdatasync of /data/log failed"
    assert admin.ask("/healthz") == (500, "fdatasync of /data/log failed\n")


def test_index(admin: Harness) -> None:
    """What runs here, from which folder, on which addresses."""
    admin.status.listeners["nsq_tcp"] = "127.0.0.1:4150"
    status, text = admin.ask("/")
    assert status == 200
    assert msgspec.json.decode(text) == {
        "name": "headrace",
        "version": "0.1",
        "pid": os.getpid(),
        "data_dir": "/data",
        "phase": "starting",
        "listeners": {"nsq_tcp": "127.0.0.1:4150"},
    }


@pytest.mark.parametrize("path", ["/nope", "/stats", "/lookup"])
def test_unknown_path(admin: Harness, path: str) -> None:
    """Nothing else is served; a wrong port is the usual reason, so it is said what is where."""
    assert admin.ask(path) == (
        404,
        "not here: this admin port has /, /healthz, /readyz and /metrics; nsqd's API is on nsq.http_address, "
        "nsqlookupd's on registry.nsq_http_address\n",
    )


@pytest.mark.parametrize("path", ["/readyz/", "/healthz/", "/metrics/"])
def test_a_path_with_a_slash_behind_it_is_unknown_too(admin: Harness, path: str) -> None:
    """Load balancers take a redirect, which it got, for a good answer: of a broker that is not ready, too."""
    assert admin.ask(path)[0] == 404


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (
            ImportError("x.so: failed to map segment from shared object"),
            "x.so: failed to map segment from shared object",
        ),
        (MemoryError(), "no memory"),
    ],
)
@pytest.mark.parametrize("has_thread", [True, False])
def test_metrics_that_cannot_be_made_now_are_made_later(
    admin: Harness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    reason: str,
    has_thread: bool,
) -> None:
    """Their code is read when they are first asked for; no file, or memory, may be left for that. Logged once."""

    def fail(name: str) -> None:
        raise error

    async def start_no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        if not has_thread:  # its stack is what memory lacks for first
            patch.setattr("headrace.admin.http.asyncio.to_thread", start_no_thread)
        patch.setattr("headrace.admin.http.importlib.import_module", fail)
        for _ in range(3):
            assert admin.ask("/metrics") == (503, f"not now: {reason}\n")
    assert admin.app.counters.refusals == {"no_metrics": 3}
    assert caplog.text.count("metrics not available") == 1
    assert admin.metrics()


def test_metrics_of_topics_and_channels() -> None:
    """Names, units and labels."""
    metrics = Harness(make_sources(topics=2, channels=2)).metrics()
    assert value(metrics, "headrace_broker_topic_published_messages_total", topic="t0") == 7
    assert value(metrics, "headrace_broker_topic_published_bytes_total", topic="t0") == 70
    assert value(metrics, "headrace_broker_topic_depth_messages", topic="t0") == 2
    assert [value(metrics, "headrace_broker_topic_waits_for_disk", topic=topic) for topic in ("t0", "t1")] == [1, 0]
    assert [
        value(metrics, f"headrace_broker_channel_{name}", topic="t0", channel="c1")
        for name in (
            "depth_messages",
            "in_flight_messages",
            "deferred_messages",
            "entered_messages_total",
            "requeued_messages_total",
            "timed_out_messages_total",
            "consumers",
            "damaged_messages_total",
            "evicted_messages_total",
        )
    ] == [100, 101, 102, 103, 104, 105, 1, 3, 4]


def test_metrics_of_store_and_loop(admin: Harness) -> None:
    """Log size, durable offset, unflushed bytes, damage, and both histograms."""
    metrics = admin.metrics()
    assert value(metrics, "headrace_store_log_bytes") == 3072
    assert value(metrics, "headrace_store_durable_offset_bytes") == 2000
    assert value(metrics, "headrace_store_unflushed_bytes") == 1000
    assert value(metrics, "headrace_store_holes") == 2
    assert value(metrics, "headrace_store_index_behind_bytes") == 7
    assert value(metrics, "headrace_store_index_damaged_files_total") == 3
    assert value(metrics, "headrace_store_damaged_records_total") == 1
    assert value(metrics, "headrace_store_writable") == 1
    assert value(metrics, "headrace_store_fdatasync_seconds_count") == 1
    assert value(metrics, "headrace_store_fdatasync_seconds_bucket", le="0.001") == 0
    assert value(metrics, "headrace_store_fdatasync_seconds_bucket", le="0.0025") == 1
    assert value(metrics, "headrace_store_fdatasync_seconds_bucket", le="+Inf") == 1
    assert value(metrics, "headrace_node_loop_lag_seconds_count") == 0
    assert value(metrics, "headrace_node_standstill_seconds_total") == 2.5
    assert value(metrics, "headrace_broker_evicted_ephemeral_messages_total") == 12
    assert value(metrics, "headrace_broker_internal_errors_total") == 5
    assert value(metrics, "headrace_node_info", version="0.1") == 1
    assert value(metrics, "headrace_node_start_time_seconds") == 1.5


def test_metrics_of_listeners(admin: Harness) -> None:
    """Open connections and refusals by cause, of TCP and HTTP alike; a refused connection is counted once."""
    metrics = admin.metrics()
    refusals = [labels for name, labels in metrics if name == "headrace_net_refusals_total"]
    assert not any("E_TOO_MANY_CONNECTIONS" in str(labels) for labels in refusals)
    assert value(metrics, "headrace_net_open_connections", listener="nsq_tcp") == 2
    assert value(metrics, "headrace_net_open_connections", listener="nsq_http") == 1
    assert value(metrics, "headrace_net_refusals_total", listener="nsq_http", cause="TOPIC_NOT_FOUND") == 5
    assert value(metrics, "headrace_net_refusals_total", listener="nsq_tcp", cause="E_FIN_FAILED") == 2
    assert value(metrics, "headrace_net_refusals_total", listener="nsq_tcp", cause="too_many_connections") == 1
    assert value(metrics, "headrace_net_http_requests_total", listener="nsq_http") == 11
    assert value(metrics, "headrace_nsq_commands_total", command="FIN") == 6
    assert value(metrics, "headrace_nsq_delivered_messages_total") == 8


def test_a_large_scrape_gives_the_loop_back() -> None:
    """A scrape over many channels is cut into slices; a family still comes in one piece."""
    harness = Harness(make_sources(topics=20, channels=50))
    metrics = harness.metrics()
    assert sum(name == "headrace_broker_channel_depth_messages" for name, _ in metrics) == 1000

    async def count_turns() -> int:
        scraping = asyncio.ensure_future(harness.ask_async("/metrics"))
        turns = 0
        while not scraping.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(count_turns()) > 40


def test_a_broker_without_topics(admin: Harness) -> None:
    """No samples, but every family is declared."""
    status, text = Harness(make_sources(topics=0)).ask("/metrics")
    assert status == 200
    assert "# TYPE headrace_broker_channel_depth_messages gauge\n" in text


def test_loop_lag_is_what_a_blocked_loop_shows() -> None:
    """One sample for each timer that ran; after stop none."""

    async def scenario() -> LoopLagSampler:
        sampler = LoopLagSampler()
        sampler.start(asyncio.get_running_loop())
        while not sampler.histogram.count:  # noqa: ASYNC110  # a sampler has no event
            await asyncio.sleep(0.01)
        sampler.stop()
        return sampler

    sampler = asyncio.run(scenario())
    assert sampler.histogram.count == 1
    assert 0 <= sampler.histogram.total < 1


def test_a_process_without_a_free_descriptor_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """C-LIFE-12: the event loop closes connections then, goes on, and tells nobody."""
    clock = ManualClock()
    watch = OpenFilesWatch(clock)
    watch.look()
    assert watch.seconds_without == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # the next that the system would give
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        for _ in range(3):
            watch.look()
        clock.advance_ms(60_000)
        watch.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert watch.seconds_without == 4
    lines = [message for message in caplog.messages if message.startswith("no file descriptor left")]
    assert len(lines) == 2
    assert f"limit={lowest} error=Too many open files; raise the limit" in lines[0]
