"""Time the store's append inside its own process: ``python -m bench.append --data-dir DIR [--seconds S]``.

What a network front end adds is everything that the other cases measure above this figure.
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
# As often as a broker looks after its store: flushes at level async, the next segment.
TICK_INTERVAL_BATCHES = 64


def measure_append(directory: Path, seconds: float) -> float:
    """Append one batch over and over to a new store at level ``async``; return the nanoseconds per record."""
    store = Store.open(StoreSettings(data_dir=directory / "store", durability="async"), Clock())
    # What the store's threads report is run here between batches, as a broker's event loop would.
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store.notify = reports.put
    batch = PublishBatch()
    for _ in range(BATCH_RECORDS):
        batch.append(b"x" * BODY_BYTES)
    batch.queues = [store.queue("bench", 0)]
    try:
        return _time_batches(store, batch, reports, seconds)
    finally:
        store.close()


def _time_batches(store: Store, batch: PublishBatch, reports: SimpleQueue[Callable[[], None]], seconds: float) -> float:
    batches = 0
    start = time.perf_counter_ns()
    deadline = start + int(seconds * 1e9)
    while (now := time.perf_counter_ns()) < deadline:
        store.append(batch)
        batches += 1
        if batches % TICK_INTERVAL_BATCHES == 0:
            store.tick()
            while not reports.empty():
                reports.get()()
    return (now - start) / (batches * BATCH_RECORDS)


def main() -> None:
    """Print the figure as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.append", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="an empty directory for the store")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to append (default 3)")
    arguments = parser.parse_args()
    print(json.dumps({"ns_per_record": measure_append(arguments.data_dir, arguments.seconds)}))


if __name__ == "__main__":
    main()
