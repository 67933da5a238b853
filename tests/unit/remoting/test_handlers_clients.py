"""Heartbeats, membership, locks, and what is asked of consumers. Ref: remoting.md 4.4, 4.7.6."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StoreFullError
from headrace.format import fastjson
from headrace.net.receive import SHORT_READ_BYTES
from headrace.net.turns import MAX_KEPT_BYTES, TURN_MS
from headrace.remoting import bodies, large_requests
from headrace.remoting.codec import Command, encode_request
from headrace.remoting.codes import TOPIC_FLAG_UNIT_SUB
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.handlers import queue_locks
from headrace.remoting.handlers.clients import SUBSCRIPTIONS_AT_ONCE, unregister_client
from headrace.remoting.handlers.queue_locks import QUEUES_AT_ONCE
from headrace.remoting.handlers.table import HANDLERS
from headrace.remoting.large_requests import LARGE_BODY_BYTES
from headrace.remoting.peer import Peer
from headrace.remoting.reply import Parts, Reply
from tests.support.loop import FakeLoop
from tests.support.remoting import (
    JAVA_4_9,
    BrokerLink,
    RemotingRig,
    as_json,
    body_of,
    consumer_data,
    send_fields,
    subscription,
)


def test_heartbeat_makes_the_group_and_its_retry_topic(rig: RemotingRig) -> None:
    """A-BROKER-26, trap 11: the retry topic is there, and registered, after the first heartbeat."""
    made: list[str] = []
    rig.broker.on_topics_changed = made.append
    assert rig.peer().heartbeat("c1", subscription("T1"), group="G1").code == 0
    assert rig.services.groups.get("G1") is not None
    assert made == ["%RETRY%G1"]
    assert rig.broker.topics["%RETRY%G1"].config.read_queues == 1
    in_unit_mode = {**consumer_data("G2", subscription("T1")), "unitMode": True}
    assert rig.peer().ask(34, body=as_json({"clientID": "c1", "consumerDataSet": [in_unit_mode]})).code == 0
    flags = [rig.broker.topics[f"%RETRY%{group}"].config.sys_flag for group in ("G1", "G2")]
    assert flags == [0, TOPIC_FLAG_UNIT_SUB]


def test_tools_group_gets_no_retry_topic(rig: RemotingRig) -> None:
    """remoting.md 4.10: system groups are accepted without being created."""
    rig.peer().heartbeat("c1", group="TOOLS_CONSUMER")
    assert "%RETRY%TOOLS_CONSUMER" not in rig.broker.topics


def test_a_full_store_takes_new_groups_which_read_what_is_there(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-STORE-51: writes are refused, reads go on. The retry topic comes with a heartbeat when there is room."""
    peer = rig.peer()

    def refuse(*_: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(rig.broker, "create_topic", refuse)
        reply = peer.heartbeat("c1", subscription("T1"), group="G1")
    assert (reply.code, reply.remark) == (0, "no room")
    assert body_of(peer.ask(38, {"consumerGroup": "G1"})) == {"consumerIdList": ["c1"]}
    assert "%RETRY%G1" not in rig.broker.topics
    assert peer.heartbeat("c1", subscription("T1"), group="G1").remark == ""
    assert "%RETRY%G1" in rig.broker.topics


@pytest.mark.parametrize(("groups", "queues", "made"), [(150, 1, 100), (30, 100, 10)])
def test_a_heartbeat_makes_so_many_retry_topics(rig: RemotingRig, groups: int, queues: int, made: int) -> None:
    """Of groups that a tool has made before, too: their topics, with all their queues, hold up everybody else."""
    names = [f"Made{number}" for number in range(groups)]
    for name in names:
        assert rig.peer().ask(200, body=as_json({"groupName": name, "retryQueueNums": queues})).code == 0
    body = as_json({"clientID": "c", "consumerDataSet": [consumer_data(name) for name in names]})
    for step in range(1, groups // made + 2):
        reply = rig.peer().ask(34, body=body)
        assert sum(name.startswith("%RETRY%Made") for name in rig.broker.topics) == min(step * made, groups)
        assert ("next heartbeat" in reply.remark) == (step * made < groups)


def test_groups_without_a_retry_topic_are_not_held_up(rig: RemotingRig) -> None:
    """They need none: a heartbeat with many of them is a heartbeat as any other."""
    names = [f"None{number}" for number in range(150)]
    for name in names:
        assert rig.peer().ask(200, body=as_json({"groupName": name, "retryQueueNums": 0})).code == 0
    body = as_json({"clientID": "c", "consumerDataSet": [consumer_data(name) for name in names]})
    reply = rig.peer().ask(34, body=body)
    assert (reply.code, reply.remark) == (0, "")
    assert not any(name.startswith("%RETRY%") for name in rig.broker.topics)


def test_groups_are_not_made_when_that_is_off(tmp_path: Path) -> None:
    """remoting.md 4.4: 26; the remark names the setting."""
    rig = RemotingRig(tmp_path, auto_create_groups=False)
    reply = rig.peer().heartbeat("c1", group="G1")
    assert reply.code == 26
    assert "remoting.auto_create_groups" in reply.remark
    rig.close()


def test_every_member_is_told_of_a_change(rig: RemotingRig) -> None:
    """Trap 18: also of a changed set of topics; not of a heartbeat that says nothing new."""
    one, two = rig.peer(1), rig.peer(2)
    one.heartbeat("c1", subscription("T1"), group="G1")
    one.notices.clear()
    two.heartbeat("c2", subscription("T1"), group="G1")
    assert [notice[:2] for notice in one.notices] == [(40, {"consumerGroup": "G1"})]
    assert len(two.notices) == 1
    two.heartbeat("c2", subscription("T1"), group="G1")
    assert len(two.notices) == 1
    two.heartbeat("c2", subscription("T1"), subscription("T2"), group="G1")
    assert len(one.notices) == 2


@pytest.mark.provokes_bugs
def test_member_that_cannot_be_told_keeps_no_other_from_being_told(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say: queues that nobody takes over wait until the others look by themselves."""
    one, two, three = (rig.peer(number) for number in (1, 2, 3))
    one.heartbeat("c1", subscription("T1"), group="G1")
    two.heartbeat("c2", subscription("T1"), group="G1")
    two.notices.clear()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(one, "notify", fail)
    three.heartbeat("c3", subscription("T1"), group="G1")
    assert len(two.notices) == len(three.notices) == 1


def test_a_heartbeat_that_repeats_is_not_read(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 clients with 1,000 subscriptions each held the loop for 1.2 s, every 30 s."""
    read: list[bytes] = []
    read_object = bodies.read_object

    def count(body: bytes) -> dict[str, Any]:
        read.append(body)
        return read_object(body)

    monkeypatch.setattr(bodies, "read_object", count)
    peer = rig.peer()
    for _ in range(3):
        assert peer.heartbeat("c1", subscription("T1"), group="G1", producer="P1").code == 0
    assert len(read) == 1
    rig.pass_time(100_000)
    peer.heartbeat("c1", subscription("T1"), group="G1", producer="P1")
    rig.pass_time(100_000)
    assert rig.services.clients.client_ids("G1") == ["c1"]
    assert len(read) == 1

    def is_read_again() -> bool:
        before = len(read)
        assert peer.heartbeat("c1", subscription("T1"), group="G1", producer="P1").code == 0
        return len(read) > before

    rig.peer(2).heartbeat("c2", subscription("T2"), group="G1")
    assert is_read_again()  # all follow the last heartbeat
    assert rig.services.clients.subscription("G1", "T1") is not None
    assert peer.ask(215, {"topic": "%RETRY%G1"}).code == 0
    assert is_read_again()
    assert "%RETRY%G1" in rig.broker.topics
    assert peer.ask(207, {"groupName": "G1"}).code == 0
    assert is_read_again()
    assert rig.services.groups.get("G1") is not None
    assert not is_read_again()


def test_large_heartbeats_of_many_clients_are_done_in_turns(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 clients that came back at once held the loop for 1.4 s: each is done in its order, others in between."""
    first = rig.link()
    links = [first, *(BrokerLink(rig, first.server, f"10.0.0.{number}") for number in range(6, 10))]
    loop = FakeLoop()
    first.server.large_requests.call_soon = loop.call_soon
    heart_beat = HANDLERS[34]

    def slow(peer: Peer, command: Command) -> Reply | Parts | None:
        rig.clock.advance_ms(TURN_MS // 2)
        return heart_beat(peer, command)

    monkeypatch.setitem(HANDLERS, 34, slow)
    topics = [subscription(f"T{number}") for number in range(40)]
    for number, link in enumerate(links):
        beat = as_json({"clientID": f"c{number}", "consumerDataSet": [consumer_data(f"G{number}", *topics)]})
        rig.peer().ask(34, body=beat)  # makes the group, which takes a file
        assert len(beat) >= LARGE_BODY_BYTES
        ask = encode_request(0, 38, 2, ext={"consumerGroup": f"G{number}"})
        assert link.send(encode_request(0, 34, 1, body=beat) + ask) == []
        assert not link.transport.reading
    done = []
    while loop.come_round():
        for link in links:
            link.loop.come_round()
        done.append([sorted(answer.opaque for answer in link.taken() if answer.is_response) for link in links])
    assert done == [
        [[1, 2], [1, 2], [], [], []],
        [[], [], [1, 2], [1, 2], []],
        [[], [], [], [], [1, 2]],
    ]
    assert all(link.transport.reading for link in links)
    assert first.server.counters.read_pauses == 0


@pytest.mark.provokes_bugs
def test_a_bug_in_a_large_request_costs_its_connection_alone(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in line behind it are done."""
    first, loop = rig.link(), FakeLoop()
    links = [first, BrokerLink(rig, first.server, "10.0.0.6")]
    first.server.large_requests.call_soon = loop.call_soon
    execute = RemotingConnection._execute

    def fail_once(connection: RemotingConnection, command: Command) -> None:
        monkeypatch.setattr(RemotingConnection, "_execute", execute)
        raise ZeroDivisionError

    monkeypatch.setattr(RemotingConnection, "_execute", fail_once)
    topics = [subscription(f"T{number}") for number in range(40)]
    for number, link in enumerate(links):
        data = {"clientID": f"c{number}", "consumerDataSet": [consumer_data("G", *topics)]}
        link.send(encode_request(0, 34, 1, body=as_json(data)))
    while loop.come_round():
        pass
    assert rig.services.clients.client_ids("G") == ["c1"]
    assert first.transport.closed
    assert first.server.counters.internal_errors == 1


def test_a_full_read_is_large_also_while_reads_are_short(rig: RemotingRig) -> None:
    """Others keep much of theirs: behind a full read there is probably more, and it has a turn."""
    link = rig.link()
    ask = encode_request(0, 38, 2, ext={"consumerGroup": "G"})
    many = ask * (SHORT_READ_BYTES // len(ask) + 1)
    link.send(many)
    assert link.server.turns.waiting == 0
    link.server.turns.note_kept(MAX_KEPT_BYTES + 1)
    link.send(many)
    assert link.server.turns.waiting == 1


def test_a_large_heartbeat_of_a_client_that_leaves_is_forgotten(rig: RemotingRig) -> None:
    link, loop = rig.link(), FakeLoop()
    link.server.large_requests.call_soon = loop.call_soon
    topics = [subscription(f"T{number}") for number in range(40)]
    link.send(
        encode_request(0, 34, 1, body=as_json({"clientID": "c", "consumerDataSet": [consumer_data("G", *topics)]}))
    )
    link.connection.connection_lost(None)
    assert loop.come_round() == 1
    assert rig.services.clients.client_ids("G") == []


def test_members_that_come_and_go_together_are_told_of_together(rig: RemotingRig) -> None:
    """Trap 18 without its square: a thousand clients that joined at once held the loop for ten seconds."""
    turn: list[Callable[[], None]] = []
    rig.store.call_soon = turn.append
    peers = [rig.peer(number) for number in range(1, 11)]

    def notices_after_the_turn() -> list[int]:
        while turn:
            turn.pop()()
        return [len(peer.notices) for peer in peers]

    for number, peer in enumerate(peers):
        peer.heartbeat(f"c{number}", subscription("T1"), group="G1")
    assert notices_after_the_turn() == [1] * 10
    rig.clock.advance_ms(10)
    for number, peer in enumerate(peers[:5]):
        assert peer.ask(35, {"clientID": f"c{number}", "consumerGroup": "G1"}).code == 0
    assert notices_after_the_turn() == [1] * 5 + [2] * 5


def test_a_large_group_that_keeps_changing_is_told_less_often(rig: RemotingRig) -> None:
    """2,000 clients that joined at 100 a second were two million notices: the loop stood still for a minute."""
    peers = [rig.peer(number) for number in range(1, 101)]
    for number, peer in enumerate(peers):
        peer.heartbeat(f"c{number}", subscription("T1"), group="G1")
        if number % 10 == 9:
            rig.clock.advance_ms(5)
            rig.broker.tick()
    assert sum(len(peer.notices) for peer in peers) < 1_200  # with each join all that are there: 5,050
    rig.clock.advance_ms(50)
    rig.broker.tick()
    before = [len(peer.notices) for peer in peers]
    peers[0].heartbeat("c0", subscription("T1"), subscription("T2"), group="G1")
    assert [len(peer.notices) for peer in peers] == [count + 1 for count in before]
    rig.broker.tick()
    assert [len(peer.notices) for peer in peers] == [count + 1 for count in before]


def test_group_may_not_want_to_be_told(rig: RemotingRig) -> None:
    """remoting.md 4.11: notifyConsumerIdsChangedEnable."""
    peer = rig.peer()
    peer.ask(200, body=as_json({"groupName": "G1", "notifyConsumerIdsChangedEnable": False}))
    peer.heartbeat("c1", group="G1")
    assert peer.notices == []


def test_silent_member_is_dropped_and_the_others_told(rig: RemotingRig) -> None:
    """E-BAL-06; remoting.md 4.4: 120 s without a heartbeat; A-BROKER-53."""
    one, two = rig.peer(1), rig.peer(2)
    one.heartbeat("c1", group="G1")
    rig.clock.advance_ms(100_000)
    two.heartbeat("c2", group="G1")
    two.notices.clear()
    rig.clock.advance_ms(30_000)
    rig.broker.tick()
    assert body_of(two.ask(38, {"consumerGroup": "G1"})) == {"consumerIdList": ["c2"]}
    assert [notice[0] for notice in two.notices] == [40]


def test_unregister(rig: RemotingRig) -> None:
    """remoting.md 4.4: 35 takes the client out; an empty group answers 1 to 38."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1", producer="P1")
    assert peer.ask(35, {"clientID": "c1", "consumerGroup": "G1", "producerGroup": "P1"}).code == 0
    reply = peer.ask(38, {"consumerGroup": "G1"})
    assert (reply.code, reply.remark) == (1, "no consumer for this group, G1")
    assert peer.ask(204, {"producerGroup": "P1"}).code == 1
    assert peer.ask(35, {"clientID": "c1", "consumerGroup": "None"}).code == 0
    assert rig.services.groups.get("None") is None


def test_unregister_of_no_member_tells_nobody(rig: RemotingRig) -> None:
    """RocketMQ 4.9.7 has the group's clients share out their queues once more."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    peer.notices.clear()
    assert rig.peer(41_000).ask(35, {"clientID": "c2", "consumerGroup": "G1"}).code == 0
    assert peer.notices == []


@pytest.mark.parametrize("said", [{"clientID": "c2"}, {"clientID": ""}, {}])
def test_unregister_is_of_the_connection_whatever_client_it_names(rig: RemotingRig, said: dict[str, str]) -> None:
    """As with RocketMQ 4.9.7; queue locks are freed of who has left, not of who is named."""
    peer, other = rig.peer(), rig.peer(41_000)
    peer.heartbeat("c1", group="G1", producer="P1")
    other.heartbeat("c2", group="G1", producer="P1")
    for who, client, queue_id in ((peer, "c1", 0), (other, "c2", 1)):
        queue = {"topic": "T1", "brokerName": "broker-a", "queueId": queue_id}
        who.ask(41, body=as_json({"consumerGroup": "G1", "clientId": client, "mqSet": [queue]}))
    assert peer.ask(35, said | {"consumerGroup": "G1", "producerGroup": "P1"}).code == 0
    assert rig.services.clients.client_ids("G1") == ["c2"]
    assert [member.client.client_id for member in rig.services.clients.producers("P1")] == ["c2"]
    assert [rig.services.locks.holder("G1", ("T1", queue_id), 0) for queue_id in (0, 1)] == [None, "c2"]


def test_the_others_are_told_also_where_the_connection_ends_before_the_last_lock_is_looked_at(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share out the queues; what is still locked then expires."""
    monkeypatch.setattr("headrace.broker.consumers.locks.LOCKS_AT_ONCE", 1)
    peer, other = rig.peer(), rig.peer(41_000)
    for who, client in ((peer, "c1"), (other, "c2")):
        who.heartbeat(client, group="G1")
    queues = [{"topic": "T1", "brokerName": "broker-a", "queueId": number} for number in range(3)]
    peer.ask(41, body=as_json({"consumerGroup": "G1", "clientId": "c1", "mqSet": queues}))
    other.notices.clear()
    parts = unregister_client(peer, Command(35, {"clientID": "c1", "consumerGroup": "G1"}, b"", **JAVA_4_9))
    next(parts)
    assert other.notices == []
    parts.close()
    assert [code for code, _, _ in other.notices] == [40]
    assert rig.services.clients.client_ids("G1") == ["c2"]


def test_connection_lists(rig: RemotingRig) -> None:
    """remoting.md 4.7.2: 203, 204, 328."""
    peer = rig.peer(40_001)
    peer.heartbeat("c1", subscription("T1", "A || B", version=7), group="G1", producer="P1")
    body = body_of(peer.ask(203, {"consumerGroup": "G1"}))
    connection = {"clientAddr": "10.0.0.5:40001", "clientId": "c1", "language": "JAVA", "version": 409}
    assert body["connectionSet"] == [connection]
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["subscriptionTable"]["T1"]["codeSet"] == [65, 66]
    assert body["subscriptionTable"]["T1"]["subVersion"] == 7
    assert body_of(peer.ask(204, {"producerGroup": "P1"})) == {"connectionSet": [connection]}
    (row,) = body_of(peer.ask(328))["data"]["P1"]
    assert row["lastUpdateTimestamp"] == rig.clock.now_ms()
    assert row["remoteIP"] == "/10.0.0.5:40001"
    reply = peer.ask(203, {"consumerGroup": "No"})
    assert (reply.code, reply.remark) == (206, "the consumer group[No] not online")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((1, 1, 0), ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")),
        ((0, 0, 4), ("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")),
    ],
)
def test_heartbeat_of_the_cpp_client(
    rig: RemotingRig, numbers: tuple[int, int, int], words: tuple[str, str, str]
) -> None:
    """The C++ client names the constants by their numbers, and sends versions as text and no kind of expression."""
    peer = rig.peer()
    consume_type, model, where = numbers
    given = {
        "consumeFromWhere": where,
        "consumeType": consume_type,
        "groupName": "G1",
        "messageModel": model,
        "subscriptionDataSet": [{"subString": "*", "subVersion": "1795368315283", "topic": "T1"}],
    }
    body = as_json({"clientID": "c1", "consumerDataSet": [given]})
    assert peer.ask(34, body=body).code == 0
    found = body_of(peer.ask(203, {"consumerGroup": "G1"}))
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == words
    assert found["subscriptionTable"]["T1"]["subVersion"] == 1_795_368_315_283


@pytest.mark.parametrize("number", [-1, 2, 10**30, True])
def test_number_of_no_constant_is_refused(rig: RemotingRig, number: int) -> None:
    """RocketMQ's JSON reader throws at a number that the enumeration does not have."""
    body = as_json({"clientID": "c1", "consumerDataSet": [{"groupName": "G1", "messageModel": number}]})
    reply = rig.peer().ask(34, body=body)
    assert reply.code == 1
    assert reply.remark is not None
    assert "<messageModel>" in reply.remark


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "A || B", 0),
        ("SQL92", "a > 1", 0),
        ("SQL92", "a >", 23),
        ("NONE", "x", 23),
        ("TAG", " || ", 0),
        ("TAG", "||", 23),
        ("SQL92", "a" * 20_000, 23),
    ],
)
def test_check_client_config(rig: RemotingRig, kind: str, expression: str, code: int) -> None:
    """remoting.md 4.4: 46."""
    body = {"clientId": "c1", "group": "G1", "subscriptionData": subscription("T1", expression, kind)}
    assert rig.peer().ask(46, body=as_json(body)).code == code


def test_queue_locks(rig: RemotingRig) -> None:
    """remoting.md 4.4: 41 and 42; a lock is another client's after 60 s."""
    peer = rig.peer()
    queues = [{"brokerName": "broker-a", "topic": "T1", "queueId": number} for number in range(2)]

    def lock(client: str, wanted: list[dict[str, object]]) -> list[int]:
        body = as_json({"consumerGroup": "G1", "clientId": client, "mqSet": wanted})
        return [queue["queueId"] for queue in body_of(peer.ask(41, body=body))["lockOKMQSet"]]

    assert lock("c1", queues[:1]) == [0]
    assert lock("c2", queues) == [1]
    peer.ask(42, body=as_json({"consumerGroup": "G1", "clientId": "c1", "mqSet": queues}))
    assert lock("c2", queues) == [0, 1]
    rig.clock.advance_ms(60_001)
    assert lock("c1", [*queues, queues[0] | {"queueId": 7, "brokerName": "another"}]) == [0, 1]


def locks_of(queues: int, client: str = "c1", **more: Any) -> bytes:
    wanted = [{"topic": f"T{number // 1_000}", "queueId": number % 1_000} for number in range(queues)]
    return as_json({"consumerGroup": "G1", "clientId": client, "mqSet": wanted, **more})


def test_locks_of_many_queues_are_given_and_taken_back_in_parts(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 in one request held the loop for 290 ms; what their client sent behind it comes behind it."""
    monkeypatch.setattr(large_requests, "TURN_MS", 0)
    link = rig.link()
    other = BrokerLink(rig, link.server, "10.0.0.6")
    loop = FakeLoop()
    link.server.large_requests.call_soon = loop.call_soon
    queues = 4 * QUEUES_AT_ONCE
    assert len(locks_of(queues)) > bodies.MAX_SLOW_BYTES
    locks = rig.services.locks

    def done(code: int) -> tuple[list[int], list[Command]]:
        link.send(
            encode_request(0, code, 1, body=locks_of(queues)) + encode_request(0, 38, 2, ext={"consumerGroup": "G1"})
        )
        other.send(encode_request(0, 42, 3, body=locks_of(QUEUES_AT_ONCE // 2, "c2")))
        sizes = []
        answered = []
        while loop.come_round():
            link.loop.come_round()
            sizes.append(len(locks))
            answered += [*link.taken(), *other.taken()]
        assert [answer.opaque for answer in answered] == [3, 1, 2]
        return list(dict.fromkeys(sizes)), answered

    sizes, answered = done(41)
    assert sizes == [0, 1_000, 2_000, 3_000, 4_000]
    assert len(fastjson.loads(answered[1].body)["lockOKMQSet"]) == queues
    assert done(42)[0] == [4_000, 3_000, 2_000, 1_000, 0]


def test_a_heartbeat_with_many_subscriptions_is_read_in_parts(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000, the most that a client may have, held the loop for 46 ms. What it says holds as a whole."""
    monkeypatch.setattr(large_requests, "TURN_MS", 0)
    link = rig.link()
    link.server.large_requests.call_soon = link.loop.call_soon

    def answer_to(*groups: dict[str, Any]) -> tuple[int, Command]:
        found = link.send(encode_request(0, 34, 1, body=as_json({"clientID": "c1", "consumerDataSet": groups})))
        turns = 0
        while link.loop.come_round():
            turns += 1
            found += link.taken()
        (answer,) = (frame for frame in found if frame.is_response)
        return turns, answer

    for group in ("G1", "G2"):
        rig.peer().heartbeat("c0", group=group)
    many = [subscription(f"T{number}") for number in range(3 * SUBSCRIPTIONS_AT_ONCE)]
    assert len(as_json(many)) > bodies.MAX_SLOW_BYTES
    turns, answer = answer_to(consumer_data("G1", *many), consumer_data("G2", subscription("T1")))
    assert (answer.code, answer.remark) == (0, "")
    assert turns >= 4
    clients = rig.services.clients
    assert [clients.groups_of(f"T{number}") for number in (0, 1, len(many) - 1)] == [["G1"], ["G1", "G2"], ["G1"]]
    _, answer = answer_to(consumer_data("G1", subscription("new"), *many[:-1], {"topic": 3}))
    assert (answer.code, answer.remark) == (1, "the body's <topic> is missing or no text")
    assert clients.groups_of("new") == []
    _, answer = answer_to(*(consumer_data(f"G{number}", *many) for number in range(4)))
    assert (answer.code, "remoting.max_subscriptions" in answer.remark) == (2, True)


def test_a_small_request_that_is_done_in_parts_is_answered(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is in its few bytes: what is left of it waits in line as that of a large one."""
    monkeypatch.setattr(queue_locks, "QUEUES_AT_ONCE", 1)
    link = rig.link()
    link.server.large_requests.call_soon = link.loop.call_soon
    small = locks_of(3)
    assert len(small) < LARGE_BODY_BYTES
    answered = link.send(encode_request(0, 41, 1, body=small) + encode_request(0, 38, 2, ext={"consumerGroup": "G1"}))
    while link.loop.come_round():
        answered += link.taken()
    assert [answer.opaque for answer in answered] == [1, 2]
    assert len(fastjson.loads(answered[0].body)["lockOKMQSet"]) == 3


def test_locks_of_many_queues_are_given_as_far_as_there_is_room(tmp_path: Path) -> None:
    rig = RemotingRig(tmp_path / "store", {"max_queue_locks": 5_000})
    peer = rig.peer()
    assert len(body_of(peer.ask(41, body=locks_of(4_000)))["lockOKMQSet"]) == 4_000
    refused = peer.ask(41, body=locks_of(3_000, consumerGroup="G2"))
    assert (refused.code, refused.remark) == (
        2,
        "the broker has its limit of 5000 queue locks (broker.max_queue_locks)",
    )
    assert len(rig.services.locks) == 4_000
    assert peer.ask(41, body=locks_of(5_001)).code == 2
    assert body_of(peer.ask(41, body=locks_of(4_000, "c2"))) == {"lockOKMQSet": []}
    rig.close()


@pytest.mark.parametrize(
    ("more", "remark"),
    [
        ({"mqSet": {}}, "the body is malformed: Expected `array`, got `object`"),
        ({"mqSet": [3] * 5_000}, "the body's <mqSet> is no list of objects"),
        ({"mqSet": [{"topic": "T"}] * 2_000 + [{}] * 3_000}, "the body's <topic> is missing or no text"),
        ({"clientId": 3}, "the body's <clientId> is missing or no text"),
        ({"consumerGroup": None}, "the body's <consumerGroup> is missing or no text"),
    ],
)
def test_malformed_locks_of_many_queues_are_refused(rig: RemotingRig, more: dict[str, Any], remark: str) -> None:
    refused = rig.peer().ask(41, body=locks_of(4_000, "c1", **{"padding": "x" * 70_000, **more}))
    assert (refused.code, refused.remark) == (1, remark)
    assert len(rig.services.locks) == 0


def test_running_info_is_forwarded(rig: RemotingRig) -> None:
    """remoting.md 4.7.6: the answer is passed back as it is; none in time gives 207."""
    consumer, tool = rig.peer(1), rig.peer(2)
    consumer.heartbeat("c1", group="G1")
    fields = {"consumerGroup": "G1", "clientId": "c1", "jstackEnable": "true", "AccessKey": "k", "Signature": "s"}
    fields["SecurityToken"] = "t"
    assert tool.try_ask(307, fields) is None
    code, ext, _, answered = consumer.calls.pop()
    assert code == 307
    assert ext == {"consumerGroup": "G1", "clientId": "c1", "jstackEnable": "true"}
    answered(Command(0, {"x": "y"}, b"{}"))
    assert (tool.answers[0].code, tool.answers[0].ext, tool.answers[0].body) == (0, {"x": "y"}, b"{}")
    tool.try_ask(307, fields)
    consumer.calls.pop()[3](None)
    assert tool.answers[1].code == 207


def test_running_info_of_a_client_that_cannot(rig: RemotingRig) -> None:
    """remoting.md 1.6, 4.7.6."""
    consumer = rig.peer()
    assert consumer.ask(307, {"consumerGroup": "G1", "clientId": "c1"}).code == 1
    body = {"clientID": "old", "consumerDataSet": [consumer_data("G1")]}
    consumer.ask(34, body=as_json(body), version=61)
    assert "Version too low" in consumer.ask(307, {"consumerGroup": "G1", "clientId": "old"}).remark


def test_consume_directly(rig: RemotingRig) -> None:
    """remoting.md 4.7.4: the record at the offset of the message id goes to the consumer, with the broker's name."""
    consumer = rig.peer()
    consumer.heartbeat("c1", group="G1")
    reply = consumer.ask(310, send_fields("T1"), b"hello")
    assert reply.ext is not None
    fields = {"consumerGroup": "G1", "clientId": "c1", "msgId": reply.ext["msgId"]}
    assert consumer.try_ask(309, fields) is None
    code, ext, body, _ = consumer.calls.pop()
    assert (code, ext["brokerName"]) == (309, "broker-a")
    assert body is not None
    assert b"hello" in body
    for message_id in ("xyz", "0" * 32, "F" * 32):
        assert consumer.ask(309, fields | {"msgId": message_id}).code == 1


def test_a_consumer_gets_no_record_of_the_askers_own_making(rig: RemotingRig) -> None:
    """Without an id the body of the request went on to the consumer, which took it for a message of its topic."""
    consumer = rig.peer()
    consumer.heartbeat("c1", group="G1")
    for fields in ({}, {"msgId": ""}):
        reply = consumer.ask(309, {"consumerGroup": "G1", "clientId": "c1"} | fields, b"forged")
        assert (reply.code, "msgId" in (reply.remark or "")) == (1, True)
    assert consumer.calls == []


@pytest.mark.parametrize(("queues", "is_passed_on"), [(600, True), (6_000, False)])
def test_consumer_status_of_many_queues(rig: RemotingRig, queues: int, *, is_passed_on: bool) -> None:
    """Code 223: the answer of a client with hundreds is whole; one that is left out is named, with the reason."""
    member, tool = rig.peer(1), rig.peer(2)
    member.heartbeat("c1", group="G1")
    tool.try_ask(223, {"topic": "T1", "group": "G1"})
    rows = ",".join(f'{{"brokerName":"broker-a","queueId":{queue},"topic":"T1"}}:{queue}' for queue in range(queues))
    member.calls.pop()[3](Command(0, {}, f'{{"messageQueueTable":{{{rows}}}}}'.encode()))
    (answer,) = tool.answers
    table = body_of(answer)["consumerTable"]
    assert len(table.get("c1", {})) == (queues if is_passed_on else 0)
    assert ("c1 is left out, the body is no JSON" in answer.remark) != is_passed_on


def test_consumer_status_of_all_members(rig: RemotingRig) -> None:
    """remoting.md 4.7.5: 223 asks each with 221 and gathers; a member that does not answer is left out."""
    one, two, tool = rig.peer(1), rig.peer(2), rig.peer(3)
    one.heartbeat("c1", group="G1")
    two.heartbeat("c2", group="G1")
    assert tool.try_ask(223, {"topic": "T1", "group": "G1"}) is None
    one.calls.pop()[3](Command(0, {}, b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T1"}:5}}'))
    assert tool.answers == []
    two.calls.pop()[3](None)
    table = body_of(tool.answers[0])["consumerTable"]
    assert list(table) == ["c1"]
    assert list(table["c1"].values()) == [5]
    assert tool.answers[0].remark == ""
    assert tool.ask(223, {"topic": "T1", "group": "None"}).code == 1
    assert body_of(tool.ask(223, {"topic": "T1", "group": "G1", "clientAddr": "nobody"})) == {
        "messageQueueTable": {},
        "consumerTable": {},
    }


@pytest.mark.parametrize("refused", ["NEW", "bad/name", "x" * 121])
def test_group_that_is_refused_does_not_stop_the_others(tmp_path: Path, refused: str) -> None:
    """One client consumes for several groups: those that there are go on, and the remark names the setting."""
    rig = RemotingRig(tmp_path, auto_create_groups=False)
    peer = rig.peer()
    peer.ask(200, body=as_json({"groupName": "G1"}))
    groups = [consumer_data(refused, subscription("T1")), consumer_data("G1", subscription("T1"))]
    body = as_json({"clientID": "c1", "producerDataSet": [{"groupName": "P1"}], "consumerDataSet": groups})
    reply = peer.ask(34, body=body)
    assert (reply.code, refused[:100] in reply.remark) == (0, True)
    assert body_of(peer.ask(38, {"consumerGroup": "G1"})) == {"consumerIdList": ["c1"]}
    assert peer.ask(204, {"producerGroup": "P1"}).code == 0
    assert rig.services.clients.consumer_group(refused) is None
    rig.close()


@pytest.mark.parametrize("full", [{"max_groups": 1}, {"max_topics": 1}])
def test_full_table_does_not_stop_the_groups_that_there_are(tmp_path: Path, full: dict[str, int]) -> None:
    """Of groups, and of topics: each group has its retry topic."""
    rig = RemotingRig(tmp_path, full)
    peer = rig.peer()
    assert peer.heartbeat("c1", group="G1").code == 0
    body = {"clientID": "c1", "consumerDataSet": [consumer_data("G2"), consumer_data("G1")]}
    reply = peer.ask(34, body=as_json(body))
    assert (reply.code, f"broker.{next(iter(full))}" in reply.remark) == (0, True)
    assert body_of(peer.ask(38, {"consumerGroup": "G1"})) == {"consumerIdList": ["c1"]}
    reply = peer.ask(34, body=as_json({"clientID": "c1", "consumerDataSet": [consumer_data("G2")]}))
    assert reply.code == 2
    rig.close()


def test_good_bye_frees_the_locks_of_its_own_connection_only(rig: RemotingRig) -> None:
    """Whoever knows a client's id could have two consumers work on one queue."""
    consumer, stranger = rig.peer(1), rig.peer(2)
    consumer.heartbeat("c1", group="G1")
    queue = {"brokerName": "broker-a", "topic": "T1", "queueId": 0}
    consumer.ask(41, body=as_json({"consumerGroup": "G1", "clientId": "c1", "mqSet": [queue]}))
    now_ms = rig.clock.monotonic_ms()
    stranger.ask(35, {"clientID": "c1", "consumerGroup": "G1"})
    assert rig.services.locks.holder("G1", ("T1", 0), now_ms) == "c1"
    consumer.ask(35, {"clientID": "c1", "consumerGroup": "G1"})
    assert rig.services.locks.holder("G1", ("T1", 0), now_ms) is None


@pytest.mark.parametrize(
    ("queue_id", "code"),
    [(3, 0), ("3", 0), (1 << 31, 1), (str(1 << 31), 1), ("-99999999999999999999", 1), ("x", 1), ("1_0", 1), (" 3", 1)],
)
def test_numbers_of_a_body_are_bounded_however_they_are_written(rig: RemotingRig, queue_id: object, code: int) -> None:
    """As text, too: what Java takes for a number, of which Python takes more."""
    queue = {"brokerName": "broker-a", "topic": "T1", "queueId": queue_id}
    body = as_json({"consumerGroup": "G1", "clientId": "c1", "mqSet": [queue]})
    assert rig.peer().ask(41, body=body).code == code


@pytest.mark.parametrize(("version", "code"), [("7", 0), (str((1 << 63) - 1), 0), (str(1 << 63), 1), (1 << 63, 1)])
def test_versions_of_subscriptions_are_of_64_bits(rig: RemotingRig, version: object, code: int) -> None:
    """As text, too."""
    body = {"clientID": "c1", "consumerDataSet": [consumer_data("G1", subscription("T1") | {"subVersion": version})]}
    assert rig.peer().ask(34, body=as_json(body)).code == code


@pytest.mark.parametrize("version", [{}, {"subVersion": None}])
def test_a_subscription_without_a_version_is_as_new_as_its_heartbeat(
    rig: RemotingRig, version: dict[str, None]
) -> None:
    """As in RocketMQ: a client that gives none may change what it wants."""
    for expression in ("A", "B"):
        given = subscription("T1", expression)
        del given["subVersion"]
        assert rig.peer().heartbeat("c1", given | version, group="G1").code == 0
        rig.clock.advance_ms(1)
        found = rig.services.clients.subscription("G1", "T1")
        assert found is not None
        assert found.expression == expression


@pytest.mark.parametrize(("kind", "code"), [("", 0), ("TAG", 0), ("SQL92", 0), ("NONE", 23), ("tag", 23)])
def test_kinds_of_subscriptions(rig: RemotingRig, kind: str, code: int) -> None:
    """One that no pull could be filtered by is refused at once."""
    assert rig.peer().heartbeat("c1", subscription("T1", kind=kind), group="G1").code == code


@pytest.mark.parametrize(("characters", "code"), [(16_384, 0), (16_385, 23)])
def test_longest_expression_of_a_subscription(rig: RemotingRig, characters: int, code: int) -> None:
    """docs/protocols/remoting.md, Bounds: refused with a pull's code, and what is too long is named."""
    reply = rig.peer().heartbeat("c1", subscription("T1", "a" * characters), group="G1")
    assert reply.code == code
    assert not code or reply.remark == "the expression has 16385 characters, at most 16384 are accepted"


def test_tool_is_answered_when_passing_an_answer_on_fails(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a bug: it must not wait for its own time-out."""
    consumer, tool = rig.peer(1), rig.peer(2)
    consumer.heartbeat("c1", group="G1")
    assert tool.try_ask(223, {"topic": "T1", "group": "G1"}) is None

    def fail(body: object) -> bytes:
        raise KeyError("a bug")

    monkeypatch.setattr("headrace.remoting.bodies.encode", fail)
    with pytest.raises(KeyError):
        consumer.calls.pop()[3](None)
    assert [(answer.code, answer.remark) for answer in tool.answers] == [(1, "internal error")]


def test_a_change_that_cannot_be_written_counts_and_says_so(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 on a full disk: it is there after a restart, once there is room for it."""
    link = rig.link()
    calls: list[Callable[[], None]] = []
    rig.store.notify = calls.append  # as the event loop: behind what runs now

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.config_file.ConfigFile.save", refuse)
        answers = link.send(encode_request(0, 200, 1, ext=None, body=as_json({"groupName": "Full"})))
        rig.services.group_services.wait_for_files()
    for call in calls:
        call()
    (answer,) = answers + link.taken()
    assert (answer.code, "No space left on device; the change counts" in answer.remark) == (14, True)
    assert rig.services.groups.get("Full") is not None
    rig.restart()
    assert rig.services.groups.get("Full") is not None
