"""Clients that mean harm, against a whole broker on real sockets: what they cost the others. Ref: remoting.md 1, 11."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.remoting.handlers.clients import MAX_NEW_GROUPS
from headrace.remoting.long_answers import MAX_OF_ONE
from tests.support.remoting import RemotingSocket, as_json, consumer_data, send_fields, subscription

MAX_GROWTH_BYTES = 64 << 20
"""What the answers to one hostile client may take: several times remoting.write_high_water_bytes, which is 4 MiB."""
MAX_WORK_S = 2.0
"""CPU time that a request may cost broker and client, which run in this process."""


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__durability="async", broker__name="broker-a", broker__max_topics=2_000) as running:
        yield running


@pytest.fixture
def client(broker: testing.RunningBroker) -> Iterator[RemotingSocket]:
    with RemotingSocket(broker.remoting) as socket:
        yield socket


@pytest.fixture
def registry(broker: testing.RunningBroker) -> Iterator[RemotingSocket]:
    with RemotingSocket(broker.listeners["registry"]) as socket:
        yield socket


def frame(code: int, ext: dict[str, object] | None = None, body: bytes = b"", *, opaque: int = 7) -> bytes:
    texts = {name: str(value) for name, value in (ext or {}).items()}
    header = as_json(
        {"code": code, "language": "JAVA", "version": 409, "opaque": opaque, "flag": 0, "extFields": texts}
    )
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def flood(broker: testing.RunningBroker, part: str, client: RemotingSocket, data: bytes, seconds: float = 1.0) -> int:
    """Send the same requests again and again and read nothing.

    Returns:
        The bytes that a part of the process, ``remoting`` or ``registry``, has read of them: the kernel may hold more.
    """
    connection: socket.socket = client._socket
    connection.setblocking(False)
    before = metric(broker, f"headrace_{part}_received_bytes_total")
    left, end = data, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            sent = connection.send(left)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        left = left[sent:] or data
    connection.settimeout(10)
    return int(metric(broker, f"headrace_{part}_received_bytes_total") - before)


def metric(broker: testing.RunningBroker, name: str) -> float:
    metrics = urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10).read().decode()
    return float(metrics.partition(f"\n{name} ")[2].partition("\n")[0])


def require_served(broker: testing.RunningBroker) -> None:
    """Another client is answered soon, and no request failed by a bug."""
    started = time.process_time()
    with RemotingSocket(broker.remoting) as other:
        assert other.call(28)[0]["code"] == 0
    assert time.process_time() - started < MAX_WORK_S
    assert metric(broker, "headrace_remoting_internal_errors_total") == 0


def make_topics(client: RemotingSocket, count: int) -> None:
    for number in range(count):
        ext = {"topic": f"Many{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        client.send(17, ext)
    for _ in range(count):
        assert client.receive()[0]["code"] == 0


# -- answers that nobody reads -----------------------------------------------------------------------------------------


def test_costly_requests_of_one_read_are_done_in_turns(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """100 KB of requests ask for 200 MB of answers: they are made as they are read, and others come in between.

    Ref: A-NET-06.
    """
    make_topics(client, 1_000)
    before = anonymous_bytes()
    with RemotingSocket(broker.remoting) as hostile:
        hostile.send_bytes(frame(21) * 1_000)
        require_served(broker)
        time.sleep(0.5)
        assert anonymous_bytes() - before < MAX_GROWTH_BYTES
        codes = Counter(hostile.receive()[0]["code"] for _ in range(1_000))  # none was forgotten
        assert codes.keys() <= {0, 2}
        assert codes[0] >= MAX_OF_ONE


def test_requests_that_are_put_off_keep_their_order(broker: testing.RunningBroker) -> None:
    """A large frame behind costly requests, and what follows it, come out as they were sent. A-NET-06, X-NET-07."""
    with RemotingSocket(broker.remoting) as hostile:
        hostile.call(310, send_fields("Order"), b"first")
        stream, expected = b"", []
        for number in range(40):
            opaque = 1_000 + 2 * number
            stream += frame(21, opaque=opaque)
            body = b"x" * (60_000 if number % 7 == 0 else 10)
            stream += frame(310, send_fields("Order"), body, opaque=opaque + 1)
            expected += [opaque, opaque + 1]
        hostile.send_bytes(stream)
        headers = [hostile.receive()[0] for _ in expected]
        assert sorted(header["opaque"] for header in headers) == expected
        offsets = [int(header["extFields"]["queueOffset"]) for header in headers if header["opaque"] % 2]
        assert offsets == list(range(1, 41))


def test_pulls_whose_answers_nobody_reads_take_little_memory(broker: testing.RunningBroker) -> None:
    with RemotingSocket(broker.remoting) as hostile:
        for _ in range(10):
            hostile.call(310, send_fields("Unread"), b"x" * 30_000)
        fields: dict[str, object] = {"consumerGroup": "U", "topic": "Unread", "queueId": 0, "queueOffset": 0}
        fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1}
        pull = frame(11, fields | {"subscription": "*", "expressionType": "TAG"})
        before = anonymous_bytes()
        assert flood(broker, "remoting", hostile, pull * 500) < 2 << 20
        require_served(broker)
        assert anonymous_bytes() - before < MAX_GROWTH_BYTES


def test_requests_to_a_consumer_that_reads_nothing_do_not_pile_up(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """remoting.md 4.7.4: 307 is passed on; what the consumer does not take is answered for it at once."""
    with RemotingSocket(broker.remoting) as victim:
        data = consumer_data("Victims", subscription("Unread"))
        victim.call(34, None, as_json({"clientID": "v", "producerDataSet": [], "consumerDataSet": [data]}))
        before = anonymous_bytes()
        request = {"consumerGroup": "Victims", "clientId": "v", "jstackEnable": "false"}
        for _ in range(150):
            client.send(307, request, b"z" * 1_000_000)
        while client.receive()[0]["code"] != 207:  # CONSUME_MSG_TIMEOUT
            pass
        require_served(broker)
        assert anonymous_bytes() - before < MAX_GROWTH_BYTES


# -- bodies ------------------------------------------------------------------------------------------------------------


def heartbeat(*groups: dict[str, Any]) -> bytes:
    return as_json({"clientID": "h", "producerDataSet": [], "consumerDataSet": list(groups)})


def laughs(levels: int) -> bytes:
    """A body of some hundred bytes that means 10 ** levels values."""
    parts = ['"x0":[0,0,0,0,0,0,0,0,0,0]']
    for level in range(1, levels):
        parts.append(f'"x{level}":[{",".join([json.dumps({"$ref": f"$.x{level - 1}"})] * 10)}]')
    return ("{" + ",".join(parts) + "}").encode()


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (laughs(12), "stands for more than"),
        (
            b'{"a":{"$ref":"$%b"},"b":{"$ref":"$%b"},"c":{"$ref":"$"}}' % (b".b" * 20_000, b".c" * 20_000),
            "references of more than",
        ),
        (b"{" + b",".join(b"%d:0" % number for number in range(100_000)) + b"}", "the body is malformed"),
        (b"[" * 100_000, "the body is malformed"),
        (heartbeat(*(consumer_data(f"B{n}", *[subscription("t")] * 4_000) for n in range(3))), "max_subscriptions"),
        (heartbeat(consumer_data("B", *[subscription("t")] * 20_000)), "max_subscriptions"),
        (heartbeat(consumer_data("B", *[subscription("t" * 100)] * 40_000)), "at most 8388608 are read"),
        (b'{"clientID":"a","y":[%b]}' % b",".join([b"[]"] * 2_700_000), "more values than the 400000"),
        (b'{"clientID":"a","x":{"$ref":1},"y":[%b]}' % b",".join([b"[]"] * 100_000), "more values than the 50000"),
        (heartbeat(*[consumer_data("B", subscription("t", "||".join("x" * 5_000)))] * 100), "more tags"),
        (
            heartbeat(*[consumer_data("B", subscription("t", "||".join("x" * 5_000)))] * 100).replace(
                b"||", rb"\u007c|"
            ),
            "more tags",
        ),
    ],
    ids=[
        *("references multiply", "references lead on", "slow dialect", "deep", "subscriptions", "of one group", "long"),
        *("values", "values beside a reference", "tags", "tags that are escaped"),
    ],
)
def test_costly_heartbeat_is_refused(
    broker: testing.RunningBroker, client: RemotingSocket, body: bytes, remark: str
) -> None:
    started = time.process_time()
    header, _ = client.call(34, None, body)
    assert header["code"] in (1, 2)
    assert remark in header["remark"]
    assert "Traceback" not in header["remark"]
    assert time.process_time() - started < MAX_WORK_S
    require_served(broker)


def test_consumer_answer_that_multiplies_is_left_out(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """Code 223 puts what consumers answer into one body: it must not unfold there."""
    with RemotingSocket(broker.remoting) as hostile:
        data = consumer_data("Laughs", subscription("Unread"))
        hostile.call(34, None, as_json({"clientID": "l", "producerDataSet": [], "consumerDataSet": [data]}))
        opaque = client.send(223, {"topic": "Unread", "group": "Laughs"})
        while True:
            asked, _ = hostile.receive()
            if asked["code"] == 221:
                break
        answer = {"code": 0, "language": "JAVA", "version": 409, "opaque": asked["opaque"], "flag": 1}
        hostile.send_frame(answer, b'{"messageQueueTable":' + laughs(12) + b"}")
        header, body = client.receive()
        assert (header["opaque"], header["code"]) == (opaque, 0)
        assert json.loads(body) == {"messageQueueTable": {}, "consumerTable": {}}


def test_heartbeat_makes_a_bounded_number_of_groups(client: RemotingSocket) -> None:
    """Each takes a retry topic; what is left is made by the heartbeats that follow."""
    body = heartbeat(*(consumer_data(f"New{number}") for number in range(MAX_NEW_GROUPS + 50)))
    header, _ = client.call(34, None, body)
    assert (header["code"], "next heartbeat" in header["remark"]) == (0, True)
    header, _ = client.call(34, None, body)
    assert (header["code"], "remark" in header) == (0, False)


def test_batch_of_too_many_messages_off_the_fast_way_is_refused(client: RemotingSocket) -> None:
    """Empty bodies: 22 bytes and 8 us a message."""
    client.call(310, send_fields("Parts"), b"x")
    part = struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\0"
    header, _ = client.call(320, send_fields("Parts", m="true"), part * 100_000)
    assert header["code"] == 13
    assert "100000 messages, at most" in header["remark"]


def test_filter_that_takes_long_to_compile_is_refused(client: RemotingSocket) -> None:
    expression = " OR ".join(f"a = {number}" for number in range(500))
    body = as_json({"subscriptionData": {"expressionType": "SQL92", "subString": expression}})
    header, _ = client.call(46, None, body)
    assert header["code"] == 23
    assert "at most 4096" in header["remark"]


def test_what_a_reader_knows_of_too_many_topics_is_refused(client: RemotingSocket) -> None:
    """27001 reads its body by itself: the same bound holds."""
    topics = b",".join(b'"%d":{}' % number for number in range(300_000))
    started = time.process_time()
    header, _ = client.call(27001, {"group": "g"}, b'{"topics":[],"known":{"topics":{%b}}}' % topics)
    assert (header["code"], "more values than the 400000" in header["remark"]) == (1, True)
    assert time.process_time() - started < MAX_WORK_S


def test_property_of_many_digits_is_compared_soon(client: RemotingSocket, broker: testing.RunningBroker) -> None:
    """SQL92: a text that is nearly a number was tried in every division of its digits, a minute of the loop."""
    properties = {"UNIQ_KEY": "U" * 32, "a": "1" * 32_000 + "x"}
    assert client.call(310, send_fields("Digits", properties=properties), b"m")[0]["code"] == 0
    started = time.process_time()
    fields: dict[str, object] = {"consumerGroup": "D", "topic": "Digits", "queueId": 0, "queueOffset": 0}
    fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1}
    header, _ = client.call(11, fields | {"subscription": "a > 1.5", "expressionType": "SQL92"})
    assert header["code"] == 20
    assert time.process_time() - started < MAX_WORK_S
    require_served(broker)


# -- the registry ------------------------------------------------------------------------------------------------------


def registration(**more: object) -> dict[str, object]:
    ext: dict[str, object] = {"brokerName": "forged", "brokerAddr": "10.0.0.1:1", "clusterName": "C"}
    return ext | {"haServerAddr": "10.0.0.1:2", "brokerId": 0} | more


TOPIC = {"perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}


def registered(*topics: str, filters: list[str] | None = None) -> bytes:
    version = {"counter": 1, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": dict.fromkeys(topics, TOPIC)}
    return as_json({"filterServerList": filters or [], "topicConfigSerializeWrapper": wrapper})


@pytest.mark.parametrize(
    ("code", "ext", "body", "remark"),
    [
        (103, registration(), registered("n" * 100_000), "100000 characters"),
        (103, registration(haServerAddr="h" * 100_000), registered(), "haServerAddr"),
        (103, registration(), registered(filters=["f:1"] * 1_000), "filterServerList"),
        (103, registration(), registered(filters=["f" * 1_000]), "filterServerList"),
        (103, registration(), laughs(12).replace(b"{", b'{"topicConfigSerializeWrapper":{},', 1), ""),
        (217, {"topic": "n" * 100_000}, as_json({"queueDatas": [{"brokerName": "broker-a"}]}), "topic"),
    ],
)
def test_registration_too_large_to_keep_is_refused(
    registry: RemotingSocket, code: int, ext: dict[str, object], body: bytes, remark: str
) -> None:
    header, _ = registry.call(code, ext, body)
    if remark:
        assert header["code"] == 1
    assert remark in header.get("remark", "")


ARRAYS = b",".join([b"[]"] * 4_000_000)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (103, {"compressed": "true"}, b"version"),
        (103, {}, b'{"topicConfigSerializeWrapper":5,"y":[%b]}' % ARRAYS),
        (322, {}, b'{"counter":"x","y":[%b]}' % ARRAYS),
        (217, {"topic": "t"}, b'{"queueDatas":[%b]}' % b",".join([b'{"brokerName":""}'] * 500_000)),
        (103, {}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % b",".join([b'"a":{}'] * 1_500_000)),
        (103, {}, b'{"filterServerList":[%b]}' % b",".join([b'"a"'] * 1_000_000)),
    ],
    ids=["compressed", "wrong types", "version", "route", "topics", "filter servers"],
)
def test_costly_registration_is_refused(
    broker: testing.RunningBroker, registry: RemotingSocket, code: int, ext: dict[str, object], body: bytes
) -> None:
    """What is wrong with a large body is not looked for in all of it."""
    if body == b"version":
        text = b'{"counter":{},"y":[%b]}' % ARRAYS
        body = zlib.compress(struct.pack(">i", len(text)) + text + struct.pack(">ii", 0, 2) + b"[]")
    assert registry.call(103, registration(), registered())[0]["code"] == 0  # the version of others is not read
    started = time.process_time()
    header, _ = registry.call(code, registration() | ext, body)
    assert header["code"] in (1, 2), header
    assert time.process_time() - started < MAX_WORK_S
    require_served(broker)


def test_lists_that_nobody_reads_take_little_memory(broker: testing.RunningBroker, registry: RemotingSocket) -> None:
    """A topic named like a missing value sends no list the slow way."""
    names = ["null", *(f"forged-{number}" for number in range(20_000))]
    assert (
        registry.call(103, registration(brokerName="lists", brokerAddr="10.0.0.2:1"), registered(*names))[0]["code"]
        == 0
    )
    before = anonymous_bytes()
    with RemotingSocket(broker.listeners["registry"]) as hostile:
        assert flood(broker, "registry", hostile, frame(206) * 100) < 2 << 20
        assert registry.call(319)[0]["code"] == 0
        assert anonymous_bytes() - before < MAX_GROWTH_BYTES


# -- what is kept ------------------------------------------------------------------------------------------------------


LONG: str = "x" * 100_000


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (15, {"consumerGroup": LONG, "topic": "TBW102", "queueId": 0, "commitOffset": 1}, b""),
        (222, {"group": LONG, "topic": "TBW102", "timestamp": 0}, b""),
        (314, {"srcGroup": "TOOLS_CONSUMER", "destGroup": LONG}, b""),
        (41, None, as_json({"consumerGroup": LONG, "clientId": "c", "mqSet": [{"topic": "T", "queueId": 0}]})),
        (41, None, as_json({"consumerGroup": "G", "clientId": LONG, "mqSet": [{"topic": "T", "queueId": 0}]})),
        (41, None, as_json({"consumerGroup": "G", "clientId": "c", "mqSet": [{"topic": LONG, "queueId": 0}]})),
        (34, None, heartbeat(consumer_data("G") | {"consumeType": LONG})),
        (34, None, heartbeat(consumer_data("G") | {"messageModel": LONG})),
        (34, None, heartbeat(consumer_data("G") | {"consumeFromWhere": LONG})),
        (34, None, heartbeat(consumer_data("G", subscription("T", kind=LONG)))),
        (34, None, heartbeat(consumer_data("G", subscription("T" * 128)))),
        (34, None, heartbeat(consumer_data(LONG))),
    ],
)
def test_texts_that_would_be_kept_are_bounded(
    client: RemotingSocket, code: int, ext: dict[str, object] | None, body: bytes
) -> None:
    """A client may send texts as long as a frame, as often as it likes: none of them stays in a table."""
    header, _ = client.call(code, ext, body)
    assert header["code"] in (1, 23)
    assert len(header["remark"]) < 500


def test_language_of_a_heartbeat_is_bounded(client: RemotingSocket) -> None:
    """It is shown to tools as long as the client is there."""
    body = heartbeat(consumer_data("Tongues"))
    client.send_frame({"code": 34, "language": LONG, "version": 409, "opaque": 1, "flag": 0}, body)
    header, _ = client.receive()
    assert (header["code"], "language" in header["remark"] or "words" in header["remark"]) == (1, True)
    assert client.call(203, {"consumerGroup": "Tongues"})[0]["code"] == 206


@pytest.mark.parametrize(("field", "code"), [("language", 1), ("subscription", 23), ("expressionType", 23)])
def test_texts_of_a_pull_that_waits_are_bounded(client: RemotingSocket, field: str, code: int) -> None:
    """As many wait as ``broker.max_held_pulls``, each with what it said."""
    client.call(34, None, heartbeat(consumer_data("Wait", subscription("TBW102"))))
    ext = {
        "consumerGroup": "Wait", "topic": "TBW102", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 2,
        "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, field: LONG,
    }  # fmt: skip
    texts = {name: str(value) for name, value in ext.items()}
    language = texts.pop("language", "JAVA")
    client.send_frame({"code": 11, "language": language, "opaque": 77, "flag": 0, "extFields": texts})
    header, _ = client.receive_response(77)
    assert header["code"] == code


# -- what is repeated --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [202, 310])
def test_refusal_that_repeats_a_huge_text_is_cut(
    broker: testing.RunningBroker, client: RemotingSocket, code: int
) -> None:
    """A byte that is no UTF-8 is three in the answer, which no frame could hold: the connection goes on."""
    name = b'"topic"' if code == 202 else b'"b"'
    header = b'{"code":%d,"flag":0,"opaque":5,"version":409,"extFields":{%b:"' % (code, name)
    header += b"\xff" * 6_000_000 + b'","a":"P","c":"TBW102","d":"4","e":"0","f":"0","g":"0","h":"0","queueId":"0"}}'
    client.send_bytes(struct.pack(">ii", 4 + len(header), len(header)) + header)
    said, _ = client.receive()
    assert said["opaque"] == 5
    assert len(said.get("remark", "")) <= 1024
    assert client.call(999)[0]["code"] == 3
    require_served(broker)


def test_answer_that_fits_into_no_frame_is_a_refusal(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """What a consumer answers in RocketMQ's form may be too long in JSON: a tool that asked hears of it."""
    with RemotingSocket(broker.remoting) as consumer:
        consumer.call(34, None, heartbeat(consumer_data("Long")))
        opaque = client.send(307, {"consumerGroup": "Long", "clientId": "h"})
        asked, _ = consumer.receive()
        while asked["code"] != 307:
            asked, _ = consumer.receive()
        value = b"\x01" * 4_000_000
        ext = b"\0\1x" + struct.pack(">i", len(value)) + value
        answer = struct.pack(">hBhiii", 0, 0, 409, asked["opaque"], 1, 0) + struct.pack(">i", len(ext)) + ext
        consumer.send_bytes(struct.pack(">ii", 4 + len(answer), 1 << 24 | len(answer)) + answer)
        header, _ = client.receive()
        assert (header["opaque"], header["code"], "does not fit" in header["remark"]) == (opaque, 1, True)
        assert client.call(999)[0]["code"] == 3


