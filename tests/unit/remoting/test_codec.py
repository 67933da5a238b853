"""The bytes of RocketMQ remoting: the published vectors, the rules of plain sends, and frames that are beyond help."""

from __future__ import annotations

import gc
import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.errors import ProtocolError
from headrace.format import record
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.remoting.codec import (
    Command,
    Limits,
    PullRequest,
    Reader,
    SendIntake,
    add_send,
    decode_batch,
    decode_command,
    encode_pull_response,
    encode_request,
    encode_response,
    pull_request,
)
from headrace.remoting.codes import LanguageCode, RequestCode, ResponseCode, request_name
from headrace.store.memory_log import MemoryLog, MemoryQueue
from tests.property.remoting_driver import Driver, drive, event_of
from tests.property.remoting_reference import encode_frame, encode_sub_message
from tests.support.records import decode_messages
from tests.unit.remoting.vectors import (
    BATCH_BODY,
    GET_MAX_OFFSET,
    GET_MAX_OFFSET_RESPONSE,
    HEART_BEAT,
    PROPERTIES,
    RECORD_V4,
    RECORD_V6,
    SEND,
    SEND_RESPONSE,
)

LIMITS = Limits({"T1": None, "%RETRY%G1": None}, cluster=b"C1")
STORE_HOST = bytes.fromhex("0a00000100002a9f")
TAG_A = 2598919
SEND_FIELDS = {"a": "P1", "b": "T1", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0"}
PULL_FIELDS = {
    "consumerGroup": "G1",
    "topic": "T1",
    "queueId": "2",
    "queueOffset": "40",
    "maxMsgNums": "32",
    "sysFlag": "7",
    "commitOffset": "39",
    "suspendTimeoutMillis": "15000",
    "subscription": "TagA || TagB",
    "subVersion": "1700000000000",
    "expressionType": "TAG",
}
SENT = ("send", 2, 0, False, "T1", 2, [(b"hello", PROPERTIES, TAG_A, 0, 0, 1700000000000, 0, 1)])


def command(frame: bytes) -> tuple:
    return event_of(decode_command(frame))


# -- vectors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "event"),
    [
        (HEART_BEAT, ("command", 0, 34, "PYTHON", 409, 1, 0, "", {}, HEART_BEAT[106:])),
        (SEND, SENT),
        (SEND_RESPONSE, command(SEND_RESPONSE)),
        (GET_MAX_OFFSET, ("command", 1, 30, "PYTHON", 409, 7, 0, "", {"topic": "T1", "queueId": "2"}, b"")),
        (GET_MAX_OFFSET_RESPONSE, ("command", 1, 0, "PYTHON", 409, 7, 1, "", {"offset": "42"}, b"")),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize("trailing", [False, True])
def test_frame_vectors_whole_in_pieces_and_with_trailing_bytes(vector, event, piece_bytes, trailing):
    """A-NET-10, X-NET-06; remoting.md 10.1, 10.2, 10.3."""
    stream = vector + (SEND + GET_MAX_OFFSET[:20] if trailing else b"")
    pieces = [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]
    assert drive(LIMITS, pieces) == [event] + ([SENT] if trailing else [])


def take(*frames: bytes, limits: Limits = LIMITS) -> SendIntake:
    """Return an intake with the sends of ``frames``, which are plain, resolved to queues."""
    intake = SendIntake()
    stream = b"".join(frames)
    reader = Reader(limits)
    reader.received(bytearray(32 * 1024) + stream, len(stream))
    assert reader.next_command(intake) is None
    intake.batch.queues = [SimpleNamespace(queue_id=max(queue_id, 0)) for _, queue_id in intake.batch.destinations]
    return intake


def test_response_vector():
    """remoting.md 10.2: the answer to the send, byte for byte."""
    assert take(SEND).encode_replies(STORE_HOST) == SEND_RESPONSE


def test_every_json_answer_names_its_serialize_type():
    """Java always writes it; the Rust client 1.0.0 drops an answer without it, and waits for its time-out."""
    plain = encode_response(0, 7, 17, "no route")
    for frame in (plain, encode_request(0, 40, 7), take(SEND).encode_replies(STORE_HOST)):
        header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8])])
        assert header["serializeTypeCurrentRPC"] == "JSON"


