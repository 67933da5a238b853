"""The RocketMQ protocol for programs without an event loop: what Spark workers, jobs and tools talk to brokers with.

``BlockingClient`` is one connection, ``Cluster`` the brokers behind some registries; both work against Headrace and
against RocketMQ 4.9 and 5.x. ``read_log_request`` and ``read_queue_request`` build what only Headrace answers, for
``BlockingClient.call_many``. Ref: docs/protocols/extensions.md.
"""

from __future__ import annotations

from typing import Final

from headrace.remoting.blocking.cluster import MASTER as MASTER
from headrace.remoting.blocking.cluster import Cluster as Cluster
from headrace.remoting.blocking.cluster import Pulled as Pulled
from headrace.remoting.blocking.cluster import QueueData as QueueData
from headrace.remoting.blocking.cluster import QueueStats as QueueStats
from headrace.remoting.blocking.cluster import Route as Route
from headrace.remoting.blocking.cluster import require as require
from headrace.remoting.blocking.connection import BlockingClient as BlockingClient
from headrace.remoting.blocking.connection import Request as Request
from headrace.remoting.codes import RequestCode

MAX_READ_BYTES: Final = 8 << 20
"""What one READ_LOG or READ_QUEUE is answered with at most."""


def read_log_request(offset: int, max_bytes: int, *, group: str = "", broker: str = "") -> Request:
    """Return the request for the commit log's bytes from a physical offset on; ``broker``: whose, where that counts."""
    ext = {"group": group, "offset": str(offset), "maxBytes": str(max_bytes)}
    if broker:
        ext["broker"] = broker
    return int(RequestCode.READ_LOG), ext, b""


def read_queue_request(
    topic: str,
    queue_id: int,
    offset: int,
    end_offset: int,
    max_bytes: int,
    *,
    group: str = "",
    tags: str = "",
    max_messages: int = 65_536,
    broker: str = "",
) -> Request:
    """Return the request for the records of a queue from ``offset`` up to ``end_offset``, exclusive.

    Args:
        broker: Whose queue it is: another one at the address then refuses.
    """
    ext = {
        "group": group,
        "topic": topic,
        "queueId": str(queue_id),
        "offset": str(offset),
        "endOffset": str(end_offset),
        "maxBytes": str(max_bytes),
        "maxMessages": str(max_messages),
    }
    if tags:
        ext["tags"] = tags
    if broker:
        ext["broker"] = broker
    return int(RequestCode.READ_QUEUE), ext, b""
