"""A topic that is made gets the channels that nsqlookupds know (nsq.md 2.1, "new topic with registries configured")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.topic import TopicConfig
from headrace.clock import Clock
from headrace.log_pace import LogPace
from headrace.nsq.lookup_peers import channel_queries, connection, http_query, link
from headrace.nsq.lookup_peers.channel_queries import ChannelQueries
from headrace.nsq.lookup_peers.counters import LookupCounters
from headrace.nsq.lookup_peers.peers import LookupPeers
from tests.support.brokers import BrokerRig
from tests.unit.nsq.lookup_peers.scripted_lookupd import IDENTITY, announcing, run, scripted, serving, wait_until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(connection, "ANSWER_S", 2.0)
    monkeypatch.setattr(http_query, "QUERY_S", 0.5)


def bodies(rig: BrokerRig, topic: str, channel: str) -> list[bytes]:
    return sorted(body for body, _, _ in rig.take(*rig.subscribe(topic, channel)))


def test_channels_of_all_are_made_and_get_what_was_published_before(rig: BrokerRig) -> None:
    """The topic is served at once; ephemeral channels come with their consumers only."""

    async def test() -> None:
        async with scripted() as one, scripted() as two, announcing(rig.broker, one.address, two.address) as peers:
            one.channels = {"t": ["a", "b", "x#ephemeral"], "old": ["no"]}
            two.channels = {"t": ["b", "c"]}
            rig.publish("t", [b"first"])
            rig.subscribe("t", "b")
            rig.publish("t", [b"second"])
            rig.subscribe("t", "c")  # named by an answer, and faster than it
            topic = rig.broker.find_topic("t")
            await wait_until(lambda: peers.counters.queries == 2)
            assert topic.awaited_answers == 0
            assert sorted(topic.channels) == ["a", "b", "c"]
            rig.subscribe("t", "later")
            rig.publish("t", [b"third"])
            for channel in "abc":
                assert bodies(rig, "t", channel) == [b"first", b"second", b"third"]
            assert bodies(rig, "t", "later") == [b"third"]
            assert (peers.counters.channels, one.questions, two.questions) == (1, ["t"], ["t"])
            await wait_until(lambda: {"REGISTER t a", "REGISTER t c"} <= {*one.commands} & {*two.commands})

    run(test)


def test_others_have_turns_while_names_are_looked_at(rig: BrokerRig) -> None:
    """A hundred thousand that were there, or that nobody can make, took 30 ms in one go."""
    there, unspelled = [f"c{number}" for number in range(3_000)], ["not valid", "x#ephemeral"] * 1_500

    async def find(topic: str) -> list[str]:
        return [*there, *unspelled, *there]

    async def test() -> None:
        queries = ChannelQueries("l:4160", find, rig.broker, LookupCounters(), LogPace(Clock()))
        rig.publish("t", [b"x"])
        topic = rig.broker.find_topic("t")
        queries.ask(topic)
        turns = 0
        while topic.awaited_answers:
            await asyncio.sleep(0)
            turns += 1
        assert len(topic.channels) == len(there)
        made, looked_at = channel_queries.MADE_AT_ONCE, channel_queries.LOOKED_AT_ONCE
        assert turns >= len(there) // made + (len(unspelled) + len(there)) // looked_at - 5

    run(test)


def test_topics_of_all_protocols(rig: BrokerRig) -> None:
    """RocketMQ's with many queues; not those that NSQ cannot spell, nor those that were there before."""

    async def test() -> None:
        rig.publish("there", [b"x"])
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.channels = {"many": ["c"], "there": ["c"], "e#ephemeral": ["c"]}
            rig.broker.create_topic("many", TopicConfig(4, 4))
            rig.broker.create_topic("%RETRY%g", TopicConfig(1, 1))
            rig.broker.ensure_topic("e#ephemeral")
            for number in range(8):
                rig.publish("many", [b"%d" % number])
            await wait_until(lambda: peers.counters.queries == 2)
            assert bodies(rig, "many", "c") == [b"%d" % number for number in range(8)]
            assert lookupd.questions == ["many", "e#ephemeral"]
            assert list(rig.broker.find_topic("e#ephemeral").channels) == ["c"]
            assert not rig.broker.find_topic("there").channels

    run(test)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_was_deleted_before_the_answer(rig: BrokerRig, again: bool) -> None:
    """It is not made again; one of its name that was asks for itself."""

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            release = asyncio.Event()

            async def wait(writer: asyncio.StreamWriter) -> None:
                await release.wait()

            lookupd.answering, lookupd.channels = wait, {"t": ["c"]}
            rig.publish("t", [b"former"])
            await wait_until(lambda: lookupd.questions)
            rig.broker.delete_topic("t")
            if again:
                rig.publish("t", [b"new"])
            release.set()
            await wait_until(lambda: peers.counters.queries == 1 + again)
            if again:
                assert bodies(rig, "t", "c") == [b"new"]
            else:
                assert "t" not in rig.broker.topics

    run(test)