def test_binary_vectors_are_written():
    """remoting.md 10.3."""
    assert encode_response(1, 7, 0, None, {"offset": 42}) == GET_MAX_OFFSET_RESPONSE
    assert len(encode_request(1, 30, 7, False, {"topic": "T1", "queueId": 2})) == len(GET_MAX_OFFSET)
    assert command(encode_request(1, 30, 7, False, {"topic": "T1", "queueId": 2})) == command(GET_MAX_OFFSET)


def test_heartbeat_vector_is_written():
    """remoting.md 10.1: the header is spelled as Java spells it."""
    assert encode_request(0, 34, 1, False, None, HEART_BEAT[106:]) == HEART_BEAT


def test_record_vectors_are_read():
    """remoting.md 10.4, 2.10, 2.8."""
    first, second = decode_messages(RECORD_V4 + RECORD_V6)
    assert (first["topic"], first["queue_id"], first["body"], first["body_crc"]) == ("T1", 2, b"hello", 0x3610A686)
    assert first["properties"] == {
        "KEYS": "K1",
        "TAGS": "TagA",
        "UNIQ_KEY": "0A0000051B5900000000000000010000",
        "CLUSTER": "C1",
    }
    assert first["message_id"] == "0A0000051B5900000000000000010000"
    assert first["offset_id"] == "0A00000100002A9F0000000000000000"
    assert (first["born_host"], first["store_host"]) == ("10.0.0.5:51000", "10.0.0.1:10911")
    assert (second["queue_offset"], second["physical_offset"], second["body"]) == (7, 0x100000040, b"hi")
    assert second["message_id"] == second["offset_id"] == "0A00000100002A9F0000000100000040"
    assert second["born_host"] == "[2001:db8::5]:51000"


def test_batch_vector_is_read():
    """remoting.md 10.5."""
    assert decode_batch(BATCH_BODY) == [
        (0, b"b0", b"TAGS\x01TagA\x02WAIT\x01true\x02"),
        (0, b"b1", b"WAIT\x01true\x02"),
    ]
    fields = SEND_FIELDS | {"i": "WAIT\x01true", "m": "true"}
    messages = [
        (b"b0", b"TAGS\x01TagA\x02CLUSTER\x01C1\x02", TAG_A, 0, 0, 1700000000000, 0, 2),
        (b"b1", b"CLUSTER\x01C1\x02", 0, 0, 0, 1700000000000, 0, 0),
    ]
    assert drive(LIMITS, [encode_frame(320, fields, BATCH_BODY)]) == [("send", 0, 0, False, "T1", 2, messages)]


def test_codes_are_the_protocols():
    """remoting.md 1.5, 4.1, 4.2."""
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.LITE_PULL_MESSAGE, ResponseCode.FLOW_CONTROL) == (310, 361, 215)
    assert [language.name for language in LanguageCode][:4] == ["JAVA", "CPP", "DOTNET", "PYTHON"]
    assert (request_name(34), request_name(200050)) == ("HEART_BEAT", "200050")


# -- plain sends -------------------------------------------------------------------------------------------------------


def send(changes: dict[str, str] | None = None, body: bytes = b"hello", **head: Any) -> bytes:
    fields = {name: value for name, value in (SEND_FIELDS | (changes or {})).items() if value != "(absent)"}
    return encode_frame(310, fields, body, **head)


def stored_properties(properties: str, **head: Any) -> bytes:
    [event] = drive(LIMITS, [send({"i": properties}, **head)])
    assert event[0] == "send"
    return event[6][0][1]


