"""Time the NSQ codec: ns per PUB, MPUB message, FIN and encoded message.

    python bench/nsq_codec.py

Goals (2-core AMD EPYC, 200-byte bodies): PUB <= 60, MPUB message <= 20, FIN <= 40, encoded message <= 60 ns.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.nsq.codec import Limits, Reader, encode_messages
from headrace.nsq.intake import Intake
from headrace.store.memory_log import MemoryLog, MemoryQueue

READ_BYTES = 256 * 1024
ROUNDS = 200
BODY = bytes(range(200))
LIMITS = Limits(max_message_bytes=1 << 20, max_body_bytes=5 << 20, max_rdy_count=2500, max_req_timeout_ms=3_600_000)


def time_per_item(run: Callable[[], int]) -> float:
    """Return the median ns per item over the rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        items = run()
        times.append((time.perf_counter_ns() - start) / items)
    return statistics.median(times)


def parse_reads(command: bytes, items_per_command: int) -> float:
    """Time reads of READ_BYTES that hold ``command`` again and again."""
    count = READ_BYTES // len(command)
    stream = command * count
    memory = bytearray(HEADROOM_BYTES + READ_BYTES)
    memory[HEADROOM_BYTES : HEADROOM_BYTES + len(stream)] = stream
    reader = Reader(LIMITS, allowed=0xFFF)
    intake = Intake()
    first = bytearray(HEADROOM_BYTES + 4)
    first[HEADROOM_BYTES:] = b"  V2"
    reader.received(first, 4)
    reader.next_command(intake, 0)

    def run() -> int:
        reader.received(memory, len(stream))
        if reader.next_command(intake, 0) is not None or reader.held_bytes:
            raise RuntimeError("the read was not taken whole")
        intake.clear()
        return count * items_per_command

    return time_per_item(run)


def encode_batch(count: int = 1000) -> float:
    """Time batches of ``count`` records with 200-byte bodies, as a channel delivers them."""
    log = MemoryLog(count, 1 << 30)
    queue = MemoryQueue("events", 0, log)
    channel = Channel("bench", "events", node_id=7)
    channel.add_queue(queue, 0)
    publishes = PublishBatch()
    for _ in range(count):
        publishes.append(BODY)
    publishes.queues = [queue]
    log.append(publishes, 1_700_000_000_000)
    subscription = channel.subscribe(None, 60_000)
    subscription.ready_count = count
    records = RecordBatch()
    if channel.deliver(subscription, 1_700_000_000_000, 0, count, 1 << 30, records) != count:
        raise RuntimeError("the batch was not delivered whole")

    def run() -> int:
        encode_messages(records, 7)
        return count

    return time_per_item(run)


def main() -> None:
    """Print one line per figure."""
    sized = struct.pack(">I", len(BODY)) + BODY
    messages = 100
    mpub = b"MPUB events\n" + struct.pack(">II", 4 + messages * len(sized), messages) + messages * sized
    figures = {
        "PUB, 200 B": parse_reads(b"PUB events\n" + sized, 1),
        "DPUB, 200 B": parse_reads(b"DPUB events 1500\n" + sized, 1),
        "MPUB message, 200 B": parse_reads(mpub, messages),
        "FIN": parse_reads(b"FIN 18a290c81c269000\n", 1),
        "REQ": parse_reads(b"REQ 18a290c81c269000 5000\n", 1),
        "encoded message, 200 B": encode_batch(),
    }
    for name, nanoseconds in figures.items():
        print(f"{name:24} {nanoseconds:8.1f} ns")


if __name__ == "__main__":
    main()
