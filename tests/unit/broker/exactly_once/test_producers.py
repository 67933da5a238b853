"""The saved copy of many producers."""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from headrace.broker.exactly_once.key_set import FINGERPRINT_BYTES
from headrace.broker.exactly_once.producers import KeyWindows, ProducerKey, Sequences
from headrace.format.side_shapes import Sequence


def of_one_creation(count: int) -> Sequences:
    """Return sequences of topics that were never deleted."""
    return Sequences(count, lambda topic, queue_id, offset: False)


def filled(count: int) -> Sequences:
    sequences = of_one_creation(count)
    for partition in range(count):
        row = {
            "txn": "query",
            "partition": partition,
            "topic": "orders",
            "queue": 0,
            "epoch": 3,
            "seq": 7,
            "count": 2,
            "offset": 0,
        }
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


def test_an_epoch_ends_those_before_it_for_every_producer_of_the_txn() -> None:
    """A txn counted from 0 again adds nothing, whatever partition and queue its rows are of; another txn does."""
    sequences = of_one_creation(10)
    row = {
        "txn": "query",
        "partition": 1,
        "topic": "orders",
        "queue": 0,
        "epoch": 100,
        "seq": 0,
        "count": 2,
        "offset": 0,
    }
    sequences.apply(row, b"", 0)
    again = of_one_creation(10)
    again.restore(
        msgspec.json.decode(msgspec.json.encode(sequences.snapshot()()), type=list[Sequence]), lambda number: None
    )
    for found in (sequences, again):
        for partition, topic, queue in ((1, "orders", 0), (1, "orders", 1), (2, "orders", 0), (1, "bills", 3)):
            assert found.judge(ProducerKey("query", partition, topic, queue), 99, 0, 20).duplicates == 20
        assert found.judge(ProducerKey("query", 2, "orders", 1), 100, 0, 20) == (0, 0, 0)
        assert found.judge(ProducerKey("other", 1, "orders", 0), 0, 0, 20) == (0, 0, 0)


def test_a_txn_is_forgotten_with_its_last_producer() -> None:
    sequences = filled(2)
    for partition in range(2):
        row = {
            "txn": "new",
            "partition": partition,
            "topic": "orders",
            "queue": 0,
            "epoch": 0,
            "seq": 0,
            "count": 1,
            "offset": 0,
        }
        assert sequences.judge(ProducerKey("query", 5, "orders", 0), 1, 0, 1).duplicates == 1
        sequences.apply(row, b"", partition)
    assert sequences.judge(ProducerKey("query", 5, "orders", 0), 1, 0, 1) == (0, 0, 0)
    assert len(sequences) == 2


def test_a_saved_copy_brings_every_producer_back() -> None:
    for count in (0, 1, 256, 257, 1_000):
        sequences = filled(count or 1) if count else of_one_creation(1)
        saved = msgspec.json.decode(msgspec.json.encode(sequences.snapshot()()), type=list[Sequence])
        again = of_one_creation(1_000)
        again.restore(saved, lambda number: None)
        assert again._table == sequences._table
        assert again._txns == sequences._txns


def test_a_window_whose_keys_are_gone_is_still_the_one_of_its_txn() -> None:
    """A start that finds nothing of a txn's saved records knows its epoch; its bytes were counted twice."""
    windows = KeyWindows(1_000, lambda topic, queue_id, offset: False)
    windows.restore([["query", 7, [[7, [0]]]]], lambda number: None)
    assert windows.choose("query", 5) is None
    key = ProducerKey("query", 0, "orders", 0)
    windows.apply(windows.change(key, 7, 0, 1, 0), bytes(FINGERPRINT_BYTES), 1)
    once = KeyWindows(1_000, lambda topic, queue_id, offset: False)
    once.apply(once.change(key, 7, 0, 1, 0), bytes(FINGERPRINT_BYTES), 1)
    assert windows.memory_bytes == once.memory_bytes