@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("", b""),
        ("KEYS\x01a b\x02", b"KEYS\x01a b\x02"),
        ("KEYS\x01a", b"KEYS\x01a\x02"),
        ("WAIT\x01true\x02", b""),
        ("a\x011\x02WAIT\x01false\x02b\x012\x02", b"a\x011\x02b\x012\x02"),
        ("__BATCH#\x0199\x02__CRC32#\x010123456789\x02TIMER_OUT_MS\x011\x02x\x01y", b"x\x01y\x02"),
        ("CLUSTER\x01other\x02x\x01y\x02", b"x\x01y\x02"),
        ("empty\x01\x02\x01value\x02nothing\x02x\x01y\x02", b"x\x01y\x02"),
        ("x\x01a\x01b\x02", b"x\x01a\x01b\x02"),
        ('k\x01"\\/\n\t\b\f\r\u2028😀温\x02', 'k\x01"\\/\n\t\b\f\r\u2028😀温\x02'.encode()),
        ("DELAY\x010\x02", b"DELAY\x010\x02"),
    ],
)
def test_stored_properties_are_the_clients_with_the_cluster(given, stored, serialize):
    """remoting.md 2.5, trap 7; what only this broker may say is dropped."""
    assert stored_properties(given, serialize=serialize) == stored + b"CLUSTER\x01C1\x02"
    assert stored_properties(given, serialize=serialize, ensure_ascii=True) == stored + b"CLUSTER\x01C1\x02"


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("TagA", TAG_A),
        ("order-created", -392709271),
        ("温度", 898461),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -2147483648),
        ("Tag\x01A", 80564570),
    ],
)
@pytest.mark.parametrize("serialize", [0, 1])
def test_tag_hashes_are_javas(tag, value, serialize):
    """remoting.md 2.7, 10.7, trap 9; a name ends at the first separator."""
    [event] = drive(LIMITS, [send({"i": f"TAGS\x01{tag}\x02"}, serialize=serialize)])
    assert event[6][0][2] == value


@pytest.mark.parametrize("serialize", [0, 1])
def test_last_of_several_tags_counts(serialize):
    """remoting.md 2.5: as of every name that is there twice; one without a value is not there."""
    [event] = drive(LIMITS, [send({"i": "TAGS\x01x\x02TAGS\x01TagA\x02a\x011\x02TAGS\x01\x02"}, serialize=serialize)])
    assert event[6][0][2] == TAG_A


@pytest.mark.parametrize(
    "changes",
    [
        {"b": "nowhere"},
        {"b": "%RETRY%G1"},
        {"b": ""},
        {"b": "T" * 300},
        {"e": "x"},
        {"e": "2147483648"},
        {"g": "9223372036854775808"},
        {"h": ""},
        {"a": "(absent)"},
        {"j": "many"},
        {"f": "4"},
        {"f": "8"},
        {"AccessKey": "RocketMQ"},
        {"Signature": "x"},
        {"SecurityToken": "x"},
        {"i": "TRAN_MSG\x01true\x02"},
        {"i": "DELAY\x013\x02"},
        {"i": "DELAY\x01soon\x02"},
        {"i": "TIMER_DELAY_SEC\x011\x02"},
        {"i": "TIMER_DELAY_MS\x011\x02"},
        {"i": "TIMER_DELIVER_MS\x011\x02"},
        {"i": "x\x01" + "v" * 32700 + "\x02"},
        {"i": "x\x01" + "v" * 60000 + "\x02"},
        {"m": "true"},
    ],
)
@pytest.mark.parametrize("serialize", [0, 1])
def test_what_asks_for_more_is_a_command(changes, serialize):
    """Contract: the fast path has no refusals of its own."""
    frame = send(changes, serialize=serialize)
    [event] = drive(LIMITS, [frame])
    assert event == command(frame)


@pytest.mark.parametrize("size", [0, 4_194_305])
def test_bodies_outside_the_limits_are_commands(size):
    """X-NSQ-08; remoting.md 2.1: refused with 13, not with a closed connection."""
    [event] = drive(LIMITS, [send(body=b"x" * size)])
    assert event[0] == "command"
    assert len(event[-1]) == size


def test_unknown_fields_are_ignored():
    """A-NET-14; Trap 31: 5.x adds ns, nsd, oway, lo, bname."""
    [event] = drive(LIMITS, [send({"ns": "x", "nsd": "y", "oway": "false", "lo": "", "bname": "b", "z": "1"})])
    assert event[0] == "send"


def test_a_batch_with_one_message_that_is_not_plain_is_a_command():
    """All or nothing: what was taken of it is given back."""
    good = encode_sub_message(b"x", b"KEYS\x01k\x02")
    late = encode_sub_message(b"y", b"DELAY\x013\x02")
    frame = encode_frame(320, SEND_FIELDS | {"m": "true"}, good + late)
    assert drive(LIMITS, [SEND + frame + SEND]) == [SENT, command(frame), SENT]


@pytest.mark.parametrize("cut", [1, 21, 30])
def test_a_batch_whose_lengths_do_not_add_up_is_a_command(cut):
    frame = encode_frame(320, SEND_FIELDS | {"m": "true"}, BATCH_BODY[:-cut])
    [event] = drive(LIMITS, [frame])
    assert event[0] == "command"
    with pytest.raises(ProtocolError, match="of the batch"):
        decode_batch(BATCH_BODY[:-cut])


