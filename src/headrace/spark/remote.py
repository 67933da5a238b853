"""What the source asks brokers on the driver: how far queues and logs reach, and the offsets of groups.

Two kinds of broker behind one interface. Headrace answers READER_STATE (everything a reader plans with in one call),
READ_LOG and READ_QUEUE (docs/protocols/extensions.md). RocketMQ answers those with REQUEST_CODE_NOT_SUPPORTED and is
then asked what its own clients ask: topic statistics, pulls. Whole logs cannot be read from it.

``ServersView`` is what plans on the driver look through; ``remote_log`` and ``queue_reading`` read.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from headrace.errors import (
    ClientError,
    ConfigError,
    ConnectionLostError,
    RemotingRefusedError,
    RouteNotFoundError,
    TopicNotFoundError,
)
from headrace.remoting.blocking import Cluster, read_queue_request, require
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.spark import connections
from headrace.spark.errors import REGISTRY, BrokerGoneError
from headrace.spark.files import LogExtent
from headrace.spark.options import ReadOptions
from headrace.spark.retry import T, insist
from headrace.spark.scan import ServersSource
from headrace.spark.streams.positions import QueueKey

logger = logging.getLogger(__name__)

OVERRUN_BYTES: Final = 64 << 10
_BROKERS_AGE_S: Final = 30.0
_SAMPLE_RECORDS: Final = 64
_ROCKETMQ_PAUSE_S: Final = 0.25
_CALLS_PER_S: Final = 10
PROGRESS: Final = {"endsReset": "true"}
"""What a commit of how far a query is says besides: its checkpoint decides, so no reset by a tool holds it up."""
_SIZE: Final = struct.Struct(">I")


def no_log_reads(broker: str) -> ConfigError:
    """Return the error of a broker whose whole log cannot be read."""
    return ConfigError(
        f"broker {broker!r} is not a Headrace broker and has no raw-log reads: name topics instead of scan=log",
        key="scan",
    )


def ask_state(
    cluster: Cluster,
    source: ServersSource,
    broker: str,
    wanted: Mapping[str, Any],
    *,
    group: str = "",
    wait_ms: int = 0,
) -> dict[str, Any] | None:
    """Return a broker's READER_STATE, None when it has none (RocketMQ).

    Args:
        wanted: The request's JSON (docs/protocols/extensions.md).
        group: Whose committed offsets to look up.
        wait_ms: How long it may wait for something new.

    Raises: as ``Retry.failed``.
    """
    body = json.dumps(wanted).encode()

    def ask() -> dict[str, Any] | None:
        address = cluster.broker_address(broker)
        state = cluster.reader_state(address, body, group=group, wait_ms=wait_ms)
        if state is not None and state.get("broker", broker) != broker:
            raise ConnectionLostError(address, f"broker {state['broker']!r} is there now")
        return state

    return insist(cluster, broker, "its state", source.retries, ask)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The extent of one queue, or of a log; ``committed`` is -1 where the group has nothing.

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
        topics: By name; the log, where it was asked for, is the one queue of the topic "" (``QueueKey.of_log``).
        missing: Ranges of the log whose files are gone.
        ends: Where every queue ended that it told of, by topic and queue id as text, also those that are not wanted:
            what it compares with when it is asked to wait.
    """

    broker: str
    topics: Mapping[str, TopicState]
    store_id: str = ""
    epoch: int = 0
    segment_bytes: int = 0
    missing: tuple[tuple[int, int], ...] = ()
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def state_of_log(extent: LogExtent) -> BrokerState:
    """Return the state of a broker of which only the log counts."""
    topics = {"": TopicState(0, {-1: QueueState(extent.start, extent.end)})}
    return BrokerState(extent.broker, topics, extent.store_id, extent.epoch, extent.segment_bytes, extent.missing)


