"""Bodies of registry requests."""

import contextlib
import json
import struct
import zlib
from typing import Any

import pytest

from headrace.errors import MessageTooLargeError, QuotaExceededError
from headrace.registry.routes import BrokerData, DataVersion, QueueData, Route, RouteTable, TopicData
from headrace.remoting.registry.bodies import (
    RegistrationBody,
    decode_queues,
    decode_registration,
    decode_version,
    encode_clusters,
    encode_route,
    encode_table,
    encode_topics,
    encode_version,
)
from headrace.remoting.reply import RequestRefusedError

V4_9_8 = 409
V5 = 433


def decode(
    body: bytes, *, version: int = V4_9_8, compressed: bool = False, max_bytes: int = 1 << 20
) -> RegistrationBody:
    return decode_registration(body, version, compressed=compressed, max_bytes=max_bytes)


WRAPPER = {
    "dataVersion": {"counter": 2, "timestamp": 1700000000123},
    "topicConfigTable": {
        "T": {
            "order": False,
            "perm": 6,
            "readQueueNums": 4,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "T",
            "topicSysFlag": 1,
            "writeQueueNums": 8,
        },
        "TBW102": {"perm": 7, "readQueueNums": 8, "topicName": "TBW102", "writeQueueNums": 8},
        "bare": {},
    },
}
TOPICS = {"T": TopicData(4, 8, 6, 1), "TBW102": TopicData(8, 8, 7), "bare": TopicData(16, 16, 6)}


