"""The RocketMQ codec against the plain-Python reference: whole, byte by byte, split anywhere, mutated."""

from __future__ import annotations

import contextlib
import json
import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.remoting.codec import (
    Limits,
    SendIntake,
    add_send,
    decode_batch,
    decode_command,
    encode_request,
    encode_response,
)
from tests.property import remoting_reference as reference
from tests.property.remoting_driver import Driver, drive

REFERENCE_LIMITS = reference.ReferenceLimits()
LIMITS = Limits(
    REFERENCE_LIMITS.topics,
    cluster=REFERENCE_LIMITS.cluster,
    max_frame_bytes=REFERENCE_LIMITS.max_frame_bytes,
    max_message_bytes=REFERENCE_LIMITS.max_message_bytes,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = texts.map(lambda text: text.replace("\x01", "").replace("\x02", ""))
numbers = st.sampled_from(
    ["0", "1", "3", "-1", "40", "2147483647", "2147483648", "9223372036854775807", "x", "", "1.5"]
)
good_numbers = st.integers(-1, 40).map(str)
broker_names = st.sampled_from(sorted(reference.DROPPED | reference.NOT_PLAIN | {b"DELAY", b"TAGS"})).map(bytes.decode)
ordinary_names = st.sampled_from(["KEYS", "TAGS", "WAIT", "UNIQ_KEY", "CLUSTER", "__BATCH#", "TIMER_OUT_MS", "温度"])
properties = st.builds(
    lambda pairs, last: reference.encode_properties(pairs, last_separator=last),
    st.dictionaries(ordinary_names, values, max_size=6)
    | st.dictionaries(broker_names | values, values | st.just("0"), max_size=4),
    st.booleans(),
)
bodies = st.binary(min_size=1, max_size=60) | st.integers(1, 2048).map(lambda size: b"b" * size)
rest = st.dictionaries(st.sampled_from(["ns", "oway", "lo", "Signature", "bname", "z"]), values, max_size=1)


@st.composite
def send_fields(draw: st.DrawFn) -> dict[str, str]:
    """SEND_MESSAGE's fields by their long names, mostly in order."""
    fields = {
        "producerGroup": "P1",
        "topic": draw(st.sampled_from(["T1", "T1", "orders"])),
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": draw(good_numbers),
        "sysFlag": draw(st.sampled_from(["0", "1", "769", "2"])),
        "bornTimestamp": draw(st.integers(0, 2**62).map(str)),
        "flag": draw(good_numbers),
    }
    if draw(st.booleans()):
        fields["properties"] = draw(properties)
    if draw(st.booleans()):
        fields["reconsumeTimes"] = draw(good_numbers)
    if draw(st.booleans()):
        fields |= {"unitMode": "false", "maxReconsumeTimes": "0", "batch": "false", "bname": "broker-a"}
    match draw(st.integers(0, 9)):
        case 0:
            del fields[draw(st.sampled_from(sorted(fields)))]
        case 1:
            fields[draw(st.sampled_from(sorted(fields)))] = draw(numbers | values)
        case 2:
            fields["topic"] = draw(st.sampled_from(["nowhere", "%RETRY%G1", "", "T" * 200]))
        case 3:
            fields["sysFlag"] = draw(st.sampled_from(["4", "8", "12"]))
    return fields


def shorten(fields: dict[str, str]) -> dict[str, str]:
    letters = {name: letter for letter, name in reference.SHORT_NAMES.items()}
    return {letters[name]: value for name, value in sorted(fields.items(), key=lambda item: letters[item[0]])}


heads: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "opaque": st.integers(-(2**31), 2**31 - 1),
        "flag": st.sampled_from([0, 0, 0, 1, 2]),
        "serialize": st.sampled_from([0, 0, 1]),
        "language": st.sampled_from(reference.LANGUAGES),
        "version": st.integers(0, 32767),
        "remark": st.none() | texts,
        "separators": st.sampled_from([(",", ":"), (", ", ": ")]),
        "ensure_ascii": st.booleans(),
    }
)
sub_messages = st.builds(
    reference.encode_sub_message, bodies, properties.map(str.encode), st.integers(-(2**31), 2**31 - 1)
)


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    fields = draw(send_fields())
    kind = draw(st.sampled_from([10, 310, 320]))
    ext = fields if kind == 10 else shorten(fields)
    ext |= draw(rest)
    body = draw(bodies)
    if kind == 320 or draw(st.integers(0, 9)) == 0:
        ext["m" if kind != 10 else "batch"] = "true"
        body = b"".join(draw(st.lists(sub_messages, min_size=1, max_size=3)))
        body = body[: draw(st.sampled_from([len(body)] * 9 + [len(body) - 1]))]
    return reference.encode_frame(kind, ext, body, **draw(heads))


