"""Time what the key index adds to an append: ``python -m bench.index --data-dir DIR [--batches N]``.

The same batches, two keys in each message and no key twice, are appended to a store with its index and to one without;
the difference is the index's. Keys have to be different: the cost is in the slots, which lie anywhere in 20 MB.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from headrace.batch import PublishBatch
from headrace.clock import Clock
from headrace.settings import StoreSettings
from headrace.store.store import Store

BATCH_RECORDS = 200
BODY_BYTES = 200
KEYS_PER_RECORD = 2
TICK_INTERVAL_BATCHES = 64


def make_batches(count: int, *, keys: bool) -> list[PublishBatch]:
    """Return batches of messages as a RocketMQ client sends them, with or without their keys."""
    batches = []
    for number in range(count):
        batch = PublishBatch()
        for record in range(number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS):
            properties = b"TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02"
            if keys:
                properties += b"UNIQ_KEY\x010A0000051B590000000000%010X\x02KEYS\x01order-%010d\x02" % (record, record)
            batch.append(b"x" * BODY_BYTES, properties=properties)
        batches.append(batch)
    return batches


def measure(directory: Path, batches: list[PublishBatch], *, index: bool) -> float:
    """Append all batches to a new store at level ``async``; return the nanoseconds per record."""
    store = Store.open(StoreSettings(data_dir=directory, durability="async"), Clock())
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store.notify = reports.put
    store.index.wait_live()
    if not index:
        store.log.index = None
    queue = store.queue("bench", 0)
    for batch in batches:
        batch.queues = [queue]
    spent = 0
    try:
        for number, batch in enumerate(batches):
            start = time.perf_counter_ns()
            store.append(batch)
            spent += time.perf_counter_ns() - start
            if number % TICK_INTERVAL_BATCHES == 0:
                store.tick()
                while not reports.empty():
                    reports.get()()
    finally:
        store.close()
    return spent / (len(batches) * BATCH_RECORDS)


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.index", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="an empty directory for the stores")
    parser.add_argument("--batches", type=int, default=2_000, help="batches of 200 messages (default 2000)")
    arguments = parser.parse_args()
    figures = {}
    for kind in ("keys", "plain"):
        batches = make_batches(arguments.batches, keys=kind == "keys")
        for index in (False, True):
            name = f"{kind}_{'indexed' if index else 'alone'}_ns_per_record"
            figures[name] = round(measure(arguments.data_dir / name, batches, index=index), 1)
    difference = figures["keys_indexed_ns_per_record"] - figures["keys_alone_ns_per_record"]
    figures["ns_per_key"] = round(difference / KEYS_PER_RECORD, 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
