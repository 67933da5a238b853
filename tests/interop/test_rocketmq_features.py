"""What takes more than one program: traces and offset resets of tools, requests answered in another language.

Ref: remoting.md 4.7.5 (reset), 4.9 (tools), 5 (request-reply, trace).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.nsq_peers import running, until
from tests.interop.rocketmq_peers import SERVERS, Admin, Agent, Cluster, headrace
from tests.support.toolchain import cannot_run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with headrace(tmp_path_factory.mktemp("features"), "--store.durability=async", "--broker.name=broker-a") as running:
        yield running


@pytest.fixture(scope="module")
def agents(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Agent]]:
    started: dict[str, Agent] = {}

    def of(version: str) -> Agent:
        if version not in started:
            started[version] = Agent(version, cluster.namesrv, tmp_path_factory.mktemp(f"agent-{version}"))
        return started[version]

    yield of
    for agent in started.values():
        agent.close()


@pytest.fixture(scope="module")
def admins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Admin]]:
    started: dict[str, Admin] = {}

    def of(version: str) -> Admin:
        if version not in started:
            started[version] = Admin(version, tmp_path_factory.mktemp(f"admin-{version}"))
        return started[version]

    yield of
    for admin in started.values():
        admin.close()


def _printed(admin: Admin, wanted: str, *command: str) -> str:
    """Return what a command prints, as soon as that has what is wanted in it."""
    return until(lambda: text if wanted in (text := admin.run(*command)) else "", 20)


@pytest.mark.parametrize("version", ["4.9.8", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_tools_read_the_trace_of_a_message(
    cluster: Cluster, agents: Callable[[str], Agent], admins: Callable[[str], Admin], version: str
) -> None:
    """A producer's trace lies in RMQ_SYS_TRACE_TOPIC with the message's id and key as its keys."""
    agent = agents(version)
    topic = f"Traced{version.replace('.', '')}"
    agent.ask("producer", id="t", group="Tracer", trace=1)
    (sent,) = agent.ask("send", id="t", topic=topic, keys=f"order-{version}", tags="T")
    agent.ask("producer", id="q", group="Reader")
    for tool in SERVERS:
        printed = _printed(admins(tool), "Tracer", "queryMsgTraceById", "-n", cluster.namesrv, "-i", sent["msgId"])
        assert "Pub" in printed
        assert "success" in printed
    by_key = until(lambda: agent.ask("query", id="q", topic="RMQ_SYS_TRACE_TOPIC", key=f"order-{version}"), 10)
    assert all(sent["msgId"] in message["body"] for message in by_key)
    for name in ("t", "q"):
        agent.ask("shutdown", id=name)


@pytest.mark.parametrize(
    ("asking", "answering"), [("go", "4.9.8"), ("4.9.8", "go"), ("5.5.0", "go"), ("4.9.8", "5.5.0")]
)
def test_requests_are_answered_in_another_language(agents: Callable[[str], Agent], asking: str, answering: str) -> None:
    """A reply finds the requester through the broker, whoever wrote the two clients."""
    topic = f"Ask_{asking}_{answering}".replace(".", "")
    requester, responder = agents(asking), agents(answering)
    requester.ask("producer", id="r", group=f"P_{topic}")
    requester.ask("send", id="r", topic=topic, body="plain-")  # makes the topic
    responder.ask("responder", id="a", group=f"G_{topic}", topic=topic)
    time.sleep(1.0)
    replies = [requester.ask("request", id="r", topic=topic, body=f"ask{n}-", timeoutMs=15000) for n in range(3)]
    assert replies == [f"re:ask{n}-0" for n in range(3)]
    requester.ask("shutdown", id="r")
    responder.ask("shutdown", id="a")


@pytest.mark.parametrize(
    ("tool", "client"),
    [
        ("4.9.7", "4.9.8"),
        pytest.param("5.5.0", "5.5.0", marks=pytest.mark.slow),
        pytest.param("4.9.7", "go", marks=pytest.mark.slow),
    ],
)
def test_reset_by_time_delivers_again_to_an_online_consumer(
    cluster: Cluster, agents: Callable[[str], Agent], admins: Callable[[str], Admin], tool: str, client: str
) -> None:
    """What is younger than the time comes again, what is older does not; afterwards the group goes on."""
    topic, group = f"Reset_{tool}_{client}".replace(".", ""), f"GReset_{tool}_{client}".replace(".", "")
    agent = agents(client)
    agent.ask("producer", id="p", group="PReset")
    agent.ask("send", id="p", topic=topic, count=8, body="old-")
    agent.ask("consumer", id="c", group=group, topic=topic)
    agent.received("c", 8)
    time.sleep(1.1)
    at_ms = int(time.time() * 1000)
    time.sleep(0.1)
    agent.ask("send", id="p", topic=topic, count=8, body="young-")
    agent.received("c", 8)
    time.sleep(6.0)  # clients report their offsets every 5 s
    printed = admins(tool).run(
        "resetOffsetByTime", "-n", cluster.namesrv, "-g", group, "-t", topic, "-s", str(at_ms)
    )  # fmt: skip
    assert "broker-a" in printed, printed
    again = agent.received("c", 8, 60)
    assert {m["body"] for m in again} == {f"young-{n}" for n in range(8)}
    agent.ask("send", id="p", topic=topic, count=4, body="new-")
    assert {m["body"] for m in agent.received("c", 4) if m["body"].startswith("new-")} == {f"new-{n}" for n in range(4)}
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)


@pytest.mark.parametrize("version", ["4.9.8", "go", pytest.param("3.2.6", marks=pytest.mark.slow)])
def test_a_flush_that_takes_too_long_is_a_status_of_the_send(tmp_path: Path, version: str) -> None:
    """A-CLI-13, X-STORE-20: FLUSH_DISK_TIMEOUT, and the message is stored, once."""
    if shutil.which("strace") is None:
        cannot_run("strace makes fdatasync slow and is not installed")
    log = tmp_path / "strace.log"
    with headrace(tmp_path / "node", "--remoting.flush-timeout-ms=200") as cluster:
        agent = Agent(version, cluster.namesrv, tmp_path)
        agent.ask("producer", id="p", group="P_Slow")
        agent.ask("send", id="p", topic="Slow", body="fast-")
        command = ["strace", "-f", "-p", str(cluster.process.pid), "-e", "trace=fdatasync"]
        with running([*command, "-e", "inject=fdatasync:delay_enter=1200000"], log):
            until(lambda: "attached" in log.read_text())
            (sent,) = agent.ask("send", id="p", topic="Slow", body="slow-")
        assert sent["status"] == "FLUSH_DISK_TIMEOUT"
        (sent,) = agent.ask("send", id="p", topic="Slow", body="again-")
        assert sent["status"] == "SEND_OK"
        agent.ask("consumer", id="c", group="G_Slow", topic="Slow")
        bodies = [message["body"] for message in agent.received("c", 3) + agent.stays_at("c", 0.5)]
        assert sorted(bodies) == ["again-0", "fast-0", "slow-0"]
        for name in ("c", "p"):
            agent.ask("shutdown", id=name)
        agent.close()


@pytest.mark.parametrize(("queues", "members"), [(3, 3), (24, 1), (24, 2)])
@pytest.mark.parametrize("version", ["4.9.8", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_members_of_a_group_share_its_queues_evenly(
    cluster: Cluster,
    agents: Callable[[str], Agent],
    admins: Callable[[str], Admin],
    version: str,
    queues: int,
    members: int,
) -> None:
    """A-CLI-10, A-CLI-16, A-BROKER-38: each gets as many as any other, and another group gets all of them as well."""
    agent = agents(version)
    topic = f"Even{queues}of{members}{version.replace('.', '')}"
    admins("4.9.7").run(
        *("updateTopic", "-n", cluster.namesrv, "-b", cluster.broker, "-t", topic, "-r", str(queues), "-w", str(queues))
    )
    agent.ask("producer", id="p", group=f"P_{topic}")
    names = [f"{topic}-{number}" for number in range(members)]
    for name in names:
        agent.ask("consumer", id=name, group=f"G_{topic}", topic=topic)
    agent.ask("consumer", id="other", group=f"O_{topic}", topic=topic)
    shares: list[int] = []
    for part in range(10):  # the first ones may meet members that do not know each other yet
        for queue in range(queues):
            agent.ask("send", id="p", topic=topic, mode="queue", queue=queue, body=f"{part}-{queue}-")
        everything = agent.received("other", queues)
        assert len({message["body"] for message in everything}) == queues
        shares = [0] * members
        deadline = time.monotonic() + 30
        while sum(shares) < queues and time.monotonic() < deadline:
            shares = [share + len(agent.ask("received", id=name)) for share, name in zip(shares, names, strict=True)]
            time.sleep(0.1)
        if shares == [queues // members] * members:
            break
        time.sleep(1.0)
    assert shares == [queues // members] * members
    for name in (*names, "other", "p"):
        agent.ask("shutdown", id=name)


@pytest.mark.parametrize("version", ["4.9.8", "go"])
def test_a_broadcasting_group_has_no_offsets_at_the_broker(
    cluster: Cluster, agents: Callable[[str], Agent], version: str
) -> None:
    """A-CLI-05: its members keep them; a cluster's offsets are the broker's."""
    agent = agents(version)
    topic = f"Offsets{version.replace('.', '')}"
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="before-")
    agent.ask("consumer", id="all", group=f"B_{topic}", topic=topic, model="broadcast")
    agent.ask("consumer", id="one", group=f"G_{topic}", topic=topic)
    agent.received("one", 1)
    time.sleep(1.0)
    agent.ask("send", id="p", topic=topic, count=8, body="each-")
    for name in ("all", "one"):
        agent.received(name, 8)
        agent.ask("shutdown", id=name)
    agent.ask("shutdown", id="p")
    kept = cluster.data_dir / "config" / "consumerOffset.json"
    until(lambda: kept.exists() and f"{topic}@G_{topic}" in kept.read_text(), 20)
    assert f"{topic}@B_{topic}" not in kept.read_text()
