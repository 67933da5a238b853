"""A RocketMQ cluster seen from outside: its topics, their queues, and what one can ask a broker about them.

Works against Headrace and against RocketMQ 4.9 and 5.x (remoting), which is tested with both. The registries are asked
in turn, the one that answered last first, until one knows; brokers by the addresses they registered. Connections are
made when they are needed and kept; a forked process makes its own.

What only Headrace has (docs/protocols/extensions.md) is asked through ``client(address).call(...)``; a RocketMQ broker
answers that with REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from headrace.errors import (
    ClientError,
    ConnectionLostError,
    RemotingRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from headrace.format import fastjson
from headrace.net.address import own_name
from headrace.remoting.blocking.connection import BlockingClient, split_servers
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode, ResponseCode

logger = logging.getLogger(__name__)

MASTER: Final = 0
_PULL_FLAGS: Final = 4
"""sysFlag of a pull: its subscription counts, nothing is committed, it never waits."""
_PULL_CODES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
_ROUTES_AGE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueueData:
    """What one broker offers of a topic; ``perm`` is the sum of 4 read and 2 write."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic lives: the addresses of each broker by broker id (0 = master), and its queues there."""

    brokers: Mapping[str, Mapping[int, str]]
    queues: tuple[QueueData, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull.

    Attributes:
        code: SUCCESS, PULL_NOT_FOUND (the end), PULL_RETRY_IMMEDIATELY (nothing matched so far) or PULL_OFFSET_MOVED
            (the offset lies outside of the queue; ``next_offset`` is the nearest inside).
        next_offset: Where to read on.
        records: Whole records back to back, as they lie in the log.
    """

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The extent of one queue; ``last_update_ms`` is when its newest message was stored, 0 without any."""

    min_offset: int
    max_offset: int
    last_update_ms: int


class Cluster:
    """The brokers that some registries know of. Not for several threads at once."""

    def __init__(self, servers: str, **client_options: Any) -> None:
        """Connect nothing yet.

        Args:
            servers: Addresses of registries, as ``split_servers`` takes them.
            client_options: As ``BlockingClient`` takes them; for registries and brokers alike.

        Raises:
            ValueError: there is no address, or one is not ``host:port``.
        """
        self.servers = split_servers(servers)
        self._options = client_options
        self._clients: dict[str, BlockingClient] = {}
        self._pid = os.getpid()
        self._first = 0  # the registry that answered last
        self._known_brokers: dict[str, str] = {}  # as a registry answered last
        self._last_addresses: dict[str, str] = {}  # of every broker that one has told of, or ``remember``
        self._known_at = 0.0
        self._is_told = False  # that the registries are away, since they last answered

    def __repr__(self) -> str:
        return f"Cluster({';'.join(self.servers)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the next request makes others."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def client(self, address: str) -> BlockingClient:
        """Return the connection to a server, the same one each time."""
        if self._pid != os.getpid():
            # The parent goes on using its sockets: they are closed here without a word to the server.
            self.close()
            self._pid = os.getpid()
        found = self._clients.get(address)
        if found is None:
            found = self._clients[address] = BlockingClient(address, **self._options)
        return found

    # -- the registries ------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return every topic that a registry knows, those of the system included.

        Raises:
            ClientError: no registry answers, or it refuses.
        """
        body = self._ask_registry(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}).body
        return sorted(str(name) for name in _object(body).get("topicList") or ())

    def route(self, topic: str) -> Route:
        """Return where a topic lives.

        Raises:
            RouteNotFoundError: the registries do not know it.
            ClientError: no registry answers, or it refuses.
        """
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            body = _object(self._ask_registry(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, knows=_is_success).body)
        except RemotingRefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFoundError(topic, ";".join(self.servers)) from error
            raise
        brokers = {str(row["brokerName"]): _addresses(row) for row in body.get("brokerDatas") or ()}
        queues = [
            QueueData(
                str(row["brokerName"]),
                int(row.get("readQueueNums", 0)),
                int(row.get("writeQueueNums", 0)),
                int(row.get("perm", 6)),
            )
            for row in body.get("queueDatas") or ()
        ]
        return Route(brokers, tuple(sorted(queues, key=lambda queue: queue.broker)))

    def brokers(self) -> dict[str, str]:
        """Return the address of each broker's master, by name.

        Raises:
            ClientError: no registry answers, or it refuses.
        """
        self._known_brokers = _masters(self._ask_registry(RequestCode.GET_BROKER_CLUSTER_INFO, {}, knows=_masters))
        self._last_addresses |= self._known_brokers
        self._known_at = time.monotonic()
        self._is_told = False
        return dict(self._known_brokers)

    def broker_address(self, broker: str, *, anew: bool = False) -> str:
        """Return the address of a broker's master; what was asked in the last seconds is asked again only if ``anew``.

        While the registries are away, or do not know the broker (one that was just started knows none until they
        register), it is looked for where it was last, unless another broker is there now.

        Raises:
            RouteNotFoundError: the registries do not know the broker, or it has no master, and never had.
            ClientError: no registry answers, or it refuses, and the broker was never known.
        """
        if anew or time.monotonic() - self._known_at > _ROUTES_AGE_S or broker not in self._last_addresses:
            try:
                self.brokers()
            except ClientError as error:
                if broker not in self._last_addresses:
                    raise
                self._known_at = time.monotonic()  # a registry that is away is not waited for with every request
                if not self._is_told:
                    logger.warning(
                        "registries do not answer, brokers looked for where they were broker=%s address=%s error=%s",
                        broker, self._last_addresses[broker], error,
                    )  # fmt: skip
                self._is_told = True
        address = self._known_brokers.get(broker)
        if address is None:
            address = self._last_addresses.get(broker)
            if address is None or address in self._known_brokers.values():
                raise RouteNotFoundError(broker, ";".join(self.servers))
        return address

    def known_addresses(self) -> dict[str, str]:
        """Return the last address of every broker that this cluster has heard of, by name; nobody is asked."""
        return dict(self._last_addresses)

    def remember(self, addresses: Mapping[str, str]) -> None:
        """Take addresses of brokers from who knew them elsewhere: ``broker_address`` looks there as a last resort."""
        self._last_addresses = {**addresses, **self._last_addresses}

    def _ask_registry(
        self, code: int, ext: Mapping[str, str], *, knows: Callable[[Command], object] | None = None
    ) -> Command:
        """Return a registry's successful answer; one that does not answer is passed over for the next.

        Args:
            knows: Whether an answer says something; one that was just started knows nothing yet, others may.
        """
        failures: list[str] = []
        last: ClientError | None = None
        ignorant: tuple[Command, int] | None = None
        count = len(self.servers)
        for number in [(self._first + step) % count for step in range(count)]:
            try:
                response = self.client(self.servers[number]).call(code, ext)
            except (ConnectionLostError, RequestTimeoutError) as error:
                failures.append(str(error))
                last = error
                continue
            if knows is not None and not knows(response):
                ignorant = ignorant or (response, number)
                continue
            self._first = number
            return _require_registry(response, self.servers[number])
        if ignorant is not None:
            response, self._first = ignorant
            return _require_registry(response, self.servers[self._first])
        if count > 1:
            raise ConnectionLostError(";".join(self.servers), "; ".join(failures)) from last
        assert last is not None
        raise last

    # -- brokers -------------------------------------------------------------------------------------------------

    def ask(self, broker: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Command:
        """Return the successful answer of a broker, given by name.

        Raises:
            RemotingRefusedError: it answered with an error code.
            ClientError: it is not known, or does not answer.
        """
        address = self.broker_address(broker)
        return require(self.client(address).call(code, ext, body), address)

    def pull(
        self, broker: str, group: str, topic: str, queue_id: int, offset: int, max_messages: int = 32, tags: str = "*"
    ) -> Pulled:
        """Read a queue from an offset on; never waits for messages to come.

        Args:
            max_messages: At most; the broker has a bound of its own (RocketMQ 32 messages or 256 KiB by default).
            tags: Tag expression, ``a || b``. RocketMQ compares hashes: look at the tags of what comes.

        Raises:
            RemotingRefusedError: there is no such topic or queue, or it may not be read.
            ClientError: as ``ask``.
        """
        address = self.broker_address(broker)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(max_messages),
            "sysFlag": str(_PULL_FLAGS),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": tags or "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        response = self.client(address).call(RequestCode.PULL_MESSAGE, ext)
        if response.code not in _PULL_CODES:
            raise RemotingRefusedError(response.code, response.remark, address)
        found = response.ext
        return Pulled(
            response.code,
            int(found["nextBeginOffset"]),
            int(found["minOffset"]),
            int(found["maxOffset"]),
            response.body if response.code == ResponseCode.SUCCESS else b"",
        )

    def max_offset(self, broker: str, topic: str, queue_id: int) -> int:
        """Return where a queue ends; 0 for one that does not exist. Raises: as ``ask``."""
        return self._offset(broker, RequestCode.GET_MAX_OFFSET, topic, queue_id)

    def min_offset(self, broker: str, topic: str, queue_id: int) -> int:
        """Return where a queue begins; 0 for one that does not exist. Raises: as ``ask``."""
        return self._offset(broker, RequestCode.GET_MIN_OFFSET, topic, queue_id)

    def search_offset(self, broker: str, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset that belongs to a time of storing. Raises: as ``ask``.

        Headrace and RocketMQ 5 return the first message at or after the time, the queue's end when there is none.
        RocketMQ 4.9 returns the nearer of the two around it: look at the times of what is read.
        """
        more = {"timestamp": str(timestamp_ms), "boundaryType": "LOWER"}
        return self._offset(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, queue_id, more)

    def query_offset(self, broker: str, group: str, topic: str, queue_id: int) -> int | None:
        """Return what a group committed of a queue, None when it has nothing. Raises: as ``ask``.

        RocketMQ 4.9 returns 0 for a queue that still begins at 0 and of which nothing was committed.
        """
        address = self.broker_address(broker)
        ext = _queue(topic, queue_id) | {"consumerGroup": group, "setZeroIfNotFound": "false"}
        response = self.client(address).call(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return int(require(response, address).ext["offset"])

    def announce_group(self, broker: str, group: str, topics: Iterable[str]) -> None:
        """Have a broker know a group, so that its tools show how far the group is behind. Raises: as ``ask``.

        The group is a member's for a moment: a heartbeat makes it and its retry topic, without which ``mqadmin
        consumerProgress`` finds nothing, then the member leaves, for nothing shall be assigned to it.
        """
        client_id = f"{own_name()}@{os.getpid()}#headrace"
        now_ms = int(time.time() * 1000)
        subscriptions = [
            {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": "*",
                "subVersion": now_ms,
                "tagsSet": [],
                "topic": topic,
            }
            for topic in topics
        ]
        member = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_ACTIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }
        body = fastjson.dumps({"clientID": client_id, "consumerDataSet": [member], "producerDataSet": []})
        self.ask(broker, RequestCode.HEART_BEAT, {}, body)
        self.ask(broker, RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": group})

    def topic_stats(self, broker_address: str, topic: str) -> dict[int, QueueStats]:
        """Return where each queue of a topic begins and ends on one broker. Raises: as ``ask``."""
        response = self.client(broker_address).call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        table = _object(require(response, broker_address).body).get("offsetTable") or {}
        return {
            int(key["queueId"]): QueueStats(
                int(row["minOffset"]), int(row["maxOffset"]), int(row.get("lastUpdateTimestamp", 0))
            )
            for key, row in sorted(table.items(), key=lambda item: int(item[0]["queueId"]))
        }

    def reader_state(self, address: str, body: bytes, *, group: str = "", wait_ms: int = 0) -> dict[str, Any] | None:
        """Return a broker's READER_STATE, None when the broker has none (RocketMQ). Raises: as ``ask``.

        Args:
            body: The request's JSON: docs/protocols/extensions.md.
            wait_ms: How long it may wait for something new, 0 to 500.
        """
        ext = {"group": group, "waitMs": str(wait_ms)}
        response = self.client(address).call(RequestCode.READER_STATE, ext, body)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        return _object(require(response, address).body)

    def _offset(self, broker: str, code: int, topic: str, queue_id: int, more: Mapping[str, str] | None = None) -> int:
        return int(self.ask(broker, code, {**_queue(topic, queue_id), **(more or {})}).ext["offset"])


def require(response: Command, address: str) -> Command:
    """Return a response that is a success.

    Raises:
        RemotingRefusedError: it is none.
    """
    if response.code != ResponseCode.SUCCESS:
        raise RemotingRefusedError(response.code, response.remark, address)
    return response


def _require_registry(response: Command, address: str) -> Command:
    """Return a registry's success. Raises: as ``require``; of what is no registry it says so."""
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        remark = f"{response.remark.strip()}; it is no registry but perhaps a broker: name a registry, host:9876"
        raise RemotingRefusedError(response.code, remark, address)
    return require(response, address)


def _is_success(response: Command) -> bool:
    return response.code == ResponseCode.SUCCESS


def _masters(response: Command) -> dict[str, str]:
    """Return address by name of the masters that an answer about the cluster has, none where it is a refusal."""
    if not _is_success(response):
        return {}
    table = _object(response.body).get("brokerAddrTable") or {}
    found = {str(name): _addresses(row).get(MASTER, "") for name, row in table.items()}
    return {name: address for name, address in sorted(found.items()) if address}


def _queue(topic: str, queue_id: int) -> dict[str, str]:
    return {"topic": topic, "queueId": str(queue_id)}


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds.

    Raises:
        ClientError: it holds none.
    """
    try:
        value = fastjson.loads(body)
    except ValueError as error:
        raise ClientError(f"a server answered with what is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ClientError("a server answered with JSON that is no object")
    return value


def _addresses(row: Mapping[str, Any]) -> dict[int, str]:
    return {int(number): str(address) for number, address in sorted((row.get("brokerAddrs") or {}).items())}
