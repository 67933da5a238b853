"""What an unmodified client does, step by step, with a broker: the same steps for a real RocketMQ and for Headrace.

Each scenario asserts what must hold on both, and returns what a user sees of it, without what differs from run to run
(ids, times, addresses, which queue a round robin began with). ``test_rocketmq_java`` compares these.

The cluster is made by ``HEADRACE_FLAGS`` or ``ROCKETMQ_OPTIONS``, which say the same: short delays, quick back-checks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.interop.rocketmq_peers import ALL_CLIENTS, Agent, AgentError

HEADRACE_FLAGS = (
    "--store.durability=async",
    "--broker.delay-levels=1s 1s 1s 1s 2s 2s 3s",
    "--broker.transaction-timeout-ms=1000",
    "--broker.transaction-check-interval-ms=1000",
)
ROCKETMQ_OPTIONS = {
    "messageDelayLevel": "1s 1s 1s 1s 2s 2s 3s",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "traceTopicEnable": "true",
}

# What brokers, not users, put into a message; ADR and docs/protocols/remoting.md say where they differ.
_BROKER_PROPERTIES = {
    "CLUSTER",
    "UNIQ_KEY",
    "WAIT",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "__CRC32#",
    "__BATCH#",
    "CONSUME_START_TIME",
    "MSG_REGION",
    "TRACE_ON",
    "INSTANCE_ID",
}

Scenario = Callable[[Agent, str], dict[str, Any]]
SCENARIOS: dict[str, Scenario] = {}
_LACKS: dict[str, tuple[str, ...]] = {}


def scenario(lacks: tuple[str, ...] = ()) -> Callable[[Scenario], Scenario]:
    """Add a scenario; ``lacks``: the clients that do not have what it needs."""

    def add(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = function
        _LACKS[function.__name__] = lacks
        return function

    return add


def cases() -> list[tuple[str, str]]:
    """Return every (client version, scenario) there is."""
    return [(version, name) for version in ALL_CLIENTS for name in SCENARIOS if version not in _LACKS[name]]


def seen(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as its user sees it."""
    properties = {k: v for k, v in message["properties"].items() if k not in _BROKER_PROPERTIES}
    return {
        "topic": message["topic"],
        "body": message["body"],
        "flag": message["flag"],
        "reconsumeTimes": message["reconsumeTimes"],
        "properties": properties,
    }