def test_codes_that_a_consumer_makes_up_are_counted_together(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """What it answers is passed on with its code; the page of figures must not grow by it."""
    with RemotingSocket(broker.remoting) as consumer:
        consumer.call(34, None, heartbeat(consumer_data("Codes")))
        for code in range(5_000, 5_150):
            opaque = client.send(307, {"consumerGroup": "Codes", "clientId": "h"})
            asked, _ = consumer.receive()
            while asked["code"] != 307:
                asked, _ = consumer.receive()
            consumer.send_frame({"code": code, "opaque": asked["opaque"], "flag": 1, "version": 409})
            header, _ = client.receive()
            assert (header["opaque"], header["code"]) == (opaque, code)
    metrics = urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10).read().decode()
    assert metrics.count("headrace_net_refusals_total{") < 150


def test_request_that_does_not_fit_is_not_passed_on(broker: testing.RunningBroker, client: RemotingSocket) -> None:
    """The same the other way: a consumer that speaks JSON is asked what was said in RocketMQ's form."""
    with RemotingSocket(broker.remoting) as consumer:
        consumer.call(34, None, heartbeat(consumer_data("Wide")))
        ext = b""
        for name, value in ((b"consumerGroup", b"Wide"), (b"clientId", b"h"), (b"x", b"\x01" * 4_000_000)):
            ext += struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        asked = struct.pack(">hBhiii", 307, 0, 409, 9, 0, 0) + struct.pack(">i", len(ext)) + ext
        client.send_bytes(struct.pack(">ii", 4 + len(asked), 1 << 24 | len(asked)) + asked)
        with client._socket.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
        assert struct.unpack(">h", answer[4:6]) == (207,)


def test_name_of_a_field_beyond_the_binary_header_ends_the_connection(client: RemotingSocket) -> None:
    """Its length is an i16 there: it could not be passed on."""
    client.send(307, {"consumerGroup": "G", "clientId": "c", "n" * 32_768: "v"})
    assert client.is_closed()


def test_consumer_answer_that_refers_to_itself_is_left_out(
    broker: testing.RunningBroker, client: RemotingSocket
) -> None:
    """Code 223: fastjson's references make rings, which no body can hold."""
    with RemotingSocket(broker.remoting) as hostile:
        hostile.call(34, None, heartbeat(consumer_data("Ring", subscription("Unread"))))
        opaque = client.send(223, {"topic": "Unread", "group": "Ring"})
        asked, _ = hostile.receive()
        while asked["code"] != 221:
            asked, _ = hostile.receive()
        answer = {"code": 0, "language": "JAVA", "version": 409, "opaque": asked["opaque"], "flag": 1}
        hostile.send_frame(answer, b'{"messageQueueTable":{"a":{"$ref":"$"}}}')
        header, body = client.receive()
        assert (header["opaque"], header["code"]) == (opaque, 0)
        assert json.loads(body) == {"messageQueueTable": {}, "consumerTable": {}}
