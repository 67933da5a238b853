"""The RocketMQ server over real sockets: sends, pulls, long polling, bad input. Ref: A-NET-03, remoting.md 1, 4.4."""

from __future__ import annotations

import contextlib
import json
import logging
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import testing
from headrace.broker.pull import PullResult, PullStatus
from headrace.errors import FlushError
from headrace.net.connection import Pause
from headrace.net.timer_wheel import TICK_MS
from headrace.remoting import server
from headrace.remoting.codec import encode_request
from headrace.remoting.codes import RequestCode
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.handlers import pull as pulls
from headrace.remoting.handlers.table import HANDLERS
from headrace.remoting.members import MemberNotices
from headrace.store.store import Store
from tests.property.remoting_reference import encode_frame
from tests.support.memory import little_memory
from tests.support.records import decode_messages
from tests.support.remoting import (
    BrokerLink,
    RemotingRig,
    RemotingSocket,
    as_json,
    commands_in,
    consumer_data,
    send_fields,
    subscription,
)
from tests.support.toolchain import require_open_files


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__durability="async", broker__name="broker-a", registry__enabled=False) as running:
        yield running


@pytest.fixture
def client(broker: testing.RunningBroker) -> Iterator[RemotingSocket]:
    with RemotingSocket(broker.remoting) as socket:
        yield socket


def test_a_frame_without_memory_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """The connection was closed without an answer, and the log had a traceback."""
    body_bytes = 100 << 20
    with testing.broker(remoting__max_frame_bytes=128 << 20, registry__enabled=False) as broker:
        frame = encode_request(0, RequestCode.SEND_MESSAGE_V2, 7, ext=as_texts(send_fields("T")))
        begun = (len(frame) - 4 + body_bytes).to_bytes(4) + frame[4:] + bytes(100)
        with RemotingSocket(broker.remoting) as client, RemotingSocket(broker.remoting) as other:
            with little_memory():
                client.send_bytes(begun)
                header, _ = client.receive()
            assert (header["code"], header["opaque"]) == (1, 7)
            assert header["remark"] == f"no memory for a frame of {len(frame) + body_bytes} bytes"
            with pytest.raises(AssertionError, match="closed the connection"):
                client.receive()
            assert other.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"small")[0]["code"] == 0
    assert caplog.text.count("no memory, client refused") == 1


def heartbeat(
    client: RemotingSocket, client_id: str, group: str, *subscriptions: dict[str, Any], kind: str = "CONSUME_PASSIVELY"
) -> None:
    data = consumer_data(group, *subscriptions) | {"consumeType": kind}
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [data]}
    header, _ = client.call(34, None, as_json(body))
    assert header["code"] == 0, header


def pull_fields(group: str, topic: str, offset: int = 0, **more: object) -> dict[str, object]:
    fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": offset}
    fields |= {"maxMsgNums": 32, "sysFlag": 2, "commitOffset": 0, "suspendTimeoutMillis": 5_000, "subVersion": 1}
    return fields | {"expressionType": "TAG"} | more


