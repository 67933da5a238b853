"""Connections to brokers and registries that a thread keeps: Spark's workers live longer than their tasks.

Each thread has its own: a driver may run jobs beside each other, and a ``Cluster`` is for one thread.
"""

from __future__ import annotations

import atexit
import threading
from typing import Final

from headrace.errors import ConfigError
from headrace.remoting.blocking import Cluster
from headrace.spark.scan import ServersSource

MAX_CLUSTERS: Final = 16
"""Kept by a thread."""
WINDOW: Final = 4
"""Requests ahead of the answer that is being decoded."""


class _Kept(threading.local):
    """The connections of a thread, the longest unused first. Secrets are in the keys: never shown."""

    def __init__(self) -> None:
        self.clusters: dict[tuple[str, str, str, str, int], Cluster] = {}


_kept = _Kept()


def cluster_of(source: ServersSource, *, use: str = "read") -> Cluster:
    """Return this thread's connections to the servers of a source.

    Args:
        use: What they are for: two uses at the same time have connections of their own.

    Raises:
        ConfigError: ``servers`` is no list of addresses.
    """
    key = (use, source.servers, source.access_key, source.secret_key, source.timeout_ms)
    kept = _kept.clusters
    found = kept.pop(key, None)
    if found is None:
        found = new_cluster(source)
        if len(kept) >= MAX_CLUSTERS:
            kept.pop(next(iter(kept))).close()  # whoever still has it connects anew
    kept[key] = found
    found.remember(source.addresses)
    return found


def close_connections() -> None:
    """Close what this thread has kept; whoever asks next connects anew."""
    while _kept.clusters:
        _kept.clusters.popitem()[1].close()


atexit.register(close_connections)  # of the main thread, whose end no job sees


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
        raise ConfigError(f"option servers = {source.servers!r} is not accepted: {error}", key="servers") from error
