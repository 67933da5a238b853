"""Connections to brokers and registries that a thread keeps: Spark's workers live longer than their tasks.

Each thread has its own: a driver may run jobs beside each other, and a ``Cluster`` is for one thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.remoting.blocking import Cluster

if TYPE_CHECKING:
    from headrace.spark.scan import ServersSource

WINDOW: Final = 4
"""Requests ahead of the answer that is being decoded."""


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
