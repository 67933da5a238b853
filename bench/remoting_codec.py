"""Time the RocketMQ codec: ns per send, batch message, pull, response and encoded record.

    python bench/remoting_codec.py

Goals (2-core AMD EPYC, 100-byte bodies): SEND_MESSAGE_V2 decode <= 350, its response <= 120, batch message <= 120 ns.
"""

from __future__ import annotations

import json
import statistics
import struct
import time
from collections.abc import Callable

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.remoting.codec import (
    Command,
    Limits,
    PullRequest,
    Reader,
    SendIntake,
    decode_command,
    encode_pull_response,
    encode_request,
    encode_response,
    pull_request,
)
from headrace.store.memory_log import MemoryLog, MemoryQueue

READ_BYTES = 256 * 1024
ROUNDS = 300
BODY = bytes(range(100))
STORE_HOST = bytes.fromhex("0a00000100002a9f")
LIMITS = Limits({"BenchmarkTest": None}, cluster=b"DefaultCluster")
PROPERTIES = "UNIQ_KEY\x010A0000051B5918B4AAC2512A0B3C0000\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01order-17\x02"
# As a Java 4.9 producer sends it; four queues in turn.
SHORT = {
    "a": "please_rename_unique_group_name",
    "b": "BenchmarkTest",
    "c": "TBW102",
    "d": "4",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": PROPERTIES,
    "j": "0",
    "k": "false",
    "l": "0",
    "m": "false",
    "n": "broker-a",
}
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
PULL = {
    "consumerGroup": "please_rename_unique_group_name_4",
    "topic": "BenchmarkTest",
    "queueId": "2",
    "queueOffset": "1234567",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "commitOffset": "1234500",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "1700000000000",
    "expressionType": "TAG",
}


class Queue:
    """Where sends went."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id


def time_per_item(run: Callable[[], int]) -> float:
    """Return the median ns per item over the rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        items = run()
        times.append((time.perf_counter_ns() - start) / items)
    return statistics.median(times)


def java_frame(code: int, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    """Encode a request as fastjson does: keys in alphabetical order, no spaces."""
    header = {
        "code": code,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def go_frame(code: int, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    """Encode a request as the Go client does."""
    header = {"code": code, "language": "GO", "version": 317, "opaque": opaque, "flag": 0, "remark": ""}
    text = json.dumps(header | {"extFields": ext}, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def fill_read(frame: Callable[[int], bytes]) -> tuple[bytes, int]:
    """Return as many numbered frames as one read holds."""
    parts: list[bytes] = []
    size = 0
    while size + len(frame(len(parts))) <= READ_BYTES:
        parts.append(frame(len(parts)))
        size += len(parts[-1])
    return b"".join(parts), len(parts)


def time_sends(frame: Callable[[int], bytes], messages: int = 1) -> tuple[float, float]:
    """Time the decoding of reads full of sends, and the encoding of their responses, per message."""
    stream, count = fill_read(frame)
    memory = bytearray(HEADROOM_BYTES + READ_BYTES)
    memory[HEADROOM_BYTES : HEADROOM_BYTES + len(stream)] = stream
    reader = Reader(LIMITS)
    intake = SendIntake()

    def decode() -> int:
        intake.clear()
        reader.received(memory, len(stream))
        if reader.next_command(intake) is not None or reader.held_bytes or intake.sends != count:
            raise RuntimeError("the read was not taken whole")
        return count * messages

    def encode() -> int:
        intake.encode_replies(STORE_HOST)
        return count * messages

    decoded = time_per_item(decode)
    intake.batch.queues = [Queue(queue_id) for _, queue_id in intake.batch.destinations]
    return decoded, time_per_item(encode)


def time_commands(frame: bytes, expected: type) -> float:
    """Time reads of commands that are handed out one by one."""
    count = READ_BYTES // len(frame)
    stream = frame * count
    memory = bytearray(HEADROOM_BYTES + READ_BYTES)
    memory[HEADROOM_BYTES : HEADROOM_BYTES + len(stream)] = stream
    reader = Reader(LIMITS)
    intake = SendIntake()

    def run() -> int:
        reader.received(memory, len(stream))
        taken = 0
        while (command := reader.next_command(intake)) is not None:
            if type(command) is not expected:
                raise RuntimeError(f"{command} is no {expected}")
            taken += 1
        return taken

    return time_per_item(run)


def time_pull_response(count: int = 32) -> float:
    """Time the answer to a pull of ``count`` records, per record."""
    log = MemoryLog(count, 1 << 30)
    queue = MemoryQueue("BenchmarkTest", 0, log)
    channel = Channel("bench", "BenchmarkTest", node_id=7)
    channel.add_queue(queue, 0)
    batch = PublishBatch()
    for _ in range(count):
        batch.append(BODY)
    batch.queues = [queue]
    log.append(batch, 1_700_000_000_000)
    subscription = channel.subscribe(None, 60_000)
    subscription.ready_count = count
    records = RecordBatch()
    channel.deliver(subscription, 1_700_000_000_000, 0, count, 1 << 30, records)
    pull = pull_request(decode_command(java_frame(11, 1, PULL, b"")))

    def run() -> int:
        for _ in range(100):
            encode_pull_response(pull, 0, "FOUND", 32, 0, 5_000_000, records)
        return 100 * count

    return time_per_item(run)


def sub_record(body: bytes, properties: bytes) -> bytes:
    """Encode one message of a batch."""
    total = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", total, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def main() -> None:
    """Print one line per figure."""
    short = [SHORT | {"e": str(queue)} for queue in range(4)]
    ordered = [dict(sorted(fields.items())) for fields in short]
    long_names = [{LONG_NAMES[name]: value for name, value in fields.items()} for fields in ordered]
    batch_body = sub_record(BODY, PROPERTIES.encode()) * 32
    batch = SHORT | {"e": "1", "i": "WAIT\x01true\x02", "m": "true"}

    sends = {
        "SEND_MESSAGE_V2, Java, 100 B": time_sends(lambda n: java_frame(310, n, ordered[n % 4], BODY)),
        "SEND_MESSAGE, Go, 100 B": time_sends(lambda n: go_frame(10, n, long_names[n % 4], BODY)),
        "SEND_MESSAGE_V2, ROCKETMQ": time_sends(lambda n: encode_request(1, 310, n, False, ordered[n % 4], BODY)),
        "message of a batch of 32": time_sends(lambda n: java_frame(320, n, batch, batch_body), 32),
    }
    for name, (decoded, encoded) in sends.items():
        print(f"{name:32} decode {decoded:7.1f} ns   response {encoded:7.1f} ns")
    figures = {
        "PULL_MESSAGE, Java": time_commands(java_frame(11, 7, PULL, b""), PullRequest),
        "UPDATE_CONSUMER_OFFSET, Java": time_commands(
            java_frame(15, 7, {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "5"}, b""), Command
        ),
        "record of a pull response of 32": time_pull_response(),
    }

    def respond() -> int:
        for number in range(1000):
            encode_response(0, number, 0, None, {"offset": "1234567"}, None)
        return 1000

    figures["response with one field"] = time_per_item(respond)
    for name, nanoseconds in figures.items():
        print(f"{name:32} {nanoseconds:14.1f} ns")


if __name__ == "__main__":
    main()
