"""Lines for statsd: nsqd's keys, counters as differences (nsq.md 6.1)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.nsq.stats import memory_row
from headrace.nsq.statsd.lines import Lines, expand_prefix
from headrace.settings.validate import LONGEST_STATSD_LINE


def topic(name: str = "t", **figures: int) -> dict[str, Any]:
    row = {"topic_name": name, "message_count": 0, "message_bytes": 0, "depth": 0, "backend_depth": 0}
    return {**row, **figures}


def channel(name: str = "c", **figures: int) -> dict[str, Any]:
    counts = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "requeue_count")
    return {"channel_name": name, **dict.fromkeys((*counts, "timeout_count", "client_count"), 0), **figures}


def test_every_line_of_a_topic() -> None:
    """C-LIFE-09; nsq.md 6.1: the keys, which are counters and which are gauges, and nsqd's order."""
    lines = Lines("nsq.h_4151.")
    row = topic("a.b#ephemeral", message_count=1, message_bytes=2, depth=3, backend_depth=4)
    assert lines.of_topic(row) == [
        b"nsq.h_4151.topic.a.b#ephemeral.message_count:1|c\n",
        b"nsq.h_4151.topic.a.b#ephemeral.message_bytes:2|c\n",
        b"nsq.h_4151.topic.a.b#ephemeral.depth:3|g\n",
        b"nsq.h_4151.topic.a.b#ephemeral.backend_depth:4|g\n",
    ]


def test_every_line_of_a_channel() -> None:
    """C-LIFE-09; nsq.md 6.1: ``clients`` is what /stats calls ``client_count``."""
    row = channel(
        "c.d",
        message_count=1,
        depth=2,
        backend_depth=3,
        in_flight_count=4,
        deferred_count=5,
        requeue_count=6,
        timeout_count=7,
        client_count=8,
    )
    assert Lines("").of_channel("t", row) == [
        b"topic.t.channel.c.d.message_count:1|c\n",
        b"topic.t.channel.c.d.depth:2|g\n",
        b"topic.t.channel.c.d.backend_depth:3|g\n",
        b"topic.t.channel.c.d.in_flight_count:4|g\n",
        b"topic.t.channel.c.d.deferred_count:5|g\n",
        b"topic.t.channel.c.d.requeue_count:6|c\n",
        b"topic.t.channel.c.d.timeout_count:7|c\n",
        b"topic.t.channel.c.d.clients:8|g\n",
    ]


def test_every_line_of_the_memory() -> None:
    """nsq.md 6.1: what /stats has, with ``gc_runs`` for ``gc_total_runs``, the one counter."""
    lines = Lines("p.")
    row = {**memory_row(), "gc_total_runs": 7}
    keys = [line.split(b":")[0].decode() for line in lines.of_memory(row)]
    assert keys == [
        *("p.mem.heap_objects", "p.mem.heap_idle_bytes", "p.mem.heap_in_use_bytes", "p.mem.heap_released_bytes"),
        *("p.mem.gc_pause_usec_100", "p.mem.gc_pause_usec_99", "p.mem.gc_pause_usec_95", "p.mem.next_gc_bytes"),
        "p.mem.gc_runs",
    ]
    assert lines.of_memory({**row, "gc_total_runs": 9})[-1] == b"p.mem.gc_runs:2|c\n"
    heap = lines.of_memory({**row, "heap_objects": 5})[0]
    assert heap == b"p.mem.heap_objects:5|g\n"


def counters_of(lines: Lines, **figures: int) -> list[int]:
    """Return what the counters' lines of a channel say."""
    found = [line for line in lines.of_channel("t", channel("c", **figures)) if line.endswith(b"|c\n")]
    return [int(line.partition(b":")[2].removesuffix(b"|c\n")) for line in found]


def test_counters_say_what_they_rose_by() -> None:
    """Everything the first time, then since the time before; one that went back began anew."""
    lines = Lines("")
    assert counters_of(lines, message_count=10, requeue_count=2, timeout_count=1) == [10, 2, 1]
    assert counters_of(lines, message_count=10, requeue_count=5, timeout_count=1) == [0, 3, 0]
    assert counters_of(lines, message_count=4, requeue_count=6, timeout_count=0) == [4, 1, 0]
    assert counters_of(lines, message_count=6, requeue_count=6, timeout_count=3) == [2, 0, 3]


def test_what_is_made_again_counts_anew() -> None:
    """Also one that has counted further than the former of its name; nsqd would say the difference."""
    lines = Lines("")
    assert lines.of_topic(topic(message_count=10))[0].endswith(b":10|c\n")
    assert counters_of(lines, message_count=10) == [10, 0, 0]
    lines.of_channel("t", channel("other", message_count=5))
    lines.forget("t", "c")
    assert counters_of(lines, message_count=12) == [12, 0, 0]
    assert lines.of_topic(topic(message_count=15))[0].endswith(b":5|c\n")
    lines.forget("t")
    assert counters_of(lines, message_count=13) == [13, 0, 0]
    assert lines.of_topic(topic(message_count=20))[0].endswith(b":20|c\n")
    assert lines.of_channel("t", channel("other", message_count=6))[0].endswith(b":6|c\n")
    for never_seen in (("x",), ("x", "c"), ("t", "x")):
        lines.forget(*never_seen)


@pytest.mark.parametrize(
    ("setting", "host", "prefix"),
    [
        ("nsq.%s", "host.example", "nsq.host_example_4151."),
        ("nsq.%s.", "127.0.0.1", "nsq.127_0_0_1_4151."),
        ("%s", "host", "host_4151."),
        ("a.%s.%s", "h", "a.h_4151.h_4151."),
        ("nsq.%s", "::1", "nsq.[__1]_4151."),
        ("plain", "host", "plain."),
        ("", "host", ""),
    ],
)
def test_prefixes(setting: str, host: str, prefix: str) -> None:
    """nsqd 1.3.0, nsqd.go and internal/statsd/host.go: dots and colons of the node alone, and a dot at the end."""
    assert expand_prefix(setting, host, 4151) == prefix


def test_no_line_is_longer_than_the_settings_take_it_to_be() -> None:
    """Names have at most 64 characters, numbers 64 bits."""
    name, most = "n" * 64, -(1 << 63)
    lines = Lines("")
    of_channel = channel(name, message_count=most, requeue_count=most, timeout_count=most, in_flight_count=most)
    rows = [*lines.of_topic(topic(name, message_bytes=most)), *lines.of_channel(name, of_channel)]
    assert max(map(len, rows)) == LONGEST_STATSD_LINE
    assert max(map(len, lines.of_memory({**memory_row(), "heap_released_bytes": most}))) < LONGEST_STATSD_LINE
