"""Requests of bulk readers, which only Headrace answers. Ref: docs/protocols/extensions.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.remoting.codes import RequestCode

if TYPE_CHECKING:
    from headrace.remoting.blocking.connection import Request


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