def body_of(wrapper: dict[str, Any], filters: list[str] | None = None) -> bytes:
    content = {"filterServerList": filters or [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(content, separators=(",", ":")).encode()


def test_body_of_java_4_9() -> None:
    """remoting.md 4.8.1."""
    found = decode(body_of(WRAPPER, ["10.0.0.1:30000"]))
    assert found.version == DataVersion(1700000000123, 2)
    assert found.topics() == TOPICS
    assert found.filter_servers == ("10.0.0.1:30000",)


def test_body_of_a_sender_below_version_37_is_the_bare_wrapper() -> None:
    """remoting.md 1.6."""
    found = decode(json.dumps(WRAPPER).encode(), version=36)
    assert found.version == DataVersion(1700000000123, 2)
    assert found.topics() == TOPICS
    assert found.filter_servers is None


def test_body_of_java_5_has_more_members_and_integer_keys() -> None:
    """remoting.md 1.8: what only fastjson writes is read too."""
    plain = body_of({**WRAPPER, "topicQueueMappingInfoMap": {}, "mappingDataVersion": {"stateVersion": 0}})
    odd = plain.replace(b'"topicQueueMappingInfoMap":{}', b'"topicQueueMappingDetailMap":{"T":{"currIdMap":{0:1,1:2}}}')
    odd = odd.replace(b'"mappingDataVersion"', b'"x":{{"queueId":1}:2},"mappingDataVersion"')
    assert odd != plain
    for body in (plain, odd):
        assert decode(body, version=V5).topics() == TOPICS
        assert decode(body, version=V5).version == DataVersion(1700000000123, 2)


def test_numbers_may_be_texts() -> None:
    """remoting.md 1.8: fastjson accepts them."""
    body = body_of({"dataVersion": {"counter": "2", "timestamp": 3}, "topicConfigTable": {"T": {"perm": "4"}}})
    assert decode(body).version == DataVersion(3, 2)
    assert decode(body).topics() == {"T": TopicData(16, 16, 4)}


def test_missing_parts_are_empty() -> None:
    """A body is optional, and so is all in it."""
    assert decode(b"").topics() == {}
    assert decode(b"{}").topics() == {}
    assert decode(b'{"topicConfigSerializeWrapper":{"topicConfigTable":null}}').topics() == {}
    assert decode(b"{}").version == DataVersion(0, 0)


def piece(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed_body(
    topics: list[bytes], *, filters: bytes = b'["f:1"]', tail: bytes = b"", count: int | None = None
) -> bytes:
    parts = [piece(b'{"counter":2,"timestamp":3}'), struct.pack(">i", len(topics) if count is None else count)]
    parts += [piece(topic) for topic in topics]
    return zlib.compress(b"".join([*parts, piece(filters), tail]), 9)


def test_compressed_body() -> None:
    """remoting.md 4.8.1; from version 413 on a tail of mappings follows, and a topic may have a sixth part."""
    for tail in (b"", struct.pack(">i", 1) + piece(b"{}")):
        body = compressed_body([b"T 4 8 6 SINGLE_TAG", b'U 1 1 2 SINGLE_TAG {"a":"b"}'], tail=tail)
        found = decode(body, compressed=True)
        assert found.version == DataVersion(3, 2)
        assert found.topics() == {"T": TopicData(4, 8, 6), "U": TopicData(1, 1, 2)}
        assert found.filter_servers == ("f:1",)


@pytest.mark.parametrize(
    "body",
    [
        b"plain",
        compressed_body([b"T 4 8 6 SINGLE_TAG"])[:-6],
        zlib.compress(b""),
        zlib.compress(piece(b"{}")),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 1 << 30) + b"{}"),
        compressed_body([b"T 4 8 6"]),
        compressed_body([b"T four 8 6 SINGLE_TAG"]),
        compressed_body([b"T -1 8 6 SINGLE_TAG"]),
        compressed_body([], count=1 << 30),
        compressed_body([], filters=b'{"f:1": 1}'),
        compressed_body([], filters=b'"f:1"'),
        compressed_body([], filters=b"[3]"),
        compressed_body([], filters=b'[["f:1"]]'),
    ],
)
def test_malformed_compressed_body_is_refused(body: bytes) -> None:
    """Hostile input gets the protocol's error."""
    with pytest.raises(RequestRefusedError, match="malformed body"):
        decode(body, compressed=True).topics()


def test_too_many_topics_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 16 MiB has room for 1.4 million: to make them held up everybody for two seconds."""
    made = []
    monkeypatch.setattr("headrace.remoting.registry.bodies.TopicData", lambda *fields: made.append(fields))
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{},"U":{"perm":2},"V":{"perm":4}}}}'
    for most, count in ((3, 3), (2, 0)):
        made.clear()
        topics = decode_registration(body, V4_9_8, compressed=False, max_bytes=1 << 20, max_topics=most).topics
        with contextlib.nullcontext() if count else pytest.raises(QuotaExceededError, match=r"registry\.max_topics"):
            topics()
        assert len(made) == count


def test_compressed_bomb_is_refused_before_it_unfolds() -> None:
    """The remark names the setting."""
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    with pytest.raises(MessageTooLargeError, match=r"registry\.max_registration_bytes"):
        decode(bomb, compressed=True, max_bytes=1 << 20)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"topicConfigSerializeWrapper":3}',
        b'{"filterServerList":3}',
        b'{"filterServerList":[3]}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":-1}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"readQueueNums":2147483648}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"readQueueNums":"x"}}}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_malformed_json_body_is_refused(body: bytes) -> None:
    """Issue 4, bad input: malformed JSON, wrong types, nesting."""
    with pytest.raises(RequestRefusedError, match="malformed body"):
        decode(body).topics()


def test_version_round_trip() -> None:
    """remoting.md 4.8.1, code 322; a 5.x broker adds stateVersion."""
    assert encode_version(DataVersion(3, 2)) == b'{"counter":2,"timestamp":3}'
    assert decode_version(b'{"counter":2,"stateVersion":0,"timestamp":3}') == DataVersion(3, 2)
    with pytest.raises(RequestRefusedError):
        decode_version(b"")


def test_route_is_compact_with_quoted_keys_and_both_names_of_the_flag() -> None:
    """remoting.md 1.8, 4.8.2, trap 1: the Go client cuts the raw text of brokerAddrs."""
    route = Route(
        (QueueData("broker-a", 4, 4, 6),),
        (BrokerData("C1", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),),
        {},
    )
    assert encode_route(route, "broker-a:4;broker-b:4") == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"C1","enableActingMaster":false}],"filterServerTable":{},"orderTopicConf":"broker-a:4;broker-b:4","queueDatas":['
        b'{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSynFlag":0,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert b"orderTopicConf" not in encode_route(route, None)
    filtered = Route(route.queues, route.brokers, {"10.0.0.1:10911": ("f:1", "f:2")})
    assert b'"filterServerTable":{"10.0.0.1:10911":["f:1","f:2"]}' in encode_route(filtered, None)


def test_lists() -> None:
    """remoting.md 4.8.2."""
    table = RouteTable()
    table.brokers["b"] = BrokerData("C", "b", {0: "h:1"})
    table.clusters["C"] = {"z", "b"}
    assert encode_clusters(table) == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"h:1"},"brokerName":"b","cluster":"C","enableActingMaster":false}},'
        b'"clusterAddrTable":{"C":["b","z"]}}'
    )
    assert encode_topics([]) == b'{"topicList":[]}'
    assert encode_topics(["a"], "h:1") == b'{"brokerAddr":"h:1","topicList":["a"]}'
    assert encode_table({"T": "b:4"}) == b'{"table":{"T":"b:4"}}'


def test_queues_of_a_route_are_read_back() -> None:
    """remoting.md 4.2, code 217."""
    queues = [QueueData("a", 4, 2, 6, 1)]
    body = encode_route(Route(tuple(queues), (BrokerData("C", "a", {0: "h:1"}),), {}), None)
    assert decode_queues(body) == queues
    assert decode_queues(b"{}") == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"queueDatas":3}', "queueDatas"),
        (b'{"queueDatas":[null]}', "queueDatas[0]"),
        (b'{"queueDatas":[{}]}', "brokerName"),
        (b'{"queueDatas":[{"brokerName":null}]}', "brokerName"),
        (b'{"queueDatas":[{"brokerName":"a","perm":-1}]}', "perm"),
        (b'{"queueDatas":[{"brokerName":"a","readQueueNums":"x"}]}', "readQueueNums"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_malformed_queues_of_a_route_are_refused(body: bytes, named: str) -> None:
    """The remark names the member, not what of Python failed on it."""
    with pytest.raises(RequestRefusedError, match="malformed body") as caught:
        decode_queues(body)
    assert named in str(caught.value)
    assert "attribute" not in str(caught.value)