def by_body(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as users see them, in the order of their bodies."""
    return sorted((seen(message) for message in messages), key=lambda message: str(message["body"]))


@scenario()
def send_sync_and_consume(agent: Agent, topic: str) -> dict[str, Any]:
    """Sends wait for their answer; a push consumer that begins at the first offset gets all."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    results = agent.ask("send", id="p", topic=topic, count=9, tags="A", keys="k#", flag=7, p__colour="red")
    assert {result["status"] for result in results} == {"SEND_OK"}
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    got = agent.received("c", 9)
    assert not agent.stays_at("c", 0.5)
    queues = agent.ask("queues", id="p", topic=topic) if agent.version != "go" else []
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    per_queue: dict[int, list[int]] = defaultdict(list)
    for result in results:
        per_queue[result["queueId"]].append(result["queueOffset"])
    assert all(offsets == list(range(len(offsets))) for offsets in per_queue.values())
    return {"messages": by_body(got), "queues": len(queues)}


@scenario(lacks=("go",))
def send_async_oneway_selector_queue(agent: Agent, topic: str) -> dict[str, Any]:
    """The other ways of sending single messages."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    first = agent.ask("send", id="p", topic=topic, body="first-")
    done = agent.ask("send", id="p", topic=topic, mode="async", count=20, body="async-")
    agent.ask("send", id="p", topic=topic, mode="oneway", count=5, body="oneway-")
    to_queue = agent.ask("send", id="p", topic=topic, mode="queue", queue=2, count=3, body="queue-")
    selected = agent.ask("send", id="p", topic=topic, mode="selector", count=6, orders=2, body="selector-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    got = agent.received("c", 35)
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {
        "statuses": sorted({r["status"] for r in [*first, *done, *to_queue, *selected]}),
        "to_queue": [r["queueId"] for r in to_queue],
        "selected": [r["queueId"] for r in selected],
        "messages": by_body(got),
    }


@scenario(lacks=("3.2.6",))
def send_batch(agent: Agent, topic: str) -> dict[str, Any]:
    """A batch is one request, its messages are ordinary ones."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic)
    [result] = agent.ask("send", id="p", topic=topic, mode="batch", count=12, tags="B", keys="b#", p__n="#", body="b-")
    ids = result["offsetMsgId"].split(",")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    got = agent.received("c", 13)
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {
        "status": result["status"],
        "ids": len(set(ids)),
        "unique keys": len(set(result["msgId"].split(","))),
        "messages": by_body(got),
        "one queue": len({m["queueId"] for m in got if m["body"].startswith("b-")}),
    }


@scenario()
def delay_levels(agent: Agent, topic: str) -> dict[str, Any]:
    """A delayed message comes when its level says."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="now-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    agent.received("c", 1)
    [sent] = agent.ask("send", id="p", topic=topic, body="later-", delay=5)
    [got] = agent.received("c", 1)
    waited = got["storeTimestamp"] - got["bornTimestamp"]
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    assert 1_900 <= waited <= 3_500, waited
    return {"status": sent["status"], "message": got["body"], "topic": got["topic"]}


@scenario()
def tag_filter(agent: Agent, topic: str) -> dict[str, Any]:
    """Only messages with one of the tags are delivered."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    for tag in ("A", "B", "C", ""):
        agent.ask("send", id="p", topic=topic, count=4, tags=tag, body=f"{tag}-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic, tags="A || C")
    got = agent.received("c", 8)
    got += agent.stays_at("c", 0.5)
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {"messages": by_body(got)}


@scenario(lacks=("3.2.6",))
def sql_filter(agent: Agent, topic: str) -> dict[str, Any]:
    """SQL92 over properties; an expression that is none stops the consumer's start."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    for number in range(8):
        agent.ask(
            "send", id="p", topic=topic, body=f"n{number}-", p__a=number, p__b="x" if number % 2 else "y", tags="T"
        )
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic, sql="(a BETWEEN 2 AND 6) AND b = 'x' OR a IS NULL")
    got = agent.received("c", 2)
    got += agent.stays_at("c", 0.5)
    try:
        agent.ask("consumer", id="bad", group=f"B_{topic}", topic=topic, sql="a >")
        refused = ""
    except AgentError as error:
        refused = error.kind
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {"messages": by_body(got), "refused": refused}


@scenario()
def broadcast(agent: Agent, topic: str) -> dict[str, Any]:
    """Every member of a broadcasting group gets every message. A-CLI-09."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="before-")
    for name in ("c1", "c2"):
        agent.ask("consumer", id=name, group=f"G_{topic}", topic=topic, model="broadcast")
    time.sleep(1.0)
    agent.ask("send", id="p", topic=topic, count=8, body="each-")
    got: dict[str, Any] = {}
    for name in ("c1", "c2"):
        bodies: set[str] = set()
        deadline = time.monotonic() + 30
        while len(bodies) < 8 and time.monotonic() < deadline:
            bodies |= {m["body"] for m in agent.ask("received", id=name) if m["body"].startswith("each-")}
            time.sleep(0.05)
        got[name] = sorted(bodies)
    for name in ("c1", "c2", "p"):
        agent.ask("shutdown", id=name)
    return got


@scenario(lacks=("go",))
def pull_and_offsets(agent: Agent, topic: str) -> dict[str, Any]:
    """A pull consumer sees the statuses, offsets and commits of one queue."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic)
    agent.ask("send", id="p", topic=topic, mode="queue", queue=1, count=5, tags="A", body="q-")
    agent.ask("send", id="p", topic=topic, mode="queue", queue=1, count=5, tags="B", body="r-")
    agent.ask("pull-consumer", id="c", group=f"G_{topic}")
    max_offset = agent.ask("offsets", id="c", topic=topic, queue=1)["max"]
    base = max_offset - 10
    steps = {}
    for name, offset, tags, most in (
        ("all", base, "*", 32),
        ("three", base, "*", 3),
        ("only B", base, "B", 32),
        ("none match", base, "C", 32),
        ("at end", max_offset, "*", 32),
        ("beyond", max_offset + 5, "*", 32),
    ):
        pulled = agent.ask("pull", id="c", topic=topic, queue=1, offset=offset, tags=tags, max=most)
        steps[name] = (
            pulled["status"],
            pulled["next"] - base,
            pulled["min"],
            pulled["max"] - base,
            [message["body"] for message in pulled["messages"]],
        )
    offsets = agent.ask("offsets", id="c", topic=topic, queue=1, at=1, commit=base + 7)
    time.sleep(0.2)
    committed = agent.ask("offsets", id="c", topic=topic, queue=1)["committed"] - base
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {"steps": steps, "search at 1": offsets["search"], "committed": committed}


@scenario(lacks=("3.2.6", "go"))
def lite_pull(agent: Agent, topic: str) -> dict[str, Any]:
    """A lite pull consumer polls and commits."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, count=6)
    agent.ask("lite", id="l", group=f"G_{topic}", topic=topic)
    got: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while len(got) < 6 and time.monotonic() < deadline:
        got += agent.ask("lite-poll", id="l", timeoutMs=1000)
    for name in ("l", "p"):
        agent.ask("shutdown", id=name)
    return {"messages": by_body(got)}


@scenario(lacks=("3.2.6",))
def transactions(agent: Agent, topic: str) -> dict[str, Any]:
    """Committed messages come, rolled-back ones do not, undecided ones are asked about."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="plain-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    agent.received("c", 1)
    agent.ask("tx-producer", id="t", group=f"T_{topic}", check="commit")
    statuses = []
    for state in ("commit", "rollback", "unknown"):
        [result] = agent.ask("tx-send", id="t", topic=topic, state=state, body=f"{state}-", tags="X", keys="tx")
        statuses.append(result["status"])
    got = agent.received("c", 2)
    more = agent.stays_at("c", 1.0)
    checked = agent.ask("tx-checked", id="t")
    for name in ("t", "c", "p"):
        agent.ask("shutdown", id=name)
    assert not more, more
    return {
        "statuses": statuses,
        "bodies": sorted(message["body"] for message in got),
        "checked": sorted({(message["topic"], message["body"]) for message in checked}),
    }


@scenario(lacks=("3.2.6", "go"))
def transaction_check_after_restart(agent: Agent, topic: str) -> dict[str, Any]:
    """Another producer of the group is asked about what one left undecided."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="plain-")
    agent.ask("tx-producer", id="t1", group=f"T_{topic}", check="unknown")
    agent.ask("tx-send", id="t1", topic=topic, state="unknown", body="left-")
    agent.ask("shutdown", id="t1")
    agent.ask("tx-producer", id="t2", group=f"T_{topic}", check="commit")
    agent.ask("tx-send", id="t2", topic=topic, state="rollback", body="gone-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    got = agent.received("c", 2)
    more = agent.stays_at("c", 1.0)
    for name in ("t2", "c", "p"):
        agent.ask("shutdown", id=name)
    assert not more, more
    return {"bodies": sorted(message["body"] for message in got)}


@scenario(lacks=("3.2.6", "go"))
def request_reply(agent: Agent, topic: str) -> dict[str, Any]:
    """A request gets its answer through the broker."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="plain-")
    agent.ask("responder", id="r", group=f"G_{topic}", topic=topic)
    time.sleep(1.0)
    replies = [agent.ask("request", id="p", topic=topic, body=f"ask{n}-", timeoutMs=15000) for n in range(3)]
    for name in ("r", "p"):
        agent.ask("shutdown", id=name)
    return {"replies": replies}


@scenario()
def retry_and_dead_letter(agent: Agent, topic: str) -> dict[str, Any]:
    """A failed message comes again with a delay, and ends as a dead letter."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    # A first member has the broker make the retry topic; the next one finds its route when it starts.
    agent.ask("send", id="p", topic=topic, body="good-")
    agent.ask("consumer", id="first", group=f"G_{topic}", topic=topic)
    agent.received("first", 1)
    agent.stays_at("first", 0.5)  # told while it is consumed: what a member has not finished when it leaves comes again
    agent.ask("shutdown", id="first")
    agent.ask("send", id="p", topic=topic, body="bad-", keys="kk", tags="T")
    most = None if agent.version == "3.2.6" else 2
    failures = 2 if most is None else 99
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic, fail=failures, maxReconsume=most, level=1)
    got = agent.received("c", 3, 80)
    more = agent.stays_at("c", 3.0)
    agent.ask("shutdown", id="c")
    assert not more, more
    answer: dict[str, Any] = {"times": [m["reconsumeTimes"] for m in got], "topics": [m["topic"] for m in got]}
    assert len({m["msgId"] for m in got}) == 1 or agent.version == "3.2.6"
    if most is not None and agent.version != "go":
        agent.ask("pull-consumer", id="d", group=f"D_{topic}")
        pulled = agent.ask("pull", id="d", topic=f"%DLQ%G_{topic}", offset=0)
        answer["dead"] = [
            (m["body"], m["reconsumeTimes"], m["properties"].get("RETRY_TOPIC")) for m in pulled["messages"]
        ]
        agent.ask("shutdown", id="d")
    agent.ask("shutdown", id="p")
    return answer


@scenario()
def large_body_is_compressed(agent: Agent, topic: str) -> dict[str, Any]:
    """A body above 4 KiB travels compressed and arrives whole. A-NET-15."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, size=20_000, body="big-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    [got] = agent.received("c", 1)
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    return {"bytes": len(got["body"]), "compressed": got["sysFlag"] & 1}


@scenario(lacks=("go",))
def queries(agent: Agent, topic: str) -> dict[str, Any]:
    """Messages are found by key, by unique key and by offset id. A-CLI-20."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    results = agent.ask("send", id="p", topic=topic, count=6, keys="common only#", body="q-")
    time.sleep(1.0)
    many = agent.ask("query", id="p", topic=topic, key="common")
    one = agent.ask("query", id="p", topic=topic, key="only3")
    none = ""
    try:
        agent.ask("query", id="p", topic=topic, key="absent")
    except AgentError as error:
        none = error.kind
    answer = {"many": sorted(m["body"] for m in many), "one": [m["body"] for m in one], "none": none}
    if agent.version != "3.2.6":
        answer["unique"] = agent.ask("view", id="p", topic=topic, msgId=results[2]["msgId"])["body"]
        answer["by id"] = agent.ask("view", id="p", topic=topic, msgId=results[4]["offsetMsgId"])["body"]
    else:
        answer["by id"] = agent.ask("view", id="p", msgId=results[4]["msgId"])["body"]
    agent.ask("shutdown", id="p")
    return answer


@scenario()
def consumer_goes_on_where_it_stopped(agent: Agent, topic: str) -> dict[str, Any]:
    """A group's offsets outlive its members. A-BROKER-39."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, count=5, body="one-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    agent.received("c", 5)
    agent.ask("shutdown", id="c")
    agent.ask("send", id="p", topic=topic, count=5, body="two-")
    agent.ask("consumer", id="c", group=f"G_{topic}", topic=topic)
    got = agent.received("c", 5)
    got += agent.stays_at("c", 0.7)
    for name in ("c", "p"):
        agent.ask("shutdown", id=name)
    second = sorted(m["body"] for m in got)
    if agent.version == "go":  # it may leave without reporting its last offsets
        second = [body for body in second if body.startswith("two-")]
    return {"second": second}


@scenario(lacks=("go",))
def ordered_with_members_joining_and_leaving(agent: Agent, topic: str) -> dict[str, Any]:
    """Orderly consumers share the queues; each queue's messages come in order, without a gap."""
    agent.ask("producer", id="p", group=f"P_{topic}")
    agent.ask("send", id="p", topic=topic, body="make-")
    agent.ask("consumer", id="c1", group=f"G_{topic}", topic=topic, orderly=1)
    got: list[dict[str, Any]] = []
    for part in range(4):
        if part == 1:
            agent.ask("consumer", id="c2", group=f"G_{topic}", topic=topic, orderly=1)
        if part == 3:
            got += agent.ask("received", id="c1")
            agent.ask("shutdown", id="c1")
        agent.ask("send", id="p", topic=topic, mode="selector", orders=4, count=20, body=f"part{part}-")
    deadline = time.monotonic() + agent.lock_seconds + 60
    while len({m["body"] for m in got}) < 81 and time.monotonic() < deadline:
        got += agent.ask("received", id="c1") + agent.ask("received", id="c2")
        time.sleep(0.1)
    for name in ("c2", "p"):
        agent.ask("shutdown", id=name)
    last: dict[int, int] = defaultdict(lambda: -1)
    for message in sorted(got, key=lambda m: m["receivedAt"]):
        queue, offset = message["queueId"], message["queueOffset"]
        assert offset <= last[queue] + 1, (queue, offset, last[queue])
        last[queue] = max(last[queue], offset)
    return {"different": len({m["body"] for m in got}), "queues": len(last)}


@scenario(lacks=("go",))
def refusals(agent: Agent, topic: str) -> dict[str, Any]:
    """What the broker or the client refuses, and how."""
    agent.ask("producer", id="p", group=f"P_{topic}", retries=0)
    answers = {}
    wrong: dict[str, dict[str, Any]] = {
        "too large": {"size": 4_300_000, "compressOver": None, "body": "x-"},
        "bad name": {"topic": "bad name"},
        "schedule topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
    }
    for name, options in wrong.items():
        try:
            agent.ask("send", **{"id": "p", "topic": topic, **options})
            answers[name] = "accepted"
        except AgentError as error:
            answers[name] = f"{error.kind} {error.code}"
    agent.ask("shutdown", id="p")
    return answers
