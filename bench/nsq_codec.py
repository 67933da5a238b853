"""Time the NSQ codec: ns per PUB, MPUB message, FIN and encoded message.

    python bench/nsq_codec.py

Goals (2-core AMD EPYC, 200-byte bodies): PUB <= 60, MPUB message <= 20, FIN <= 40, encoded message <= 60 ns.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable

from headrace.batch import RecordBatch
from headrace.nsq.codec import HEADROOM_BYTES, Intake, Limits, Reader, encode_messages

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
    """Time batches of ``count`` records with 200-byte bodies."""
    from headrace.nsq.testing_batches import fill_records  # type: ignore[import-not-found]

    batch = RecordBatch()
    fill_records(batch, BODY, count)

    def run() -> int:
        encode_messages(batch, 7)
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
    }
    for name, nanoseconds in figures.items():
        print(f"{name:24} {nanoseconds:8.1f} ns")


if __name__ == "__main__":
    main()
