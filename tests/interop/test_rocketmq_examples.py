"""The programs of rocketmq-example 4.6.0, unmodified, against Headrace.

Each is told of the registry with ``-Drocketmq.namesrv.addr``; those that name 127.0.0.1:9876 themselves (simple's
PullConsumer and AclClient, namespace, openmessaging) are left out, and 4.6.0 has no schedule example. Programs that
never end are stopped when they have printed what they must.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.nsq_peers import running
from tests.interop.rocketmq_peers import Agent, AgentError, Cluster, headrace
from tests.support.rocketmq_programs import JAVA_PEERS, OPENED
from tests.support.toolchain import cannot_run
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LIB = JAVA_PEERS / "example-4.6.0" / "lib"
RECEIVED = r"Receive New Messages: \["


@dataclass
class Examples:
    """Where the programs run."""

    cluster: Cluster
    folder: Path
    started: int = 0

    @contextlib.contextmanager
    def run(self, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Run one program; give its process and what it prints."""
        if not LIB.is_dir():
            cannot_run(f"{LIB} is missing: run tests/interop/java/build.sh")
        self.started += 1
        home = self.folder / f"{self.started}-{name}"
        home.mkdir()
        command = ["java", *OPENED, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"]
        command += [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}"]
        command += [f"-Drocketmq.namesrv.addr={self.cluster.namesrv}", "-cp", f"{LIB}/*"]
        log = home / "printed.log"
        with running([*command, f"org.apache.rocketmq.example.{name}"], log) as process:
            yield process, log

    def finish(self, name: str, seconds: float = 60.0) -> str:
        """Run a program to its end; return what it printed."""
        with self.run(name) as (process, log):
            assert process.wait(seconds) == 0, log.read_text()
            return log.read_text()

    def wait_for(self, name: str, pattern: str, count: int, seconds: float = 60.0) -> str:
        """Run a program that does not end until it has printed a pattern so often; return what it printed."""
        with self.run(name) as (_, log):
            wait_for(log, pattern, count, seconds)
            return log.read_text()


def wait_for(log: Path, pattern: str, count: int, seconds: float = 60.0) -> None:
    """Wait until a pattern was printed so often."""

    def found() -> bool:
        return len(re.findall(pattern, log.read_text())) >= count

    try:
        until(found, seconds)
    except AssertionError:
        text = log.read_text()
        raise AssertionError(f"{len(re.findall(pattern, text))} of {count} {pattern!r} in {text[-3000:]}") from None


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    folder = tmp_path_factory.mktemp("examples")
    flags = ("--broker.transaction-timeout-ms=1000", "--broker.transaction-check-interval-ms=1000")
    with headrace(folder / "headrace", "--store.durability=async", *flags) as cluster:
        yield Examples(cluster, folder)


@pytest.fixture(scope="module")
def agent(examples: Examples) -> Iterator[Agent]:
    agent = Agent("4.9.8", examples.cluster.namesrv, examples.folder)
    agent.ask("pull-consumer", id="look", group="Look")
    yield agent
    agent.close()


def messages_in(agent: Agent, topic: str, queues: int = 4) -> int:
    """Return how many messages a topic has."""
    found = [agent.ask("offsets", id="look", topic=topic, queue=queue) for queue in range(queues)]
    return sum(offsets["max"] - offsets["min"] for offsets in found)


def test_quickstart_producer(examples: Examples) -> None:
    assert examples.finish("quickstart.Producer").count("SEND_OK") == 1000


@pytest.mark.parametrize(
    ("name", "pattern", "count"),
    [
        ("quickstart.Consumer", RECEIVED, 1000),
        ("simple.PushConsumer", RECEIVED, 1000),
        ("ordermessage.Consumer", RECEIVED, 100),
        ("simple.LitePullConsumerAssign", r"MessageExt \[", 100),
        ("simple.PullScheduleService", "FOUND|NO_NEW_MSG", 4),
    ],
)
def test_every_kind_of_consumer(examples: Examples, name: str, pattern: str, count: int) -> None:
    """A-CLI-07, A-CLI-08: push, orderly, lite pull and scheduled pull read what the quickstart producer sent."""
    examples.wait_for(name, pattern, count)


def test_broadcast(examples: Examples) -> None:
    """A-CLI-09, E-TERM-08: each of two gets what comes."""
    with examples.run("broadcast.PushConsumer") as (_, one), examples.run("broadcast.PushConsumer") as (_, other):
        wait_for(one, "Started", 1)
        wait_for(other, "Started", 1)
        assert examples.finish("simple.Producer").count("SEND_OK") == 128
        for log in (one, other):
            wait_for(log, RECEIVED, 128)


def test_ordered_asynchronous_and_traced_producers(examples: Examples, agent: Agent) -> None:
    """A-CLI-14: each of the asynchronous sends is answered once."""
    assert examples.finish("ordermessage.Producer").count("SEND_OK") == 100
    assert messages_in(agent, "TopicTestjjj") == 100
    assert len(re.findall(r"OK [0-9A-F]{32}", examples.finish("simple.AsyncProducer"))) == 100
    assert examples.finish("tracemessage.TraceProducer").count("SEND_OK") == 128
    agent.ask("producer", id="trace", group="TraceLook")
    until(lambda: agent.ask("query", id="trace", topic="RMQ_SYS_TRACE_TOPIC", key="OrderID188"), 15)
    printed = examples.finish("simple.TestProducer")
    assert "SEND_OK" in printed
    assert "key113" in printed  # it queries what it sent by its key


def test_batch_producers(examples: Examples, agent: Agent) -> None:
    """One of three messages; one of 100,000 that it splits by size."""
    with examples.run("batch.SimpleBatchProducer"):
        until(lambda: _is_there(agent, "BatchTest", 3), 20)
    with examples.run("batch.SplitBatchProducer"):
        until(lambda: _is_there(agent, "BatchTest", 100_003), 30)


def _is_there(agent: Agent, topic: str, count: int) -> bool:
    with contextlib.suppress(AgentError):  # the topic is not there yet
        return messages_in(agent, topic) == count
    return False


def test_filters(examples: Examples) -> None:
    """A-CLI-19: tags A and C of three; tags A and B where a property is between 0 and 3."""
    examples.finish("filter.TagFilterProducer")
    examples.finish("filter.SqlFilterProducer")
    printed = examples.wait_for("filter.TagFilterConsumer", RECEIVED, 40)
    assert "TagB" not in printed
    assert len(re.findall(RECEIVED, examples.wait_for("filter.SqlFilterConsumer", RECEIVED, 3))) == 3


def test_transactions(examples: Examples, agent: Agent) -> None:
    """Ten that are undecided; asked, it commits every third and rolls every third back."""
    with examples.run("transaction.TransactionProducer") as (_, log):
        wait_for(log, "SEND_OK", 10)
        until(lambda: ended(examples.cluster, "rolled_back") == 3, 30)
        until(lambda: ended(examples.cluster, "committed") == 3, 30)
        assert messages_in(agent, "TopicTest1234") == 3


def ended(cluster: Cluster, outcome: str) -> int:
    """Return how many transactions ended so, by the broker's metrics."""
    with urllib.request.urlopen(f"http://{cluster.listeners['admin']}/metrics", timeout=10) as answer:
        name = f'headrace_broker_transactions_total{{outcome="{outcome}"}} '
        return next(int(float(line.removeprefix(name))) for line in answer.read().decode().splitlines() if name in line)


def test_request_and_reply(examples: Examples, agent: Agent) -> None:
    """A-GOAL-02: a request gets the reply that is its own."""
    agent.ask("producer", id="maker", group="Maker")
    agent.ask("create-topic", id="maker", topic="RequestTopic")  # else the consumer learns of it 30 s later
    with examples.run("rpc.ResponseConsumer") as (_, log):
        wait_for(log, "Consumer Started", 1, 15)
        printed = examples.finish("rpc.RequestProducer")
        assert "replyMessage: Message" in printed, printed
