"""Rows of ``/stats`` as lines for statsd, ``key:value|c`` or ``|g``, under nsqd's keys and in its order.

A counter's line has what it rose by since the line before: all of it the first time, and after it began anew. Whoever
deletes a topic or channel says so (``forget``), or one of that name that is made again, and has counted further than
the former, would seem to go on from there.

Ref: nsq.md 6.1; nsqd 1.3.0, nsqd/statsd.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.net.address import format_address

Row = Mapping[str, Any]

COUNTER: Final = "c"
GAUGE: Final = "g"

Figures = tuple[tuple[str, str, str], ...]
"""For each line: the end of its key, the field of the row, and the kind."""

TOPIC_FIGURES: Final[Figures] = (
    ("message_count", "message_count", COUNTER),
    ("message_bytes", "message_bytes", COUNTER),
    ("depth", "depth", GAUGE),
    ("backend_depth", "backend_depth", GAUGE),
)
CHANNEL_FIGURES: Final[Figures] = (
    ("message_count", "message_count", COUNTER),
    ("depth", "depth", GAUGE),
    ("backend_depth", "backend_depth", GAUGE),
    ("in_flight_count", "in_flight_count", GAUGE),
    ("deferred_count", "deferred_count", GAUGE),
    ("requeue_count", "requeue_count", COUNTER),
    ("timeout_count", "timeout_count", COUNTER),
    ("clients", "client_count", GAUGE),
)
MEMORY_FIGURES: Final[Figures] = (
    ("heap_objects", "heap_objects", GAUGE),
    ("heap_idle_bytes", "heap_idle_bytes", GAUGE),
    ("heap_in_use_bytes", "heap_in_use_bytes", GAUGE),
    ("heap_released_bytes", "heap_released_bytes", GAUGE),
    ("gc_pause_usec_100", "gc_pause_usec_100", GAUGE),
    ("gc_pause_usec_99", "gc_pause_usec_99", GAUGE),
    ("gc_pause_usec_95", "gc_pause_usec_95", GAUGE),
    ("next_gc_bytes", "next_gc_bytes", GAUGE),
    ("gc_runs", "gc_total_runs", COUNTER),
)


def expand_prefix(setting: str, host: str, http_port: int) -> str:
    """Return what every key begins with: ``nsq.%s`` becomes ``nsq.host_example_4151.``, an empty text stays empty.

    Args:
        setting: Where ``%s`` stands for the node.
        host: By which nsqadmin and others know the node, with ``http_port``.
    """
    if not setting:
        return ""
    node = format_address((host, http_port)).replace(".", "_").replace(":", "_")
    expanded = setting.replace("%s", node)
    return expanded if expanded.endswith(".") else f"{expanded}."


class Lines:
    """Makes lines of rows, and knows what each counter was."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        # By topic, then channel ("" = the topic itself): counters in the order of their lines.
        self._before: dict[str, dict[str, list[int]]] = {}
        self._memory_before: dict[str, list[int]] = {}

    def of_topic(self, row: Row) -> list[bytes]:
        """Return the lines of a topic, without those of its channels."""
        name = row["topic_name"]
        before = self._before.setdefault(name, {})
        return self._lines(f"{self._prefix}topic.{name}.", row, TOPIC_FIGURES, before, "")

    def of_channel(self, topic: str, row: Row) -> list[bytes]:
        """Return the lines of a topic's channel."""
        name = row["channel_name"]
        before = self._before.setdefault(topic, {})
        return self._lines(f"{self._prefix}topic.{topic}.channel.{name}.", row, CHANNEL_FIGURES, before, name)

    def of_memory(self, row: Row) -> list[bytes]:
        """Return the lines of the process's memory."""
        return self._lines(f"{self._prefix}mem.", row, MEMORY_FIGURES, self._memory_before, "")

    def forget(self, topic: str, channel: str = "") -> None:
        """Note that a topic is gone with all its channels, or one of them: the next one of that name counts anew."""
        if channel:
            self._before.get(topic, {}).pop(channel, None)
        else:
            self._before.pop(topic, None)

    @staticmethod
    def _lines(stem: str, row: Row, figures: Figures, before: dict[str, list[int]], name: str) -> list[bytes]:
        former = before.get(name) or [0] * len(figures)
        counters: list[int] = []
        lines = []
        for key, field, kind in figures:
            value = row[field]
            if kind == COUNTER:
                counters.append(value)
                risen = value - former[len(counters) - 1]
                value = value if risen < 0 else risen  # it began anew
            lines.append(f"{stem}{key}:{value}|{kind}\n".encode())
        before[name] = counters
        return lines