def as_texts(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def pull_of(group: bytes) -> bytes:
    """Return a pull of a group whose name is 4 bytes of JSON, as they are."""
    return encode_request(0, 11, 99, ext=as_texts(pull_fields("????", "Behind"))).replace(b"????", group)


def publish(client: RemotingSocket, topic: str, *bodies: bytes, tag: str = "") -> None:
    properties = {"TAGS": tag} if tag else {}
    for body in bodies:
        header, _ = client.call(310, send_fields(topic, properties=properties), body)
        assert header["code"] == 0, header


def bodies_of(content: bytes) -> list[bytes]:
    return [message["body"] for message in decode_messages(content)]


def test_send_and_pull(client: RemotingSocket) -> None:
    """A-BROKER-41; remoting.md 4.3, 4.4: what is sent is pulled, with all four offsets in the answer."""
    publish(client, "Sp", b"one", b"two")
    heartbeat(client, "c1", "SpG", subscription("Sp"))
    header, content = client.call(11, pull_fields("SpG", "Sp"))
    assert header["code"] == 0
    assert header["remark"] == "FOUND"
    ext = header["extFields"]
    assert (ext["nextBeginOffset"], ext["minOffset"], ext["maxOffset"], ext["suggestWhichBrokerId"]) == (
        "2",
        "0",
        "2",
        "0",
    )
    assert bodies_of(content) == [b"one", b"two"]


def test_pull_takes_at_most_what_it_asks_for(client: RemotingSocket) -> None:
    """E-STORE-09, X-EQ-05; remoting.md 4.4: maxMsgNums."""
    publish(client, "Most", *[b"x"] * 5)
    header, content = client.call(11, pull_fields("MostG", "Most", maxMsgNums=2, sysFlag=4, subscription="*"))
    assert len(bodies_of(content)) == 2
    assert header["extFields"]["nextBeginOffset"] == "2"


def test_held_pull_is_woken_at_once(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """X-BROKER-09, E-PULL-01, A-BROKER-46, A-BROKER-47: a message wakes the pull in milliseconds, on its own opaque."""
    publish(client, "Held", b"first")
    heartbeat(client, "c1", "HeldG", subscription("Held"))
    opaque = client.send(11, pull_fields("HeldG", "Held", 1))
    with RemotingSocket(broker.remoting) as producer:
        time.sleep(0.1)
        began = time.monotonic()
        publish(producer, "Held", b"second")
        header, content = client.receive()
        assert time.monotonic() - began < 3.0
    assert header["opaque"] == opaque
    assert bodies_of(content) == [b"second"]


def test_answer_that_cannot_be_sent_when_it_is_time_closes_its_connection(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited for the disk: a client that hears nothing of that waits until it gives up."""
    link = rig.link()

    def fail(_: bytes) -> None:
        raise MemoryError

    topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    link.send(encode_request(0, 17, 1, ext=topic))
    monkeypatch.setattr(link.connection, "send", fail)
    assert not link.transport.closed
    rig.store.flush()
    rig.services.group_services.wait_for_files()
    assert link.transport.closed


@pytest.mark.provokes_bugs
def test_held_pull_that_cannot_be_answered_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory, say: its client is let go, and whoever waits is woken, then and later."""
    with testing.broker(registry__enabled=False) as broker, contextlib.ExitStack() as clients:
        victim, waiting, producer = (clients.enter_context(RemotingSocket(broker.remoting)) for _ in range(3))
        publish(producer, "Scarce", b"first")
        heartbeat(victim, "c1", "ScarceG", subscription("Scarce"))
        heartbeat(waiting, "c2", "ScarceG", subscription("Scarce"))
        victim.send(11, pull_fields("ScarceG", "Scarce", 1))
        address = "{}:{}".format(*victim._socket.getsockname())
        send = RemotingConnection.send

        def send_without_memory(connection: RemotingConnection, data: bytes) -> None:
            if connection.remote_address == address:
                raise MemoryError
            send(connection, data)

        for offset in (1, 2):
            opaque = waiting.send(11, pull_fields("ScarceG", "Scarce", offset))
            time.sleep(0.1)
            monkeypatch.setattr(RemotingConnection, "send", send_without_memory)
            publish(producer, "Scarce", b"next")
            assert bodies_of(waiting.receive_response(opaque)[1]) == [b"next"]
        with contextlib.suppress(ConnectionResetError):
            victim.is_closed()


def test_held_pull_is_answered_19_at_its_time(client: RemotingSocket) -> None:
    """A-BROKER-41, X-BROKER-09; remoting.md 4.4, trap 16."""
    publish(client, "Late", b"first")
    heartbeat(client, "c1", "LateG", subscription("Late"))
    began = time.monotonic()
    header, _ = client.call(11, pull_fields("LateG", "Late", 1, suspendTimeoutMillis=300))
    assert header["code"] == 19
    assert header["extFields"]["nextBeginOffset"] == "1"
    assert 0.25 < time.monotonic() - began < 3.0


def test_pulls_that_wait_are_answered_by_a_stop() -> None:
    """Java's and Go's clients wait 30 s for the answer to a pull, also when its connection has ended."""
    with testing.broker(registry__enabled=False) as broker, contextlib.ExitStack() as clients:
        waiting = [clients.enter_context(RemotingSocket(broker.remoting)) for _ in range(2)]
        publish(waiting[0], "Stop", b"first")
        opaques = [client.send(11, pull_fields("StopG", "Stop", 1, sysFlag=6, subscription="*")) for client in waiting]
        for client in waiting:
            client.call(30, {"topic": "Stop", "queueId": 0})  # behind this answer the pull waits
        broker.stop()
        for client, opaque in zip(waiting, opaques, strict=True):
            header, _ = client.receive()
            assert (header["opaque"], header["code"]) == (opaque, 14)
            assert client.is_closed()


def test_a_pull_does_not_wait_for_the_disk_longer_than_its_client(
    client: RemotingSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be read for minutes: who asks again must not leave a pull behind each time."""
    publish(client, "Cold", b"first", b"second")
    heartbeat(client, "c1", "ColdG", subscription("Cold"))
    monkeypatch.setattr(server, "COLD_RETRY_MS", 50)
    monkeypatch.setattr(server, "COLD_MOST_MS", 200)
    with monkeypatch.context() as patch:
        patch.setattr(pulls, "read_queue", lambda *_: PullResult(PullStatus.COLD, 1, 0, 2))
        began = time.monotonic()
        header, body = client.call(11, pull_fields("ColdG", "Cold"))
        assert (header["code"], header["extFields"]["nextBeginOffset"], body) == (20, "1", b"")
        assert 0.15 < time.monotonic() - began < 3.0
    header, body = client.call(11, pull_fields("ColdG", "Cold", 1))
    assert [message["body"] for message in decode_messages(body)] == [b"second"]


def test_held_pull_is_told_that_its_topic_is_deleted(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """remoting.md 4.4: a woken pull goes through the checks again."""
    publish(client, "Gone", b"first")
    heartbeat(client, "c1", "GoneG", subscription("Gone"))
    opaque = client.send(11, pull_fields("GoneG", "Gone", 1))
    with RemotingSocket(broker.remoting) as tool:
        time.sleep(0.1)
        assert tool.call(215, {"topic": "Gone"})[0]["code"] == 0
    header, _ = client.receive()
    assert (header["opaque"], header["code"]) == (opaque, 17)


def test_only_pulls_that_wait_count_as_held() -> None:
    """docs/metrics.md: one that finds no room is answered at once, and counts as refused."""
    limits = {"broker__max_held_pulls": 1, "store__durability": "async"}
    with testing.broker(**limits) as running, RemotingSocket(running.remoting) as client:
        publish(client, "Room", b"x")
        heartbeat(client, "c1", "RoomG", subscription("Room"))
        waiting = client.send(11, pull_fields("RoomG", "Room", 1))
        refused = client.send(11, pull_fields("RoomG", "Room", 1))
        header, _ = client.receive()
        assert (header["opaque"], header["code"]) == (refused, 19)
        with urllib.request.urlopen(f"http://{running.admin}/metrics") as answer:
            text = answer.read().decode()
        assert "\nheadrace_remoting_held_pulls_total 1.0\n" in text
        assert waiting != refused


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_pulls_with_many_long_expressions_wait_for_their_time(client: RemotingSocket, kind: str) -> None:
    """A-BROKER-53: only a group that subscribed anew is told to pull again, not one of more filters than are kept."""
    publish(client, f"Long{kind}", b"first")
    for number in range(80):
        words = [f"tag-{number}-{word}" for word in range(40)]
        expression = "||".join(words) if kind == "TAG" else " OR ".join(f"a = '{word}'" for word in words)
        wanted = {"subscription": expression, "expressionType": kind, "sysFlag": 6, "suspendTimeoutMillis": 600}
        client.send(11, pull_fields("LongG", f"Long{kind}", 1, **wanted))
    assert [client.receive()[0]["code"] for _ in range(80)] == [19] * 80


def test_pulls_do_not_wait_with_more_expressions_than_memory_is_meant_for(
    broker: testing.RunningBroker, client: RemotingSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/protocols/remoting.md, bounds: they are answered at once, and counted; who wants all messages waits."""
    monkeypatch.setattr("headrace.remoting.reading.subscriptions.MAX_CHARACTERS_IN_USE", 0)
    publish(client, "Wordy", b"first")
    patient = client.send(11, pull_fields("WordyG", "Wordy", 1, subscription="*", sysFlag=6, suspendTimeoutMillis=300))
    header, _ = client.call(11, pull_fields("WordyG", "Wordy", 1, subscription="a", sysFlag=6))
    assert header["code"] == 19
    with urllib.request.urlopen(f"http://{broker.admin}/metrics") as answer:
        assert "\nheadrace_broker_refused_holds_total 1.0\n" in answer.read().decode()
    assert client.receive()[0]["opaque"] == patient


@pytest.mark.parametrize(("most_ms", "is_long", "wait_ms"), [(0, True, 0), (0, False, 0), (200, False, 200)])
def test_no_pull_waits_longer_than_the_setting_says(most_ms: int, is_long: bool, wait_ms: int) -> None:
    """``remoting.max_hold_ms``, also where ``longPollingEnable`` was changed."""
    with testing.broker(remoting__max_hold_ms=most_ms) as running, RemotingSocket(running.remoting) as client:
        publish(client, "Short", b"first")
        assert client.call(25, {}, b"longPollingEnable=%s" % str(is_long).lower().encode())[0]["code"] == 0
        began = time.monotonic()
        header, _ = client.call(11, pull_fields("ShortG", "Short", 1, subscription="*", sysFlag=6))
        assert header["code"] == 19
        assert wait_ms - 60 <= (time.monotonic() - began) * 1000 < wait_ms + 700


def test_pull_that_must_not_wait_does_not(client: RemotingSocket) -> None:
    """X-BROKER-09; remoting.md 4.4: without bit 2 the answer is immediate."""
    publish(client, "Now", b"first")
    began = time.monotonic()
    header, _ = client.call(11, pull_fields("NowG", "Now", 1, sysFlag=4, subscription="*"))
    assert header["code"] == 19
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(("offset", "code", "next_offset"), [(3, 21, 1), (0, 0, 1)])
def test_pull_beyond_the_end_is_moved(client: RemotingSocket, offset: int, code: int, next_offset: int) -> None:
    """remoting.md 3.10."""
    topic = f"Moved{offset}"
    publish(client, topic, b"first")
    header, _ = client.call(11, pull_fields("MovedG", topic, offset, sysFlag=4, subscription="*"))
    assert header["code"] == code
    assert header["extFields"]["nextBeginOffset"] == str(next_offset)


def test_tag_filter(client: RemotingSocket) -> None:
    """remoting.md 2.7, 4.12: only the wanted tag comes, and the next offset passes over the others."""
    publish(client, "Tags", b"a", tag="A")
    publish(client, "Tags", b"b", tag="B")
    heartbeat(client, "c1", "TagsG", subscription("Tags", "B || C"))
    header, content = client.call(11, pull_fields("TagsG", "Tags"))
    assert bodies_of(content) == [b"b"]
    assert header["extFields"]["nextBeginOffset"] == "2"


def test_last_of_several_tags_is_filtered_by(client: RemotingSocket) -> None:
    """remoting.md 2.5, 2.7: the client picks by it too, so by the first nobody got the message."""
    publish(client, "Tags2", b"makes the topic")
    client.call(310, send_fields("Tags2") | {"i": "TAGS\x01A\x02k\x01v\x02TAGS\x01B\x02"}, b"ab")
    for tag, wanted in (("A", []), ("B", [b"ab"])):
        fields = pull_fields(f"Tags2{tag}", "Tags2", sysFlag=4, subscription=tag)
        assert bodies_of(client.call(11, fields)[1]) == wanted


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "B"), ("SQL92", "TAGS = 'B'")])
def test_unwanted_message_does_not_answer_a_held_pull(
    broker: testing.RunningBroker, client: RemotingSocket, kind: str, expression: str
) -> None:
    """remoting.md 4.4: a held pull is answered by a message that its group wants, also where it has to look at it."""
    topic = f"Wake{kind}"
    publish(client, topic, b"a", tag="A")
    heartbeat(client, "c1", f"{topic}G", subscription(topic, expression, kind))
    client.send(11, pull_fields(f"{topic}G", topic, 1))
    with RemotingSocket(broker.remoting) as producer:
        publish(producer, topic, b"a2", tag="A")
        publish(producer, topic, b"b", tag="B")
    header, content = client.receive()
    assert header["code"] == 0
    assert bodies_of(content) == [b"b"]


def test_sql_filter(client: RemotingSocket) -> None:
    """remoting.md 4.12."""
    for number in range(4):
        client.call(310, send_fields("Sql", properties={"n": str(number)}), b"%d" % number)
    fields = pull_fields("SqlG", "Sql", sysFlag=4, subscription="n > 1", expressionType="SQL92")
    _, content = client.call(11, fields)
    assert bodies_of(content) == [b"2", b"3"]


@pytest.mark.parametrize("expression", ["a =", "s > 'a'"])
def test_invalid_sql_is_refused_in_pulls(client: RemotingSocket, expression: str) -> None:
    """remoting.md 0: RocketMQ would deliver everything; Headrace answers 23."""
    publish(client, "BadSql", b"x")
    fields = pull_fields("BadSqlG", "BadSql", sysFlag=4, subscription=expression, expressionType="SQL92")
    header, _ = client.call(11, fields)
    assert header["code"] == 23
    assert "filter expression" in header["remark"]


def test_pull_checks(client: RemotingSocket) -> None:
    """A-BROKER-40; remoting.md 4.4: the checks in their order."""
    publish(client, "Checks", b"x")

    def code(**more: object) -> int:
        header, _ = client.call(11, pull_fields("ChecksG", "Checks") | more)
        return int(header["code"])

    assert code(topic="NoSuch", sysFlag=4, subscription="*") == 17
    assert code(queueId=4, sysFlag=4, subscription="*") == 1
    assert code(queueId=-1, sysFlag=4, subscription="*") == 1
    few = {"topic": "ChecksFew", "defaultTopic": "T", "readQueueNums": 2, "writeQueueNums": 4, "perm": 6}
    assert client.call(17, few)[0]["code"] == 0
    asked = [code(topic="ChecksFew", queueId=queue_id, sysFlag=4, subscription="*") for queue_id in range(4)]
    assert asked == [19, 19, 1, 1]  # of those that are written to, two must not be read
    assert [code(queueId=1, sysFlag=4, subscription="*", queueOffset=at) for at in (0, 5)] == [19, 21]  # it is empty
    assert code() == 24  # nobody has sent a heartbeat
    heartbeat(client, "c1", "ChecksG", subscription("Other"))
    assert code() == 24  # not subscribed
    client.call(200, None, as_json({"groupName": "ChecksG", "consumeEnable": False}))
    assert code() == 16
    client.call(17, {"topic": "Checks", "defaultTopic": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 2})
    assert code(consumerGroup="ChecksG2") == 16


def test_a_broker_that_must_not_be_read_from_refuses_pulls(client: RemotingSocket) -> None:
    """A-BROKER-40; remoting.md 4.4: before all other checks, also those that it has answered before."""
    publish(client, "Unread", b"x")
    fields = pull_fields("UnreadG", "Unread", sysFlag=4, subscription="*")
    assert [bodies_of(client.call(11, fields)[1]) for _ in range(3)] == [[b"x"]] * 3
    try:
        assert client.call(25, {}, b"brokerPermission=2")[0]["code"] == 0
        for asked in (fields, fields | {"topic": "NoSuch"}):
            header, content = client.call(11, asked)
            assert (header["code"], "pulling message is forbidden" in header["remark"], content) == (16, True, b"")
    finally:
        client.call(25, {}, b"brokerPermission=6")
    assert bodies_of(client.call(11, fields)[1]) == [b"x"]


def test_pull_takes_what_rocketmq_stumbles_over(client: RemotingSocket) -> None:
    """An empty type of expression is TAG, and of a number of messages below 1 one comes: 4.9.7 answers 23 and 1."""
    publish(client, "Stumbled", b"a", tag="A")
    publish(client, "Stumbled", b"b", tag="B")
    fields = pull_fields("StumbledG", "Stumbled", sysFlag=4, expressionType="")
    for subscribed, found in (("B", [b"b"]), ("*", [b"a", b"b"]), ("", [b"a", b"b"])):
        assert bodies_of(client.call(11, fields | {"subscription": subscribed})[1]) == found
    for most in (0, -1):
        assert bodies_of(client.call(11, fields | {"subscription": "*", "maxMsgNums": most})[1]) == [b"a"]


def test_broadcasting_can_be_forbidden(client: RemotingSocket) -> None:
    """A-BROKER-28, A-BROKER-40; remoting.md 4.4: consumeBroadcastEnable."""
    publish(client, "Bc", b"x")
    client.call(200, None, as_json({"groupName": "BcG", "consumeBroadcastEnable": False}))
    body = {
        "clientID": "c1",
        "consumerDataSet": [consumer_data("BcG", subscription("Bc"), model="BROADCASTING")],
    }
    client.call(34, None, as_json(body))
    header, _ = client.call(11, pull_fields("BcG", "Bc"))
    assert header["code"] == 16
    client.call(200, None, as_json({"groupName": "BcG", "consumeBroadcastEnable": True}))
    assert bodies_of(client.call(11, pull_fields("BcG", "Bc"))[1]) == [b"x"]


def test_newer_subscription_of_a_pull_is_not_refused(client: RemotingSocket) -> None:
    """remoting.md 0, code 25: a tag subscription of which no heartbeat told yet gets everything; the client picks."""
    publish(client, "Newer", b"a", tag="A")
    publish(client, "Newer", b"b", tag="B")
    heartbeat(client, "c1", "NewerG", subscription("Newer", "A"))
    assert bodies_of(client.call(11, pull_fields("NewerG", "Newer"))[1]) == [b"a"]
    assert bodies_of(client.call(11, pull_fields("NewerG", "Newer", subVersion=2))[1]) == [b"a", b"b"]
    given = client.call(11, pull_fields("NewerG", "Newer", subVersion=2, subscription="B"))
    assert bodies_of(given[1]) == [b"b"]
    heartbeat(client, "c1", "NewerG", subscription("Newer", "TAGS = 'B'", "SQL92", version=2))
    by_sql = client.call(11, pull_fields("NewerG", "Newer", subVersion=3))
    assert bodies_of(by_sql[1]) == [b"b"]  # the client cannot pick by SQL92: it stays the heartbeat's


@pytest.mark.parametrize("passed_over", [0, 900])
def test_held_pull_follows_a_changed_subscription(
    broker: testing.RunningBroker, client: RemotingSocket, passed_over: int
) -> None:
    """A-BROKER-53: at once, to pull again from where it began; clients drop what they did not want when they pulled."""
    topic, group = f"Resub{passed_over}", f"ResubG{passed_over}"
    publish(client, topic, b"first", tag="A")
    heartbeat(client, "c1", group, subscription(topic, "A", version=5))
    opaque = client.send(11, pull_fields(group, topic, 1, subVersion=5, suspendTimeoutMillis=15_000))
    with RemotingSocket(broker.remoting) as other:
        publish(other, topic, b"wanted later", tag="B")
        for _ in range(passed_over):
            other.send(310, send_fields(topic, properties={"TAGS": "C"}), b"never wanted", flag=2)
        publish(other, topic, b"last", tag="B")
    began = time.monotonic()
    heartbeat_opaque = client.send(
        34,
        None,
        as_json(
            {"clientID": "c1", "consumerDataSet": [consumer_data(group, subscription(topic, "B", version=6))]},
        ),
    )
    answers: dict[int, tuple[dict[str, Any], bytes]] = {}
    while len(answers) < 2:
        header, content = client.receive()
        if header["flag"] & 1:
            answers[header["opaque"]] = (header, content)
    assert time.monotonic() - began < 5.0
    assert answers[heartbeat_opaque][0]["code"] == 0
    header, content = answers[opaque]
    assert (header["code"], content) == (20, b"")
    assert header["extFields"]["nextBeginOffset"] == "1"
    header, content = client.call(11, pull_fields(group, topic, 1, subVersion=6))
    assert header["code"] == 0
    assert bodies_of(content)[0] == b"wanted later"


def test_held_pull_of_a_former_subscription_gets_no_message_of_the_new_one(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """What comes after the change goes to the next pull: the client drops what this one did not want."""
    publish(client, "Former", b"first", tag="A")
    heartbeat(client, "c1", "FormerG", subscription("Former", "A", version=5))
    opaque = client.send(11, pull_fields("FormerG", "Former", 1, subVersion=5, suspendTimeoutMillis=15_000))
    members = [consumer_data("FormerG", subscription("Former", "B", version=6))]
    client.send(34, None, as_json({"clientID": "c1", "consumerDataSet": members}))
    with RemotingSocket(broker.remoting) as other:
        publish(other, "Former", b"wanted", tag="B")
    header: dict[str, Any] = {}
    while header.get("opaque") != opaque or not header["flag"] & 1:
        header, content = client.receive()
    assert (header["code"], content) == (20, b"")
    assert header["extFields"]["nextBeginOffset"] == "1"


def test_commit_by_pull(client: RemotingSocket) -> None:
    """remoting.md 4.4: bit 1."""
    publish(client, "Commit", b"x", b"y")
    heartbeat(client, "c1", "CommitG", subscription("Commit"))
    client.call(11, pull_fields("CommitG", "Commit", sysFlag=1, commitOffset=2))
    header, _ = client.call(14, {"consumerGroup": "CommitG", "topic": "Commit", "queueId": 0})
    assert header["extFields"]["offset"] == "2"


def test_reset_moves_the_next_pull(client: RemotingSocket) -> None:
    """remoting.md 4.7.5: the pull after a reset is answered 21 with the new offset, whatever was committed since."""
    publish(client, "Reset", b"x", b"y")
    heartbeat(client, "c1", "ResetG", subscription("Reset"))
    client.call(15, {"consumerGroup": "ResetG", "topic": "Reset", "queueId": 0, "commitOffset": 0})
    header, _ = client.call(222, {"topic": "Reset", "group": "ResetG", "timestamp": -1, "isForce": "true"})
    assert header["code"] == 0
    client.call(15, {"consumerGroup": "ResetG", "topic": "Reset", "queueId": 0, "commitOffset": 1})
    header, _ = client.call(11, pull_fields("ResetG", "Reset", 0))
    assert header["code"] == 21
    assert header["extFields"]["nextBeginOffset"] == "2"
    header, _ = client.call(14, {"consumerGroup": "ResetG", "topic": "Reset", "queueId": 0})
    assert header["extFields"]["offset"] == "2"


def test_a_pull_that_is_where_a_reset_went_commits_nothing(client: RemotingSocket) -> None:
    """remoting.md 4.7.5: a consumer that is behind brings an offset from before, though it has pulled to the end."""
    publish(client, "There", b"x", b"y")
    heartbeat(client, "c1", "ThereG", subscription("There"))
    client.call(15, {"consumerGroup": "ThereG", "topic": "There", "queueId": 0, "commitOffset": 0})
    header, _ = client.call(222, {"topic": "There", "group": "ThereG", "timestamp": -1, "isForce": "true"})
    assert header["code"] == 0
    pulled = pull_fields("ThereG", "There", 2, sysFlag=1, commitOffset=1)
    assert client.call(11, pulled)[0]["code"] == 19
    header, _ = client.call(14, {"consumerGroup": "ThereG", "topic": "There", "queueId": 0})
    assert header["extFields"]["offset"] == "2"
    client.call(11, pulled)  # what it brings from then on counts again
    header, _ = client.call(14, {"consumerGroup": "ThereG", "topic": "There", "queueId": 0})
    assert header["extFields"]["offset"] == "1"


@pytest.mark.parametrize("is_online", [False, True])
def test_reset_wakes_waiting_pulls_of_who_pulls_by_itself(
    broker: testing.RunningBroker, client: RemotingSocket, is_online: bool
) -> None:
    """remoting.md 4.7.5: Java's lite pull consumers do nothing when told; what they wait in is up to 20 s long."""
    topic, group = f"ResetWake{is_online}", f"ResetWake{is_online}G"
    publish(client, topic, b"x", b"y")
    client.call(15, {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 2})
    if is_online:
        heartbeat(client, "c1", group, subscription(topic), kind="CONSUME_ACTIVELY")
    for name, hold_ms in ((group, 20_000), ("OtherG", 2_000)):
        client.send(11, pull_fields(name, topic, 2, sysFlag=6, subscription="*", suspendTimeoutMillis=hold_ms))
    with RemotingSocket(broker.remoting) as tool:
        header, _ = tool.call(222, {"topic": topic, "group": group, "timestamp": 0, "isForce": "true"})
        assert header["code"] == 0
    if is_online:
        assert client.receive()[0]["code"] == 220
    moved, other = client.receive()[0], client.receive()[0]
    assert (moved["code"], moved["extFields"]["nextBeginOffset"]) == (21, "0")
    assert other["code"] == 19  # of another group: it waits for its time


def test_reset_leaves_waiting_pulls_of_push_consumers(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """They go on at the new place 10 s after they are told, and would go back there 10 s after an answer 21."""
    publish(client, "ResetPush", b"x", b"y")
    heartbeat(client, "c1", "ResetPushG", subscription("ResetPush"))
    client.send(11, pull_fields("ResetPushG", "ResetPush", 2))
    with RemotingSocket(broker.remoting) as tool:
        header, _ = tool.call(222, {"topic": "ResetPush", "group": "ResetPushG", "timestamp": 0, "isForce": "true"})
        assert header["code"] == 0
        assert client.receive()[0]["code"] == 220
        publish(tool, "ResetPush", b"z")
    header, content = client.receive()
    assert (header["code"], bodies_of(content)) == (0, [b"z"])
    header, _ = client.call(11, pull_fields("ResetPushG", "ResetPush", 3))
    assert (header["code"], header["extFields"]["nextBeginOffset"]) == (21, "0")


def test_members_are_told_of_changes(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """remoting.md 4.4, trap 18: a member that comes or goes is told to all, also when its connection just closes."""
    heartbeat(client, "c1", "ChangeG", subscription("Change"))
    with RemotingSocket(broker.remoting) as other:
        heartbeat(other, "c2", "ChangeG", subscription("Change"))
        header, _ = client.receive()
        assert (header["code"], header["flag"] & 2, header["extFields"]) == (40, 2, {"consumerGroup": "ChangeG"})
        _, content = client.call(38, {"consumerGroup": "ChangeG"})
        assert content == b'{"consumerIdList":["c1","c2"]}'
    header, _ = client.receive()
    assert header["code"] == 40
    _, content = client.call(38, {"consumerGroup": "ChangeG"})
    assert content == b'{"consumerIdList":["c1"]}'


def test_running_info_is_asked_of_the_consumer(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """remoting.md 4.7.6: forwarded to the client, its answer passed back."""
    heartbeat(client, "c1", "InfoG", subscription("Info"))
    with RemotingSocket(broker.remoting) as tool:
        opaque = tool.send(307, {"consumerGroup": "InfoG", "clientId": "c1", "jstackEnable": "false"})
        request, _ = client.receive()
        assert request["code"] == 307
        client.send_frame(
            {"code": 0, "language": "JAVA", "version": 409, "opaque": request["opaque"], "flag": 1},
            b'{"properties":{}}',
        )
        header, content = tool.receive()
    assert (header["opaque"], header["code"], content) == (opaque, 0, b'{"properties":{}}')


def test_one_way_requests_are_not_answered(client: RemotingSocket) -> None:
    """A-CLI-15; remoting.md 1.4, trap 25: not even when they are refused or unknown."""
    client.send(310, send_fields("OneWay"), b"x", flag=2)
    client.send(999, flag=2)
    client.send(310, send_fields("a.b"), b"x", flag=2)
    header, _ = client.call(30, {"topic": "OneWay", "queueId": 0})
    assert header["extFields"]["offset"] == "1"


def test_a_group_that_is_refused_beside_others_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is 0, and clients read no remark of that; a line a minute."""
    name = "g" * 121
    groups = [consumer_data(name, subscription("T")), consumer_data("Good", subscription("T"))]
    with testing.broker() as broker, RemotingSocket(broker.remoting) as client:
        for _ in range(2):
            header, _ = client.call(34, None, as_json({"clientID": "c1", "consumerDataSet": groups}))
            assert (header["code"], name in header["remark"]) == (0, True)
        metrics = urllib.request.urlopen(f"http://{broker.admin}/metrics").read().decode()
    assert 'headrace_net_refusals_total{cause="SYSTEM_ERROR",listener="remoting"} 2' in metrics
    (line,) = [message for message in caplog.messages if message.startswith("request refused, client not told ")]
    assert f"request=HEART_BEAT code=SYSTEM_ERROR error=name '{name}'" in line


def test_why_a_one_way_request_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A-BROKER-06: a line for each request and code, one a minute; nobody else is told."""
    ending = {"producerGroup": "P", "tranStateTableOffset": 5, "commitLogOffset": 5, "commitOrRollback": 8}
    with testing.broker() as broker, RemotingSocket(broker.remoting) as client:
        publish(client, "OneWay", b"x")
        client.call(310, send_fields("OneWay", queue_id=99), b"x")
        client.call(999)
        for _ in range(3):
            client.send(310, send_fields("OneWay", queue_id=99), b"x", flag=2)
        client.send(310, send_fields("a.b"), b"x", flag=2)
        client.send(37, ending, flag=2)
        for code in (998, 999):
            client.send(code, flag=2)
        client.call(30, {"topic": "OneWay", "queueId": 0})
    lines = [
        message
        for message in caplog.messages
        if message.startswith("request refused, client not told client=127.0.0.1:")
    ]
    assert [line.partition(" request=")[2] for line in lines] == [
        "SEND_MESSAGE code=SYSTEM_ERROR error=request queueId[99] is illegal, topic[OneWay] has 4 write queues",
        "SEND_MESSAGE_V2 code=SYSTEM_ERROR error=the topic 'a.b' contains illegal characters, "
        "allowed are ^[%|a-zA-Z0-9_-]+$",
        "END_TRANSACTION code=SYSTEM_ERROR error=can not find message by the offset, 5: there is no record",
        "unknown code=REQUEST_CODE_NOT_SUPPORTED error= request type 998 not supported",
    ]


def test_codes_that_a_consumer_makes_up_have_one_line(
    broker: testing.RunningBroker, client: RemotingSocket, caplog: pytest.LogCaptureFixture
) -> None:
    """What a tool asks one-way is passed on, and refused with whatever the consumer answers: each code had its line."""
    with RemotingSocket(broker.remoting) as consumer:
        heartbeat(consumer, "c1", "MadeUp", subscription("MadeUp"))
        for number in range(3):
            client.send(307, {"consumerGroup": "MadeUp", "clientId": "c1"}, flag=2)
            while (request := consumer.receive()[0])["code"] != 307:
                pass
            consumer.send_frame({**request, "code": 50_000 + number, "flag": 1, "extFields": {}})
        consumer.call(30, {"topic": "MadeUp", "queueId": 0})
    assert caplog.text.count("client not told") == 1
    assert "request=GET_CONSUMER_RUNNING_INFO code=unknown" in caplog.text


def test_one_way_pulls_are_neither_answered_nor_held(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """remoting.md 1.4: found, not found, moved; what they commit counts."""
    publish(client, "Quiet", b"one", b"two")
    heartbeat(client, "c1", "QuietG", subscription("Quiet"))
    for offset in (0, 2, 9):
        client.send(11, pull_fields("QuietG", "Quiet", offset, sysFlag=7, commitOffset=2), flag=2)
    opaque = client.send(14, {"consumerGroup": "QuietG", "topic": "Quiet", "queueId": 0})
    header, _ = client.receive()
    assert (header["opaque"], header["extFields"]["offset"]) == (opaque, "2")
    with RemotingSocket(broker.remoting) as producer:
        publish(producer, "Quiet", b"three")
    opaque = client.send(999)
    assert client.receive()[0]["opaque"] == opaque


def test_unknown_code_is_answered_3(client: RemotingSocket) -> None:
    """A-NET-12; remoting.md 1.7."""
    header, _ = client.call(999)
    assert (header["code"], header["remark"]) == (3, " request type 999 not supported")


@pytest.mark.parametrize(
    ("code", "hint"), [(400, "setClientRebalance(true)"), (200_050, "POP"), (370, "taken back"), (50, "access.md")]
)
def test_who_asks_for_what_rocketmq_has_is_told_what_helps(
    client: RemotingSocket, caplog: pytest.LogCaptureFixture, code: int, hint: str
) -> None:
    """A consumer that wants POP gets no messages: its log and ours say why, ours once."""
    for _ in range(2):
        header, _ = client.call(code)
        assert (header["code"], header["remark"].startswith(f" request type {code} not supported: ")) == (3, True)
        assert hint in header["remark"]
    assert [hint in message for message in caplog.messages if "not served" in message] == [True]


def test_requests_of_one_read_are_answered_each(client: RemotingSocket) -> None:
    """A-NET-13: many requests in flight, every one gets its answer; those to bad queues do not touch the others."""
    publish(client, "Many", b"x")
    opaques = {client.send(310, send_fields("Many", queue_id=number % 5), b"y"): number % 5 for number in range(200)}
    codes = {}
    for _ in opaques:
        header, _ = client.receive()
        codes[header["opaque"]] = header["code"]
    assert codes == {opaque: 1 if queue_id == 4 else 0 for opaque, queue_id in opaques.items()}


@pytest.mark.parametrize(
    ("answers", "writes"),
    [
        pytest.param([5000], [5000], id="the last waits for nothing"),
        pytest.param([5000] * 5, [10_000, 10_000, 5000], id="pairs"),
        pytest.param([10, 5000, 10, 5000, 10], [10_020, 10], id="small ones go along"),
        pytest.param([300_000, 10], [300_000, 10], id="one that fills the bound"),
    ],
)
def test_large_answers_of_one_read_leave_in_pairs(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, answers: list[int], writes: list[int]
) -> None:
    """A write each would cost as much as the rest of a pull; all in one would have the client wait for the last."""
    link = BrokerLink(rig)
    seen: list[int] = []

    def take(connection: RemotingConnection, command: object) -> None:
        for size in answers:
            connection.send(b"x" * size)

    monkeypatch.setattr(RemotingConnection, "_execute", take)
    monkeypatch.setattr(link.transport, "write", lambda data: seen.append(len(data)))
    link.send(encode_frame(RequestCode.HEART_BEAT, {}))
    assert seen == writes


def test_an_answer_waits_for_that_of_the_pull_behind_it_and_for_nothing_else(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulls of one read leave in pairs. Between them, and behind them, may be what takes long."""
    link = BrokerLink(rig)
    link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("Pairs")), body=b"x" * 6_000))
    writes: list[list[int]] = []
    monkeypatch.setattr(
        link.transport, "write", lambda data: writes.append([found.opaque for found in commands_in(data)])
    )

    def pull(opaque: int, offset: int = 0) -> bytes:
        fields = pull_fields("G", "Pairs", offset, subscription="*", sysFlag=6)
        return encode_request(0, 11, opaque, ext=as_texts(fields))

    def other(opaque: int) -> bytes:
        return encode_request(0, 30, opaque, ext={"topic": "Pairs", "queueId": "0"})

    link.send(pull(1) + other(2) + pull(3) + pull(4) + pull(5) + other(6) + other(7))
    assert writes == [[1], [2, 3, 4], [5], [6, 7]]
    writes.clear()
    link.send(pull(1) + pull(2, offset=1))  # the second waits for a message
    assert writes == [[1]]


def test_pulls_of_one_read_may_be_of_several_kinds(rig: RemotingRig) -> None:
    """remoting.md 4.4: one that is refused, or of another group, among those that are answered together."""
    link = BrokerLink(rig)
    for queue_id in (0, 1):
        link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("Kinds", queue_id=queue_id)), body=b"x"))

    def pull(opaque: int, group: str, queue_id: int) -> bytes:
        fields = pull_fields(group, "Kinds", queueId=queue_id, subscription="*", sysFlag=6)
        return encode_request(0, 11, opaque, ext=as_texts(fields))

    asked = [("A", 0), ("A", 1), ("B", 0), ("B", 77), ("A", 0), ("B", 0)]
    for _ in range(3):  # unknown, counted for the first time, known
        answers = link.ask(*(pull(number, *each) for number, each in enumerate(asked)))
        assert [answers[number].code for number in range(6)] == [0, 0, 0, 1, 0, 0]
    assert link.server.counters.requests[11] == 18
    for group, most in (("A", 9), ("B", 6)):
        counted = rig.services.statistics.snapshot("GROUP_GET_NUMS", f"Kinds@{group}")
        assert counted is not None
        assert (counted.day.sum, counted.day.per_call) == (most, 1)
    link.ask(encode_request(0, 200, 99, body=as_json({"groupName": "B", "consumeEnable": False})))
    answers = link.ask(*(pull(number, *each) for number, each in enumerate(asked)))
    assert [answers[number].code for number in range(6)] == [0, 0, 16, 16, 0, 16]


def test_sends_of_one_read_count_as_a_call_each(rig: RemotingRig) -> None:
    """A-BROKER-49; remoting.md 4.7.3: ``avgpt`` of 315 is what one request put; a batch is one."""
    link = BrokerLink(rig)
    link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("Calls")), body=b"12345"))
    batch = struct.pack(">iiiii", 22 + 5, 0, 0, 0, 5) + b"12345" + struct.pack(">h", 0)
    frames = [
        encode_request(0, 310, number, ext=as_texts(send_fields("Calls", queue_id=number % 2)), body=b"12345")
        for number in range(2, 9)
    ]
    frames.append(encode_request(0, 310, 9, ext=as_texts(send_fields("Calls", m="true")), body=batch * 4))
    assert {answer.code for answer in link.ask(*frames).values()} == {0}
    for name, most, mean in (("TOPIC_PUT_NUMS", 12, 12 / 9), ("TOPIC_PUT_SIZE", 60, 60 / 9)):
        counted = rig.services.statistics.snapshot(name, "Calls")
        assert counted is not None
        assert (counted.day.sum, counted.day.per_call) == (most, mean)


def test_the_loop_looks_for_more_behind_reads_that_were_answered(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR 0011: a pull that is held, or a request that wants no answer, is nothing that a client waits for."""
    link = BrokerLink(rig)
    looked: list[int] = []
    monkeypatch.setattr(link.server, "busy_poll", SimpleNamespace(served=lambda: looked.append(1), seconds=0.0))

    def looks(code: int, fields: Mapping[str, object], *, oneway: bool = False) -> int:
        looked.clear()
        link.send(encode_request(0, code, 1, ext=as_texts(fields), oneway=oneway))
        return len(looked)

    link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("Looked")), body=b"x"))
    pull = pull_fields("G", "Looked", sysFlag=6, subscription="*")
    assert looks(11, pull) == 1
    assert looks(11, pull | {"queueOffset": 1}) == 0
    commit = {"consumerGroup": "G", "topic": "Looked", "queueId": 0, "commitOffset": 1}
    assert looks(15, commit, oneway=True) == 0
    assert looks(15, commit) == 1


def test_pulls_of_one_read_each_follow_what_their_group_wants_now(rig: RemotingRig) -> None:
    """remoting.md 4.4: that one of a group's queues was pulled since it subscribed anew says nothing of another."""
    link = BrokerLink(rig)
    for queue_id in (0, 1):
        for tag in ("a", "b"):
            fields = send_fields("Anew", queue_id=queue_id, properties={"TAGS": tag})
            link.ask(encode_request(0, 310, 1, ext=as_texts(fields), body=tag.encode()))

    def pulled(*queue_ids: int) -> list[list[bytes]]:
        frames = [
            encode_request(0, 11, 10 + queue_id, ext=as_texts(pull_fields("G", "Anew", queueId=queue_id)))
            for queue_id in queue_ids
        ]
        answers = link.ask(*frames)
        return [bodies_of(answers[10 + queue_id].body) for queue_id in queue_ids]

    def subscribe(expression: str, version: int) -> None:
        member = consumer_data("G", subscription("Anew", expression, version=version))
        body = as_json({"clientID": "c", "producerDataSet": [], "consumerDataSet": [member]})
        link.ask(encode_request(0, 34, 1, body=body))

    subscribe("*", 1)
    assert [pulled(0, 1) for _ in range(2)] == [[[b"a", b"b"]] * 2] * 2
    subscribe("a", 2)
    assert pulled(1) == [[b"a"]]
    assert pulled(1, 0) == [[b"a"]] * 2


def test_pulls_of_one_read_commit_each(rig: RemotingRig) -> None:
    """remoting.md 3.10: what a pull brings counts, whichever of those that are answered together it is."""
    link = BrokerLink(rig)
    for queue_id in range(3):
        link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("T", queue_id=queue_id)), body=b"x"))
    for commit in range(3):
        asked = [
            pull_fields("G", "T", queueId=number, sysFlag=7, subscription="*", commitOffset=commit + number)
            for number in range(3)
        ]
        frames = [encode_request(0, 11, number, ext=as_texts(fields)) for number, fields in enumerate(asked)]
        assert {answer.code for answer in link.ask(*frames).values()} == {0}
        assert rig.services.offsets.queues("G", "T") == {number: commit + number for number in range(3)}


def test_a_pull_that_wants_no_answer_gets_none(rig: RemotingRig) -> None:
    """remoting.md 1.2: nobody waits for it, also where the one before it was the same; its commit counts."""
    link = BrokerLink(rig)
    link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("T")), body=b"x"))
    fields = as_texts(pull_fields("G", "T", sysFlag=7, subscription="*", commitOffset=0))
    wanted = encode_request(0, 11, 2, ext=fields)
    unwanted = encode_request(0, 11, 3, True, fields | {"commitOffset": "1"})
    for _ in range(2):
        assert link.ask(unwanted).keys() == set()
        assert rig.services.offsets.committed("G", "T", 0) == 1
        assert link.ask(wanted).keys() == {2}
        assert rig.services.offsets.committed("G", "T", 0) == 0
    assert link.ask(wanted, unwanted, wanted).keys() == {2}