def test_topics_are_looked_up_anew_for_each_read():
    """A topic that is made or deleted counts from the next call on."""
    topics: dict[str, None] = {}
    driver = Driver(Limits(topics, cluster=b"C1"))
    assert driver.feed(SEND)[0][0] == "command"
    topics["T1"] = None
    assert driver.feed(SEND) == [SENT]
    del topics["T1"]
    assert driver.feed(SEND)[0][0] == "command"


def test_destinations_are_one_per_topic_and_queue():
    """Also with more topics than the codec remembers, and queue ids beyond its tables."""
    topics = {f"topic-{number}": None for number in range(40)}
    frames = [send({"b": topic, "e": str(queue)}) for queue in (-1, 0, 31, 30, 1000, 0) for topic in topics]
    intake = take(*frames, limits=Limits(topics))
    assert intake.batch.destinations == [(topic, queue) for queue in (-1, 0, 31, 30, 1000) for topic in topics]
    sends = [intake.sent(index)[3:5] for index in range(intake.sends)]
    assert sends == [(topic, queue) for queue in (-1, 0, 31, 30, 1000, 0) for topic in topics]


def test_many_properties_stay_where_they_are():
    """Blocks of decoded properties never move while entries borrow from them."""
    frames = [send({"i": f"KEYS\x01{number}\x02x\x01{'v' * 20_000}\x02"}) for number in range(50)]
    intake = take(*frames, *frames)
    for index in range(100):
        _, properties, *_ = intake.sent(index)[5][0]
        assert properties.startswith(b"KEYS\x01%d\x02x\x01vvv" % (index % 50))
    intake.clear()
    assert take(SEND).sent(0) == SENT[1:]


def test_a_huge_batch_gives_its_memory_back():
    body = encode_sub_message(b"x") * 70_000
    intake = take(encode_frame(320, SEND_FIELDS | {"m": "true"}, body))
    batch = intake.batch
    assert len(batch) == 70_000
    intake.clear()
    assert intake.batch is not batch
    assert len(intake.batch) == 0


# -- responses to sends ------------------------------------------------------------------------------------------------


def append(intake: SendIntake, queue_id: int = 2) -> MemoryQueue:
    log = MemoryLog(1000, 1 << 30)
    queue = MemoryQueue("T1", queue_id, log)
    intake.batch.queues = [queue]
    log.append(intake.batch, 1_700_000_000_123)
    return queue


@pytest.mark.parametrize("serialize", [0, 1])
def test_replies_name_where_each_message_went(serialize):
    """remoting.md 2.8, 2.9: an upper-case id of store host and position; those of a batch joined with commas."""
    batch = encode_frame(320, SEND_FIELDS | {"m": "true"}, BATCH_BODY, opaque=9, serialize=serialize)
    intake = take(send(opaque=8), batch, send(opaque=10, flag=2), send(opaque=11))
    append(intake)
    places = [intake.batch.placed(index) for index in range(5)]
    ids = [record.message_id(STORE_HOST, physical_offset) for physical_offset, _, _ in places]
    replies = drive(Limits(()), [intake.encode_replies(STORE_HOST)])
    assert [reply[5] for reply in replies] == [8, 9, 11]
    assert [reply[1] for reply in replies] == [0, serialize, 0]
    assert [reply[8]["msgId"] for reply in replies] == [ids[0], ",".join(ids[1:3]), ids[4]]
    assert [reply[8]["queueOffset"] for reply in replies] == [str(places[at][1]) for at in (0, 1, 4)]
    assert {reply[8]["queueId"] for reply in replies} == {"2"}
    assert len(set(ids)) == 5


def test_refused_destinations_do_not_touch_the_others():
    """remoting.md 4.3: the refusal has its code and remark, and the region as every answer to a send has."""
    intake = take(send(opaque=1), send({"e": "77"}, opaque=2, serialize=1), send({"e": "78"}, opaque=3))
    intake.batch.queues = [SimpleNamespace(queue_id=2), None, None]
    intake.refuse(1, 1, 'queue "77"\n')
    region = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    replies = {reply[5]: reply for reply in drive(Limits(()), [intake.encode_replies(STORE_HOST)])}
    assert replies[1][2] == 0
    assert replies[2] == ("command", 1, 1, "PYTHON", 409, 2, 1, 'queue "77"\n', region, b"")
    assert replies[3][2] == 1
    assert replies[3][7]
    intake.clear()
    for changes in ({}, {"e": "77"}):  # to the same places, and none of them is refused now
        assert add_send(intake, LIMITS, decode_command(send(changes, flag=2)))
    assert intake.untold() is None


