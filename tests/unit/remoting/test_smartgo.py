"""Clients of SmartGo's family, whose ext fields begin with capitals both ways. Ref: A-NET-14.

The frames are those of BoltMQ, SmartGo's successor in Go (boltmq/common d86056c, boltmq/sdk b12578f, February 2018).
It reads a response into the fields of a struct by their names, and stops at a name that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import testing
from headrace.remoting.codec import Command, decode_command, encode_response
from tests.support.records import decode_messages
from tests.support.remoting import RemotingSocket, as_json, consumer_data

SEND = (
    b"\x00\x00\x00\xea\x00\x00\x00\xe0"
    b'{"code":310,"language":"GOLANG","version":1,"opaque":1,"flag":0,"remark":"","extFields":{ "A":"pg","E":"1",'
    b'"H":"0","C":"DEFAULT_TOPIC","G":"1796060193530","K":"false","D":"4","B":"made","F":"0",'
    b'"I":"TAGS\\u0001TagA","J":"0"}}body 0'
)
PULL = (
    b"\x00\x00\x01\x14\x00\x00\x01\x10"
    b'{"code":11,"language":"GOLANG","version":1,"opaque":2,"flag":0,"remark":"","extFields":{ "ConsumerGroup":"cg",'
    b'"QueueId":"1","QueueOffset":"0","SysFlag":"4","SuspendTimeoutMillis":"0","MaxMsgNums":"32","CommitOffset":"0",'
    b'"SubVersion":"0","Topic":"made","Subscription":"*"}}'
)
ROUTE = (
    b'\x00\x00\x00n\x00\x00\x00j{"code":105,"language":"GOLANG","version":1,"opaque":3,"flag":0,"remark":"",'
    b'"extFields":{ "Topic":"made"}}'
)


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__durability="async", broker__name="broker-a") as running:
        yield running


@pytest.fixture
def client(broker: testing.RunningBroker) -> Iterator[RemotingSocket]:
    with RemotingSocket(broker.remoting) as socket:
        yield socket


def ask(client: RemotingSocket, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """Send a request as it is spelled here; return header and body of the response."""
    header = as_json({"code": code, "language": "GOLANG", "version": 1, "opaque": 9, "flag": 0, "extFields": ext})
    client.send_bytes((4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body)
    return client.receive()


def test_what_is_sent_is_pulled(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    client.send_bytes(SEND)
    header, _ = client.receive()
    assert (header["code"], header["opaque"], header["flag"]) == (0, 1, 1)
    assert set(header["extFields"]) == {"MsgId", "QueueId", "QueueOffset"}
    assert (header["extFields"]["QueueId"], header["extFields"]["QueueOffset"]) == ("1", "0")
    for _ in range(3):  # the way of pulls that are known, too
        client.send_bytes(PULL)
        header, body = client.receive()
        assert header["code"] == 0
        assert header["extFields"] == {
            "MaxOffset": "1",
            "MinOffset": "0",
            "NextBeginOffset": "1",
            "SuggestWhichBrokerId": "0",
        }
        (message,) = decode_messages(body)
        assert (message["body"], message["properties"]["TAGS"]) == (b"body 0", "TagA")
    with RemotingSocket(broker.listeners["registry"]) as registry:
        registry.send_bytes(ROUTE)
        header, body = registry.receive()
        assert header["code"] == 0
        assert b'"brokerName":"broker-a"' in body


def test_a_refused_send_says_why(client: RemotingSocket) -> None:
    client.send_bytes(SEND.replace(b'"made"', b'"m/de"'))
    header, _ = client.receive()
    assert header["code"] != 0
    assert "m/de" in header["remark"]
    assert not header.get("extFields")


def test_fields_of_other_requests(client: RemotingSocket) -> None:
    counts = {"ReadQueueNums": "2", "WriteQueueNums": "2", "Perm": "6", "TopicSysFlag": "0", "Order": "false"}
    made = ask(client, 17, {"Topic": "other", "DefaultTopic": "DEFAULT_TOPIC", "TopicFilterType": "0"} | counts)
    assert made[0]["code"] == 0, made
    place = {"Topic": "other", "QueueId": "1"}
    assert ask(client, 30, place)[0]["extFields"] == {"Offset": "0"}
    missing, _ = ask(client, 30, {"QueueId": "1"})
    assert missing["remark"] == "the custom field <topic> is missing or empty"
    assert ask(client, 15, {"ConsumerGroup": "cg", "CommitOffset": "0"} | place)[0]["code"] == 0
    assert ask(client, 14, {"ConsumerGroup": "cg"} | place)[0]["extFields"] == {"Offset": "0"}


def test_a_consumer_is_told_of_its_group(client: RemotingSocket) -> None:
    body = as_json({"clientID": "bolt@1", "producerDataSet": None, "consumerDataSet": [consumer_data("told")]})
    frames = [ask(client, 34, {}, body), client.receive()]
    (told,) = [header for header, _ in frames if header["code"] == 40]
    assert told["extFields"] == {"consumerGroup": "told"}  # a name that it reads either way: a to c become capitals


@pytest.mark.parametrize(
    ("language", "ext", "names"),
    [
        ("GOLANG", {"Topic": "T", "QueueId": "1"}, {"topic", "queueId"}),
        ("GOLANG", {"topic": "T", "queueId": "1"}, {"topic", "queueId"}),
        ("GOLANG", {"Topic": "T", "queueId": "1"}, {"Topic", "queueId"}),
        ("GOLANG", {"AccessKey": "K", "Signature": "S"}, {"AccessKey", "Signature"}),
        ("GOLANG", {"Élan": "1"}, {"Élan"}),
        ("GOLANG", {"": "1"}, {""}),
        ("GOLANG", {}, set()),
        ("GO", {"Topic": "T"}, {"Topic"}),
    ],
)
def test_only_what_is_spelled_so_throughout_is_read_so(language: str, ext: dict[str, str], names: set[str]) -> None:
    header = as_json({"code": 30, "language": language, "version": 1, "opaque": 9, "flag": 0, "extFields": ext})
    command = decode_command((4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header)
    assert set(command.ext) == names
    answer = decode_command(encode_response(command.serialize, 9, 0, None, {"offset": "5", "TRACE_ON": "true"}))
    is_smartgos = names == {"topic", "queueId"} and "Topic" in ext
    assert answer.ext == ({"Offset": "5"} if is_smartgos else {"offset": "5", "TRACE_ON": "true"})


def test_its_answer_is_json_on_the_wire() -> None:
    frame = encode_response(2, 9, 0, None, {"offset": "5"}, b"body")
    assert frame[4] == 0
    answer = decode_command(frame)
    assert isinstance(answer, Command)
    assert (answer.serialize, answer.language, answer.body) == (0, "PYTHON", b"body")
