"""Every cell of docs/protocols/mapping.md, with unmodified clients on both sides: pynsq and the Java client 4.9.8.

What no unmodified client can send is sent as bytes: a damaged compressed body, an empty one.
"""

from __future__ import annotations

import re
import selectors
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash import rocketmq_client as wire
from tests.interop.nsq_peers import ask
from tests.interop.rocketmq_peers import Agent, AgentError, Cluster, headrace
from tests.interop.rocketmq_scenarios import HEADRACE_FLAGS
from tests.support.waiting import until

nsq = pytest.importorskip("nsq")

from tests.interop.pynsq_client import Got, NsqClient  # noqa: E402  # it imports pynsq

# pynsq predates Python 3.12 and current tornado.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_BROKER_OFFSET = (1 << 48) - 1  # of an NSQ id: the rest is the node's


def nsq_refusal(cluster: Cluster, topic: str, body: bytes) -> str:
    """Return how NSQ's protocol refuses a publish; such a refusal ends the connection."""
    client = NsqClient(cluster.listeners["nsq_tcp"])
    try:
        client.publish(topic, body)
    except nsq.Error as error:
        return str(error)
    finally:
        client.close()
    return "accepted"


def wait_for(got: list[Got], count: int, seconds: float = 15.0) -> list[Got]:
    """Return what an NSQ consumer got, as soon as there are ``count``."""
    until(lambda: len(got) >= count, seconds)
    return got


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with headrace(tmp_path_factory.mktemp("cross"), *HEADRACE_FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def agent(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A Java client process with a producer "p" and a pull consumer "pull"."""
    java = Agent("4.9.8", cluster.namesrv, tmp_path_factory.mktemp("agent"))
    java.ask("producer", id="p", group="P_cross", retries=0)
    java.ask("pull-consumer", id="pull", group="G_cross_pull")
    yield java
    java.close()


@pytest.fixture(scope="module")
def nsqd(cluster: Cluster) -> Iterator[NsqClient]:
    client = NsqClient(cluster.listeners["nsq_tcp"])
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with a name that both protocols accept."""
    return re.sub(r"[^a-zA-Z0-9]", "-", request.node.name.removeprefix("test_"))[:60]


def make(agent: Agent, topic: str) -> None:
    """Create a topic with four queues."""
    agent.ask("create-topic", id="p", topic=topic, queues=4)


def make_by_nsq(cluster: Cluster, nsqd: NsqClient, topic: str, body: bytes) -> None:
    """Have NSQ's first message make a topic, and wait for its route: a Java client that is too early assumes one."""
    nsqd.publish(topic, body)
    wait_for_route(cluster, topic)


def wait_for_route(cluster: Cluster, topic: str) -> None:
    """Wait until the registry knows a topic."""
    until(lambda: request(cluster.namesrv, 105, {"topic": topic}).code == wire.SUCCESS, 5.0)


def pulled(agent: Agent, topic: str, *, tags: str = "*", queue: int = 0) -> list[dict[str, Any]]:
    """Return what a RocketMQ consumer reads from the first queue of a topic."""
    answer = agent.ask("pull", id="pull", topic=topic, offset=0, tags=tags, queue=queue)
    return list(answer["messages"])


def stats(cluster: Cluster) -> set[str]:
    """Return the topics that NSQ's /stats lists."""
    answer = ask(cluster.listeners["nsq_http"], "GET", "/stats?format=json").json()
    return {topic["topic_name"] for topic in answer["topics"]}


def request(address: str, code: int, ext: dict[str, Any], body: bytes = b"") -> wire.Frame:
    """Send one frame, as bytes, and return the answer."""
    selector = selectors.DefaultSelector()
    connection = wire.RemotingSocket(selector, address)
    answers: list[wire.Frame | None] = []
    connection.request(code, ext, body, answers.append)

    def answered() -> bool:
        for key, events in selector.select(0.1):
            key.data.on_ready(events)
        return bool(answers)

    until(answered)
    connection.close()
    selector.close()
    assert answers[0] is not None
    return answers[0]


def send_bytes(cluster: Cluster, topic: str, body: bytes, *, sys_flag: int = 0) -> wire.Frame:
    """Send a message that no unmodified client would send."""
    ext = wire.send_ext(topic, 0, {"UNIQ_KEY": "0" * 32}, 0) | {"f": sys_flag}
    return request(cluster.broker, wire.SEND_V2, ext, body)


def own(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of a message without those that the Java client adds to what it pulls."""
    added = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
    return {name: value for name, value in properties.items() if name not in added}


# -- from RocketMQ to NSQ ----------------------------------------------------------------------------------------------


def test_rocketmq_message_reaches_nsq(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """Body as sent; keys, tags, properties and flag are not in NSQ's frame, but stay in the log for RocketMQ."""
    make(agent, topic)
    got = nsqd.subscribe(topic)
    agent.ask("send", id="p", topic=topic, mode="queue", body="b-", tags="T", keys="kk", flag=7, p__colour="red")
    [message] = wait_for(got, 1)
    assert message.body == b"b-0"
    assert message.attempts == 1
    [kept] = pulled(agent, topic)
    assert (kept["flag"], kept["body"]) == (7, "b-0")
    assert {"TAGS": "T", "KEYS": "kk", "colour": "red"}.items() <= kept["properties"].items()


@pytest.mark.parametrize("compression", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_body_reaches_nsq_as_it_was(
    cluster: Cluster, nsqd: NsqClient, topic: str, tmp_path: Path, compression: str
) -> None:
    """Decompressed on the way out, whichever of the three ways the client chose. A-NET-15."""
    java = Agent("4.9.8", cluster.namesrv, tmp_path, f"-Drocketmq.message.compressType={compression}")
    try:
        java.ask("producer", id="p", group="P_compressed")
        make(java, topic)
        got = nsqd.subscribe(topic)
        java.ask("send", id="p", topic=topic, mode="queue", size=20_000, body="big-")
        [message] = wait_for(got, 1)
        assert message.body == b"big-0" + b"x" * (20_000 - 5)
        java.ask("pull-consumer", id="pull", group="G_compressed")
        [kept] = pulled(java, topic)
        assert kept["sysFlag"] & 0x701 == {"ZLIB": 0x301, "LZ4": 0x101, "ZSTD": 0x201}[compression]
        assert kept["body"] == message.body.decode()
    finally:
        java.close()


@pytest.mark.parametrize(
    "body", [b"this is no zlib stream", zlib.compress(bytes((16 << 20) + 1))], ids=["damaged", "above-16-MiB"]
)
def test_body_that_cannot_be_decompressed_comes_as_stored(
    cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str, body: bytes
) -> None:
    """It is counted, too."""
    make(agent, topic)
    got = nsqd.subscribe(topic)
    before = _inflate_failures(cluster)
    assert send_bytes(cluster, topic, body, sys_flag=1).code == wire.SUCCESS
    [message] = wait_for(got, 1)
    assert message.body == body
    assert _inflate_failures(cluster) > before


def _inflate_failures(cluster: Cluster) -> int:
    metrics = ask(cluster.listeners["admin"], "GET", "/metrics").body.decode()
    counts = re.findall(r"^headrace_nsq_inflate_failures_total(?:\{[^}]*\})? (\d+)", metrics, re.MULTILINE)
    return sum(map(int, counts))


def test_ids_hold_the_same_physical_offset(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """16 hex digits of NSQ = node id and physical offset = the last 16 digits of the offset id; both directions.

    Ref: X-NSQ-25, X-STORE-01, X-STORE-03.
    """
    make(agent, topic)
    got = nsqd.subscribe(topic)
    [sent] = agent.ask("send", id="p", topic=topic, mode="queue")
    nsqd.publish(topic, b"from nsq")
    wait_for(got, 2)
    ids = {message.body: int(message.id, 16) & _BROKER_OFFSET for message in got}
    assert ids[b"body-0"] == int(sent["offsetMsgId"][-16:], 16)
    # NSQ's message has no UNIQ_KEY: the Java client shows its offset id. It is in one of the four queues.
    others = [message for queue in range(4) for message in pulled(agent, topic, queue=queue)]
    [other] = [message for message in others if message["body"] == "from nsq"]
    assert int(other["msgId"][-16:], 16) == ids[b"from nsq"]
    assert len(other["msgId"]) == 32


def test_timestamps_are_store_times(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """NSQ shows the store time in ns; an NSQ message was born when it was stored, at its publisher's address."""
    make_by_nsq(cluster, nsqd, topic, b"from nsq")
    got = nsqd.subscribe(topic)
    agent.ask("send", id="p", topic=topic)
    wait_for(got, 2)
    times = {message.body.decode(): message.timestamp_ns for message in got}
    messages = pulled(agent, topic)
    assert {message["body"]: message["storeTimestamp"] * 1_000_000 for message in messages} == times
    by_body = {message["body"]: message for message in messages}
    assert by_body["from nsq"]["bornTimestamp"] == by_body["from nsq"]["storeTimestamp"]
    address = until(lambda: [c.stream.socket.getsockname() for c in nsqd.writer.conns.values()])[0]
    assert by_body["from nsq"]["bornHost"].lstrip("/") == f"{address[0]}:{address[1]}"


def test_attempts_and_reconsume_times_are_counted_apart(
    cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str
) -> None:
    """A channel counts its own deliveries, a group its own retries; neither sees the other's."""
    make_by_nsq(cluster, nsqd, topic, b"from nsq")
    agent.ask("send", id="p", topic=topic, body="from rocketmq-")
    # A first member has the broker make the retry topic; the next one finds its route when it starts.
    agent.ask("consumer", id="first", group=f"{topic}-g", topic=topic)
    agent.received("first", 2)
    agent.ask("shutdown", id="first")
    agent.ask("send", id="p", topic=topic, body="again-")
    nsqd.publish(topic, b"again from nsq")
    agent.ask("consumer", id="c", group=f"{topic}-g", topic=topic, fail=2, level=1)
    received = agent.received("c", 6)
    got = wait_for(nsqd.subscribe(topic, requeue=1), 8)
    agent.ask("shutdown", id="c")
    times: dict[str, list[int]] = {}
    for message in received:
        times.setdefault(message["body"], []).append(message["reconsumeTimes"])
    assert {body: sorted(seen) for body, seen in times.items()} == {
        "again-0": [0, 1, 2],
        "again from nsq": [0, 1, 2],
    }
    assert sorted((message.body.decode(), message.attempts) for message in got) == [
        (body, attempts) for body in ("again from nsq", "again-0", "from nsq", "from rocketmq-0") for attempts in (1, 2)
    ]


@pytest.mark.parametrize("how", ["level", "time"])
def test_delayed_rocketmq_message_reaches_nsq_when_due(agent: Agent, nsqd: NsqClient, topic: str, how: str) -> None:
    """It joins the topic when it is due, for NSQ as for everybody."""
    make(agent, topic)
    got = nsqd.subscribe(topic)
    began = time.time()
    if how == "level":
        agent.ask("send", id="p", topic=topic, delay=5)  # 2 s in this cluster
    else:
        agent.ask("send", id="p", topic=topic, p__TIMER_DELAY_MS=1500)
    [message] = wait_for(got, 1)
    assert message.at - began >= (1.9 if how == "level" else 1.4)
    assert message.at - began < 4
    assert message.timestamp_ns / 1e9 - began >= 1.4  # of the copy that joined the topic


def test_only_committed_messages_reach_nsq(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """A channel gets what was committed, once, and nothing that was rolled back or is undecided."""
    make(agent, topic)
    got = nsqd.subscribe(topic)
    agent.ask("tx-producer", id="t", group=f"T-{topic}", check="unknown")
    for state in ("rollback", "unknown", "commit"):
        agent.ask("tx-send", id="t", topic=topic, state=state, body=f"{state}-")
    wait_for(got, 1)
    time.sleep(1.5)
    agent.ask("shutdown", id="t")
    assert [message.body for message in got] == [b"commit-0"]


def test_batch_reaches_nsq_message_by_message(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """One by one, in the order of the batch."""
    make(agent, topic)
    got = nsqd.subscribe(topic)
    agent.ask("send", id="p", topic=topic, mode="batch", count=12, body="b-")
    wait_for(got, 12)
    assert [message.body for message in got] == [b"b-%d" % index for index in range(12)]
    assert len({message.id for message in got}) == 12


def test_channel_reads_every_queue(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """A channel has the messages of all queues; within a queue they are in order. X-STORE-01."""
    make(agent, topic)
    for queue in range(4):
        agent.ask("send", id="p", topic=topic, mode="queue", queue=queue, count=8, body=f"q{queue}-")
    got = wait_for(nsqd.subscribe(topic), 32)
    for queue in range(4):
        prefix = b"q%d-" % queue
        bodies = [message.body for message in got if message.body.startswith(prefix)]
        assert bodies == [b"%s%d" % (prefix, index) for index in range(8)]


# -- from NSQ to RocketMQ ----------------------------------------------------------------------------------------------


def test_nsq_message_reaches_rocketmq(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """PUB and MPUB: bodies as published, in order, with no property but what the broker notes."""
    make_by_nsq(cluster, nsqd, topic, b"one")
    nsqd.publish(topic, *[b"many-%d" % index for index in range(5)])
    messages = pulled(agent, topic)
    assert [message["body"] for message in messages] == ["one", *(f"many-{index}" for index in range(5))]
    assert {message["reconsumeTimes"] for message in messages} == {0}
    assert {(message["topic"], message["queueId"], message["flag"]) for message in messages} == {(topic, 0, 0)}
    assert [message["queueOffset"] for message in messages] == list(range(6))
    names = [set(own(message["properties"])) for message in messages]
    assert names == [{"__CRC32#"}, {"__CRC32#", "__BATCH#"}, *[{"__CRC32#"}] * 4]
    agent.ask("consumer", id="c", group=f"{topic}-g", topic=topic)
    assert [message["body"] for message in agent.received("c", 6)] != []
    agent.ask("shutdown", id="c")


def test_nsq_topic_has_a_route(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """One queue, permission 6, registered within milliseconds: a Java producer and consumer use it like any topic."""
    make_by_nsq(cluster, nsqd, topic, b"first")
    route = request(cluster.namesrv, 105, {"topic": topic})
    assert route.code == wire.SUCCESS
    assert re.findall(rb'"(perm|readQueueNums|writeQueueNums)":(\d+)', route.body) == [
        (b"perm", b"6"), (b"readQueueNums", b"1"), (b"writeQueueNums", b"1")
    ]  # fmt: skip
    assert len(agent.ask("queues", id="p", topic=topic)) == 1
    [sent] = agent.ask("send", id="p", topic=topic)
    assert (sent["queueId"], sent["queueOffset"]) == (0, 1)


def test_nsq_message_has_no_tag(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """A subscription with tags does not match it, one with * does."""
    make_by_nsq(cluster, nsqd, topic, b"untagged")
    agent.ask("send", id="p", topic=topic, tags="A", body="tagged-")
    assert [message["body"] for message in pulled(agent, topic, tags="A")] == ["tagged-0"]
    assert [message["body"] for message in pulled(agent, topic)] == ["untagged", "tagged-0"]


def test_dpub_delays_channels_only(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """The delay is a state of each channel: a RocketMQ group reads the message at once."""
    got = nsqd.subscribe(topic)
    wait_for_route(cluster, topic)
    began = time.time()
    nsqd.publish(topic, b"later", delay_ms=2500)
    messages = until(lambda: pulled(agent, topic))
    assert [message["body"] for message in messages] == ["later"]
    assert time.time() - began < 2
    assert got == []
    [message] = wait_for(got, 1)
    assert message.at - began >= 2.4


def test_ephemeral_topics_have_no_route(cluster: Cluster, agent: Agent, nsqd: NsqClient) -> None:
    """They are not in the log: no route, no queue, in no list."""
    got = nsqd.subscribe("passing#ephemeral", "c#ephemeral")
    nsqd.publish("passing#ephemeral", b"x")
    wait_for(got, 1)
    assert request(cluster.namesrv, 105, {"topic": "passing#ephemeral"}).code == wire.TOPIC_NOT_EXIST
    assert b"#ephemeral" not in request(cluster.broker, wire.ALL_TOPICS, {}).body
    with pytest.raises(AgentError):
        agent.ask("send", id="p", topic="passing#ephemeral")


# -- both --------------------------------------------------------------------------------------------------------------


def test_channels_and_groups_are_independent(agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """Two channels and two groups of a topic: each gets every message of both protocols.

    A channel and a group of one name share nothing but that (X-NSQ-16).
    """
    make(agent, topic)
    groups = {name: f"{topic[:40]}-{name}" for name in ("g1", "g2")}
    channels = [nsqd.subscribe(topic, name) for name in ("one", groups["g2"])]
    for name, group in groups.items():
        agent.ask("consumer", id=name, group=group, topic=topic)
    agent.ask("send", id="p", topic=topic, count=20, body="r-")
    nsqd.publish(topic, *[b"n-%d" % index for index in range(20)])
    expected = sorted([*(f"r-{index}" for index in range(20)), *(f"n-{index}" for index in range(20))])
    for got in channels:
        assert sorted(message.body.decode() for message in wait_for(got, 40)) == expected
    for name in ("g1", "g2"):
        received = agent.received(name, 40)
        assert sorted(message["body"] for message in received) == expected
        agent.ask("shutdown", id=name)


def test_names_nsq_cannot_spell_are_hidden(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """%RETRY%, %DLQ% and system topics are not in NSQ's lists; NSQ names no such topic, RocketMQ lists them.

    Ref: X-NET-04.
    """
    agent.ask("send", id="p", topic=topic)
    agent.ask("consumer", id="c", group=f"{topic}-g", topic=topic, fail=1, level=-1, maxReconsume=2)
    agent.received("c", 1)
    names = f"%RETRY%{topic}-g", f"%DLQ%{topic}-g"
    listed = until(lambda: _listed(cluster, *names))
    agent.ask("shutdown", id="c")
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= listed
    assert not [name for name in stats(cluster) if "%" in name or name in ("TBW102", "SCHEDULE_TOPIC_XXXX")]
    assert topic in stats(cluster)
    assert "E_BAD_TOPIC" in nsq_refusal(cluster, names[0], b"x")
    long_name = "n" * 65
    agent.ask("send", id="p", topic=long_name)
    assert long_name not in stats(cluster)
    assert "E_BAD_TOPIC" in nsq_refusal(cluster, long_name, b"x")


def _listed(cluster: Cluster, *names: str) -> set[str]:
    """Return the topics of the broker if all of ``names`` are among them."""
    body = request(cluster.broker, wire.ALL_TOPICS, {}).body.decode()
    topics = set(re.findall(r'"topicName":"([^"]*)"', body))
    return topics if topics.issuperset(names) else set()


def test_names_rocketmq_cannot_spell_are_for_nsq_alone(cluster: Cluster, agent: Agent, nsqd: NsqClient) -> None:
    """A topic of NSQ with a dot is not listed to RocketMQ clients and has no route; %SYS% is nobody's. X-NET-04."""
    nsqd.publish("with.dot", b"x")
    assert "with.dot" in stats(cluster)
    assert "with.dot" not in _listed(cluster)
    assert request(cluster.namesrv, 105, {"topic": "with.dot"}).code == wire.TOPIC_NOT_EXIST
    with pytest.raises(AgentError):
        agent.ask("send", id="p", topic="with.dot")
    assert send_bytes(cluster, "with.dot", b"x").code == wire.TOPIC_NOT_EXIST
    assert not any("%SYS%" in name for name in _listed(cluster) | stats(cluster))
    assert send_bytes(cluster, "%SYS%control", b"x").code == 16


def test_permissions_are_for_rocketmq_alone(cluster: Cluster, nsqd: NsqClient, topic: str) -> None:
    """A topic that RocketMQ's consumers may not read: NSQ's do, and its publishers are not asked either."""
    nsqd.publish(topic, b"1")
    made = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 0,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    assert request(cluster.broker, 17, made).code == wire.SUCCESS
    asked = {
        "consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    assert request(cluster.broker, wire.PULL, asked).code == 16  # NO_PERMISSION
    nsqd.publish(topic, b"2")
    assert [message.body for message in wait_for(nsqd.subscribe(topic), 2)] == [b"1", b"2"]


def test_empty_body_is_delivered(cluster: Cluster, agent: Agent, nsqd: NsqClient, topic: str) -> None:
    """NSQ and the Java client refuse to publish one; who sends it all the same is taken at his word, as by RocketMQ.

    Ref: X-NSQ-08.
    """
    make(agent, topic)
    got = nsqd.subscribe(topic)
    answer = ask(cluster.listeners["nsq_http"], "POST", f"/pub?topic={topic}", b"")
    assert (answer.status, answer.json()["message"]) == (400, "MSG_EMPTY")
    with pytest.raises(AgentError):
        agent.ask("send", id="p", topic=topic, body="", single=1)
    assert send_bytes(cluster, topic, b"").code == wire.SUCCESS
    [message] = wait_for(got, 1)
    assert message.body == b""
    ext = {
        "consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    [record] = wire.decode_records(request(cluster.broker, wire.PULL, ext).body)
    assert record.body == b""


def test_the_page_names_every_test() -> None:
    """docs/protocols/mapping.md and this file say the same."""
    page = (Path(__file__).parents[2] / "docs" / "protocols" / "mapping.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {name for name in globals() if name.startswith("test_")}
    assert named == there - {"test_the_page_names_every_test"}
