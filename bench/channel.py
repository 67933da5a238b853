"""Cost of the delivery core: nanoseconds per message delivered and finished, bytes per waiting message.

Run: ``.venv/bin/python bench/channel.py``. One process, no sockets; the log is in memory.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from pathlib import Path

from headrace.batch import PublishBatch, RecordBatch, SettleBatch
from headrace.broker.channels.channel import Channel, Subscription
from headrace.broker.channels.deferred import DeferredSet
from headrace.broker.channels.finished import FinishedSet
from headrace.store.memory_log import MemoryLog, MemoryQueue

NODE_ID = 7


def rss_anon_bytes() -> int:
    """Anonymous resident memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def fill(log: MemoryLog, queue: MemoryQueue, messages: int, body_bytes: int) -> None:
    """Append ``messages`` messages."""
    body = b"x" * body_bytes
    batch = PublishBatch()
    for start in range(0, messages, 10_000):
        batch.clear()
        batch.destinations, batch.queues = ["bench"], [queue]
        for _ in range(min(10_000, messages - start)):
            batch.append(body)
        log.append(batch, 1_000)


def make_channel(queue: MemoryQueue) -> tuple[Channel, Subscription]:
    channel = Channel("bench", "bench", node_id=NODE_ID)
    channel.add_queue(queue, 0)
    subscription = channel.subscribe(None, 60_000, 0)
    subscription.ready_count = 2_500
    return channel, subscription


def measure_deliver_finish(messages: int, batch_size: int, body_bytes: int) -> tuple[float, float]:
    """Return ns per message for deliver() and for settle() with FINs."""
    log = MemoryLog(messages + 1, 1 << 40)
    queue = MemoryQueue("bench", 0, log)
    fill(log, queue, messages, body_bytes)
    channel, subscription = make_channel(queue)
    records = RecordBatch()
    delivering = finishing = 0
    delivered = 0
    while delivered < messages:
        begin = time.perf_counter_ns()
        count = channel.deliver(subscription, 1_000, 1_000, batch_size, 1 << 30, records)
        delivering += time.perf_counter_ns() - begin
        batch = SettleBatch()
        for i in range(count):
            batch.append(0, NODE_ID << 48 | records.position(i)[2])
        begin = time.perf_counter_ns()
        failed = channel.settle(subscription, batch, 1_000, 1_000)
        finishing += time.perf_counter_ns() - begin
        assert failed == 0
        records.clear()
        delivered += count
        if delivered % (100 * batch_size) == 0:
            channel.take_changes()
    assert channel.position(0)[0] == messages
    return delivering / messages, finishing / messages


def measure_deferred(entries: int) -> dict[str, float]:
    """Ten million deferred over an hour: memory, cost per entry, the longest call."""
    deferred = DeferredSet()
    draw = random.Random(1)
    before = rss_anon_bytes()
    spent = 0
    for start in range(0, entries, 100_000):
        dues = [1_000_000 + draw.randrange(3_600_000) for _ in range(100_000)]
        begin = time.perf_counter_ns()
        for i, due in enumerate(dues):
            deferred.defer(1_000_000, due, (start + i) * 200, 1, start + i, 0)
        spent += time.perf_counter_ns() - begin
        del dues
    held = rss_anon_bytes() - before
    now, longest, taken = 1_000_000, 0, 0
    while deferred.count:
        now += 100
        while True:
            begin = time.thread_time_ns()  # of this thread: others on the machine do not count
            got = len(deferred.take_due(now, 2_000))
            longest = max(longest, time.thread_time_ns() - begin)
            taken += got
            if got < 2_000:
                break
    assert taken == entries
    return {"bytes_per_entry": held / entries, "add_ns": spent / entries, "longest_call_ms": longest / 1e6}


def measure_requeue(messages: int, batch_size: int) -> float:
    """Return ns per message that is requeued without a delay and delivered again, in batches."""
    log = MemoryLog(messages + 1, 1 << 40)
    queue = MemoryQueue("bench", 0, log)
    fill(log, queue, batch_size, 100)
    channel, subscription = make_channel(queue)
    records, spent, done = RecordBatch(), 0, 0
    channel.deliver(subscription, 1_000, 1_000, batch_size, 1 << 30, records)
    ids = [NODE_ID << 48 | records.position(i)[2] for i in range(batch_size)]
    while done < messages:
        batch = SettleBatch()
        for message_id in ids:
            batch.append(1, message_id)
        records.clear()
        begin = time.perf_counter_ns()
        channel.settle(subscription, batch, 1_000, 1_000)
        channel.deliver(subscription, 1_000, 1_000, batch_size, 1 << 30, records)
        spent += time.perf_counter_ns() - begin
        done += batch_size
        if done % (50 * batch_size) == 0:
            channel.take_changes()
    return spent / done


def measure_snapshot(entries: int) -> tuple[float, float]:
    """Return the longest part and the sum (ms) of a snapshot in parts of ``entries`` deferred messages."""
    log = MemoryLog(entries + 1, 1 << 40)
    queue = MemoryQueue("bench", 0, log)
    fill(log, queue, entries, 10)
    channel, subscription = make_channel(queue)
    records, delays = RecordBatch(), random.Random(1)
    while count := channel.deliver(subscription, 1_000, 1_000, 2_000, 1 << 30, records):
        batch = SettleBatch()
        for i in range(count):
            batch.append(1, NODE_ID << 48 | records.position(i)[2], delays.randrange(10_000, 3_600_000))
        channel.settle(subscription, batch, 1_000, 1_000)
        records.clear()
    assert channel.deferred_count == entries
    longest = total = 0
    begin = time.thread_time_ns()
    for _ in channel.snapshot_parts():
        spent = time.thread_time_ns() - begin
        longest, total = max(longest, spent), total + spent
        begin = time.thread_time_ns()
    return longest / 1e6, total / 1e6


def measure_stuck(messages: int) -> int:
    """Memory of ``messages`` finished behind one that is not."""
    finished = FinishedSet()
    for offset in range(1, messages):
        finished.finish(offset)
    assert finished.floor == 0
    assert finished.ahead == messages - 1
    return finished.memory_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--deferred", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()} python={platform.python_version()} batch={options.batch}")
    rounds = [measure_deliver_finish(options.messages, options.batch, 100) for _ in range(options.rounds)]
    deliver, settle = (sorted(column)[len(rounds) // 2] for column in zip(*rounds, strict=True))
    print(f"deliver {deliver:.0f} ns, finish {settle:.0f} ns, together {deliver + settle:.0f} ns per message (median)")
    print(f"requeue and deliver again {measure_requeue(options.messages, options.batch):.0f} ns per message")
    longest, total = measure_snapshot(1_000_000)
    print(f"snapshot of 1,000,000 deferred: longest part {longest:.1f} ms, all parts {total:.0f} ms")
    stuck = measure_stuck(10_000_000)
    print(f"10,000,000 finished behind one stuck message: {stuck:,} bytes")
    deferred = measure_deferred(options.deferred)
    print(
        f"{options.deferred:,} deferred over an hour: {deferred['bytes_per_entry']:.1f} bytes each, "
        f"{deferred['add_ns']:.0f} ns to add (with the Python call), longest call {deferred['longest_call_ms']:.2f} ms"
    )


if __name__ == "__main__":
    main()
