"""What a store of messages, offsets, delays, dead letters and an open transaction must give again, whoever opens it.

``fill`` writes it through one broker with an unmodified client; ``require_same`` looks at it through another one that
has opened a copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.rocketmq_peers import Agent, Cluster
from tests.support.waiting import until

SEGMENT_BYTES = 64 << 20
DELAYS = "1s 2s 10s"
TOPIC, BAD_TOPIC, MANY_TOPIC = "FilesTopic", "FilesBad", "FilesMany"
GROUP, BAD_GROUP, TX_GROUP = "FilesGroup", "FilesBadGroup", "FilesTx"
LEFT = 10
"""Messages that the group had not consumed."""

_FIELDS = ("topic", "body", "flag", "sysFlag", "reconsumeTimes", "queueId", "queueOffset", "bornTimestamp",
           "storeTimestamp", "bornHost", "storeHost", "msgId")  # fmt: skip
_OF_THE_DELIVERY = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}


def _facts(message: dict[str, Any]) -> dict[str, Any]:
    """Return what the file says of a message, without what a delivery adds."""
    properties = {name: value for name, value in message["properties"].items() if name not in _OF_THE_DELIVERY}
    return {**{name: message[name] for name in _FIELDS}, "properties": properties}


def _in_order(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(map(_facts, messages), key=lambda m: (m["topic"], m["queueId"], m["queueOffset"]))


def _read_all(agent: Agent, name: str, topic: str, count: int) -> list[dict[str, Any]]:
    """Return every message of a topic as a new group gets them."""
    agent.ask("consumer", id=name, group=f"R_{name}", topic=topic)
    got = agent.received(name, count) + agent.stays_at(name, 0.5)
    agent.ask("shutdown", id=name)
    return _in_order(got)


def fill(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Write a store; return what its messages are."""
    agent = Agent("4.9.8", cluster.namesrv, folder)
    agent.ask("producer", id="p", group="FilesProducer")
    agent.ask("create-topic", id="p", topic=TOPIC, queues=3)
    agent.ask("create-topic", id="p", topic=MANY_TOPIC, queues=1)
    agent.ask("send", id="p", topic=TOPIC, count=30, tags="A", keys="common k#", p__n="#", flag=7, body="ключ-")
    agent.ask("send", id="p", topic=TOPIC, mode="batch", count=12, tags="B", keys="b#", body="batch-")
    agent.ask("send", id="p", topic=TOPIC, size=9_000, body="compressed-")
    agent.ask("consumer", id="c", group=GROUP, topic=TOPIC, maxReconsume=3)
    agent.received("c", 43)
    agent.ask("shutdown", id="c")  # which has it commit
    agent.ask("send", id="p", topic=TOPIC, count=LEFT, tags="C", keys="left#", body="left-")
    for _ in range(40):
        agent.ask("send", id="p", topic=MANY_TOPIC, mode="batch", count=100, body="m-", size=200)
    agent.ask("send", id="p", topic=BAD_TOPIC, keys="bad", body="good-")
    agent.ask("consumer", id="first", group=BAD_GROUP, topic=BAD_TOPIC)
    agent.received("first", 1)
    agent.ask("shutdown", id="first")
    agent.ask("send", id="p", topic=BAD_TOPIC, keys="bad", body="bad-")
    agent.ask("consumer", id="d", group=BAD_GROUP, topic=BAD_TOPIC, fail=99, maxReconsume=1, level=1)
    agent.received("d", 2)
    time.sleep(1.5)
    agent.ask("shutdown", id="d")
    messages = _read_all(agent, f"before-{time.monotonic_ns()}", TOPIC, 43 + LEFT)
    agent.ask("tx-producer", id="t", group=TX_GROUP, check="unknown")
    agent.ask("tx-send", id="t", topic=TOPIC, state="unknown", keys="tx", body="undecided-")
    agent.ask("send", id="p", topic=TOPIC, delay=3, keys="delayed", body="delayed-")
    agent.close()
    return {"messages": messages, "delayed at": time.time()}


def require_same(cluster: Cluster, folder: Path, written: dict[str, Any], version: str = "4.9.8") -> None:
    """Find everything that ``fill`` wrote, and go on with it."""
    agent = Agent(version, cluster.namesrv, folder)
    try:
        _require_same(agent, written)
    finally:
        agent.close()


def _require_same(agent: Agent, written: dict[str, Any]) -> None:
    bodies: set[str] = set()

    def gathered() -> set[str]:
        bodies.update(m["body"] for m in agent.ask("received", id="c"))
        return bodies

    agent.ask("producer", id="p", group="FilesProducer")
    assert [len(agent.ask("queues", id="p", topic=topic)) for topic in (TOPIC, MANY_TOPIC)] == [3, 1]
    # The group goes on where it was; then comes what was delayed.
    agent.ask("consumer", id="c", group=GROUP, topic=TOPIC)
    got = agent.received("c", LEFT + 1)
    assert sorted(m["body"] for m in got) == ["delayed-0", *(f"left-{n}" for n in range(LEFT))]
    (delayed,) = [m for m in got if m["body"] == "delayed-0"]
    assert delayed["storeTimestamp"] - delayed["bornTimestamp"] >= 9_900
    # Message by message what the file says.
    read = _read_all(agent, f"again-{time.monotonic_ns()}", TOPIC, len(written["messages"]) + 1)
    assert [m for m in read if m["body"] != "delayed-0"] == written["messages"]
    found = agent.ask("query", id="p", topic=TOPIC, key="common")
    assert sorted(m["body"] for m in found) == sorted(f"ключ-{n}" for n in range(30))
    (one,) = agent.ask("query", id="p", topic=TOPIC, key="b7")
    assert one["body"] == "batch-7"
    seventh = next(m for m in written["messages"] if m["body"] == "left-7")
    assert agent.ask("view", id="p", topic=TOPIC, msgId=seventh["msgId"])["body"] == "left-7"
    agent.ask("pull-consumer", id="d", group="FilesLook")
    dead = agent.ask("pull", id="d", topic=f"%DLQ%{BAD_GROUP}", offset=0)["messages"]
    assert [(m["body"], m["properties"]["RETRY_TOPIC"]) for m in dead] == [("bad-0", BAD_TOPIC)]
    offsets = agent.ask("offsets", id="d", topic=MANY_TOPIC, at=1)
    assert (offsets["min"], offsets["max"], offsets["search"]) == (0, 4000, 0)
    pulled = agent.ask("pull", id="d", topic=MANY_TOPIC, offset=3998, max=5)
    assert [m["queueOffset"] for m in pulled["messages"]] == [3998, 3999]
    # What was left open is asked about; what comes new goes on behind.
    agent.ask("tx-producer", id="t", group=TX_GROUP, check="commit")
    agent.ask("tx-send", id="t", topic=TOPIC, state="commit", body="decided-")
    # RocketMQ 5 may ask about a transaction that was just committed: at least once.
    until(lambda: {"decided-0", "undecided-0"} <= gathered(), 40)
    (sent,) = agent.ask("send", id="p", topic=MANY_TOPIC, mode="queue", queue=0, body="new-", keys="new")
    assert sent["queueOffset"] == 4000
    assert gathered() == {"decided-0", "undecided-0"}
