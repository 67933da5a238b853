"""Which queue a row goes to: a pure function of the topic's route, the partition, the epoch and the row.

The queues of a topic on all its brokers are put in one order: by queue id, then by the broker's name. A row goes

- with a ``queue_id``: to that queue, on the broker that this id falls to, the same one for every task;
- with a ``sharding_key``: to the queue whose index is the key's hash modulo their number;
- else, where rows are known by their unique keys and there are several brokers: to the queue whose index is that key's
  hash modulo their number, since only the broker that has a key knows it, whatever partition the row is in next time;
- else: to the queue whose index is partition + epoch modulo their number, all such rows of a partition to the same one.

So a partition that is written again sends each row where it went before, as long as the route is the same; that is what
lets a broker know its duplicates. Brokers without a master stay in the order for that reason: rows for them fail, and
are tried again, rather than go elsewhere.

Ref: docs/spark/sink.md, "Where rows go".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.errors import ConfigError, ConnectionLostError, RequestTimeoutError, RouteNotFoundError
from headrace.format.names import MAX_TOPIC_BYTES, RESERVED_PREFIX
from headrace.remoting.blocking import MASTER, Cluster, Route
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.spark.errors import REGISTRY
from headrace.spark.retry import insist
from headrace.spark.writing.encode import sharding_hash

logger = logging.getLogger(__name__)

PERM_WRITE: Final = 2
VALID_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
TEMPLATE_TOPICS: Final = ("TBW102", "DEFAULT_TOPIC")
"""What a broker makes topics from that do not exist, registered only where it may; in the order that they are tried."""
NEW_TOPIC_QUEUES: Final = 4
"""Queues that a producer asks for when its topic does not exist; a template with fewer wins."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The writable queues of a topic, in the order that rows are spread by.

    Attributes:
        queues: (broker, queue id), sorted by queue id and broker.
        template: What the first message to each broker makes the topic from; empty when the topic exists.
    """

    topic: str
    queues: tuple[tuple[str, int], ...]
    template: str = ""

    def by_id(self) -> list[int]:
        """Return for each queue id the index of its queue, -1 where there is none."""
        indexes: dict[int, list[int]] = {}
        for index, (_, queue_id) in enumerate(self.queues):
            indexes.setdefault(queue_id, []).append(index)
        return [
            indexes[queue_id][queue_id % len(indexes[queue_id])] if queue_id in indexes else -1
            for queue_id in range(max(indexes) + 1)
        ]

    def resolve(self, partition: int, epoch: int, *, is_keyed: bool = False) -> tuple[int, int, list[int]]:
        """Return what an encoder has to know: number of queues, the fixed one (-1: by unique key), and those by id."""
        is_by_key = is_keyed and len({broker for broker, _ in self.queues}) > 1
        return len(self.queues), -1 if is_by_key else (partition + epoch) % len(self.queues), self.by_id()

    def on_broker(self, broker: str) -> TopicRoute:
        """Return the part of the route that lies on one broker.

        Raises:
            ConfigError: the topic has no writable queue there.
        """
        queues = tuple(queue for queue in self.queues if queue[0] == broker)
        if not queues:
            raise ConfigError(
                f"topic {self.topic!r} has no queue to write to on broker {broker!r}, where its transaction is kept: "
                "make the topic there, or write it with semantics=idempotent"
            )
        return TopicRoute(self.topic, queues, self.template)


def plan_route(topic: str, route: Route, *, live_only: bool = False, template: str = "") -> TopicRoute:
    """Put the writable queues of a topic in their order.

    Args:
        route: Of the topic, or of the template.
        live_only: Leave out brokers without a master.
        template: What brokers make the topic from; empty when it exists.

    Raises:
        ConfigError: there is none.
    """
    queues = sorted(
        (queue_id, queue.broker)
        for queue in route.queues
        if queue.perm & PERM_WRITE and not (live_only and MASTER not in route.brokers.get(queue.broker, ()))
        for queue_id in range(min(NEW_TOPIC_QUEUES, queue.write_queues) if template else queue.write_queues)
    )
    if not queues and template:
        raise ConfigError(f"topic {topic!r} does not exist, and no broker may make it")
    if not queues:
        raise ConfigError(
            f"topic {topic!r} has no queue to write to: its permission, its write queues or a lack of masters forbid it"
        )
    return TopicRoute(topic, tuple((broker, queue_id) for queue_id, broker in queues), template)


def find_route(cluster: Cluster, topic: str, retries: int, *, live_only: bool = False) -> TopicRoute:
    """Return the route of a topic, or the one it will have.

    A topic that does not exist comes to be as with other producers: each broker that gets a message for it makes it.

    Raises:
        ConfigError: the name cannot be a topic's, or there is no such topic and none may be made.
        BrokerGoneError: the registries do not answer, or know of no broker.
    """
    require_topic(topic)
    ask = partial(_find_route, cluster, topic, live_only=live_only)
    return insist(cluster, REGISTRY, f"the route of topic {topic!r}", retries, ask)


def _find_route(cluster: Cluster, topic: str, *, live_only: bool) -> TopicRoute:
    try:
        return plan_route(topic, cluster.route(topic), live_only=live_only)
    except RouteNotFoundError:
        pass
    for template in TEMPLATE_TOPICS:
        try:
            found = cluster.route(template)
        except RouteNotFoundError:
            continue
        queues = tuple(queue for queue in found.queues if _makes_topics(cluster, found, queue.broker))
        if queues:
            return plan_route(topic, Route(found.brokers, queues), template=template)
    if not cluster.brokers():
        # As while the only one restarts: its topics come back with it.
        raise RouteNotFoundError("any broker", ";".join(cluster.servers))
    raise ConfigError(
        f"topic {topic!r} does not exist, and no broker of {';'.join(cluster.servers)} makes topics by itself "
        "(remoting.auto_create_topics): create it first",
        key="topic",
    )


def _makes_topics(cluster: Cluster, route: Route, broker: str) -> bool:
    """Return whether a broker makes topics by itself, as far as it says: Headrace registers its templates all the same.

    One that is away, or that lets only administrators ask, is believed to.
    """
    address = route.brokers.get(broker, {}).get(MASTER)
    if address is None:
        return True
    try:
        response = cluster.client(address).call(RequestCode.GET_BROKER_CONFIG)
    except (ConnectionLostError, RequestTimeoutError) as error:
        logger.debug("broker not asked whether it makes topics broker=%s error=%s", broker, error)
        return True
    return response.code != ResponseCode.SUCCESS or b"\nautoCreateTopicEnable=false" not in b"\n" + response.body


def home_broker(txn: str, brokers: Iterable[str]) -> str:
    """Return the broker that keeps a transaction: the one with the highest hash of itself and the transaction.

    When a broker comes or goes, only transactions of that broker get another home.

    Raises:
        ConfigError: there is no broker.
    """
    ranked = sorted(brokers, key=lambda name: (sharding_hash(f"{name}\n{txn}".encode()), name))
    if not ranked:
        raise ConfigError("there is no broker to write to")
    return ranked[-1]


def require_topic(topic: str) -> None:
    """Accept the name of a topic.

    Raises:
        ConfigError: it breaks a rule.
    """
    if len(topic) > MAX_TOPIC_BYTES or VALID_TOPIC.fullmatch(topic) is None or topic.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"{topic[:MAX_TOPIC_BYTES]!r} is no name of a topic to write to: 1 to {MAX_TOPIC_BYTES} letters, digits "
            "and any of %|_-, not beginning with %SYS%",
            key="topic",
        )