def test_replies_need_a_host_and_a_queue_for_each_destination():
    intake = take(SEND)
    with pytest.raises(ValueError, match="8 or 20"):
        intake.encode_replies(b"")
    intake.batch.queues = []
    with pytest.raises(ValueError, match="queues"):
        intake.encode_replies(STORE_HOST)
    with pytest.raises(IndexError):
        intake.refuse(1, 1, "")
    with pytest.raises(IndexError):
        intake.sent(1)


def test_a_command_is_put_back_once_its_topic_is_there():
    """add_send: slow path and fast path store the same; a checked signature is not part of the message."""
    for serialize in (0, 1):
        frame = send({"i": "TAGS\x01TagA\x02", "AccessKey": "k", "Signature": "s"}, opaque=4, serialize=serialize)
        slow = decode_command(frame)
        intake = SendIntake()
        assert not add_send(intake, Limits({}), slow)
        assert add_send(intake, LIMITS, slow)
        del slow
        [expected] = drive(LIMITS, [send({"i": "TAGS\x01TagA\x02"}, opaque=4, serialize=serialize)])
        assert ("send", *intake.sent(0)) == expected
        intake.clear()
    assert not add_send(intake, LIMITS, Command(34))
    assert not add_send(intake, LIMITS, Command(310, SEND_FIELDS | {"i": "DELAY\x011\x02"}, b"x"))


@pytest.mark.parametrize("wrong", [{"max_message_bytes": 0}, {"max_message_bytes": 1 << 30}, {"cluster": b"a\x01"}])
def test_limits_that_no_record_can_hold_are_refused(wrong):
    with pytest.raises(ValueError, match=r"fit|within"):
        Limits({}, **wrong)


# -- pulls -------------------------------------------------------------------------------------------------------------


def test_pulls_are_typed():
    """A-NET-14; remoting.md 4.4."""
    frame = encode_frame(361, PULL_FIELDS | {"maxMsgBytes": "1000"}, opaque=5, serialize=1)
    pull = pull_request(decode_command(frame))
    assert [event_of(pull)] == drive(LIMITS, [frame])
    assert (pull.has_commit_offset, pull.may_suspend, pull.has_subscription) == (True, True, True)
    assert (pull.queue_offset, pull.commit_offset, pull.sub_version) == (40, 39, 1700000000000)
    assert (pull.subscription, pull.expression_type, pull.max_message_bytes) == ("TagA || TagB", "TAG", 1000)
    assert (pull.language, pull.version, pull.is_oneway, pull.consumer_group) == ("JAVA", 409, False, "G1")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("queueId", "-", "<queueId> is no valid number: '-'"),
        ("queueId", "2147483648", "<queueId>"),
        ("queueOffset", "9223372036854775808", "<queueOffset>"),
        ("maxMsgNums", None, "<maxMsgNums> is missing"),
        ("consumerGroup", "", "<consumerGroup> is missing or empty"),
        ("topic", None, "<topic>"),
        ("maxMsgBytes", "x" * 1000, "<maxMsgBytes>"),
    ],
)
def test_pulls_with_a_wrong_field_are_commands_that_name_it(name, value, text):
    """A-NET-14; Issue 4, bad input: a remark that names the field."""
    fields = PULL_FIELDS | {name: value}
    frame = encode_frame(11, {key: text for key, text in fields.items() if text is not None})
    [event] = drive(LIMITS, [frame])
    assert event[0] == "command"
    with pytest.raises(ProtocolError, match=text) as caught:
        pull_request(decode_command(frame))
    assert not caught.value.fatal
    assert len(str(caught.value)) < 200


def test_signed_pulls_are_commands():
    """Their fields are what is signed; once that is checked they are pulls."""
    frame = encode_frame(11, PULL_FIELDS | {"AccessKey": "k", "Signature": "s"})
    [event] = drive(LIMITS, [frame])
    assert event[0] == "command"
    assert isinstance(pull_request(decode_command(frame)), PullRequest)
    assert drive(LIMITS, [encode_frame(11, PULL_FIELDS, flag=1)])[0][0] == "command"


