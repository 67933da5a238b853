"""The saved copy of many producers."""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from headrace.broker.producers import Sequences


def filled(count: int) -> Sequences:
    sequences = Sequences(count)
    for partition in range(count):
        row = {"txn": "query", "partition": partition, "topic": "orders", "queue": 0, "epoch": 3, "seq": 7, "count": 2}
        sequences.apply(row, b"", partition)
    return sequences


def test_a_saved_copy_gives_the_garbage_collector_nothing_to_do() -> None:
    """A list for each of 100,000 producers had it look through the whole process, 70 ms in which no thread runs."""
    make = filled(20_000).snapshot()
    generations: list[int] = []

    def note(phase: str, found: dict[str, Any]) -> None:
        if phase == "start":
            generations.append(found["generation"])

    gc.callbacks.append(note)
    try:
        make()
    finally:
        gc.callbacks.remove(note)
    assert len(generations) <= 1


def test_a_saved_copy_brings_every_producer_back() -> None:
    for count in (0, 1, 256, 257, 1_000):
        sequences = filled(count or 1) if count else Sequences(1)
        saved = msgspec.json.decode(msgspec.json.encode({"sequences": sequences.snapshot()()}))["sequences"]
        again = Sequences(1_000)
        again.restore(saved, lambda number: None)
        assert again._table == sequences._table
