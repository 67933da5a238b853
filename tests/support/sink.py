"""What tests of the Spark sink share: rows as Arrow, schemas without Spark, and what a topic holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from headrace.errors import RouteNotFoundError
from headrace.remoting.blocking import Cluster
from tests.support.records import decode_messages

GROUP = "sink_tests"


def schema(**columns: str) -> Any:
    """A Spark schema as far as the sink looks at it: name -> Spark's short name of the type."""
    return SimpleNamespace(
        fields=[
            SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind), metadata={})
            for name, kind in columns.items()
        ]
    )


def read_topic(registry: str, topic: str) -> list[dict[str, Any]]:
    """Return every message of a topic, queue by queue, each in its order; none while no registry knows the topic."""
    found: list[dict[str, Any]] = []
    with Cluster(registry) as cluster:
        try:
            route = cluster.route(topic)
        except RouteNotFoundError:
            return found
        for queue in route.queues:
            for queue_id in range(queue.read_queues):
                found += read_queue(cluster, queue.broker, topic, queue_id)
    return found


def read_queue(cluster: Cluster, broker: str, topic: str, queue_id: int) -> Iterator[dict[str, Any]]:
    """Yield the messages of one queue."""
    offset, end = cluster.min_offset(broker, topic, queue_id), cluster.max_offset(broker, topic, queue_id)
    while offset < end:
        pulled = cluster.pull(broker, GROUP, topic, queue_id, offset, 1024)
        yield from decode_messages(pulled.records)
        offset = pulled.next_offset


def bodies(registry: str, topic: str) -> Counter[str]:
    """Return how often each body is in a topic."""
    return Counter(message["body"].decode() for message in read_topic(registry, topic))
