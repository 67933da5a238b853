"""What the driver finds out about a write before a row is seen: options, columns, route, can the brokers do it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql.types import StructType

from headrace.errors import ConfigError, ConnectionLostError, RequestTimeoutError, RouteNotFoundError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode, ResponseCode, response_name
from headrace.spark.connections import cluster_of
from headrace.spark.errors import REGISTRY, ExtensionMissingError
from headrace.spark.retry import insist
from headrace.spark.scan import ServersSource
from headrace.spark.schema import MAY_LACK_ROWS
from headrace.spark.writing.options import (
    AT_LEAST_ONCE,
    FLUSHED,
    IDEMPOTENT,
    MAX_REQUEST_BYTES,
    MAX_TXN_CHARS,
    STORED,
    WriteColumns,
    WriteOptions,
)
from headrace.spark.writing.route import TopicRoute, find_route, home_broker

logger = logging.getLogger(__name__)

_PROBE: Final = b'{"topics":[],"log":false}'
_ACK_SETTINGS: Final = {
    FLUSHED: ("flushDiskType", "SYNC_FLUSH", "store.durability=fsync"),
    "replicated": ("brokerRole", "SYNC_MASTER", "a RocketMQ broker with brokerRole=SYNC_MASTER"),
}


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver found out, for every task of one write.

    Attributes:
        route: Of the option topic, None when rows name their topics.
        addresses: Masters, by broker name.
        unasked: Brokers that were away and could not be asked what they can do.
        max_body_bytes: The longest plain batch that all brokers take, as far as they say.
    """

    options: WriteOptions
    columns: WriteColumns
    route: TopicRoute | None
    addresses: Mapping[str, str]
    unasked: frozenset[str] = frozenset()
    max_body_bytes: int = MAX_REQUEST_BYTES

    def identity(self, txn: str) -> str:
        """Return what brokers know a write as: with its topic, so that one txn can write several."""
        topic = self.options.topic
        full = txn if topic is None else f"{txn}/{topic}"
        return full if len(full) <= MAX_TXN_CHARS else hashlib.sha256(full.encode()).hexdigest()

    def home(self, txn: str) -> str:
        """Return the broker on which a transaction is whole; ``txn`` is an ``identity``."""
        brokers = self.addresses if self.route is None else {broker for broker, _ in self.route.queues}
        return home_broker(txn, brokers)


