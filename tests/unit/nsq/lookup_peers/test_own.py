"""This broker in the registry of its own process: there at once, gone at once, and nothing comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from headrace.nsq.lookup_peers import own
from headrace.nsq.lookup_peers.peers import LookupPeers
from headrace.registry.producers import ProducerInfo, ProducerTable
from headrace.testing import RunningBroker, broker
from tests.support.brokers import BrokerRig
from tests.unit.nsq.lookup_peers.scripted_lookupd import IDENTITY, run, wait_until

OWN = "127.0.0.1:4160"
OTHER = object()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path / "store")
    yield made
    made.close()


def make_table(max_topics: int = 100) -> ProducerTable:
    table = ProducerTable(
        silent_ms=100,
        tombstone_ms=100,
        max_producers=2,
        max_topics=max_topics,
        max_channels=100,
        max_registrations=1000,
    )
    info = ProducerInfo(
        remote_address="r", hostname="other", broadcast_address="other", tcp_port=1, http_port=2, version="v"
    )
    table.identify(OTHER, info, 0)
    return table


def make_peers(rig: BrokerRig, table: ProducerTable) -> LookupPeers:
    return LookupPeers(rig.broker, IDENTITY, rig.clock, [], own_address=OWN, own_table=table)


def hosts(table: ProducerTable, topic: str) -> list[str]:
    found = table.lookup(topic, 1 << 40)
    return [info.broadcast_address for info in found.producers] if found is not None else []


def test_what_is_there_is_told_at_once_and_never_silent(rig: BrokerRig) -> None:
    async def test() -> None:
        table = make_table()
        rig.publish("before", [b"x"])
        peers = make_peers(rig, table)
        peers.start()
        assert hosts(table, "before") == ["b"]
        rig.publish("t", [b"x"])
        rig.subscribe("t", "c")
        assert hosts(table, "t") == ["b"]
        assert table.channels_of("t") == ["c"]
        rig.broker.delete_channel("t", "c")
        assert table.channels_of("t") == []
        rig.broker.delete_topic("t")
        assert table.topics() == ["before"]
        assert peers.links == []
        await peers.stop()
        assert hosts(table, "before") == []

    run(test)


def test_a_channel_that_was_deleted_with_its_topic_does_not_come_back(rig: BrokerRig) -> None:
    """nsqlookupd keeps its name, and a topic made anew would get it."""

    async def test() -> None:
        peers = make_peers(rig, make_table())
        peers.start()
        rig.publish("t", [b"x"])
        rig.subscribe("t", "c")
        rig.broker.delete_topic("t")
        rig.publish("t", [b"y"])
        assert peers._own_queries is not None
        await wait_until(lambda: not peers._own_queries._tasks)
        assert not rig.broker.find_topic("t").channels
        assert peers.counters.channels == 0
        await peers.stop()

    run(test)


def test_a_new_topic_gets_channels_of_others_and_of_tools(rig: BrokerRig) -> None:
    """Each begins where the topic does; ephemeral ones come with their consumers only."""

    async def test() -> None:
        table = make_table()
        peers = make_peers(rig, table)
        peers.start()
        table.register(OTHER, "t", "others")
        table.register(OTHER, "t", "x#ephemeral")
        table.create("t", "tools")
        rig.publish("t", [b"first"])
        topic = rig.broker.find_topic("t")
        await wait_until(lambda: len(topic.channels) == 2)
        assert sorted(topic.channels) == ["others", "tools"]
        for channel in ("others", "tools"):
            assert [body for body, _, _ in rig.take(*rig.subscribe("t", channel))] == [b"first"]
        assert hosts(table, "t") == ["b"]  # the other is silent
        await peers.stop()

    run(test)


def test_where_the_registry_is_full_the_broker_goes_on(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        table = make_table(max_topics=1)
        peers = make_peers(rig, table)
        peers.start()
        rig.publish("one", [b"x"])
        rig.publish("two", [b"x"])
        rig.broker.delete_topic("two")
        assert table.topics() == ["one"]
        await peers.stop()
        table.identify("another", next(table.nodes(0)).info, 0)
        peers = make_peers(rig, table)
        peers.start()
        rig.publish("three", [b"x"])
        await peers.stop()

    run(test)
    assert "registry.max_topics" in caplog.text


def test_what_there_was_no_room_for_is_told_when_there_is(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who filled the registry once had this broker left out of it until its next start."""
    monkeypatch.setattr(own, "AGAIN_S", 0.01)

    async def test() -> None:
        table = make_table(max_topics=2)
        table.identify("greedy", next(table.nodes(0)).info, 0)
        peers = make_peers(rig, table)
        rig.publish("one", [b"x"])
        peers.start()
        assert hosts(table, "one") == []
        table.connection_closed("greedy")
        await wait_until(lambda: hosts(table, "one") == ["b"])
        table.create("full")
        rig.publish("two", [b"x"])
        rig.publish("three", [b"x"])
        rig.broker.delete_topic("three")
        assert table.topics() == ["one", "full"]
        table.delete_topic("full")
        await wait_until(lambda: hosts(table, "two") == ["b"])
        assert table.topics() == ["one", "two"]
        await peers.stop()
        await asyncio.sleep(0.05)
        assert hosts(table, "two") == []

    run(test)