def test_pull_responses_have_all_offsets_and_the_records():
    """remoting.md 4.4, trap 4: all four with every code."""
    log = MemoryLog(10, 1 << 20)
    queue = MemoryQueue("T1", 0, log)
    channel = Channel("c", "T1", node_id=1)
    channel.add_queue(queue, 0)
    batch = PublishBatch()
    for body in (b"a", b"b" * 5000, b""):
        batch.append(body, properties=b"KEYS\x01k\x02")
    batch.queues = [queue]
    log.append(batch, 1_700_000_000_123)
    subscription = channel.subscribe(object(), 60_000)
    subscription.ready_count = 10
    records = RecordBatch()
    assert channel.deliver(subscription, 0, 0, 10, 1 << 20, records) == 3
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "9"}
    for serialize in (0, 1):
        pull = pull_request(decode_command(encode_frame(11, PULL_FIELDS, opaque=5, serialize=serialize)))
        found = command(encode_pull_response(pull, 0, "FOUND", 3, 0, 9, records))
        body = b"".join(records.record(index) for index in range(3))
        assert found == ("command", serialize, 0, "PYTHON", 409, 5, 1, "FOUND", ext, body)
        assert [message["body"] for message in decode_messages(body)] == [b"a", b"b" * 5000, b""]
        nothing = command(encode_pull_response(pull, 19, "NO_NEW_MESSAGE", 3, 0, 9))
        assert nothing == ("command", serialize, 19, "PYTHON", 409, 5, 1, "NO_NEW_MESSAGE", ext, b"")


@pytest.mark.parametrize("remark", ["", "FOUND", 'the "queue"\n', "温度"])
@pytest.mark.parametrize("offset", [0, -1, 42, 2**63 - 1, -(2**63)])
def test_pull_responses_are_spelled_as_any_other(remark, offset):
    """The writer for them alone says what the common one says."""
    pull = pull_request(decode_command(encode_frame(11, PULL_FIELDS, opaque=-(2**31))))
    ext = {"suggestWhichBrokerId": 0, "nextBeginOffset": offset, "minOffset": offset, "maxOffset": offset}
    written = encode_pull_response(pull, 21, remark, offset, offset, offset)
    assert written == encode_response(0, -(2**31), 21, remark, ext)


# -- headers -----------------------------------------------------------------------------------------------------------


def frame_of(text: bytes, serialize: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(text), serialize << 24 | len(text)) + text


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (b"{}", ("command", 0, 0, "", 0, 0, 0, "", {}, b"")),
        (b' { "code" : 34 } \n', ("command", 0, 34, "", 0, 0, 0, "", {}, b"")),
        (b'{"code":34,"remark":null,"extFields":null}', ("command", 0, 34, "", 0, 0, 0, "", {}, b"")),
        (b'{"language":"GOLANG","code":"105"}', ("command", 0, 105, "GOLANG", 0, 0, 0, "", {}, b"")),
        (b'{"language":9,"code":105}', ("command", 0, 105, "GO", 0, 0, 0, "", {}, b"")),
        ('{"language":"²"}'.encode(), ("command", 0, 0, "²", 0, 0, 0, "", {}, b"")),
        (b'{"language":99,"code":105}', ("command", 0, 105, "99", 0, 0, 0, "", {}, b"")),
        (
            b'{"code":1,"extFields":{"i":1,"f":1.5E-4,"t":true,"n":null,"s":"\\u00e9\\ud83d\\ude00\\ud83d"}}',
            (
                "command",
                *(0, 1, "", 0, 0, 0, ""),
                {"i": "1", "f": "1.5E-4", "t": "true", "s": "é\U0001f600\ufffd"},
                b"",
            ),
        ),
        (
            b'{"x":{"a":["}",{"b":"]"}]},"code":7,"y":[[],{}],"extFields":{"k\\n":"\\u003cv\\u003e"}}',
            ("command", 0, 7, "", 0, 0, 0, "", {"k\n": "<v>"}, b""),
        ),
        (
            b'{"code":1,"extFields":{"a":{},"b":[1,{"x":"}\\""}],"c":[ ],"d":"e"}}',
            ("command", 0, 1, "", 0, 0, 0, "", {"a": "{}", "b": '[1,{"x":"}\\""}]', "c": "[ ]", "d": "e"}, b""),
        ),
        (b'{"code":1,"remark":"\xff"}', ("command", 0, 1, "", 0, 0, 0, "\ufffd", {}, b"")),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_json_headers_are_read_with_tolerance(text, event, piece_bytes):
    """remoting.md 1.2."""
    stream = frame_of(text)
    assert drive(LIMITS, [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]) == [event]