@pytest.mark.parametrize(
    ("behind", "is_left"),
    [
        pytest.param(struct.pack(">ii", 2**31 - 1, 10), True, id="too long"),
        pytest.param(struct.pack(">ii", 20, 9 << 24 | 8) + bytes(16), True, id="no such serialize type"),
        pytest.param(struct.pack(">ii", 20, 17) + bytes(16), True, id="header longer than the frame"),
        pytest.param(struct.pack(">ii", 12, 8) + b"notjson!", True, id="malformed header"),
        pytest.param(pull_of(b"\\qqq"), True, id="escape that JSON does not know"),
        pytest.param(pull_of(b"\\u12"), True, id="escape that is cut off"),
        pytest.param(struct.pack(">ii", 3, 0), True, id="too short"),
        pytest.param(b"\0\0", False, id="cut off in its length"),
        pytest.param(struct.pack(">ii", 200, 190) + b"{", False, id="cut off in its header"),
    ],
)
def test_pulls_are_answered_before_what_is_no_pull_behind_them(rig: RemotingRig, behind: bytes, is_left: bool) -> None:
    """A-NET-09: they are taken together, and nothing behind them with them."""
    link = BrokerLink(rig)
    link.ask(encode_request(0, 310, 1, ext=as_texts(send_fields("Behind")), body=b"x"))
    pull = as_texts(pull_fields("G", "Behind", subscription="*", sysFlag=6))
    link.ask(encode_request(0, 11, 2, ext=pull))  # known from then on
    answers = link.send(b"".join(encode_request(0, 11, number, ext=pull) for number in range(3, 40)) + behind)
    assert [(answer.opaque, answer.code) for answer in answers] == [(number, 0) for number in range(3, 40)]
    assert bool(link.connection.cause) == is_left
    assert link.server.counters.bad_frames == is_left
    assert link.server.counters.requests[11] == 38
    rest = encode_request(0, 11, 40, ext=pull)
    if not is_left and len(behind) == 2:
        assert [answer.opaque for answer in link.send(rest[2:])] == [40]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ii", 2**31 - 1, 10),
        struct.pack(">ii", -1, 10),
        struct.pack(">ii", 20, 100) + bytes(16),
        struct.pack(">ii", 12, 9 << 24 | 8) + bytes(8),
        struct.pack(">ii", 12, 8) + b"notjson!",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_bad_frames_close_the_connection(broker: testing.RunningBroker, client: RemotingSocket, frame: bytes) -> None:
    """A-NET-09; remoting.md 1.1; issue "Bad input": others are still served."""
    client.send_bytes(frame)
    assert client.is_closed()
    with RemotingSocket(broker.remoting) as other:
        assert other.call(999)[0]["code"] == 3


