"""What takes more than one program: traces and offset resets of tools, requests answered in another language.

Ref: remoting.md 4.7.5 (reset), 4.9 (tools), 5 (request-reply, trace).
"""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.nsq_peers import running
from tests.interop.rocketmq_peers import SERVERS, Admin, Agent, Cluster, headrace
from tests.support.toolchain import cannot_run
from tests.support.waiting import until


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


def _counted(cluster: Cluster, family: str) -> dict[str, int]:
    """Return a counter of /metrics by its label ``request``."""
    with urllib.request.urlopen(f"http://{cluster.listeners['admin']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{family}_total{{request="(\w+)"}} ([\d.]+)$', text, re.MULTILINE)
    return {name: int(float(count)) for name, count in found}


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
    """A-CLI-10, A-CLI-16, A-BROKER-38, E-TERM-06, E-TERM-07: each gets its share, another group all of them as well."""
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
    """E-TERM-11, A-CLI-05: its members keep them; a cluster's offsets are the broker's."""
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


@pytest.mark.parametrize("version", ["4.9.8", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_push_and_pull_consumers_look_the_same_to_the_broker(tmp_path: Path, version: str) -> None:
    """A-BROKER-38: what a push consumer gets it has pulled itself; the broker sends it no message."""
    with headrace(tmp_path / "node", "--store.durability=async") as cluster:
        agent = Agent(version, cluster.namesrv, tmp_path)
        agent.ask("producer", id="p", group="P_Same")
        agent.ask("send", id="p", topic="Same", count=4, body="first-")
        agent.ask("pull-consumer", id="pull", group="PullSame", topic="Same")
        pulled = [
            message["body"]
            for queue in range(4)
            for message in agent.ask("pull", id="pull", topic="Same", queue=queue, offset=0).get("messages", ())
        ]
        of_pull = _counted(cluster, "headrace_remoting_requests")
        agent.ask("consumer", id="push", group="PushSame", topic="Same")
        agent.received("push", 4)
        agent.ask("send", id="p", topic="Same", count=4, body="second-")
        agent.received("push", 4)
        both = _counted(cluster, "headrace_remoting_requests")
        assert sorted(pulled) == [f"first-{number}" for number in range(4)]
        assert of_pull["PULL_MESSAGE"] > 0
        assert both["PULL_MESSAGE"] > of_pull["PULL_MESSAGE"]
        assert {name for name in both if "PULL" in name or "POP" in name or "CONSUME_MESSAGE" in name} == {
            "PULL_MESSAGE"
        }
        assert set(_counted(cluster, "headrace_remoting_calls")) <= {"NOTIFY_CONSUMER_IDS_CHANGED"}
        for name in ("push", "pull", "p"):
            agent.ask("shutdown", id=name)
        agent.close()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.9.8", "go"])
def test_a_producer_keeps_the_number_of_queues_and_learns_of_more(tmp_path: Path, version: str) -> None:
    """E-PROD-01, X-EQ-03: sending asks no registry; one interval of 30 s later new queues are used."""
    with headrace(tmp_path / "node", "--store.durability=async") as cluster:
        agent = Agent(version, cluster.namesrv, tmp_path)
        admin = Admin("4.9.7", tmp_path)

        def change_queues(number: int) -> None:
            flags = ("-t", "Cached", "-r", str(number), "-w", str(number))
            admin.run("updateTopic", "-n", cluster.namesrv, "-b", cluster.broker, *flags)

        def send() -> set[int]:
            return {sent["queueId"] for sent in agent.ask("send", id="p", topic="Cached", count=64)}

        def lookups() -> int:
            return _counted(cluster, "headrace_registry_requests")["GET_ROUTEINFO_BY_TOPIC"]

        change_queues(4)
        agent.ask("producer", id="p", group="P_Cached")
        assert send() == {0, 1, 2, 3}
        before, began = lookups(), time.monotonic()
        for _ in range(10):
            assert send() == {0, 1, 2, 3}
        if time.monotonic() < began + 10:  # the timer asks for each of the client's topics, TBW102 among them
            assert lookups() - before <= 6
        change_queues(8)
        until(lambda: send() == set(range(8)), 45)
        agent.ask("shutdown", id="p")
        agent.close()
        admin.close()


@pytest.mark.parametrize("tool", ["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_tools_tell_who_consumed_a_message(
    cluster: Cluster, agents: Callable[[str], Agent], admins: Callable[[str], Admin], tool: str
) -> None:
    """A-CLI-21, X-CLI-10: consumed, filtered out, not online; consumers say how far they are every 5 s only."""
    agent = agents("4.9.8")
    topic = f"Tracked{tool.replace('.', '')}"
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, tags="Wanted", body="makes-the-topic-")
    for group, tags in (("Got", "*"), ("Other", "Unwanted"), ("Gone", "*")):
        agent.ask("consumer", id=group, group=f"{group}_{topic}", topic=topic, tags=tags)
    (sent,) = agent.ask("send", id="p", topic=topic, tags="Wanted", keys="k1", body="tracked-")
    for group in ("Got", "Gone"):
        agent.received(group, 2)
    agent.ask("shutdown", id="Gone")  # which commits what it has consumed
    which = ["-i", sent["offsetMsgId"], "-n", cluster.namesrv]
    if tool != "4.9.7":
        which += ["-t", topic, "-c", "DefaultCluster"]
    wanted = {f"Got_{topic}": "CONSUMED", f"Other_{topic}": "CONSUMED_BUT_FILTERED", f"Gone_{topic}": "NOT_ONLINE"}
    printed = ""

    def is_told() -> bool:
        nonlocal printed
        printed = admins(tool).run("queryMsgById", *which)
        return dict(re.findall(r"consumerGroup=(\w+), trackType=(\w+)", printed)) == wanted

    try:
        until(is_told, 60)
    except AssertionError:
        raise AssertionError(printed) from None
    for name in ("Got", "Other", "p"):
        agent.ask("shutdown", id=name)
