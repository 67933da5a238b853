"""Clusters: unmodified clients go on while a broker and a registry are killed and come back, and nothing is lost.

3 brokers x 2 registries, one of each killed; the measured gap is printed (pytest -s). So is what the registry that came
back told meanwhile: a client that stands still although no live broker was missing there does so by itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest

from tests.interop.rocketmq_cluster import RouteWatch, Traffic, broker, make_topic, registry
from tests.interop.rocketmq_peers import Agent
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TOPIC = "ClusterTopic"
VERSIONS = ("4.9.8", "5.5.0", "go")
WARM_SECONDS = 4
DEAD_SECONDS = 35
"""Longer than a client keeps a route: it has to find the broker again."""
REFRESH_SECONDS = 30
"""Clients ask for routes so often; until then they know nothing of a broker that came back."""


def test_three_brokers_two_registries_and_one_of_each_killed(tmp_path: Path) -> None:
    """A-BROKER-02, A-CLI-11, A-GOAL-06: every acknowledged message is consumed; sends go on at the other brokers."""
    with contextlib.ExitStack() as stack:
        registries = [stack.enter_context(registry(tmp_path / f"registry{n}")) for n in range(2)]
        addresses = ",".join(server.address for server in registries)
        brokers = [stack.enter_context(broker(tmp_path / f"b{n}", f"broker-{n}", addresses)) for n in range(3)]
        namesrv = addresses.replace(",", ";")
        agents = [Agent(version, namesrv, tmp_path) for version in VERSIONS]
        make_topic(agents[0], TOPIC, brokers=3)
        clients = [Traffic(agent, TOPIC) for agent in agents]
        for traffic in clients:
            stack.callback(traffic.close)
            traffic.start()
        time.sleep(WARM_SECONDS)
        for traffic in clients:
            assert len(traffic.brokers) == 3, (traffic.agent.version, traffic.brokers)
        killed_at = time.monotonic()
        registries[0].kill()
        brokers[1].kill()
        time.sleep(DEAD_SECONDS)
        registries[0].start()
        watch = RouteWatch(registries[0].address, TOPIC)
        stack.callback(watch.close)
        brokers[1].start()
        back_at = time.monotonic()
        for traffic in clients:
            traffic.brokers.clear()
        until(lambda: all(len(traffic.brokers) == 3 for traffic in clients), REFRESH_SECONDS + 10)
        routed_at = time.monotonic()
        for traffic in clients:
            traffic.stop_sending()
        until(lambda: not any(traffic.missing for traffic in clients), REFRESH_SECONDS)
        sys.stderr.write(f"\nbroker and registry dead for {back_at - killed_at:.1f} s, "
                         f"used by every producer {routed_at - back_at:.1f} s after its start\n")  # fmt: skip
        sys.stderr.write(f"told by the registry that came back: {watch.summary(registries[0].started_at)}\n")
        for _, told in watch.answers:
            assert told >= {"broker-0", "broker-2"}, "it told clients that a live broker is gone"
        for traffic in clients:
            gap = traffic.sending_gap(killed_at, routed_at)
            heard = traffic.receiving_gap(killed_at, routed_at)
            sys.stderr.write(
                f"{traffic.agent.version:6} {len(traffic.acknowledged)} acknowledged, {len(traffic.failures)} failed "
                f"{sorted({text[:90] for _, text in traffic.failures})[:3]}, longest gap of sends {gap:.2f} s, "
                f"of messages {heard:.2f} s\n"
            )
            assert gap < 10
            assert heard < 10
