"""Unmodified clients (Java 4.9.8, 5.5.0 and 3.2.6, Go v2.1.2) see of Headrace what they see of a real RocketMQ 4.9.7.

``rocketmq_scenarios`` has the steps. What the clients saw of the real broker is in ``rocketmq_recorded.json``:
``python -m tests.interop.record_rocketmq`` makes it anew, and with ``--compare`` (make test-all) says what has changed.
``DIFFERENCES`` is the list of what is otherwise with us, each with its reason.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rocketmq_peers import Agent, Cluster, headrace
from tests.interop.rocketmq_scenarios import HEADRACE_FLAGS, SCENARIOS, cases

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("rocketmq_recorded.json").read_text())

DIFFERENCES = {
    "5.5.0/lite_pull": "its request code 361 is younger than RocketMQ 4.9, where it gets nothing; here it works",
}
"""``version/scenario``: why Headrace's outcome is another one than RocketMQ's."""


def topic_of(name: str, version: str) -> str:
    """Return a topic of the scenario's own."""
    return f"{name[:40]}_{version.replace('.', '')}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with headrace(tmp_path_factory.mktemp("rocketmq-java"), *HEADRACE_FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def agents(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Agent]]:
    """One client process for each version; a test that breaks it gets the next one a new one."""
    started: dict[str, Agent] = {}

    def of(version: str) -> Agent:
        agent = started.get(version)
        if agent is None or agent.process.poll() is not None:
            agent = started[version] = Agent(version, cluster.namesrv, tmp_path_factory.mktemp(f"agent-{version}"))
            agent.lock_seconds = 60  # on a busy machine a member leaves without giving its locks back
        return agent

    yield of
    for agent in started.values():
        agent.close()


@pytest.mark.parametrize(("version", "name"), cases())
def test_client_sees_what_it_sees_of_rocketmq(agents: Callable[[str], Agent], version: str, name: str) -> None:
    """A-CLI, A-BROKER; spec/remoting.md 4 and 5: outcome by outcome equal to RocketMQ 4.9.7."""
    agent = agents(version)
    try:
        outcome = json.loads(json.dumps(SCENARIOS[name](agent, topic_of(name, version))))
    except BaseException:
        with contextlib.suppress(Exception):
            agent.kill()
        raise
    if f"{version}/{name}" not in DIFFERENCES:
        assert outcome == RECORDED[f"{version}/{name}"]


BINARY_SCENARIOS = ("send_sync_and_consume", "send_batch", "pull_and_offsets", "transactions", "request_reply")


@pytest.mark.parametrize("version", ["4.9.8", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_client_with_binary_headers_sees_the_same(tmp_path: Path, version: str) -> None:
    """spec/remoting.md 1.3: a Java client that was told so writes ROCKETMQ headers, and is answered in them."""
    with headrace(tmp_path / "broker", *HEADRACE_FLAGS) as cluster:
        agent = Agent(version, cluster.namesrv, tmp_path, "-Drocketmq.serialize.type=ROCKETMQ")
        try:
            for name in BINARY_SCENARIOS:
                outcome = json.loads(json.dumps(SCENARIOS[name](agent, topic_of(name, version))))
                assert outcome == RECORDED[f"{version}/{name}"], name
        finally:
            agent.close()
