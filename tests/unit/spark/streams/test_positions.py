"""Where a stream has come to: numbers by queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.spark.streams.positions import Position, PositionError, QueueKey

A_LOG = QueueKey.of_log("broker-a")


def test_queues_come_in_the_order_of_topic_broker_and_number() -> None:
    """Spark compares the text."""
    keys = [QueueKey("a", "x", 2), QueueKey("a", "x", 10), QueueKey("a", "y", 0), QueueKey("b", "x", 0)]
    position = Position(offsets={key: number for number, key in enumerate(reversed(keys))})
    text = '{"q": {"a": {"x": {"2": 3, "10": 2}, "y": {"0": 1}}, "b": {"x": {"0": 0}}}, "v": 1}'
    assert json.dumps(position.to_json()) == text
    assert Position.from_json(json.loads(text)) == position


def test_text_is_what_sentences_call_a_queue() -> None:
    assert f"{QueueKey('orders', 'broker-a', 3)}" == "topic 'orders' queue 3 of broker 'broker-a'"
    assert f"{QueueKey.of_log('broker-a')}" == "the log of broker 'broker-a'"


@pytest.mark.parametrize(
    "damage",
    [
        {"q": []}, {"q": {"orders": 5}}, {"q": {"orders": {"broker-a": {"x": 1}}}}, {"log": [1]}, {"topics": "x"},
        {"topics": {"orders": 5}}, {"topics": {"orders": {"broker-a": "x"}}}, {"stores": {"broker-a": 5}},
        {"bytes": {"orders": "x"}}, {"bytes": 3}, {"segments": [1]}, {"segments": {"broker-a": None}}, {"first": 7},
        {"lost": "x"}, {"since": []}, {"stores": {"broker-a": {"a": 1}}}, {"since": 1e400}, {"names": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_checkpoint_is_said_to_be_one(damage: dict[str, Any]) -> None:
    """Whatever is wrong in it: found where it is read, and not in the middle of the query."""
    with pytest.raises(PositionError, match=r"not one of format headrace: \{"):
        Position.from_json({"v": 1, "q": {}} | damage)


def test_what_a_checkpoint_holds_is_read_again() -> None:
    found = {
        "bytes": {"orders": 200}, "first": {"orders": {"broker-a": {"0": 3}}}, "lost": 2, "v": 1,
        "q": {"orders": {"broker-a": {"0": 7}}}, "segments": {"broker-a": 1 << 20}, "since": 5,
        "stores": {"broker-a": ["s1", 2]}, "topics": {"orders": {"broker-a": 9}},
    }  # fmt: skip
    assert Position.from_json(found).to_json() == found
    log = {
        "first": {"": {"broker-a": {"0": 3}}}, "log": {"broker-a": 7}, "names": ["orders"],
        "segments": {"broker-a": 1 << 20}, "v": 1,
    }  # fmt: skip
    read = Position.from_json(log)
    assert (read.to_json(), read.first, read.offsets) == (log, {A_LOG: 3}, {A_LOG: 7})