def test_an_answer_behind_a_bad_frame_comes_too_late(
    broker: testing.RunningBroker, client: RemotingSocket, caplog: pytest.LogCaptureFixture
) -> None:
    """A query by key is answered by a thread: the frame behind it has ended the connection by then."""
    client.call(310, send_fields("Late", properties={"KEYS": "k"}), b"x")
    query = {"topic": "Late", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert client.call(12, query)[0]["code"] == 0
    client.send_bytes(encode_request(0, 12, 99, ext=query) + struct.pack(">ii", -1, 10))
    assert client.is_closed()
    with RemotingSocket(broker.remoting) as other:
        assert other.call(12, query)[0]["code"] == 0  # the thread is done with the first
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"clientID":1}',
        b'{"clientID":"c","consumerDataSet":7}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
    ],
)
def test_malformed_heartbeats_are_refused(client: RemotingSocket, body: bytes) -> None:
    """Issue "Bad input": the remark names the field."""
    header, _ = client.call(34, None, body)
    assert header["code"] == 1
    assert "body" in header["remark"]


@pytest.mark.parametrize("entry", [b'{"topic":"\xff"}', b'{"topic":1e999}'])
def test_large_bodies_with_malformed_entries_are_refused(
    client: RemotingSocket, entry: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read in parts; where one cannot be read it is the body that is wrong, not the broker."""
    entries = entry + b" " * (64 << 10)
    bodies = {
        34: b'{"clientID":"c","consumerDataSet":[{"groupName":"BadG","subscriptionDataSet":[%b]}]}' % entries,
        41: b'{"clientId":"c","consumerGroup":"BadG","mqSet":[%b]}' % entries,
        42: b'{"clientId":%b,"mqSet":[]}' % entries,
    }
    for code, body in bodies.items():
        header, _ = client.call(code, None, body)
        assert (header["code"], header["remark"].startswith("the body is malformed: ")) == (1, True), header
    assert "failed by a bug" not in caplog.text


def test_heartbeat_with_too_many_subscriptions_is_refused(client: RemotingSocket) -> None:
    """Issue "Bad input": the remark names the setting."""
    body = {"clientID": "c", "consumerDataSet": [consumer_data("ManyG", *[subscription("T")] * 10_001)]}
    header, _ = client.call(34, None, as_json(body))
    assert header["code"] == 2
    assert "remoting.max_subscriptions" in header["remark"]


@pytest.mark.parametrize("name", ["queueOffset", "maxMsgNums", "subVersion"])
def test_malformed_pulls_are_refused(client: RemotingSocket, name: str) -> None:
    """Issue "Bad input": wrong types and missing fields."""
    for value in ("x", ""):
        header, _ = client.call(11, pull_fields("BadG", "TBW102") | {name: value})
        assert header["code"] == 1
        assert name in header["remark"]


def metric(running: testing.RunningBroker, name: str) -> float:
    """Return a metric of a broker's, 0 where it is not there."""
    with urllib.request.urlopen(f"http://{running.admin}/metrics") as response:
        text = response.read().decode()
    return float(text.partition(f"\n{name} ")[2].partition("\n")[0] or 0)


def test_client_that_does_not_read_is_bounded() -> None:
    """E-PULL-01: pulls of a client that takes nothing wait; all are answered when it reads again."""
    settings = {"remoting__write_high_water_bytes": 65_536, "store__durability": "async", "registry__enabled": False}
    with testing.broker(**settings) as running, RemotingSocket(running.remoting) as client:
        publish(client, "Slow", *[bytes(50_000)] * 5)
        fields = pull_fields("SlowG", "Slow", sysFlag=4, subscription="*")
        opaques = {client.send(11, fields) for _ in range(400)}
        time.sleep(0.5)
        with RemotingSocket(running.remoting) as other:
            assert other.call(999)[0]["code"] == 3
        for _ in range(400):
            header, content = client.receive()
            opaques.remove(header["opaque"])
            assert header["code"] == 0
            assert len(content) > 50_000
        assert not opaques


def test_client_that_only_pulls_and_does_not_read_is_not_read_from() -> None:
    """The pulls themselves are memory, too."""
    settings = {"remoting__write_high_water_bytes": 1_048_576, "store__durability": "async", "registry__enabled": False}
    with testing.broker(**settings) as running, RemotingSocket(running.remoting) as client:
        publish(client, "Deaf", bytes(20_000))
        fields = pull_fields("DeafG", "Deaf", sysFlag=4, subscription="*")
        for _ in range(3_000):
            client.send(11, fields)
        pauses, began = 0.0, time.monotonic()
        while pauses == 0.0 and time.monotonic() < began + 10:
            pauses = metric(running, "headrace_remoting_read_pauses_total")
            time.sleep(0.05)
        assert pauses >= 1
        for _ in range(3):
            assert client.receive()[0]["code"] == 0


def test_clients_that_do_not_read_are_bounded_together(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them keeps its own bound; those with most go, and who reads is served."""
    settings = {"remoting__max_unread_bytes": 8 << 20, "store__segment_bytes": 8 << 20, "registry__enabled": False}
    with (
        testing.broker(**settings) as running,
        contextlib.ExitStack() as stack,
        RemotingSocket(running.remoting) as reader,
    ):
        publish(reader, "Large", bytes(4_000_000))
        fields = pull_fields("DeafG", "Large", sysFlag=4, subscription="*")
        deaf = [stack.enter_context(RemotingSocket(running.remoting)) for _ in range(6)]
        for client in deaf:
            for _ in range(2):
                client.send(11, fields)
        closed, began = 0.0, time.monotonic()
        while closed == 0.0 and time.monotonic() < began + 10:
            closed = metric(running, 'headrace_remoting_closed_connections_total{cause="unread"}')
            assert reader.call(11, fields)[0]["code"] == 0
        assert 1 <= closed < len(deaf)
    assert "setting=remoting.max_unread_bytes" in caplog.text


def test_what_readers_of_the_log_have_waiting_is_not_counted() -> None:
    """It is the log's, no copy: all of a cluster's readers may be slower than the broker at once."""
    settings = {"remoting__max_unread_bytes": 2 << 20, "remoting__write_high_water_bytes": 1 << 20}
    with (
        testing.broker(**settings, store__segment_bytes=32 << 20, registry__enabled=False) as running,
        contextlib.ExitStack() as stack,
    ):
        readers = [stack.enter_context(RemotingSocket(running.remoting)) for _ in range(3)]
        publish(readers[0], "Large", *[bytes(4_000_000)] * 2)
        opaques = [reader.send(RequestCode.READ_LOG, {"offset": 0, "maxBytes": 8 << 20}) for reader in readers]
        began = time.monotonic()
        while metric(running, "headrace_remoting_write_pauses_total") < len(readers) and time.monotonic() < began + 10:
            time.sleep(0.05)
        assert metric(running, "headrace_remoting_write_pauses_total") >= len(readers)
        time.sleep(2.5 * TICK_MS / 1000)
        for reader, opaque in zip(readers, opaques, strict=True):
            header, content = reader.receive_response(opaque)
            assert (header["code"], len(content) > 8_000_000) == (0, True)


def test_one_client_alone_gets_an_answer_larger_than_all_may_have_waiting() -> None:
    """It would be cut with every attempt, however well it reads."""
    settings = {"remoting__max_unread_bytes": 1 << 20, "remoting__write_high_water_bytes": 65_536}
    with (
        testing.broker(**settings, store__segment_bytes=8 << 20, registry__enabled=False) as running,
        RemotingSocket(running.remoting) as client,
    ):
        publish(client, "Large", bytes(4_000_000))
        opaques = [client.send(11, pull_fields("AloneG", "Large", sysFlag=4, subscription="*")) for _ in range(3)]
        time.sleep(2.5 * TICK_MS / 1000)
        for opaque in opaques:
            assert client.receive_response(opaque)[0]["code"] == 0


def test_refused_offset_of_a_pull_does_not_answer_it(client: RemotingSocket) -> None:
    """remoting.md 4.4: one answer, when there is a message; the refusal is only counted."""
    publish(client, "Odd", b"first")
    heartbeat(client, "c1", "OddG", subscription("Odd"))
    opaque = client.send(11, pull_fields("OddG", "Odd", 1, sysFlag=3, commitOffset=-5, suspendTimeoutMillis=400))
    header, _ = client.receive()
    assert (header["opaque"], header["code"]) == (opaque, 19)
    assert client.call(999)[0]["code"] == 3


@pytest.mark.provokes_bugs
def test_bug_of_ours_is_answered_without_a_traceback(
    client: RemotingSocket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged with its traceback, answered ``internal error``; the connection goes on."""

    def fail(peer: object, command: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setitem(HANDLERS, 35, fail)
    header, _ = client.call(35, {"clientID": "c"})
    assert (header["code"], header["remark"]) == (1, "internal error")
    assert "secret detail" in caplog.text
    assert client.call(999)[0]["code"] == 3


def test_figures_are_scraped(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """docs/metrics.md: every family of this side that the page names is there. A-BROKER-52."""
    publish(client, "Figures", b"x")
    heartbeat(client, "c1", "FiguresG", subscription("Figures"))
    client.call(999)
    with urllib.request.urlopen(f"http://{broker.admin}/metrics") as response:
        text = response.read().decode()
    assert 'headrace_net_refusals_total{cause="REQUEST_CODE_NOT_SUPPORTED",listener="remoting"}' in text
    assert 'headrace_remoting_unsupported_total{code="999"}' in text
    assert 'headrace_broker_group_consumers{group="FiguresG"} 1.0' in text
    assert 'headrace_broker_topic_consumers{topic="Figures"} 1.0' in text
    for family in (
        "remoting_requests_total",
        "remoting_received_messages_total",
        "remoting_waiting_pulls",
        "broker_groups",
        "broker_group_members",
        "broker_delayed_messages",
        "broker_open_transactions",
        "broker_transactions_total",
        "broker_retries_total",
        "broker_dead_letters_total",
    ):
        assert f"headrace_{family}" in text


def test_how_far_behind_a_group_reads_is_counted() -> None:
    """remoting.md 4.7.3: GROUP_GET_FALL_SIZE, the bytes from the last message of a pull to the log's end.

    Ref: A-BROKER-41.
    """
    with testing.broker(broker__queue_statistics=True) as running, RemotingSocket(running.remoting) as client:
        for _ in range(9):
            publish(client, "Behind", b"x" * 100)
        heartbeat(client, "c1", "BehindG", subscription("Behind"))
        counted = {"statsName": "GROUP_GET_FALL_SIZE", "statsKey": "0@Behind@BehindG"}
        sums = []
        for offset in (0, 8):
            assert client.call(11, pull_fields("BehindG", "Behind", offset, maxMsgNums=1))[0]["code"] == 0
            sums.append(json.loads(client.call(315, counted)[1])["statsMinute"]["sum"])
        assert sums[0] > 9 * 100
        assert 100 < sums[1] - sums[0] < sums[0] / 2


def test_what_is_pulled_is_counted(client: RemotingSocket) -> None:
    """A-BROKER-49, A-BROKER-50: by topic and group, each time; a pull that finds nothing counts as none."""
    publish(client, "Gotten", *[b"x" * 100] * 3)
    fields = pull_fields("GottenG", "Gotten", sysFlag=4, subscription="*", maxMsgNums=2)
    for offset, found in ((0, 2), (0, 2), (2, 1), (3, 0)):
        assert len(bodies_of(client.call(11, fields | {"queueOffset": offset})[1])) == found
    sums = {}
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
        counted = client.call(315, {"statsName": name, "statsKey": "Gotten@GottenG"})[1]
        sums[name] = json.loads(counted)["statsMinute"]["sum"]
    assert sums["GROUP_GET_NUMS"] == 5
    assert 5 * 100 < sums["GROUP_GET_SIZE"] < 5 * 400


def test_members_that_are_lost_together_are_told_of_together(
    broker: testing.RunningBroker, client: RemotingSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 18 without its square: each of those that stay hears of it once, not once for each that went."""
    told: list[str] = []

    def notify(notices: MemberNotices, name: str) -> int:
        told.append(name)
        return 0

    monkeypatch.setattr(MemberNotices, "_notify", notify)
    others = [RemotingSocket(broker.remoting) for _ in range(20)]
    for number, other in enumerate(others):
        heartbeat(other, f"lost-{number}", "LostG", subscription("Lost"))
    time.sleep(0.1)
    told.clear()
    began = time.monotonic()
    with monkeypatch.context() as patch:
        # The loop is busy while they go.
        patch.setitem(HANDLERS, 35, lambda peer, command: time.sleep(0.3))
        client.send(35, flag=2)
        for other in others:
            other.close()
        while not told and time.monotonic() < began + 5:
            time.sleep(0.05)
    time.sleep(0.2)
    assert 1 <= len(told) <= 5


def test_vip_listener_serves_too(broker: testing.RunningBroker) -> None:
    """remoting.md 5.1, trap 13: two ports below."""
    host, _, port = broker.remoting.rpartition(":")
    assert broker.listeners["remoting_vip"] == f"{host}:{int(port) - 2}"
    with RemotingSocket(broker.listeners["remoting_vip"]) as client:
        publish(client, "Vip", b"x")


def test_send_and_pull_at_level_fsync() -> None:
    """A message is answered and seen once it is durable; a restart keeps messages, offsets, groups and topics."""
    with testing.broker(broker__name="broker-a") as running:
        with RemotingSocket(running.remoting) as client:
            publish(client, "Fsync", b"x")
            heartbeat(client, "c1", "FsyncG", subscription("Fsync"))
            assert bodies_of(client.call(11, pull_fields("FsyncG", "Fsync"))[1]) == [b"x"]
            client.call(15, {"consumerGroup": "FsyncG", "topic": "Fsync", "queueId": 0, "commitOffset": 1})
        running.restart()
        with RemotingSocket(running.remoting) as client:
            header, _ = client.call(14, {"consumerGroup": "FsyncG", "topic": "Fsync", "queueId": 0})
            assert header["extFields"]["offset"] == "1"
            assert client.call(352, {"group": "FsyncG"})[0]["code"] == 0
            assert client.call(351, {"topic": "%RETRY%FsyncG"})[0]["code"] == 0


@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}])
def test_a_send_whose_flush_takes_too_long_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: dict[str, str]
) -> None:
    """A-CLI-13, X-STORE-20: FLUSH_DISK_TIMEOUT names id and place; the message is there, once. Both paths of sends."""
    is_slow = threading.Event()
    finish = Store.finish_flush
    monkeypatch.setattr(Store, "finish_flush", lambda store: None if is_slow.is_set() else finish(store))
    levels = {"broker__delay_levels": "1s 5s"}
    with (
        testing.broker(broker__name="broker-a", remoting__flush_timeout_ms=300, **levels) as running,
        RemotingSocket(running.remoting) as client,
    ):
        publish(client, "Late", b"first")
        is_slow.set()
        began = time.monotonic()
        header, _ = client.call(310, send_fields("Late", properties=more), b"second")
        assert header["code"] == 10
        assert 0.2 < time.monotonic() - began < 5
        assert len(header["extFields"]["msgId"]) == 32
        assert header["extFields"]["queueOffset"] == ("0" if more else "1")
        is_slow.clear()
        assert client.call(310, send_fields("Late"), b"third")[0]["code"] == 0
        bodies = list[bytes]()
        for _ in range(20):
            header, content = client.call(11, pull_fields("LateG", "Late", len(bodies), sysFlag=6, subscription="*"))
            bodies += bodies_of(content) if header["code"] == 0 else []
            if len(bodies) == 3:
                break
        assert sorted(bodies) == [b"first", b"second", b"third"]
        with urllib.request.urlopen(f"http://{running.admin}/metrics") as answer:
            assert "headrace_remoting_late_sends_total 1.0" in answer.read().decode()
    assert caplog.text.count("sends answered before they are durable") == 1


def test_a_send_whose_flush_fails_is_refused_or_its_connection_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one it is told; a run of plain sends has its connection closed and asks elsewhere.

    A delayed message whose queue the broker is to choose goes through its handler, the other one is taken by the read.
    """
    is_failing = threading.Event()
    finish = Store.finish_flush

    def fail(store: Store) -> None:
        if is_failing.is_set():
            store.commits.flusher.take_result()
            store._fail(FlushError("log", 5))
        else:
            finish(store)

    monkeypatch.setattr(Store, "finish_flush", fail)
    levels = {"broker__delay_levels": "1s 5s"}
    for more, queue_id in (({"DELAY": "1"}, -1), ({"DELAY": "1"}, 0), ({}, 0)):
        is_failing.clear()
        with testing.broker(broker__name="broker-a", **levels) as running, RemotingSocket(running.remoting) as client:
            publish(client, "Fails", b"first")
            is_failing.set()
            if more:
                header, _ = client.call(310, send_fields("Fails", queue_id=queue_id, properties=more), b"second")
                assert header["code"] == 14
                assert "log" in header["remark"]
            else:
                client.send(310, send_fields("Fails"), b"second")
                assert client.is_closed()


def test_new_topic_has_a_route_when_its_creation_is_answered() -> None:
    """A-BROKER-21; remoting.md 4.7.1: made by a tool, by a send, and gone when it is deleted."""
    with (
        testing.broker(broker__name="broker-a", store__durability="async") as running,
        RemotingSocket(running.remoting) as client,
        RemotingSocket(running.listeners["registry"]) as registry,
    ):
        for number in range(20):
            topic = {
                "topic": f"Tool{number}",
                "defaultTopic": "TBW102",
                "readQueueNums": 2,
                "writeQueueNums": 2,
                "perm": 6,
            }
            client.call(17, topic)
            header, content = registry.call(105, {"topic": f"Tool{number}"})
            assert header["code"] == 0
            assert b'"writeQueueNums":2' in content
            publish(client, f"Sent{number}", b"x")
            assert registry.call(105, {"topic": f"Sent{number}"})[0]["code"] == 0


def test_tools_find_what_they_changed_in_the_file_of_topics(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """A-BROKER-18: the change is there before the reply is sent."""
    fields = {"topic": "InFile", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}

    def in_file() -> dict[str, Any] | None:
        content = json.loads((broker.data_dir / "config" / "topics.json").read_bytes())
        found: dict[str, Any] | None = content["topicConfigTable"].get("InFile")
        return found

    for queues in (1, 4):
        assert client.call(17, fields | {"readQueueNums": queues, "writeQueueNums": queues})[0]["code"] == 0
        assert (in_file() or {}).get("writeQueueNums") == queues
    assert client.call(215, {"topic": "InFile"})[0]["code"] == 0
    assert in_file() is None


def test_what_a_heartbeat_makes_is_lasting_and_has_a_route_when_it_is_answered() -> None:
    """A-BROKER-18, A-BROKER-21, A-BROKER-27, A-BROKER-31: groups, of any name they may have, and their retry topics."""
    with (
        testing.broker(broker__name="broker-a", store__durability="async") as running,
        RemotingSocket(running.remoting) as client,
        RemotingSocket(running.listeners["registry"]) as registry,
    ):
        config = running.data_dir / "config"
        for groups in (("G1",), ("my.group", "G2", "a|b-c_d")):
            body = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer_data(g) for g in groups]}
            header, _ = client.call(34, None, as_json(body))
            assert (header["code"], header.get("remark") or "") == (0, "")
            saved = json.loads((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
            topics = json.loads((config / "topics.json").read_bytes())["topicConfigTable"]
            for group in groups:
                assert group in saved
                assert f"%RETRY%{group}" in topics
                header, content = registry.call(105, {"topic": f"%RETRY%{group}"})
                assert header["code"] == 0
                assert b'"brokerName":"broker-a"' in content


@pytest.mark.parametrize("kind", ["send", "heartbeat"])
def test_what_many_clients_make_at_once_has_a_route_when_it_is_answered(kind: str) -> None:
    """A-BROKER-21: one write of a file answers many; registries drop a second registration of a version."""
    failed: list[str] = []

    def make(number: int) -> None:
        with RemotingSocket(running.remoting) as client, RemotingSocket(running.listeners["registry"]) as registry:
            for step in range(8):
                name = f"{kind}-{number}-{step}"
                if kind == "send":
                    publish(client, name, b"x")
                else:
                    heartbeat(client, f"c{number}", name)
                topic = name if kind == "send" else f"%RETRY%{name}"
                if registry.call(105, {"topic": topic})[0]["code"] != 0:
                    failed.append(topic)

    with testing.broker(broker__name="broker-a", store__durability="async") as running:
        threads = [threading.Thread(target=make, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_topic_made_by_a_send_is_in_the_file_of_topics_when_that_is_answered(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """A-BROKER-18: every topic operation updates memory and file at once."""
    for number in range(5):
        publish(client, f"SentToFile{number}", b"x")
        content = json.loads((broker.data_dir / "config" / "topics.json").read_bytes())
        assert f"SentToFile{number}" in content["topicConfigTable"]


def test_connections_take_no_threads(broker: testing.RunningBroker) -> None:
    """A-NET-02: hundreds of clients, each with a pull that waits, are served by the threads of a few."""
    require_open_files(1_500)  # both ends of each connection are here

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RemotingSocket(broker.remoting))]
        publish(clients[0], "Crowd", b"first")
        heartbeat(clients[0], "c0", "CrowdG", subscription("Crowd"))
        most = threads() + 4  # the pools start their threads when they are first needed
        clients += [stack.enter_context(RemotingSocket(broker.remoting)) for _ in range(500)]
        for number, client in enumerate(clients[1:], 1):
            heartbeat(client, f"c{number}", f"CrowdG{number}", subscription("Crowd"))
        # Only now: on a busy machine it takes longer to make the groups than a pull waits at the most.
        for number, client in enumerate(clients[1:], 1):
            client.send(11, pull_fields(f"CrowdG{number}", "Crowd", 1, suspendTimeoutMillis=200_000))
        assert threads() <= most
        publish(clients[0], "Crowd", b"second")
        assert all(bodies_of(client.receive()[1]) == [b"second"] for client in clients[1:])
        assert threads() <= most


def test_who_only_reads_does_not_wait_for_a_store_that_is_behind(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/protocols/remoting.md, bounds: producers are not read from; what is durable is pulled meanwhile."""
    rig.publish("T", [b"first"])
    producer, consumer = BrokerLink(rig), BrokerLink(rig)
    monkeypatch.setattr(type(rig.broker), "overloaded", True)
    pull = encode_request(0, 11, 1, ext=as_texts(pull_fields("G", "T", subscription="*", sysFlag=4)))
    for _ in range(3):
        assert consumer.ask(pull)[1].code == 0
    assert not consumer.connection.pauses
    assert producer.ask(encode_request(0, 310, 2, ext=as_texts(send_fields("T")), body=b"x"))[2].code == 0
    assert producer.connection.pauses == Pause.STORE
    monkeypatch.undo()
    producer.server.relieve()
    assert not producer.connection.pauses


def test_idle_connection_is_closed() -> None:
    """remoting.md 1.1: idle close."""
    with (
        testing.broker(remoting__idle_timeout_ms=1_000, registry__enabled=False) as running,
        RemotingSocket(running.remoting) as client,
    ):
        client.call(999)
        began = time.monotonic()
        assert client.is_closed()
        assert 0.5 < time.monotonic() - began < 5.0


def test_idle_connection_is_closed_unless_it_sends_heartbeats_while_it_waits() -> None:
    """remoting.md 1.1: being owed an answer keeps nobody, as in RocketMQ; clients send heartbeats meanwhile."""
    with (
        testing.broker(remoting__idle_timeout_ms=1_000, registry__enabled=False) as running,
        RemotingSocket(running.remoting) as silent,
        RemotingSocket(running.remoting) as client,
    ):
        publish(client, "Idle", b"first")
        for socket in (silent, client):
            socket.send(11, pull_fields("IdleG", "Idle", 1, sysFlag=6, subscription="*", suspendTimeoutMillis=2_500))
        began = time.monotonic()
        while time.monotonic() < began + 2.0:
            client.send(34, None, as_json({"clientID": "c1", "producerDataSet": [{"groupName": "P1"}]}))
            assert client.receive()[0]["code"] == 0
            time.sleep(0.3)
        assert client.receive()[0]["code"] == 19
        assert silent.is_closed()


def test_connections_are_bounded() -> None:
    """One more than the limit is closed."""
    with (
        testing.broker(remoting__max_connections=1, registry__enabled=False) as running,
        RemotingSocket(running.remoting) as client,
    ):
        client.call(999)
        with RemotingSocket(running.remoting) as second:
            assert second.is_closed()
        assert client.call(999)[0]["code"] == 3
