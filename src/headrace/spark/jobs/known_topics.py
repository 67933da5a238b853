"""Whether topics that a job is told to read exist, in a store's folder or on brokers."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from headrace.spark.jobs.config import require_known_topics

if TYPE_CHECKING:
    from headrace.spark.scan import ServersSource, StoreSource

    Source = StoreSource | ServersSource


def require_topics(source: Source, topics: Sequence[str], also: Collection[str] = ()) -> None:
    """Refuse topics that do not exist, of which a job would find nothing and say no more than that.

    Args:
        also: Topics that are known from elsewhere, as those of an archive beside the log.

    Raises:
        ConfigError: there is no such topic, with the nearest one.
        ClientError: the brokers do not answer.
        StoreError: there is no store.
    """
    topics = [topic for topic in topics if topic not in also]
    if not topics:
        return
    from headrace.spark.scan import StoreSource  # noqa: PLC0415  # needs pyarrow

    known = source.files().topics() if isinstance(source, StoreSource) else ask_topics(source, topics)
    if known is not None:
        require_known_topics(topics, {*known, *also})


def ask_topics(source: ServersSource, topics: Sequence[str]) -> list[str]:
    """Return the ordinary topics of all brokers, and those of ``topics`` that one of them has.

    The registries learn of a new topic some seconds after its broker, so the brokers are asked.
    """
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # needs pyarrow

    cluster = cluster_of(source)
    known: set[str] = set()
    for address in cluster.brokers().values():
        for wanted in (None, sorted(topics)):
            body = json.dumps({"topics": wanted, "log": False}).encode()
            state = cluster.reader_state(address, body, group="", wait_ms=0)
            if state is not None:
                known |= state["topics"].keys()
    return sorted(known)
