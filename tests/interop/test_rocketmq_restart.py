"""A broker is killed and started again at the same address, under unmodified clients that go on.

How long clients take to catch up is printed (pytest -s).
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest

from tests.interop.rocketmq_cluster import Traffic, broker, make_topic, registry
from tests.interop.rocketmq_peers import Agent
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TOPIC = "RestartTopic"
VERSIONS = ("4.9.8", "5.5.0", "go")
CATCH_UP_SECONDS = 45
"""A pull that a broker held when it died is given up by its client after 30 s, whoever the broker was."""


def test_broker_is_killed_under_running_clients(tmp_path: Path) -> None:
    """kill -9, same address: producers and consumers of three clients go on; what was acknowledged comes."""
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(registry(tmp_path / "registry"))
        server = stack.enter_context(broker(tmp_path / "b", "broker-a", names.address))
        agents = [Agent(version, names.address, tmp_path) for version in VERSIONS]
        make_topic(agents[0], TOPIC, brokers=1)
        clients = [Traffic(agent, TOPIC) for agent in agents]
        for traffic in clients:
            stack.callback(traffic.close)
            traffic.start()
        until(lambda: all(len(traffic.received) > 20 for traffic in clients), 30)
        for _ in range(2):
            server.kill()
            time.sleep(1.0)
            server.start()
            began = time.monotonic()
            until(lambda at=began: all(max(t.acknowledged.values()) > at for t in clients), 45)  # type: ignore[misc]
            sys.stderr.write(f"\nsends go on {time.monotonic() - began:.1f} s after the start\n")
        for traffic in clients:
            traffic.stop_sending()
        began = time.monotonic()
        waiting = list(clients)
        while waiting and time.monotonic() < began + CATCH_UP_SECONDS:
            for traffic in [traffic for traffic in waiting if not traffic.missing]:
                waiting.remove(traffic)
                version, seconds = traffic.agent.version, time.monotonic() - began
                sys.stderr.write(f"{version} has got all {len(traffic.acknowledged)} after {seconds:.1f} s\n")
            time.sleep(0.05)
        assert not waiting, {traffic.agent.version: traffic.missing for traffic in waiting}
