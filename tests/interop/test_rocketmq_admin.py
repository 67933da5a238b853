"""The unmodified mqadmin of RocketMQ 4.9.7 and 5.5.0 against a cluster of two Headrace brokers.

``rocketmq_admin`` has the commands and what each must print; the patterns hold for a real 4.9.7 broker too.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import pytest

from headrace import testing
from tests.interop.nsq_peers import running
from tests.interop.rocketmq_admin import STEPS
from tests.interop.rocketmq_peers import (
    Admin,
    Agent,
    Cluster,
    headrace,
    mqadmin,
    mqadmin_command,
)
from tests.support.registries import ask
from tests.support.remoting import RemotingSocket, as_json, consumer_data, send_fields, subscription
from tests.support.waiting import until

VERSIONS = ["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)]


@dataclass
class Situation:
    """Two brokers, a topic with messages, a group that has consumed them and is online."""

    cluster: Cluster
    agent: Agent
    words: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def situation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Situation]:
    folder = tmp_path_factory.mktemp("rocketmq-admin")
    first = ("--broker.name=broker-a", "--remoting.cluster=C1", "--store.durability=async")
    with headrace(folder / "a", *first) as a:
        second = ("--broker.name=broker-b", "--remoting.cluster=C1", "--registry.enabled=false")
        with headrace(folder / "b", *second, f"--broker.registries={a.namesrv}"):
            agent = Agent("4.9.8", a.namesrv, folder)
            agent.ask("producer", id="p", group="AdminProducer")
            agent.ask("create-topic", id="p", topic="AdminMessages", queues=4)
            agent.ask("consumer", id="c", group="AdminConsumer", topic="AdminMessages", instance="admin-test")
            sent = agent.ask("send", id="p", topic="AdminMessages", count=16, keys="akey")
            agent.received("c", 16)
            time.sleep(6)  # the client reports its offsets every 5 s
            on_a = next(result for result in sent if result["broker"] == "broker-a")
            words = {
                "namesrv": a.namesrv,
                "broker": a.broker,
                "broker_name": "broker-a",
                "cluster": "C1",
                "topic": "AdminMessages",
                "group": "AdminConsumer",
                "producer": "AdminProducer",
                "client": "",
                "msg_id": on_a["offsetMsgId"],
                "unique_key": on_a["msgId"],
                "key": "akey",
                "folder": str(folder / "export"),
            }
            yield Situation(a, agent, words, folder)
            agent.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_mqadmin_command_prints_what_it_must(situation: Situation, version: str) -> None:
    """A-CLI, A-BROKER-01, A-BROKER-06, A-BROKER-12, A-BROKER-52; spec/remoting.md 4.9."""
    admin = Admin(version, situation.folder)
    failed = []
    try:
        online = admin.run("consumerConnection", "-n", situation.words["namesrv"], "-g", "AdminConsumer")
        client = re.search(r"\S+admin-test\S*", online)
        assert client, online
        # A Java client that was told to reset its offsets, by the other version's run, answers no broker for 10 s.
        status = ("consumerStatus", "-n", situation.words["namesrv"], "-g", "AdminConsumer")
        until(lambda: client.group(0) in admin.run(*status), seconds=30)
        words = {**situation.words, "client": client.group(0)}
        patterns = {name: re.escape(value) for name, value in words.items()}
        for step in STEPS:
            if version not in step.versions:
                continue
            line = step.line.format(**words)
            try:
                printed = admin.run(*line.split(), seconds=30)
            except Empty:
                failed.append(f"{line}\n  no end within 30 s")
                admin.close()
                admin = Admin(version, situation.folder)
                continue
            if (
                not re.search(step.expect.format(**patterns), printed)
                or ("SubCommandException" in printed) != step.refused
            ):
                failed.append(f"{line}\n  wanted {step.expect}\n  printed {printed[:1500]}")
    finally:
        admin.close()
    assert not failed, f"{len(failed)} commands\n" + "\n".join(failed)


@pytest.mark.parametrize("version", VERSIONS)
def test_cluster_rt_measures_every_broker(situation: Situation, version: str) -> None:
    """clusterRT sends to the topic that has the broker's name, for ever: it is stopped when it has printed."""
    words = situation.words
    log = situation.folder / f"cluster-rt-{version}.log"
    command = mqadmin_command(
        version, situation.folder, "clusterRT", "-n", words["namesrv"], "-a", "2", "-s", "100", "-i", "1"
    )
    with running(command.words, log, env=command.environment, cwd=command.home, stdin=subprocess.DEVNULL):
        until(lambda: re.search(r"C1\s+broker-a\s+[\d.]+\s+2\s+0", log.read_text()), 40)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lag_in_the_metrics_is_what_consumer_progress_tells(tmp_path: Path, version: str) -> None:
    """docs/metrics.md: of all queues of a topic, also of those where the group has committed nothing."""
    with testing.broker() as broker, RemotingSocket(broker.remoting) as client:
        for number in range(10):
            assert client.call(310, send_fields("orders", queue_id=number % 4), b"one")[0]["code"] == 0
        joins = {"clientID": "one", "consumerDataSet": [consumer_data("billing", subscription("orders"))]}
        assert client.call(34, None, as_json(joins | {"producerDataSet": []}))[0]["code"] == 0
        for queue_id, offset in ((0, 1), (1, 3)):
            fields = {"consumerGroup": "billing", "topic": "orders", "queueId": queue_id, "commitOffset": offset}
            assert client.call(15, fields)[0]["code"] == 0
        printed = mqadmin(version, tmp_path, "consumerProgress", "-n", broker.registry, "-g", "billing")
        metrics = ask(broker.admin, "/metrics")[1]
    told = re.search(r"Diff Total: (\d+)", printed)
    assert told is not None, printed
    assert int(told[1]) == 6
    assert 'headrace_broker_group_lag_messages{group="billing",topic="orders"} 6.0\n' in metrics