@pytest.mark.parametrize("serialize", [0, 1])
def test_names_of_fields_are_as_long_as_the_binary_header_can_spell(serialize):
    """remoting.md 1.3: an i16. One that grew on the way, having been no UTF-8, is left out there."""
    ext = {"n" * 32_767: "v", "a": "b"}
    assert decode_command(encode_request(serialize, 307, 1, False, ext)).ext == ext
    grown = {"\ufffd" * 20_000: "v", "a": "b"}
    assert decode_command(encode_request(1, 307, 1, False, grown)).ext == {"a": "b"}


def test_values_that_are_no_text_are_written_as_text():
    """remoting.md 1.2, trap 2: Go drops frames with other values."""
    frame = encode_response(
        0, 1, 0, None, {"n": 5, "t": True, "f": False, "none": None, "s": "x", "code": ResponseCode(17)}
    )
    assert frame[8:].startswith(b'{"code":0,"extFields":{"code":"17","f":"false","n":"5","s":"x","t":"true"},"flag":1')


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", 0),
        struct.pack(">i", 3),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 16_777_213),
        struct.pack(">iI", 100, 97),
        struct.pack(">iI", 4, 1),
        struct.pack(">iI", 1000, 2 << 24),
        struct.pack(">iI", 1000, 0xFF << 24),
        frame_of(b""),
        frame_of(b"", 1),
        frame_of(b"null"),
        frame_of(b"[]"),
        frame_of(b'{"code":34'),
        frame_of(b'{"code":34}}'),
        frame_of(b'{"code":34,}'),
        frame_of(b'{"code":3.5}'),
        frame_of(b'{"code":2147483648}'),
        frame_of(b'{"code":[]}'),
        frame_of(b'{"code":34,"extFields":{""":"x"}}'),
        frame_of(b'{"opaque":"x"}'),
        frame_of(b'{"flag":""}'),
        frame_of(b'{"version":-2147483649}'),
        frame_of(b'{"remark":{}}'),
        frame_of(b'{"extFields":[]}'),
        frame_of(b'{"extFields":"x"}'),
        frame_of(b'{"extFields":{"a":{}'),
        frame_of(b'{"extFields":{"a":[{]}'),
        frame_of(b'{"extFields":{"a":"b"'),
        frame_of(b'{"extFields":{"a":"b",}}'),
        frame_of(b'{"extFields":{"a":nul}}'),
        frame_of(b'{"extFields":{"a":-}}'),
        frame_of(b'{"extFields":{"a":"\\q"}}'),
        frame_of(b'{"extFields":{"a":"\\u00g0"}}'),
        frame_of(b'{"extFields":{"a":"\\'),
        frame_of(b'{"extFields":{"a":"\x01"}}'),
        frame_of(b'{"remark":"\n"}'),
        frame_of(b"{" + b'"x":[' * 100_000),
        frame_of(b'{"extFields":{"' + b"n" * 32_768 + b'":"v"}}'),
        frame_of(b'{"extFields":{' + b",".join(b'"%d":""' % number for number in range(1025)) + b"}}"),
        frame_of(bytes(20), 1),
        frame_of(bytes(22), 1),
        frame_of(bytes(13) + struct.pack(">i", -1) + bytes(4), 1),
        frame_of(bytes(13) + struct.pack(">i", 100) + bytes(4), 1),
        frame_of(bytes(17) + struct.pack(">i", 100), 1),
        frame_of(bytes(17) + struct.pack(">i", -5), 1),
        frame_of(bytes(17) + struct.pack(">i", 1) + b"x", 1),
        frame_of(bytes(17) + struct.pack(">ih", 7, 5) + b"abcde", 1),
        frame_of(bytes(17) + struct.pack(">ihi", 6, -1, 0), 1),
        frame_of(bytes(17) + struct.pack(">ihi", 6, 0, 7), 1),
        frame_of(bytes(17) + struct.pack(">ihi", 6, 0, -7), 1),
        frame_of(bytes(17) + struct.pack(">i", 6150) + struct.pack(">hi", 0, 0) * 1025, 1),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_frames_beyond_help_end_the_connection(frame, piece_bytes):
    """A-NET-09; Issue 4, bad input: what came before is intact, and nothing was kept for what will never come."""
    stream = SEND + frame
    if len(stream) > 10_000 and piece_bytes == 1:
        piece_bytes = 1000
    driver = Driver(LIMITS)
    events = [
        event for at in range(0, len(stream), piece_bytes) for event in driver.feed(stream[at : at + piece_bytes])
    ]
    assert events == [SENT, ("refused",)]
    assert driver.reader.held_bytes == 0
    assert "\x00" not in driver.refused
    assert len(driver.refused) < 200