@st.composite
def pulls(draw: st.DrawFn) -> bytes:
    ext = {name: draw(st.integers(0, 2**31 - 1).map(str)) for name in reference.PULL_NUMBERS}
    ext |= {"consumerGroup": "G1", "topic": draw(st.sampled_from(["T1", "温度"]))}
    if draw(st.booleans()):
        ext |= {"subscription": draw(texts), "expressionType": "TAG"}
    if draw(st.booleans()):
        ext["maxMsgBytes"] = "262144"
    match draw(st.integers(0, 4)):
        case 0:
            del ext[draw(st.sampled_from(sorted(ext)))]
        case 1:
            ext[draw(st.sampled_from(sorted(ext)))] = draw(numbers)
        case 2:
            ext |= draw(rest)
    return reference.encode_frame(draw(st.sampled_from([11, 361])), ext, b"", **draw(heads))


others = st.builds(
    lambda code, ext, body, head: reference.encode_frame(code, ext, body, **head),
    st.integers(0, 32767).filter(lambda code: code not in (10, 11, 310, 320, 361)),
    st.none() | st.dictionaries(texts, texts, max_size=4),
    st.binary(max_size=3000),
    heads,
)
wrong = st.one_of(
    st.sampled_from([0, 3, -1, -(2**31), 2**31 - 1, 8189]).map(lambda total: struct.pack(">i", total)),
    st.sampled_from([2 << 24, 255 << 24, 5]).map(lambda word: struct.pack(">iI", 8, word) + b"{}{}"),
    st.sampled_from([b"", b"{", b"[]", b'"x"', b"{}x", b'{"code":"x"}', b'{"code":2147483648}', b'{"code":1,}']).map(
        lambda text: struct.pack(">iI", 4 + len(text), len(text)) + text
    ),
)
frames = st.one_of(sends(), sends(), pulls(), others)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """What a client says, perhaps with one frame that is beyond help, or the beginning of one more."""
    parts = draw(st.lists(frames, max_size=6))
    match draw(st.integers(0, 3)):
        case 0:
            parts.insert(draw(st.integers(0, len(parts))), draw(wrong))
        case 1:
            last = draw(frames)
            parts.append(last[: draw(st.integers(0, len(last)))])
    return b"".join(parts)


def expected_until_refused(stream: bytes) -> list[tuple]:
    events: list[tuple] = []
    try:
        for event in reference.decode_stream(REFERENCE_LIMITS, stream):
            header_is_right = event[0] != "command" or (isinstance(event[2], int) and -(2**31) <= event[2] < 2**31)
            events.append(event if header_is_right else ("refused",))
            if not header_is_right:
                break
    except (ValueError, AttributeError):
        events.append(("refused",))
    return events


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(streams())
@settings(max_examples=400, deadline=None)
def test_codec_agrees_with_the_reference_on_whole_streams(stream: bytes):
    """remoting.md 1.1 to 1.4, 2.5, 2.7, 2.9, 4.3, 4.4."""
    assert drive(LIMITS, [stream]) == expected_until_refused(stream)


@given(streams())
@settings(max_examples=100, deadline=None)
def test_codec_agrees_with_the_reference_byte_by_byte(stream: bytes):
    """A-NET-09: every reader is driven one byte at a time."""
    assert drive(LIMITS, [bytes([byte]) for byte in stream]) == expected_until_refused(stream)


@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=12))
@settings(max_examples=300, deadline=None)
def test_codec_agrees_with_the_reference_split_anywhere(stream: bytes, cuts: list[int]):
    """A frame may end anywhere in a read, and a read anywhere in a frame. A-NET-09."""
    assert drive(LIMITS, split(stream, cuts)) == expected_until_refused(stream)


@given(
    streams(),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
@settings(max_examples=600, deadline=None)
def test_mutated_streams_are_parsed_or_refused_within_bounded_memory(
    stream: bytes, changes: list[tuple[int, int]], cuts: list[int]
):
    """Issue 4, bad input: nothing but ProtocolError leaves the codec."""
    mutated = bytearray(stream or b"x")
    for position, value in changes:
        mutated[position % len(mutated)] = value
    driver = Driver(LIMITS)
    for piece in split(bytes(mutated), cuts):
        driver.feed(piece)
    assert driver.most_held_bytes <= REFERENCE_LIMITS.max_frame_bytes


@given(st.binary(max_size=300), st.sampled_from([0, 1]))
@settings(max_examples=400, deadline=None)
@example(b'{"extFields":{"a":"\\', 0)
@example(b'{"code":', 0)
def test_noise_for_a_header_is_parsed_or_refused(noise: bytes, serialize: int):
    """Issue 4, bad input: malformed headers."""
    drive(LIMITS, [struct.pack(">iI", 4 + len(noise), serialize << 24 | len(noise)) + noise])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "flag", "language", "opaque", "version", "remark", "extFields", "x", "温"]),
        json_values,
    ),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_any_json_header_is_read_as_json_or_refused(header: dict, ensure_ascii: bool):
    """remoting.md 1.2: unknown keys of any kind are ignored, wrong kinds under known ones are refused."""
    text = json.dumps(header, ensure_ascii=ensure_ascii).encode()
    frame = struct.pack(">iI", 4 + len(text), len(text)) + text
    try:
        command = decode_command(frame)
    except ProtocolError:
        return
    code = header.get("code")
    assert command.code == (int(code) if isinstance(code, int | str) else 0)
    ext = header.get("extFields")
    assert ext is None or isinstance(ext, dict)
    assert len(command.ext) == (len([value for value in ext.values() if value is not None]) if ext else 0)
    remark = header.get("remark")
    if isinstance(remark, str):
        assert command.remark == remark