def test_a_topic_made_before_the_connection_is_asked_for(rig: BrokerRig) -> None:
    """At a start clients are faster than the nsqlookupds."""

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.channels = {"t": ["c"]}
            rig.publish("t", [b"x"])
            assert lookupd.connections == 0
            await wait_until(lambda: peers.counters.queries == 1)
            assert bodies(rig, "t", "c") == [b"x"]

    run(test)


def test_a_topic_made_before_the_start_is_asked_for(rig: BrokerRig) -> None:
    """NSQ's port is open a moment before its registries are told; what consumers make meanwhile lacks nothing."""

    async def test() -> None:
        async with scripted() as lookupd:
            lookupd.channels = {"t": ["b", "c"]}
            peers = LookupPeers(rig.broker, IDENTITY, Clock(), [lookupd.address])
            rig.publish("t", [b"x"])
            rig.subscribe("t", "a")
            consumer, channel = rig.subscribe("t", "b")
            peers.start()
            await wait_until(lambda: peers.counters.queries == 1)
            assert [body for body, _, _ in rig.take(consumer, channel)] == bodies(rig, "t", "c") == [b"x"]
            assert rig.broker.find_topic("t").awaited_answers == 0
            await peers.stop()

    run(test)


@pytest.mark.parametrize("addresses", [[], ["127.0.0.1:1"]])
def test_a_node_that_ends_before_its_start(rig: BrokerRig, addresses: list[str]) -> None:
    """Another part of it could not start."""

    async def test() -> None:
        peers = LookupPeers(rig.broker, IDENTITY, Clock(), addresses)
        topic = rig.broker.ensure_topic("t")
        assert topic.awaited_answers == len(addresses)
        await peers.stop()
        assert rig.broker.presence_listeners == []

    run(test)