@pytest.mark.parametrize("frame", [b"", SEND[:7], SEND[:-1], SEND + b"x"])
def test_one_frame_is_one_frame(frame):
    """decode_command takes neither a part nor more."""
    with pytest.raises(ProtocolError):
        decode_command(frame)


def test_memory_of_a_frame_is_that_frame():
    """Bounded memory: within a frame that frame and no more; between frames nothing."""
    driver = Driver(LIMITS)
    frame = send(body=b"y" * 1_000_000)
    assert driver.feed(frame[:500]) == []
    room = driver.reader.room()
    assert room is not None
    assert len(room) == len(frame) - 500
    room.release()
    [event] = driver.feed(frame[500:])
    assert event[6][0][0] == b"y" * 1_000_000
    assert driver.reader.room() is None
    assert driver.reader.held_bytes == 0


def test_commands_have_defaults():
    made = Command(34)
    assert (made.ext, made.body, made.remark, made.is_response, made.is_oneway) == ({}, b"", "", False, False)
    assert "code=34" in repr(made)
    assert Command(0, flag=3).is_response
    assert Command(0, flag=3).is_oneway


@pytest.mark.parametrize("far", [False, True], ids=["held", "handed out"])
def test_another_thread_may_parse_while_a_send_is_looked_at(far: bool) -> None:
    """What a message may wait for is asked in Python: another broker of the process may use the codec then."""

    def now_ms() -> int:
        decode_command(encode_request(1, RequestCode.HEART_BEAT, 99, oneway=True, ext={"i": "theirs", "clientID": "c"}))
        return 1_000

    held = SimpleNamespace(
        delay_levels=18, max_delay_ms=5_000, most_half_properties=999, most_half_bytes=999, now_ms=now_ms
    )
    limits = Limits({"T1": None}, cluster=b"C1", held_sends=held)  # type: ignore[arg-type]
    fields = SEND_FIELDS | {"i": f"TIMER_DELIVER_MS\x01{9_000 if far else 2_000}\x02"}
    reader, intake = Reader(limits), SendIntake()
    frame = encode_request(0, RequestCode.SEND_MESSAGE_V2, 7, ext=fields, body=b"x")
    memory = bytearray(HEADROOM_BYTES) + frame
    reader.received(memory, len(frame))
    command = reader.next_command(intake)
    if far:
        assert isinstance(command, Command)
        assert (command.code, command.opaque, command.ext) == (RequestCode.SEND_MESSAGE_V2, 7, fields)
    else:
        assert command is None
        assert intake.sent(0)[:3] == (7, 0, False)


@pytest.mark.parametrize("read", ["one frame", "a stream"])
def test_a_finalizer_may_parse_while_a_command_is_made(read: str) -> None:
    """The garbage collector runs where objects are made: what it ends may use the codec, as may another thread."""

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            decode_command(theirs)

    theirs = encode_request(1, RequestCode.HEART_BEAT, 99, ext={"i": "theirs", "clientID": "c"})
    frame = encode_request(0, RequestCode.GET_MAX_OFFSET, 7, ext={"topic": "T1", "queueId": "0"}, body=b"mine")
    memory = bytearray(HEADROOM_BYTES) + frame
    found = []
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            reader, intake = Reader(LIMITS), SendIntake()
            reader.received(memory, len(frame))
            Cycle()
            found.append(decode_command(frame) if read == "one frame" else reader.next_command(intake))
    finally:
        gc.set_threshold(*threshold)
    assert {(one.opaque, one.ext.get("topic"), len(one.ext), one.body) for one in found} == {(7, "T1", 2, b"mine")}
