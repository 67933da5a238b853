"""A node pushes what its settings say, while it serves; one without a statsd does nothing of the kind (nsq.md 6.1)."""

from __future__ import annotations

import re
import urllib.request

from headrace import testing
from tests.support.statsd import FakeStatsd
from tests.support.waiting import until


def post(address: str, target: str, body: bytes = b"") -> None:
    request = urllib.request.Request(f"http://{address}{target}", body, method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def statsd_metrics(admin: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
        lines = re.findall(r"^headrace_nsq_statsd_(\S+) (\S+)$", answer.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_a_node_pushes_as_the_settings_say() -> None:
    """C-LIFE-09: from whatever protocol and tool the figures come; a topic that is made again counts anew."""
    with FakeStatsd() as statsd:
        options = {"nsq__broadcast_address": "told.example", "nsq__broadcast_http_port": 14151}
        with testing.broker(nsq__statsd_address=statsd.address, nsq__statsd_interval_ms="1s", **options) as broker:
            post(broker.nsq_http, "/mpub?topic=t", b"one\ntwo\nthree")
            post(broker.nsq_http, "/channel/create?topic=t&channel=c")
            counters, gauges = statsd.figures.counters, statsd.figures.gauges
            key = "nsq.told_example_14151.topic.t.message_count"
            until(lambda: statsd.receive() and counters[key] == 3)
            until(lambda: statsd.receive() and gauges["nsq.told_example_14151.topic.t.channel.c.depth"] == 3)
            assert gauges["nsq.told_example_14151.mem.heap_objects"] > 0
            post(broker.nsq_http, "/topic/delete?topic=t")
            post(broker.nsq_http, "/mpub?topic=t", b"1\n2\n3\n4\n5")
            until(lambda: statsd.receive() and counters[key] == 8)
            metrics = until(lambda: found if (found := statsd_metrics(broker.admin))["pushes_total"] >= 2 else None)
            assert metrics["packets_total"] >= 4
            assert metrics["skipped_pushes_total"] <= 1
        statsd.receive()
        assert counters[key] == 8


def test_without_a_statsd_there_is_nothing_of_it() -> None:
    """No task, no listener, no metric; nor where NSQ, whose figures they are, is not served."""
    with testing.broker() as broker:
        assert statsd_metrics(broker.admin) == {}
    with testing.broker(nsq__enabled=False, nsq__statsd_address="127.0.0.1:9") as broker:
        assert statsd_metrics(broker.admin) == {}