def missing_of(log: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the ranges without files of what READER_STATE says of a log."""
    return tuple((int(low), int(high)) for low, high in log.get("missing", ()))


Snapshot = Mapping[str, BrokerState]
"""State by broker name."""

CommitRequest = tuple[int, dict[str, str], bytes]
"""Code, fields and body of a commit of one queue's offset."""


@dataclass(slots=True)
class ServersView:
    """The brokers as a reader sees them. Not for several threads at once."""

    source: ServersSource
    options: ReadOptions
    cluster: Cluster
    _foreign: dict[str, tuple[str, ...]] = field(default_factory=dict)  # RocketMQ's brokers, and their last topics
    _own: set[str] = field(default_factory=set)  # brokers known to be Headrace
    _gone: set[QueueKey] = field(default_factory=set)
    _brokers: dict[str, str] = field(default_factory=dict)
    _brokers_until_s: float = 0.0

    @classmethod
    def open(cls, options: ReadOptions) -> ServersView:
        """Return a view; nothing is connected yet. Raises: as ``cluster_of``."""
        source = options.source
        assert not options.store
        return cls(source, options, connections.cluster_of(source))  # type: ignore[arg-type]  # no store: these are servers

    def insist(self, broker: str, what: str, ask: Callable[[], T]) -> T:
        """Return what ``ask`` returns, asking again while a broker is away or busy. Raises: as ``Retry.failed``."""
        return insist(self.cluster, broker, what, self.source.retries, ask)

    def brokers(self) -> dict[str, str]:
        """Return address by name of every broker; asked anew every half minute.

        Raises:
            BrokerGoneError: no registry answers, or knows of any broker, and none was known before; or none knows one
                that is required.
        """
        if time.monotonic() >= self._brokers_until_s:
            self._brokers = self.insist(REGISTRY, "the list of brokers", self._ask_brokers)
            for broker in self.options.require_brokers:
                if broker not in self._brokers:
                    self._brokers = self.insist(broker, "its part", partial(self._ask_for, broker))
            self._brokers_until_s = time.monotonic() + _BROKERS_AGE_S
        return self._brokers

    def _ask_for(self, broker: str) -> dict[str, str]:
        """Return the brokers; one must be among them."""
        found = self._ask_brokers()
        if broker not in found:
            raise RouteNotFoundError(broker, self.source.servers)
        return found

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
        for broker in brokers:
            state, lacks = self._state_of(broker, group, (known or {}).get(broker), share_ms)
            found[broker] = state
            missing = lacks if missing is None else missing & lacks
        if missing and not may_miss:
            raise TopicNotFoundError(min(missing), self._topics_to_name())
        return found

    def _topics_to_name(self) -> list[str]:
        """Return the topics that a registry knows, for the error about one that no broker has."""
        try:
            return self.cluster.topics()
        except ClientError as error:
            logger.debug("registries not asked for a topic of nearly that name error=%s", error)
            return []

    def _state_of(
        self, broker: str, group: str, known: BrokerState | None, wait_ms: int
    ) -> tuple[BrokerState, set[str]]:
        if broker not in self._foreign:
            asked_s = time.monotonic()
            state = ask_state(self.cluster, self.source, broker, self._request(known), group=group, wait_ms=wait_ms)
            if state is not None:
                self._own.add(broker)
                found = self._parse(broker, state)
                if known is not None and found.topics == known.topics:
                    # It did not wait, or was woken by what is not wanted here.
                    time.sleep(max(0.0, asked_s + 1 / _CALLS_PER_S - time.monotonic()))
                return found, set(state.get("missing") or ())
            logger.info("broker is no Headrace, reading by pulls broker=%s", broker)
            self._foreign[broker] = ()
        if self.options.is_log_mode:
            raise no_log_reads(broker)
        if wait_ms:
            # Nothing there waits for us: as many calls a second as otherwise, whatever the number of topics.
            time.sleep(max(_ROCKETMQ_PAUSE_S, len(known.topics) / _CALLS_PER_S if known is not None else 0))
        return self.insist(broker, "its topics", partial(self._ask_rocketmq, broker, group))

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
            if "" in known.topics:
                wanted["known"]["log"] = known.topics[""].queues[-1].high
        return wanted

    def _parse(self, broker: str, state: Mapping[str, Any]) -> BrokerState:
        topics: dict[str, TopicState] = {}
        ends = {}
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
        if log:
            topics[""] = TopicState(0, {-1: QueueState(int(log["min"]), int(log["max"]))})
        return BrokerState(
            broker,
            topics,
            str(state["store_id"]),
            int(state["epoch"]),
            int(state["segment_bytes"]),
            missing_of(log) if log else (),
            ends,
        )

    def _ask_rocketmq(self, broker: str, group: str) -> tuple[BrokerState, set[str]]:
        """Gather the state from a RocketMQ broker, by what its own clients and tools ask."""
        options, address = self.options, self.cluster.broker_address(broker)
        named = options.named_topics
        if named is None:
            named = tuple(self._foreign_names(broker))
        topics: dict[str, TopicState] = {}
        missing: set[str] = set()
        for name in named:
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
                    committed = self.cluster.query_offset(broker, group, name, queue_id)
                low, high = max(row.min_offset, 0), max(row.max_offset, 0)
                queues[queue_id] = QueueState(low, high, -1 if committed is None else committed)
            topics[name] = TopicState(0, queues)
        self._foreign[broker] = tuple(topics)
        return BrokerState(broker, topics), missing if options.named_topics is not None else set()

    def _foreign_names(self, broker: str) -> list[str]:
        """Return which topics to ask a RocketMQ broker for: those that a registry knows, and those that it had."""
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
        """Whether a broker is RocketMQ's; one that was not asked for its state before is asked.

        Raises:
            BrokerGoneError: it does not answer.
        """
        if broker not in self._foreign and broker not in self._own:
            if ask_state(self.cluster, self.source, broker, {"topics": []}) is None:
                self._foreign[broker] = ()
            else:
                self._own.add(broker)
        return broker in self._foreign

    def commit(
        self,
        group: str,
        offsets: Iterable[tuple[QueueKey, int]],
        *,
        is_durable: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Commit offsets of queues for a group, pipelined per broker.

        Queues that are not there any more are passed over, with a warning the first time, unless the offsets are to be
        durable: whoever asks for that relies on every one that is kept.

        Args:
            is_durable: Return when they are on disk, as far as the brokers can (docs/protocols/extensions.md).
            more: Further fields: ``forget``, or PROGRESS.

        Raises:
            RemotingRefusedError: a broker refuses one.
            BrokerGoneError: a broker does not answer; the others are told all the same.
        """
        gone: BrokerGoneError | None = None
        by_broker: dict[str, list[CommitRequest]] = {}
        for (topic, broker, queue_id), offset in offsets:
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
            ext |= more or {}
            by_broker.setdefault(broker, []).append((int(RequestCode.UPDATE_CONSUMER_OFFSET), ext, b""))
        for broker, requests in by_broker.items():
            send = partial(self._send, broker, group, requests, is_durable)
            try:
                self.insist(broker, "commits of offsets", send)
            except BrokerGoneError as error:
                gone = gone or error  # raised when the others are told
        if gone is not None:
            raise gone

    def _send(self, broker: str, group: str, requests: list[CommitRequest], is_durable: bool) -> None:
        """Send commits; RocketMQ 5 keeps offsets of groups it knows only: one that it does not is announced."""
        unknown = self._send_known(broker, requests, is_durable)
        if unknown:
            self.cluster.announce_group(broker, group, sorted({ext["topic"] for _, ext, _ in unknown}))
            self._send_known(broker, unknown, is_durable, is_announced=True)

    def _send_known(
        self,
        broker: str,
        requests: list[CommitRequest],
        is_durable: bool,
        *,
        is_announced: bool = False,
    ) -> list[CommitRequest]:
        """Send commits; return those that were refused since the group is not known.

        The first of each topic goes ahead of the others: of two first commits of a group for a topic that its threads
        take at once RocketMQ keeps one (apache/rocketmq issue 10700), though it answers both with success.
        """
        client = self.cluster.client(self.cluster.broker_address(broker))
        unknown, gone = [], []
        firsts, others = _split_first_of_topic(requests)
        if is_durable:
            # The file that is written for the last one has those before it: one write, not one for each.
            (others or firsts)[-1][1]["durable"] = "true"
        responses = [*client.call_many(firsts), *(client.call_many(others) if others else ())]
        for request, response in zip([*firsts, *others], responses, strict=True):
            ext = request[1]
            if response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and not is_announced:
                unknown.append(request)
            elif response.code == ResponseCode.TOPIC_NOT_EXIST and ("forget" in ext or not is_durable):
                gone.append(QueueKey(ext["topic"], broker, int(ext["queueId"])))
            else:
                require(response, client.address)
        if not self._gone.issuperset(gone):
            logger.warning(
                "offsets not kept: the broker has no such queue broker=%s queues=%s",
                broker, ",".join(f"{key.topic}/{key.queue_id}" for key in sorted(gone)),
            )  # fmt: skip
            self._gone.update(gone)
        return unknown

    def end_of(self, key: QueueKey) -> int:
        """Return where a queue ends, one that is not read too; 0 for one that is not there."""
        ask = partial(self.cluster.max_offset, key.broker, key.topic, key.queue_id)
        return self.insist(key.broker, "the end of a queue", ask)

    def sample_record_bytes(self, key: QueueKey, offset: int, end: int) -> int:
        """Return the average size of some records from ``offset`` on, 0 if there are none to look at."""
        topic, broker, queue_id = key
        end = min(end, offset + _SAMPLE_RECORDS)

        def ask() -> bytes:
            if broker in self._foreign:
                return self.cluster.pull(broker, self.source.group or "spark", topic, queue_id, offset, 8).records
            request = read_queue_request(topic, queue_id, offset, end, OVERRUN_BYTES, broker=broker)
            return self.cluster.client(self.cluster.broker_address(broker)).call(*request).body

        body = self.insist(broker, "a sample", ask)
        records = at = 0
        while at + 4 <= len(body):
            size = _SIZE.unpack_from(body, at)[0]
            if size < 4 or at + size > len(body):
                break
            at += size
            records += 1
        return at // records if records else 0


def _split_first_of_topic(requests: Iterable[CommitRequest]) -> tuple[list[CommitRequest], list[CommitRequest]]:
    """Return the first commit of each topic, and the others, each in their order."""
    firsts: dict[str, CommitRequest] = {}
    others = []
    for request in requests:
        topic = request[1]["topic"]
        if topic in firsts:
            others.append(request)
        else:
            firsts[topic] = request
    return list(firsts.values()), others