def test_many_topics_share_few_questions(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And too many are not asked for: it is counted, and logged."""
    monkeypatch.setattr(channel_queries, "MAX_WAITING", 40)
    for module, patience in ((channel_queries, "WAIT_S"), (http_query, "QUERY_S")):
        monkeypatch.setattr(module, patience, 60.0)  # a busy machine may stand still for longer than they are

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.answering = lambda writer: asyncio.sleep(0.005)
            for number in range(50):
                lookupd.channels[f"t{number}"] = ["c"]
                rig.broker.ensure_topic(f"t{number}")
            await wait_until(lambda: peers.counters.queries == 40)
            assert lookupd.most_at_once == channel_queries.AT_ONCE
            assert peers.counters.query_failures == {"dropped": 10}
            assert len(lookupd.questions) == 40

    run(test)


def test_topics_do_not_wait_for_minutes(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is slow: what was not asked in time is not asked, and channels begin as ever."""
    monkeypatch.setattr(channel_queries, "WAIT_S", 0.2)

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.answering = lambda writer: asyncio.sleep(0.9)
            topics = [rig.broker.ensure_topic(f"t{number}") for number in range(40)]
            await wait_until(lambda: peers.counters.query_failures.total() == 40)
            assert peers.counters.query_failures == {"timeout": 4, "dropped": 36}
            assert [topic.awaited_answers for topic in topics] == [0] * 40

    run(test)


@pytest.mark.parametrize("answer", ["silence", "trickle", "404", "no JSON", "close", "endless"])
def test_a_question_that_is_not_answered(
    rig: BrokerRig, answer: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsq.md 2.1: failure is only logged. The other nsqlookupd is heard; the broker goes on."""
    # The connecting counts too: on a busy machine half a second may be over before the question is out.
    monkeypatch.setattr(http_query, "QUERY_S", 1.5)

    async def misbehave(writer: asyncio.StreamWriter) -> None:
        if answer == "silence":
            await asyncio.sleep(2.0)
        elif answer == "trickle":
            for _ in range(120):
                if writer.is_closing():
                    break
                writer.write(b"H")
                await asyncio.sleep(0.02)
        elif answer == "404":
            writer.write(b"HTTP/1.0 404 Not Found\r\n\r\n")
        elif answer == "no JSON":
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nnope")
        elif answer == "close":
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 400\r\n\r\n{")
        elif answer == "endless":
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
            for _ in range(20):
                writer.write(b"[" * (1 << 20))
                await writer.drain()
        writer.close()
        raise ConnectionError

    async def test() -> None:
        async with scripted() as bad, scripted() as good, announcing(rig.broker, bad.address, good.address) as peers:
            bad.answering, good.channels = misbehave, {"t": ["c"]}
            rig.publish("t", [b"x"])
            rig.publish("u", [b"x"])
            await wait_until(lambda: peers.counters.queries == 2 and peers.counters.query_failures.total() == 2)
            cause = "timeout" if answer in ("silence", "trickle") else "protocol"
            assert peers.counters.query_failures == {cause: 2}
            assert bodies(rig, "t", "c") == [b"x"]
            assert all(link.is_connected for link in peers.links)
            assert rig.broker.find_topic("t").awaited_answers == 0

    run(test)
    assert sum("channels of a new topic not found out" in message for message in caplog.messages) == 1


def test_a_nsqlookupd_that_is_not_there_is_not_asked(rig: BrokerRig) -> None:
    """Nor one that does not say where it answers over HTTP."""

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, "127.0.0.1:1", lookupd.address) as peers:
            lookupd.identity = b'{"broadcast_address":"","http_port":4161}'
            rig.publish("t", [b"x"])
            await wait_until(lambda: peers.counters.query_failures == {"connect": 2})

    run(test)


def test_a_broker_that_has_all_the_channels_it_may_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It makes no more, and says so."""
    rig = BrokerRig(tmp_path / "store", max_channels=2)

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.channels = {"t": ["a", "b", "c"]}
            rig.publish("t", [b"x"])
            await wait_until(lambda: peers.counters.query_failures == {"core": 1})
            assert list(rig.broker.find_topic("t").channels) == ["a", "b"]

    run(test)
    rig.close()
    assert "broker.max_channels" in caplog.text


def test_a_hostile_answer_of_a_hundred_thousand_channels(tmp_path: Path) -> None:
    """They are made some at a time."""
    rig = BrokerRig(tmp_path / "store")

    async def test() -> None:
        async with scripted() as lookupd, announcing(rig.broker, lookupd.address) as peers:
            lookupd.channels = {"t": [f"c{number}" for number in range(2_000)]}
            topic = rig.broker.ensure_topic("t")
            most = 0
            while not peers.counters.queries:
                before = len(topic.channels)
                await asyncio.sleep(0)
                most = max(most, len(topic.channels) - before)
            assert len(topic.channels) == 2_000
            assert 0 < most <= channel_queries.MADE_AT_ONCE

    run(test)
    rig.close()


def test_the_end_comes_while_nobody_answers(rig: BrokerRig) -> None:
    """It waits for no answer, and leaves no task."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async def test() -> None:
        async with serving(silent) as address:
            before = len(asyncio.all_tasks())
            async with scripted() as lookupd, announcing(rig.broker, lookupd.address, "127.0.0.1:1"):
                lookupd.identity = b'{"broadcast_address":"127.0.0.1","http_port":%s}' % address.split(":")[1].encode()
                topics = [rig.broker.ensure_topic(f"t{number}") for number in range(10)]
                await wait_until(lambda: "REGISTER t9" in lookupd.commands)
            assert [topic.awaited_answers for topic in topics] == [0] * 10
            await wait_until(lambda: len(asyncio.all_tasks()) == before)

    run(test)


@pytest.mark.parametrize("most", [1_000, 30])
def test_channels_of_a_topic_have_one_line(most: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A nsqlookupd may name 100,000 for each topic, a line each. Also where a bound ends it."""
    caplog.set_level(logging.INFO)
    rig = BrokerRig(tmp_path / "store", max_channels=most)
    names = [f"c{number:03}" for number in range(200)]

    async def find(topic: str) -> list[str]:
        return names if topic == "t" else []

    async def test() -> None:
        queries = ChannelQueries("l:4160", find, rig.broker, LookupCounters(), LogPace(Clock()))
        for topic in ("t", "other"):
            rig.publish(topic, [b"x"])
            queries.ask(rig.broker.find_topic(topic))
        await wait_until(lambda: not queries._tasks)
        assert len(rig.broker.find_topic("t").channels) == min(most, len(names))

    run(test)
    rig.close()
    lines = [line for line in caplog.messages if line.startswith("channel") and "created" in line]
    first = ",".join(names[:20])
    made = min(most, len(names))
    assert lines == [
        f"channels created that a nsqlookupd knows address=l:4160 topic=t count={made} channels={first},..."
    ]
