"""What the source asks brokers: how far logs and queues reach, their bytes, and the offsets of groups.

Two kinds of broker behind one interface. Headrace answers READER_STATE (everything a reader plans with in one call),
READ_LOG and READ_QUEUE (docs/protocols/extensions.md). RocketMQ answers those with REQUEST_CODE_NOT_SUPPORTED and is
then asked what its own clients ask: routes, topic statistics, pulls. Whole logs cannot be read from it.

Requests that fail because a broker is away are made again, a limited number of times, from where the read has come to.
Connections are kept, for each thread its own: Spark's workers live longer than their tasks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.errors import (
    ClientError,
    ConfigError,
    ConnectionLostError,
    RemotingRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
    TopicNotFoundError,
)
from headrace.remoting.blocking import BlockingClient, Cluster, Pulled, read_log_request, read_queue_request, require
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.spark.errors import BrokerGoneError, DataLossError
from headrace.spark.files import LogExtent

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.spark.options import ReadOptions
    from headrace.spark.scan import ServersSource

logger = logging.getLogger(__name__)

WINDOW: Final = 4
"""Requests ahead of the answer that is being decoded."""
_OVERRUN_BYTES: Final = 64 << 10
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 5.0
_BROKERS_AGE_S: Final = 30.0
_PULL_MESSAGES: Final = 1024
_SAMPLE_RECORDS: Final = 64
_ROCKETMQ_PAUSE_S: Final = 0.25
_CALLS_PER_S: Final = 10
REGISTRY: Final = "(registry)"
"""What messages call the registries where they else name a broker."""
PROGRESS: Final = {"endsReset": "true"}
"""What a commit of how far a query is says besides: its checkpoint decides, so no reset by a tool holds it up."""
_GONE: Final = "the topic, or this queue of it, is not there any more"
_SIZE: Final = struct.Struct(">I")
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL))
"""Refusals that pass."""
_MAY_PASS: Final = (ConnectionLostError, RequestTimeoutError, RouteNotFoundError, RemotingRefusedError)
"""What ``Retry.failed`` is told of; it decides which refusals do."""

T = TypeVar("T")


class _Kept(threading.local):
    """The connections of a thread: a driver may run jobs beside each other, and a cluster is for one thread."""

    def __init__(self) -> None:
        self.clusters: dict[tuple[str, str, str, int], Cluster] = {}


_kept = _Kept()


def cluster_of(source: ServersSource) -> Cluster:
    """Return this thread's connections to the servers of a source.

    Raises:
        ConfigError: ``servers`` is no list of addresses.
    """
    key = (source.servers, source.access_key, source.secret_key, source.timeout_ms)
    found = _kept.clusters.get(key)
    if found is None:
        found = _kept.clusters[key] = new_cluster(source)
    found.remember(source.addresses)
    return found


def new_cluster(source: ServersSource) -> Cluster:
    """Return connections of the caller's own. Raises: as ``cluster_of``."""
    try:
        return Cluster(
            source.servers,
            timeout_s=source.timeout_ms / 1000,
            access_key=source.access_key or None,
            secret_key=source.secret_key or None,
        )
    except ValueError as error:
        raise ConfigError(f"option servers: {error}", key="servers") from None


