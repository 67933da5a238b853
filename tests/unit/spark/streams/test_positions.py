"""Where a stream has come to: numbers by queue."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.spark.streams.positions import (
    Position,
    PositionError,
    QueueKey,
    Queues,
    each_queue,
    get_queue,
    put_queue,
)


def test_queues_come_in_the_order_of_topic_broker_and_number() -> None:
    queues: Queues = {}
    keys = [QueueKey("a", "x", 2), QueueKey("a", "x", 10), QueueKey("a", "y", 0), QueueKey("b", "x", 0)]
    for number, key in enumerate(reversed(keys)):
        put_queue(queues, key, number)
    assert list(each_queue(queues)) == list(zip(keys, (3, 2, 1, 0), strict=True))
    assert queues["a"]["y"] == {0: 1}


def test_a_queue_that_is_not_there_has_no_number() -> None:
    """0 is a number: what has none begins anew."""
    position = Position()
    key = QueueKey("orders", "broker-a", 3)
    assert position.get(key) is None
    position.put(key, 0)
    assert position.get(key) == 0
    assert get_queue(position.queues, key._replace(broker="orders", topic="broker-a")) is None


def test_text_is_what_sentences_call_a_queue() -> None:
    assert f"{QueueKey('orders', 'broker-a', 3)}" == "topic 'orders' queue 3 of broker 'broker-a'"


@pytest.mark.parametrize(
    "damage",
    [
        {"q": []}, {"q": {"orders": 5}}, {"q": {"orders": {"broker-a": {"x": 1}}}}, {"log": [1]}, {"topics": "x"},
        {"topics": {"orders": 5}}, {"topics": {"orders": {"broker-a": "x"}}}, {"stores": {"broker-a": 5}},
        {"bytes": {"orders": "x"}}, {"bytes": 3}, {"segments": [1]}, {"segments": {"broker-a": None}}, {"first": 7},
        {"lost": "x"}, {"since": []},
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