def plan_write(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WritePlan:
    """Check everything that can be wrong before a row is seen. Raises: as ``sink.make_writer``."""
    if overwrite:
        raise ConfigError(
            'a topic is never overwritten: use .mode("append"), in a stream .outputMode("append")', key="mode"
        )
    parsed = WriteOptions.parse(options)
    columns = WriteColumns.plan(schema, parsed)
    if is_numbered(parsed, columns):
        _require_all_rows(schema)
    cluster = cluster_of(servers_of(parsed), use="write")
    addresses = insist(cluster, REGISTRY, "the list of brokers", parsed.retries, partial(_masters, cluster))
    route = None
    if parsed.topic is not None:
        route = find_route(cluster, parsed.topic, parsed.retries, live_only=parsed.semantics == AT_LEAST_ONCE)
    asked = {broker for broker, _ in route.queues} if route is not None else set(addresses)
    unasked = frozenset(
        broker for broker in sorted(asked) if not _has_abilities(cluster, parsed, broker, addresses.get(broker))
    )
    most = MAX_REQUEST_BYTES
    if parsed.semantics == AT_LEAST_ONCE:
        limits = [_request_limit(cluster, addresses[broker]) for broker in sorted(asked - unasked)]
        most = min([most, *(limit for limit in limits if limit)])
        parsed = replace(parsed, batch_bytes=min(parsed.batch_bytes, most))
    return WritePlan(parsed, columns, route, addresses, unasked, most)


def is_numbered(options: WriteOptions, columns: WriteColumns) -> bool:
    """Return whether duplicates are known by the number of a row within its task."""
    return options.semantics == IDEMPOTENT and not columns.is_keyed


def _require_all_rows(schema: StructType) -> None:
    """Refuse rows whose source leaves out what is gone: those behind it would come with other numbers.

    Raises:
        ConfigError: one of their columns is of such a source, as far as it is still itself.
    """
    if any(MAY_LACK_ROWS.items() <= field.metadata.items() for field in schema.fields):
        raise ConfigError(
            "rows that are read with failOnDataLoss=false cannot be numbered: where some are gone when a micro-batch "
            "or a task runs again, others get their numbers and are taken for repetitions; name a keyColumn, write "
            "with semantics=transactional or at-least-once, or read with failOnDataLoss=true",
            key="semantics",
        )


def _masters(cluster: Cluster) -> dict[str, str]:
    """Return the masters by broker name. Raises: also where there is none, as while the only broker restarts."""
    found = cluster.brokers()
    if not found:
        raise RouteNotFoundError("any broker", ";".join(cluster.servers))
    return found


def _has_abilities(cluster: Cluster, options: WriteOptions, broker: str, address: str | None) -> bool:
    """Ask a broker whether it can do what the options want; False for one that is away, which is left to the tasks.

    Raises:
        ExtensionMissingError, ConfigError: it cannot.
    """
    if address is None:
        return False
    try:
        if options.semantics != AT_LEAST_ONCE:
            probe = cluster.client(address).call(RequestCode.READER_STATE, {"group": "", "waitMs": "0"}, _PROBE)
            if probe.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ExtensionMissingError(options.semantics, address)
        if options.ack != STORED:
            require_ack(cluster, options.ack, broker, address, options.topic)
    except (ConnectionLostError, RequestTimeoutError) as error:
        logger.warning("broker not asked what it can do broker=%s error=%s", broker, error)
        return False
    return True


def _request_limit(cluster: Cluster, address: str) -> int:
    """Return how long a plain batch a broker takes, 0 if it does not say: a batch is one message to its limit."""
    try:
        response = cluster.client(address).call(RequestCode.GET_BROKER_CONFIG)
    except (ConnectionLostError, RequestTimeoutError) as error:
        logger.warning("broker not asked for its limit address=%s error=%s", address, error)
        return 0
    found = _config_lines(response.body).get("maxMessageSize", "") if response.code == ResponseCode.SUCCESS else ""
    return int(found) if found.isdecimal() else 0


def _config_lines(body: bytes) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in body.decode("utf-8", "replace").splitlines())


def require_ack(cluster: Cluster, ack: str, broker: str, address: str, topic: str | None) -> None:
    """Ask a broker whether it answers for messages of a topic, None for those without a level of their own, as wanted.

    Raises:
        ConfigError: it does not.
        ConnectionLostError, RequestTimeoutError: it does not answer.
    """
    key, wanted, remedy = _ACK_SETTINGS[ack]
    response = cluster.client(address).call(RequestCode.GET_BROKER_CONFIG)
    if response.code != ResponseCode.SUCCESS:
        reason = f"{response_name(response.code)} {response.remark}"
        raise ConfigError(f"ack={ack}: broker {broker!r} does not say how it stores: {reason}", key="ack")
    lines = _config_lines(response.body)
    own = None if topic is None else lines.get(f"{key}.{topic}")
    if own is not None and own != wanted:
        raise ConfigError(
            f"ack={ack} is not what broker {broker!r} does for topic {topic!r}: its {key}.{topic} is {own}; needs "
            f'topics."{topic}".durability = "fsync"',
            key="ack",
        )
    found = own or lines.get(key, "nothing")
    if found != wanted:
        raise ConfigError(
            f"ack={ack} is not what broker {broker!r} does: its {key} is {found}; needs {remedy}", key="ack"
        )


def servers_of(options: WriteOptions) -> ServersSource:
    """Return the brokers to write to."""
    return ServersSource(
        options.servers, options.access_key, options.secret_key, options.send_timeout_ms, options.retries
    )