def test_the_own_registry_has_two_names(rig: BrokerRig) -> None:
    """Over a connection it would list this broker twice, and keep the names that its deletions leave behind."""

    async def test() -> None:
        peers = make_peers(rig, make_table())
        peers.start()
        peers.set_addresses([OWN, "localhost:4160", "localhost:4161", "127.0.0.2:4160"])
        assert [link.address for link in peers.links] == ["localhost:4161", "127.0.0.2:4160"]
        assert peers.addresses[1] == "localhost:4160"
        await peers.stop()

    run(test)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker() as made:
        yield made


def ask(address: str, path: str, *, method: str = "GET", body: bytes | None = None) -> Any:
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    with urlopen(Request(f"http://{address}{path}", method=method, data=body, headers=headers), timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in (b"{", b"[") else text


def test_consumers_that_ask_the_registry_find_the_broker_without_a_setting(running: RunningBroker) -> None:
    """X-REG-05. They are sent where it listens: the host's name leads nowhere while that is 127.0.0.1."""
    ask(running.nsq_http, "/pub?topic=orders", method="POST", body=b"x")
    found = ask(running.nsqlookupd_http, "/lookup?topic=orders")
    producer = found["producers"][0]
    assert f"{producer['broadcast_address']}:{producer['tcp_port']}" == running.nsq_tcp
    assert f"{producer['broadcast_address']}:{producer['http_port']}" == running.nsq_http
    assert found["channels"] == []
    ask(running.nsq_http, "/channel/create?topic=orders&channel=c", method="POST")
    assert ask(running.nsqlookupd_http, "/channels?topic=orders") == {"channels": ["c"]}
    debug = ask(running.nsqlookupd_http, "/debug")
    assert 0 < debug["client::"][0]["last_update"] < 1 << 63


def test_the_own_registry_is_not_in_the_list_of_others(running: RunningBroker) -> None:
    """GET /config/nsqlookupd_tcp_addresses answers as nsqd does; where it is in the list, it is not connected to."""
    option = "/config/nsqlookupd_tcp_addresses"
    own = running.listeners["nsqlookupd_tcp"]
    assert ask(running.nsq_http, option) == []
    ask(running.nsq_http, option, method="PUT", body=json.dumps([own]).encode())
    ask(running.nsq_http, "/topic/create?topic=listed", method="POST")
    assert len(ask(running.nsqlookupd_http, "/lookup?topic=listed")["producers"]) == 1
    ask(running.nsq_http, option, method="PUT", body=b"[]")
    assert len(ask(running.nsqlookupd_http, "/nodes")["producers"]) == 1


def test_the_own_registry_is_known_by_any_address_of_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    """Announced to over a connection as well it listed this broker twice, and deleted channels came back."""
    caplog.set_level(logging.INFO)
    option = "/config/nsqlookupd_tcp_addresses"
    with broker(registry__nsq_tcp_address="0.0.0.0:0", remoting__address="") as everywhere:
        port = everywhere.listeners["nsqlookupd_tcp"].rpartition(":")[2]
        others = [f"127.0.0.2:{port}", f"127.0.0.3:{port}"]
        ask(everywhere.nsq_http, option, method="PUT", body=json.dumps(others).encode())
        line = "nsqlookupd is the one in this process, told without a connection address="
        deadline = time.monotonic() + 10
        while not all(line + address in caplog.text for address in others):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ask(everywhere.nsq_http, "/pub?topic=t", method="POST", body=b"x")
        ask(everywhere.nsq_http, "/channel/create?topic=t&channel=c", method="POST")
        assert len(ask(everywhere.nsqlookupd_http, "/nodes")["producers"]) == 1
        ask(everywhere.nsq_http, "/topic/delete?topic=t", method="POST")
        assert ask(everywhere.nsqlookupd_http, "/topics") == {"topics": []}
        metrics = ask(everywhere.admin, "/metrics").decode()
        assert 'headrace_nsq_lookupd_peers{state="connected"} 2.0' in metrics
        assert "headrace_nsq_lookupd_failures_total{" not in metrics