class Retry:
    """Counts failures in a row of one broker and waits between attempts.

    A broker that was lost may come back at another address, and what was asked for a moment ago is not asked again: so
    the registries are, after each loss.
    """

    def __init__(self, cluster: Cluster, broker: str, what: str, retries: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.what = what
        self.retries = retries
        self.failures = 0

    def succeeded(self) -> None:
        """Begin to count anew."""
        self.failures = 0

    def failed(self, error: ClientError) -> None:
        """Wait before the next attempt.

        Raises:
            RemotingRefusedError: ``error`` is one and will not pass.
            BrokerGoneError: there have been as many as may be.
        """
        if isinstance(error, RemotingRefusedError) and error.code not in _BUSY:
            raise error
        self.failures += 1
        if self.failures > self.retries:
            raise BrokerGoneError(self.broker, self.what, self.failures, str(error)) from error
        wait_s = min(_FIRST_BACKOFF_S * 2 ** (self.failures - 1), _LONGEST_BACKOFF_S)
        logger.warning(
            "broker does not serve, trying again broker=%s what=%s attempt=%d wait_s=%.1f error=%s",
            self.broker, self.what, self.failures, wait_s, error,
        )  # fmt: skip
        time.sleep(wait_s)
        if self.broker != REGISTRY and not isinstance(error, RequestTimeoutError):
            with contextlib.suppress(ClientError):  # the next attempt says what is wrong
                self.cluster.brokers()


def insist(cluster: Cluster, broker: str, what: str, retries: int, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns, asking again while the broker is away or busy. Raises: as ``Retry.failed``."""
    retry = Retry(cluster, broker, what, retries)
    while True:
        try:
            return ask()
        except _MAY_PASS as error:
            retry.failed(error)


# Whole logs


def log_extents(source: ServersSource) -> list[LogExtent]:
    """Return what every broker's log holds. Raises: see ``ServersSource.extents``."""
    cluster = cluster_of(source)
    found = []
    for broker, address in insist(cluster, REGISTRY, "the list of brokers", source.retries, cluster.brokers).items():
        state = _ask_state(cluster, source, broker, address, {"topics": [], "log": True})
        if state is None:
            raise _no_log_reads(broker)
        found.append(_log_extent(broker, state))
    if not found:
        raise ConfigError(f"the registries {source.servers} know of no broker", key="servers")
    return found


def _no_log_reads(broker: str) -> ConfigError:
    return ConfigError(
        f"broker {broker!r} is not a Headrace broker and has no raw-log reads: name topics instead of scan=log",
        key="scan",
    )


def _log_extent(broker: str, state: Mapping[str, Any]) -> LogExtent:
    log = state["log"]
    runs = ((int(log["min"]), int(log["max"])),) if log["max"] > log["min"] else ()
    return LogExtent(broker, int(state["segment_bytes"]), runs, str(state["store_id"]), int(state["epoch"]))


def _ask_state(
    cluster: Cluster,
    source: ServersSource,
    broker: str,
    address: str,
    wanted: Mapping[str, Any],
    *,
    group: str = "",
    wait_ms: int = 0,
) -> dict[str, Any] | None:
    body = json.dumps(wanted).encode()

    def ask() -> dict[str, Any] | None:
        address = cluster.broker_address(broker)
        state = cluster.reader_state(address, body, group=group, wait_ms=wait_ms)
        if state is not None and state.get("broker", broker) != broker:
            raise ConnectionLostError(address, f"broker {state['broker']!r} is there now")
        return state

    return insist(cluster, broker, "its state", source.retries, ask)


def log_chunks(
    source: ServersSource, broker: str, start: int, stop: int, chunk_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield a log's bytes. Raises and Yields: see ``StoreFiles.chunks``; BrokerGoneError."""
    cluster = cluster_of(source)
    retry = Retry(cluster, broker, f"its log from physical offset {start} to {stop}", source.retries)
    at, segment_bytes = start, 0
    while True:
        try:
            client = cluster.client(cluster.broker_address(broker))
            sizes = list(_log_ranges(at, stop, chunk_bytes, segment_bytes))
            requests = [read_log_request(offset, size, group=source.group, broker=broker) for offset, size in sizes]
            for (offset, size), response in zip(sizes, client.call_many(requests, WINDOW), strict=True):
                _require_log(response, broker, offset, stop, client.address)
                retry.succeeded()
                segment_bytes = int(response.ext["segmentBytes"])
                if response.body:
                    yield offset, memoryview(response.body)
                following = int(response.ext["nextOffset"])
                at_end = following == offset
                at = following
                if at_end or at != offset + size:
                    break  # the end, a file's end, or a part without a file: the other requests are not what is wanted
            else:
                at_end = not sizes
            if at_end or (at >= stop and at % segment_bytes == 0):
                return
        except _MAY_PASS as error:
            retry.failed(error)


def _log_ranges(at: int, stop: int, chunk_bytes: int, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of requests from ``at`` on; none crosses a file's end.

    The first request of all asks for little, since it is the one that learns where files end.
    """
    if at >= stop:
        yield at, _OVERRUN_BYTES
        return
    if not segment_bytes:
        yield at, min(chunk_bytes, stop - at)
        return
    while at < stop:
        size = min(chunk_bytes, stop - at, segment_bytes - at % segment_bytes)
        yield at, size
        at += size


def _require_log(response: Command, broker: str, offset: int, stop: int, address: str) -> None:
    if response.code == ResponseCode.SUCCESS:
        return
    if response.code == ResponseCode.PULL_OFFSET_MOVED:
        least, most = int(response.ext["minOffset"]), int(response.ext["maxOffset"])
        reason = (
            "retention has removed them" if offset < least else f"the log ends at {most} (it was cut off or replaced)"
        )
        raise DataLossError(
            f"broker {broker!r} has no more physical offsets {offset} to "
            f"{min(stop, least) if offset < least else stop}: "
            f"{reason}; failOnDataLoss=false goes on without them",
            broker=broker,
            first_offset=offset,
            end_offset=min(stop, least) if offset < least else stop,
        )
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise _no_log_reads(broker)
    require(response, address)


# Queues


@dataclass(frozen=True, slots=True)
class QueueState:
    """The extent of one queue; ``committed`` is -1 where the group has nothing.

    ``ends``: where it ended when each epoch of the store but the first began, where that is known.
    """

    low: int
    high: int
    committed: int = -1
    ends: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic on one broker; ``epoch`` changes when it is deleted and made again, 0 if that is not known."""

    epoch: int
    queues: Mapping[int, QueueState]


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What one broker says of itself at a moment.

    Attributes:
        log: First and end physical offset, None if not asked for.
        is_headrace: Whether it has the requests for bulk readers.
        ends: Where every queue ended that it told of, by topic and queue id as text, also those that are not wanted:
            what it compares with when it is asked to wait.
    """

    broker: str
    topics: Mapping[str, TopicState]
    store_id: str = ""
    epoch: int = 0
    segment_bytes: int = 0
    log: tuple[int, int] | None = None
    is_headrace: bool = True
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


Snapshot = Mapping[str, BrokerState]
"""State by broker name."""


@dataclass(slots=True)
class ServersView:
    """The brokers as a reader sees them; counts its calls. Not for several threads at once."""

    source: ServersSource
    options: ReadOptions
    cluster: Cluster
    calls: int = 0
    _foreign: dict[str, tuple[str, ...]] = field(default_factory=dict)  # RocketMQ's brokers, and their last topics
    _gone: set[tuple[str, str, str]] = field(default_factory=set)
    _brokers: dict[str, str] = field(default_factory=dict)
    _brokers_until_s: float = 0.0

    @classmethod
    def open(cls, options: ReadOptions) -> ServersView:
        """Return a view; nothing is connected yet. Raises: as ``cluster_of``."""
        source = options.source
        assert not options.store
        return cls(source, options, cluster_of(source))  # type: ignore[arg-type]  # no store: these are servers

    def brokers(self) -> dict[str, str]:
        """Return address by name of every broker; asked anew every half minute.

        Raises:
            BrokerGoneError: no registry answers, or knows of any broker, and none was known before.
        """
        if time.monotonic() >= self._brokers_until_s:
            self.calls += 1
            self._brokers = insist(
                self.cluster, REGISTRY, "the list of brokers", self.source.retries, self._ask_brokers
            )
            self._brokers_until_s = time.monotonic() + _BROKERS_AGE_S
        return self._brokers

    def _ask_brokers(self) -> dict[str, str]:
        """Return the brokers, those that were there before among them.

        A registry that is away, or was just started and does not know them yet, says nothing about them: whether one is
        gone turns out when it is asked, where it was last.
        """
        try:
            found = self.cluster.brokers()
        except ClientError as error:
            if not self._brokers:
                raise
            logger.warning("registries not asked, brokers taken as they were error=%s", error)
            return self._brokers
        lacking = sorted(set(self._brokers) - set(found))
        if lacking:
            logger.warning("registries lack brokers, looked for where they were brokers=%s", ",".join(lacking))
        if not lacking and not found:
            raise RouteNotFoundError("any broker", self.source.servers)
        return dict(sorted({**self._brokers, **found}.items()))

    def snapshot(
        self, *, group: str = "", known: Snapshot | None = None, wait_ms: int = 0, may_miss: bool = False
    ) -> dict[str, BrokerState]:
        """Return the state of what the options select, from every broker.

        Args:
            group: Whose committed offsets to look up.
            known: What the caller knows already.
            wait_ms: How long to wait for something that ``known`` has not.
            may_miss: A topic that is named need not be there.

        Raises:
            TopicNotFoundError: no broker has a topic that is named.
            BrokerGoneError: one does not answer.
        """
        brokers = self.brokers()
        # One after the other: with many brokers a round takes longer, so that the calls a second stay few.
        share_ms = max(wait_ms // len(brokers), 1000 // _CALLS_PER_S) if wait_ms else 0
        found: dict[str, BrokerState] = {}
        missing: set[str] | None = None
        for broker, address in brokers.items():
            state, lacks = self._state_of(broker, address, group, (known or {}).get(broker), share_ms)
            found[broker] = state
            missing = lacks if missing is None else missing & lacks
        if missing and not may_miss:
            raise TopicNotFoundError(min(missing))
        return found

    def _state_of(
        self, broker: str, address: str, group: str, known: BrokerState | None, wait_ms: int
    ) -> tuple[BrokerState, set[str]]:
        if broker not in self._foreign:
            self.calls += 1
            asked_s = time.monotonic()
            state = _ask_state(
                self.cluster, self.source, broker, address, self._request(known), group=group, wait_ms=wait_ms
            )
            if state is not None:
                found = self._parse(broker, state)
                if known is not None and (found.topics, found.log) == (known.topics, known.log):
                    # It did not wait, or was woken by what is not wanted here.
                    time.sleep(max(0.0, asked_s + 1 / _CALLS_PER_S - time.monotonic()))
                return found, set(state.get("missing") or ())
            if self.options.is_log_mode:
                raise _no_log_reads(broker)
            logger.info("broker is no Headrace, reading by pulls broker=%s", broker)
            self._foreign[broker] = ()
        if wait_ms:
            # Nothing there waits for us: as many calls a second as otherwise, whatever the number of topics.
            time.sleep(max(_ROCKETMQ_PAUSE_S, len(known.topics) / _CALLS_PER_S if known is not None else 0))
        return insist(
            self.cluster, broker, "its topics", self.source.retries,
            lambda: self._ask_rocketmq(broker, self.cluster.broker_address(broker), group),
        )  # fmt: skip

    def _request(self, known: BrokerState | None) -> dict[str, Any]:
        options = self.options
        named = options.named_topics
        wanted: dict[str, Any] = {
            "topics": [] if options.scan else None if named is None else list(named),
            "log": bool(options.scan),
            "system": options.include_system_topics,
            "retry": options.include_retry_topics,
        }
        if known is not None:
            wanted["known"] = {"topics": known.ends}
            if known.log is not None:
                wanted["known"]["log"] = known.log[1]
        return wanted

    def _parse(self, broker: str, state: Mapping[str, Any]) -> BrokerState:
        topics, ends = {}, {}
        for name, row in state["topics"].items():
            ends[name] = {queue_id: int(queue["max"]) for queue_id, queue in row["queues"].items()}
            if not self.options.wants_topic(name):
                continue
            queues = {
                int(queue_id): QueueState(
                    int(queue["min"]),
                    int(queue["max"]),
                    int(queue["committed"]),
                    {int(epoch): int(end) for epoch, end in queue.get("ends", {}).items()},
                )
                for queue_id, queue in row["queues"].items()
                if self.options.wants_queue(name, broker, int(queue_id))
            }
            topics[name] = TopicState(int(row["epoch"]), queues)
        log = state.get("log")
        return BrokerState(
            broker,
            topics,
            str(state["store_id"]),
            int(state["epoch"]),
            int(state["segment_bytes"]),
            (int(log["min"]), int(log["max"])) if log else None,
            ends=ends,
        )

    def _ask_rocketmq(self, broker: str, address: str, group: str) -> tuple[BrokerState, set[str]]:
        """Gather the state from a RocketMQ broker, by what its own clients and tools ask."""
        options = self.options
        named = options.named_topics
        if named is None:
            named = tuple(self._foreign_names(broker))
        topics: dict[str, TopicState] = {}
        missing: set[str] = set()
        for name in named:
            self.calls += 1
            try:
                stats = self.cluster.topic_stats(address, name)
            except RemotingRefusedError as error:
                if error.code not in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR):
                    raise
                missing.add(name)
                continue
            queues = {}
            for queue_id, row in stats.items():
                if not options.wants_queue(name, broker, queue_id):
                    continue
                committed = None
                if group:
                    self.calls += 1
                    committed = self.cluster.query_offset(broker, group, name, queue_id)
                low, high = max(row.min_offset, 0), max(row.max_offset, 0)
                queues[queue_id] = QueueState(low, high, -1 if committed is None else committed)
            topics[name] = TopicState(0, queues)
        self._foreign[broker] = tuple(topics)
        return BrokerState(broker, topics, is_headrace=False), missing if options.named_topics is not None else set()

    def _foreign_names(self, broker: str) -> list[str]:
        """Return which topics to ask a RocketMQ broker for: those that a registry knows, and those that it had."""
        self.calls += 1
        before = self._foreign.get(broker, ())
        try:
            found = self.cluster.topics()
        except ClientError as error:
            if not before:
                raise
            logger.warning("registries not asked, topics taken as they were broker=%s error=%s", broker, error)
            found = []
        return [topic for topic in sorted({*found, *before}) if self.options.wants_topic(topic)]

    def is_foreign(self, broker: str) -> bool:
        """Whether a broker is known to be RocketMQ's."""
        return broker in self._foreign

    def commit(
        self,
        group: str,
        offsets: Iterable[tuple[str, str, int, int]],
        *,
        is_durable: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Commit (broker, topic, queue id, offset) for a group, pipelined per broker.

        Queues that are not there any more are passed over, with a warning the first time, unless the offsets are to be
        durable: whoever asks for that relies on every one.

        Args:
            is_durable: Return when they are on disk, as far as the brokers can (docs/protocols/extensions.md).
            more: Further fields: ``forget``, or PROGRESS.

        Raises:
            RemotingRefusedError: a broker refuses one.
            BrokerGoneError: a broker does not answer.
        """
        by_broker: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
        for broker, topic, queue_id, offset in offsets:
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
            ext |= more or {}
            by_broker.setdefault(broker, []).append((int(RequestCode.UPDATE_CONSUMER_OFFSET), ext, b""))
        for broker, requests in by_broker.items():
            self.calls += len(requests)
            if is_durable:
                # The file that is written for the last one has those before it: one write, not one for each.
                requests[-1][1]["durable"] = "true"
            send = partial(self._send, broker, group, requests, is_durable)
            insist(self.cluster, broker, "commits of offsets", self.source.retries, send)

    def _send(
        self, broker: str, group: str, requests: list[tuple[int, dict[str, str], bytes]], is_durable: bool
    ) -> None:
        """Send commits; RocketMQ 5 keeps offsets of groups it knows only: one that it does not is announced."""
        unknown = self._send_known(broker, requests, is_durable)
        if unknown:
            self.calls += 2 + len(unknown)
            self.cluster.announce_group(broker, group, sorted({ext["topic"] for _, ext, _ in unknown}))
            self._send_known(broker, unknown, is_durable, is_announced=True)

    def _send_known(
        self,
        broker: str,
        requests: list[tuple[int, dict[str, str], bytes]],
        is_durable: bool,
        *,
        is_announced: bool = False,
    ) -> list[tuple[int, dict[str, str], bytes]]:
        """Send commits; return those that were refused since the group is not known."""
        client = self.cluster.client(self.cluster.broker_address(broker))
        unknown, gone = [], []
        for request, response in zip(requests, client.call_many(requests), strict=True):
            ext = request[1]
            if response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and not is_announced:
                unknown.append(request)
            elif response.code == ResponseCode.TOPIC_NOT_EXIST and not is_durable:
                gone.append((broker, ext["topic"], ext["queueId"]))
            else:
                require(response, client.address)
        if not self._gone.issuperset(gone):
            logger.warning(
                "offsets not kept: the broker has no such queue broker=%s queues=%s",
                broker, ",".join(f"{topic}/{queue_id}" for _, topic, queue_id in gone),
            )  # fmt: skip
            self._gone.update(gone)
        return unknown

    def sample_record_bytes(self, broker: str, topic: str, queue_id: int, offset: int, end: int) -> int:
        """Return the average size of some records from ``offset`` on, 0 if there are none to look at."""
        self.calls += 1
        end = min(end, offset + _SAMPLE_RECORDS)

        def ask() -> bytes:
            if broker in self._foreign:
                return self.cluster.pull(broker, self.source.group or "spark", topic, queue_id, offset, 8).records
            code, ext, payload = read_queue_request(topic, queue_id, offset, end, _OVERRUN_BYTES, broker=broker)
            return self.cluster.client(self.cluster.broker_address(broker)).call(code, ext, payload).body

        body = insist(self.cluster, broker, "a sample", self.source.retries, ask)
        records = at = 0
        while at + 4 <= len(body):
            size = _SIZE.unpack_from(body, at)[0]
            if size < 4 or at + size > len(body):
                break
            at += size
            records += 1
        return at // records if records else 0


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Records [start, end) of one queue; ``record_bytes`` is about how large one is."""

    broker: str
    topic: str
    queue_id: int
    start: int
    end: int
    record_bytes: int = 1024

    def describe(self) -> str:
        """Return what messages call it."""
        return f"topic {self.topic!r} queue {self.queue_id} offsets {self.start} to {self.end}"


@dataclass(slots=True)
class QueueReading:
    """How a range is read; counts what was not there.

    Attributes:
        tags: Tag expression for the broker, empty for none; it compares hashes, so look at what comes.
        lost: Offsets of the range that the queue no longer has.
        damaged: Offsets that stand for no record any more: in a hole, or cut off by a recovery.
    """

    source: ServersSource
    tags: str = ""
    pull_bytes: int = 4 << 20
    fail_on_data_loss: bool = True
    lost: int = 0
    damaged: int = 0

    def records(self, wanted: QueueRange) -> Iterator[tuple[bytes, int, int]]:
        """Yield (records, first offset, end offset) until the range is read, in order.

        Records may go beyond the offsets they are yielded with: those do not count.

        Raises:
            DataLossError: the queue no longer has part of the range, and that is an error.
            BrokerGoneError: the broker does not answer.
            RemotingRefusedError: it refuses.
        """
        cluster = cluster_of(self.source)
        retry = Retry(cluster, wanted.broker, wanted.describe(), self.source.retries)
        at, is_headrace = wanted.start, True
        filler: BlockingClient | None = None
        try:
            while at < wanted.end:
                try:
                    if not is_headrace:
                        reader = self._pulls(cluster, wanted, at)
                    else:
                        client = cluster.client(cluster.broker_address(wanted.broker))
                        if filler is None or filler.address != client.address:
                            filler = self._new_filler(filler, client.address)
                        reader = self._ranges(client, filler, wanted, at)
                    for records, first, end in reader:
                        retry.succeeded()
                        if records:
                            yield records, first, end
                        at = end
                except _NotHeadraceError:
                    is_headrace = False
                except _MAY_PASS as error:
                    retry.failed(error)
        finally:
            if filler is not None:
                filler.close()

    def _new_filler(self, before: BlockingClient | None, address: str) -> BlockingClient:
        """Return a connection of its own to where the broker is now; ``before`` was to where it has been."""
        if before is not None:
            before.close()
        return new_cluster(self.source).client(address)

    def _ranges(
        self, client: BlockingClient, filler: BlockingClient, wanted: QueueRange, at: int
    ) -> Iterator[tuple[bytes, int, int]]:
        """Ask for pieces of the range, several ahead; what an answer leaves out is asked for on another connection."""
        # Half of what may come: sizes vary, and an answer that stops early costs a round trip.
        rows = max(1, min(65_536, self.pull_bytes // 2 // max(wanted.record_bytes, 1)))
        pieces = [(low, min(low + rows, wanted.end)) for low in range(at, wanted.end, rows)]
        requests = [self._request(wanted, low, high) for low, high in pieces]
        for (low, high), response in zip(pieces, client.call_many(requests, WINDOW), strict=True):
            while True:
                records, reached = self._answer(response, wanted, low, high, client.address)
                yield records, low, reached
                low = reached
                if low >= high:
                    break
                response = filler.call(*self._request(wanted, low, high))

    def _request(self, wanted: QueueRange, low: int, high: int) -> tuple[int, dict[str, str], bytes]:
        code, ext, body = read_queue_request(
            wanted.topic, wanted.queue_id, low, high, self.pull_bytes,
            group=self.source.group, tags=self.tags, broker=wanted.broker,
        )  # fmt: skip
        return code, dict(ext), body

    def _answer(self, response: Command, wanted: QueueRange, low: int, high: int, address: str) -> tuple[bytes, int]:
        """Return the records of an answer and up to where it goes."""
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise _NotHeadraceError
        if _is_gone(response.code, response.remark, wanted.queue_id):
            return b"", self._lose(wanted, low, high, _GONE)
        if response.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
            return b"", self._step_over(
                wanted, low, high, int(response.ext["minOffset"]), int(response.ext["maxOffset"])
            )
        require(response, address)
        reached = int(response.ext["nextOffset"])
        skipped = int(response.ext.get("skipped", 0))
        if skipped:
            self.damaged += skipped
            logger.warning(
                "queue offsets without a record topic=%s queue_id=%d broker=%s from=%d to=%d count=%d",
                wanted.topic, wanted.queue_id, wanted.broker, low, reached, skipped,
            )  # fmt: skip
        if reached <= low:
            # Nothing there although the queue is longer: what was planned is gone.
            return response.body, self._step_over(
                wanted, low, high, int(response.ext["minOffset"]), int(response.ext["maxOffset"])
            )
        return response.body, min(reached, high)

    def _step_over(self, wanted: QueueRange, low: int, high: int, queue_low: int, queue_high: int) -> int:
        """Return where to go on when the queue does not have ``low``.

        Raises:
            DataLossError: unless failOnDataLoss=false.
        """
        if low < queue_low:
            end, reason = min(high, queue_low), f"retention has removed them, the queue begins at {queue_low}"
        else:
            end, reason = (
                high,
                f"the queue ends at {queue_high}: its broker lost the end of its log, or the topic is new",
            )
        return self._lose(wanted, low, end, reason)

    def _lose(self, wanted: QueueRange, low: int, end: int, reason: str) -> int:
        """Return ``end``, where to go on. Raises: as ``_step_over``."""
        if self.fail_on_data_loss:
            raise DataLossError(
                f"topic {wanted.topic!r} queue {wanted.queue_id} of broker {wanted.broker!r} has no more offsets {low} "
                f"to {end}: {reason}; failOnDataLoss=false goes on without them",
                broker=wanted.broker, topic=wanted.topic, queue_id=wanted.queue_id, first_offset=low, end_offset=end,
            )  # fmt: skip
        self.lost += end - low
        logger.warning(
            "messages lost topic=%s queue_id=%d broker=%s from=%d to=%d count=%d",
            wanted.topic, wanted.queue_id, wanted.broker, low, end, end - low,
        )  # fmt: skip
        return end

    def _pulls(self, cluster: Cluster, wanted: QueueRange, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Read by pulls, as RocketMQ's own consumers do."""
        while at < wanted.end:
            most = min(_PULL_MESSAGES, wanted.end - at)
            group, low = self.source.group or "spark", at
            try:
                found: Pulled = cluster.pull(
                    wanted.broker, group, wanted.topic, wanted.queue_id, at, most, self.tags or "*"
                )
            except RemotingRefusedError as error:
                if not _is_gone(error.code, error.remark, wanted.queue_id):
                    raise
                yield b"", low, self._lose(wanted, low, wanted.end, _GONE)
                return
            if found.code == ResponseCode.SUCCESS or (
                found.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
                and found.next_offset > low
            ):
                at = min(found.next_offset, wanted.end)
            elif found.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                continue
            else:
                at = self._step_over(wanted, low, wanted.end, found.min_offset, found.max_offset)
            yield found.records, low, at


def _is_gone(code: int, remark: str, queue_id: int) -> bool:
    """Return whether a refused read says that there is no such topic or queue."""
    # Of a missing queue brokers say code 1, newer ones 29, which both say of other things too.
    return code == ResponseCode.TOPIC_NOT_EXIST or remark.startswith(f"queueId[{queue_id}] is illegal")


class _NotHeadraceError(Exception):
    """The broker has no READ_QUEUE."""