@given(
    st.sampled_from([0, 1]),
    st.integers(0, 32767),
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.none() | st.dictionaries(texts, texts, max_size=5),
    st.none() | st.binary(max_size=50),
)
@settings(max_examples=300, deadline=None)
def test_requests_are_read_back(serialize, code, opaque, oneway, ext, body):
    """A-NET-11; remoting.md 1.1 to 1.4; the header is JSON to any reader."""
    frame = encode_request(serialize, code, opaque, oneway, ext, body)
    event = next(reference.decode_stream(reference.ReferenceLimits(topics=set()), frame))
    assert event == ("command", serialize, code, "PYTHON", 409, opaque, 2 * oneway, "", ext or {}, body or b"")
    command = decode_command(frame)
    assert (command.code, command.opaque, command.is_oneway, command.is_response) == (code, opaque, oneway, False)
    assert (command.ext, command.body, command.serialize) == (ext or {}, body or b"", serialize)


@given(st.sampled_from([0, 1]), st.integers(0, 3002), st.none() | texts, st.none() | st.dictionaries(texts, texts))
@settings(max_examples=200, deadline=None)
def test_responses_are_read_back(serialize, code, remark, ext):
    """A-NET-11."""
    command = decode_command(encode_response(serialize, 7, code, remark, ext, b"body"))
    assert (command.code, command.opaque, command.is_response, command.remark) == (code, 7, True, remark or "")
    assert (command.ext, command.body) == (ext or {}, b"body")


@given(st.lists(sends(), max_size=8), st.sampled_from([bytes(8), bytes.fromhex("0a00000100002a9f"), bytes(range(20))]))
@settings(max_examples=200, deadline=None)
def test_replies_answer_every_send_that_wants_one(frames: list[bytes], host: bytes):
    """remoting.md 2.8, 2.9, 4.3: the serialize type of each request, ids joined with commas, nothing for one-way.

    Ref: X-NET-06.
    """
    driver = Driver(LIMITS)
    driver.reader.received(driver.receive.memory, 0)
    stream = b"".join(frames)
    memory = bytearray(32 * 1024) + stream
    driver.reader.received(memory, len(stream))
    intake = driver.intake
    taken = []
    while True:
        command = driver.reader.next_command(intake)
        if command is None:
            break
    taken = [intake.sent(index) for index in range(intake.sends)]
    intake.batch.queues = [SimpleNamespace(queue_id=queue_id + 1) for _, queue_id in intake.batch.destinations]
    replies = list(reference.decode_stream(reference.ReferenceLimits(topics=set()), intake.encode_replies(host)))
    wanted = [send for send in taken if not send[2]]
    assert len(replies) == len(wanted)
    for reply, (opaque, serialize, _, _, queue_id, messages) in zip(replies, wanted, strict=True):
        ids = ",".join([host.hex().upper() + "0" * 16] * len(messages))
        ext = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        ext |= {"msgId": ids, "queueId": str(queue_id + 1), "queueOffset": "0"}
        assert reply == ("command", serialize, 0, "PYTHON", 409, opaque, 1, "", ext, b"")
    intake.batch.queues = [None] * len(intake.batch.queues)
    for destination in range(len(intake.batch.queues)):
        intake.refuse(destination, 14, "no")
    failures = list(reference.decode_stream(reference.ReferenceLimits(topics=set()), intake.encode_replies(host)))
    assert [failure[5] for failure in failures] == [send[0] for send in wanted]
    assert all(failure[2:3] + failure[7:8] == (14, "no") for failure in failures)


@given(sends())
@settings(max_examples=200, deadline=None)
def test_a_command_that_is_put_back_is_what_it_would_have_been(frame: bytes):
    """add_send: a send whose topic was made meanwhile goes the common way."""
    event = drive(Limits(set()), [frame])[0]
    intake = SendIntake()
    again = add_send(intake, LIMITS, decode_command(frame))
    kept = frame.replace(b"Signature", b"SignaturX")  # a checked signature says nothing any more
    [wanted] = drive(LIMITS, [kept])
    assert event[0] == "command"
    assert again == (wanted[0] == "send")
    if again:
        assert ("send", *intake.sent(0)) == wanted


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=30), st.binary(max_size=30)), max_size=5)
)
def test_batches_are_read_back(messages: list[tuple[int, bytes, bytes]]):
    """remoting.md 2.9."""
    body = b"".join(reference.encode_sub_message(content, own, flag) for flag, content, own in messages)
    assert decode_batch(body) == messages


@given(st.binary(max_size=200))
def test_noise_for_bodies_is_read_or_refused(noise: bytes):
    with contextlib.suppress(ProtocolError):
        decode_batch(noise)
