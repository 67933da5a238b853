"""What is fuzzed: everything that reads bytes of a peer or of a log, a function for each reader.

The first byte of an input chooses which target of its group reads the rest. Each target lets through exactly the
errors that its callers handle; anything else is a finding. Nothing here needs the fuzzer:
tests/unit/remoting/test_fuzz_targets.py runs the seeds.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from headrace.broker.consumers.subscription import Subscription
from headrace.errors import CorruptRecordError, ProtocolError, RequestError
from headrace.format import fastjson
from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.remoting import bodies, codec
from headrace.remoting.handlers.clients import read_consumers
from headrace.remoting.reading.subscriptions import filter_of
from headrace.remoting.registry import bodies as registry_bodies
from headrace.remoting.sending.rows import RowIntake
from headrace.remoting.signature import signed_content
from headrace.spark.columns import COLUMNS
from headrace.spark.decode import Decoder
from tests.fuzz import lookupd_targets, nsq_targets, pull_targets, store_targets
from tests.support.exactly_once import encode_rows
from tests.unit.remoting import vectors

LIMITS: Final = codec.Limits({"T1", "orders"}, max_frame_bytes=64 * 1024, max_message_bytes=4096)
SIGNED: Final = codec.Limits((), max_frame_bytes=64 * 1024, max_message_bytes=4096)
READ_BYTES: Final = 1024
MAX_SUBSCRIPTIONS: Final = 64


# -- frames ------------------------------------------------------------------------------------------------------------


def read_stream(data: bytes, limits: codec.Limits) -> list[Any]:
    """Feed a stream as a socket would, in reads whose sizes the data chooses; answer everything.

    With an odd size each command ends the turn: what is behind it is put off and comes as another read.
    """
    step, data = (data[0] or 256) if data else 1, data[1:]
    reader, intake, receive = codec.Reader(limits), codec.SendIntake(), ReceiveBuffer(HEADROOM_BYTES, READ_BYTES)
    seen: list[Any] = []
    while data:
        buffer = reader.room() or receive.view
        taken = min(len(data), len(buffer), step)
        buffer[:taken] = data[:taken]
        buffer.release()
        data = data[taken:]
        receive.view = memoryview(receive.memory)[HEADROOM_BYTES:]
        reader.received(receive.memory, taken)
        while True:
            try:
                command = reader.next_command(intake)
            except ProtocolError:
                reader.discard()
                take_sends(intake, seen)
                return seen
            take_sends(intake, seen)
            if command is None:
                break
            answer(command)
            seen.append(repr(command) if isinstance(command, codec.Command) else command.topic)
            if step % 2:
                data = reader.take_rest() + data
                break
        receive.memory[:] = b"\xee" * len(receive.memory)
    return seen


def take_sends(intake: codec.SendIntake, seen: list[Any]) -> None:
    if not intake.sends:
        return
    seen.extend(intake.sent(index) for index in range(intake.sends))
    intake.refuse(0, 17, "é" * 100)
    intake.batch.queues = [None] * len(intake.batch.destinations)
    intake.encode_replies(bytes(8))
    intake.clear()


def answer(command: codec.Command | codec.PullRequest) -> None:
    if isinstance(command, codec.PullRequest):
        codec.encode_pull_response(command, 19, "none", 1, 0, 2)
        return
    again = codec.decode_command(
        codec.encode_response(command.serialize, command.opaque, 1, command.remark[:100] or None, command.ext)
    )
    assert again.opaque == command.opaque
    signed_content(command.ext, command.body)
    add_send_of(command)
    try:
        codec.pull_request(command)
    except ProtocolError as error:
        require_not_fatal(error)


def require_not_fatal(error: ProtocolError) -> None:
    """What is wrong within a whole frame costs its request, not the connection."""
    if error.fatal:
        raise AssertionError("fatal") from error


def add_send_of(command: codec.Command) -> None:
    intake = codec.SendIntake()
    try:
        codec.add_send(intake, LIMITS, command)
    except ProtocolError as error:
        require_not_fatal(error)
    take_sends(intake, [])


def frames(data: bytes) -> None:
    read_stream(data, LIMITS)


def signed_frames(data: bytes) -> None:
    read_stream(data, SIGNED)


def splits(data: bytes) -> None:
    """However a stream is cut into reads, the same comes out of it."""
    whole, cut = read_stream(b"\0" + data[1:], LIMITS), read_stream(data, LIMITS)
    assert whole == cut, (whole, cut)


def one_frame(data: bytes) -> None:
    try:
        command = codec.decode_command(data)
    except ProtocolError:
        return
    answer(command)


def send_bodies(data: bytes) -> None:
    """A header that is right with a batch body that need not be."""
    add_send_of(
        codec.Command(
            320,
            {
                "a": "P1", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
                "i": "", "j": "0", "k": "false", "m": "true",
            },
            data,
        )
    )  # fmt: skip
    batch(data)


def batch(data: bytes) -> None:
    try:
        codec.decode_batch(data)
    except ProtocolError as error:
        require_not_fatal(error)


def rows(data: bytes) -> None:
    """The body of a batch with an identity; the first bytes say how many messages it claims and how many are known."""
    claimed, skip, body = data[0] if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    intake = RowIntake(LIMITS)
    try:
        special = intake.take(body, claimed, min(skip, claimed), 1_700_000_000_000, 0)
    except ProtocolError as error:
        require_not_fatal(error)
    else:
        assert special == -1 or special >= min(skip, claimed)
        intake.set_record(b"record")
        assert len(intake.batch) >= 1
    intake.clear()


def arrow(data: bytes) -> None:
    """Bytes of a log, or the answer to a pull, on their way into a table."""
    decoder = Decoder([*sorted(COLUMNS), "prop:K"], verify_crc=True, system_topics=True, retry_topics=True)
    at = decoder.feed_log(data, 1 << 20, 1 << 20, (1 << 20) + len(data), segment_end=2 << 20)
    assert at >= 1 << 20
    with contextlib.suppress(CorruptRecordError):
        decoder.feed_records(data)
    for made in decoder.finish():
        made.validate(full=True)


# -- bodies ------------------------------------------------------------------------------------------------------------


def json(data: bytes) -> None:
    try:
        value = fastjson.loads(data)
    except ValueError:
        return
    with contextlib.suppress(ValueError, TypeError):  # a cycle, or a number without a spelling
        text = fastjson.dumps(value)
        try:
            fastjson.loads(text)
        except ValueError as error:
            raise AssertionError(f"what was written cannot be read: {text!r}") from error


def registration(data: bytes) -> None:
    version = 100 + (data[0] * 4 if data else 0)
    with contextlib.suppress(RequestError):
        registry_bodies.decode_registration(
            data[1:], version, compressed=version % 8 == 0, max_bytes=64 * 1024, max_topics=1_000
        ).topics()


def plain_registration(data: bytes) -> None:
    """What comes out of a compressed body, without fuzzing zlib on the way."""
    with contextlib.suppress(RequestError):
        registry_bodies._decode_compressed(data, registry_bodies.MAX_I32).topics()


def queues(data: bytes) -> None:
    for decode in (registry_bodies.decode_queues, registry_bodies.decode_version):
        with contextlib.suppress(RequestError):
            decode(data)


def heartbeat(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        body = bodies.read_outline(data, "consumerDataSet")
        bodies.member_text(body, "clientID")
        for given in bodies.member_list(body, "producerDataSet", MAX_SUBSCRIPTIONS, "x"):
            bodies.member_text(given, "groupName")
        reading = read_consumers(body, MAX_SUBSCRIPTIONS)
        try:
            while True:
                next(reading)
        except StopIteration as end:
            for consumer in end.value:
                for found in consumer.subscriptions:
                    assert isinstance(found, Subscription)
                    filter_of(found.kind, found.expression)


def expression(data: bytes) -> None:
    """A filter, and behind a zero the properties of the message that it is asked about."""
    head, _, properties = data.partition(b"\0")
    text = head.decode("utf-8", "replace")
    for kind in ("TAG", "SQL92"):
        try:
            wanted = filter_of(kind, text)
        except RequestError:
            continue
        if wanted.matcher is not None:
            wanted.matcher.matches(properties or b"a\x011\x02b\x01TRUE\x02TAGS\x01TagA\x02")


GROUPS: Final[dict[str, tuple[Callable[[bytes], None], ...]]] = {
    "readers": (
        frames, signed_frames, splits, one_frame, send_bodies, rows, arrow,
        json, registration, plain_registration, queues, heartbeat, expression,
        nsq_targets.nsq_commands, nsq_targets.http_publish, nsq_targets.mpub_bodies,
    ),
    "lookupd": (
        lookupd_targets.lookupd_commands, lookupd_targets.lookupd_requests,
        lookupd_targets.lookupd_replies, lookupd_targets.lookupd_answers,
    ),
    "brokers": (nsq_targets.nsq_reads, pull_targets.known_pulls, store_targets.damaged_log),
}  # fmt: skip
"""Targets by group: each is fuzzed in a process of its own, since those that set up a broker or a store for an input
are a hundred times slower, and in one process libFuzzer would give them nearly all of the time."""


def run(group: str, data: bytes) -> None:
    """Run one input."""
    if data:
        targets = GROUPS[group]
        targets[data[0] % len(targets)](data[1:])


def seeds(group: str) -> dict[str, bytes]:
    """Return the first inputs of a group's targets by name; the first byte of each is its target's number."""
    known = _seeds_by_target()
    return {
        f"{target.__name__}-{index}": bytes([number]) + data
        for number, target in enumerate(GROUPS[group])
        for index, data in enumerate(known[target.__name__])
    }


@cache
def _seeds_by_target() -> dict[str, list[bytes]]:
    """Return the published vectors (remoting.md 10), and what they leave out."""
    v = vectors
    streams = [v.HEART_BEAT, v.SEND, v.SEND_RESPONSE, v.GET_MAX_OFFSET, v.GET_MAX_OFFSET_RESPONSE]
    pull_ext = {
        "consumerGroup": "G1", "topic": "T1", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "1", "subscription": "TagA || TagB",
        "expressionType": "TAG",
    }  # fmt: skip
    streams += [codec.encode_request(kind, 11, 5, ext=pull_ext) for kind in (0, 1)]
    send = codec.decode_command(v.SEND)
    streams += [codec.encode_request(kind, 310, 6, ext=send.ext, body=send.body) for kind in (0, 1)]
    batch_ext = send.ext | {"m": "true"}
    streams += [codec.encode_request(kind, 320, 7, ext=batch_ext, body=v.BATCH_BODY) for kind in (0, 1)]
    streams.append(b"".join(streams))
    heart_beat = codec.decode_command(v.HEART_BEAT).body
    version = b'{"counter":1,"timestamp":1700000000000}'
    topic = b'{"readQueueNums":4,"writeQueueNums":4,"perm":6,"topicName":"T1","topicSysFlag":0,"order":false}'
    wrapper = b'{"topicConfigTable":{"T1":' + topic + b'},"dataVersion":' + version + b"}"
    plain = (
        b"".join(len(piece).to_bytes(4, "big") + piece for piece in (version,))
        + (1).to_bytes(4, "big")
        + b"".join(len(piece).to_bytes(4, "big") + piece for piece in (b"T1 4 4 6 SINGLE_TAG", b"[]"))
    )
    samples = [
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20911"},"brokerName":"broker-a","cluster":"C1"}}}',
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:3}}',
        b'{"offsetTable":{"TopicA@G2":{0:4,1:1,2:1,3:3},"%RETRY%G2@G2":{0:0}}}',
        b'{"a":{"b":[1,2.5e3,"\\u00e9\\x41"]},"c":{"$ref":"$.a.b[0]"},"d":{"$ref":"@"}}',
        heart_beat,
        wrapper,
    ]
    found: dict[Callable[[bytes], None], list[bytes]] = {
        frames: [b"\0" + stream for stream in streams],
        signed_frames: [b"\7" + stream for stream in streams],
        splits: [b"\x11" + stream for stream in streams],
        one_frame: streams[:-1],
        send_bodies: [v.BATCH_BODY],
        rows: [
            b"\1\0" + encode_rows([(b"body", {})]),
            b"\3\1" + encode_rows([(b"a", {"k": "v"}), (b"", {}), (b"b" * 40, {"DELAY": "3"})]),
        ],
        arrow: [v.RECORD_V4, v.RECORD_V6, b"\0" * 7 + v.RECORD_V4 + v.RECORD_V6],
        json: samples,
        registration: [
            b"\1" + b'{"topicConfigSerializeWrapper":' + wrapper + b',"filterServerList":[]}',
            b"\1" + wrapper,
            b"\xf0" + wrapper,
            b"\x01" + zlib.compress(plain),
            b"\x81" + zlib.compress(plain),
        ],
        plain_registration: [plain],
        queues: [b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":4}]}', version],
        heartbeat: [heart_beat],
        expression: [
            b"TagA || TagB",
            b"a > 5 AND (b = 'x' OR c IS NOT NULL) AND d BETWEEN 1 AND 2.5",
            b"x IN ('a','b')",
            b"x > 5.5 OR x CONTAINS 'b' AND y <> -3\0x\x01 +7.5e1f \x02y\x01-3\x02z\x01\xff\x02",
        ],
    }
    by_name = {target.__name__: inputs for target, inputs in found.items()}
    return by_name | nsq_targets.seeds() | lookupd_targets.seeds() | pull_targets.seeds() | store_targets.seeds()


def write_corpus(group: str, folder: Path) -> None:
    """Write a group's seeds as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds(group).items():
        (folder / name).write_bytes(data)
